// Words of sm_90 for four warps that work together (a group), compiled for sm_90a alone: their products on tensor cores, barriers that count, registers moved from one
// part of a block to another. GROUPED_CODE says whether they are there.
#pragma once
#include "device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GROUPED_CODE 1
#else
#define GROUPED_CODE 0
#endif

#if GROUPED_CODE

// ---- products

DEVICE void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left>
DEVICE void group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory"); }

// The operands of an instruction on 8 TILES rows, by number, and what they are.
#define GROUP_LIST_2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GROUP_LIST_4 GROUP_LIST_2 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GROUP_LIST_8 GROUP_LIST_4 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GROUP_LIST_9 GROUP_LIST_8 ", %32, %33, %34, %35"
#define GROUP_LIST_12 GROUP_LIST_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define GROUP_LIST_16 GROUP_LIST_12 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GROUP_LIST_17 GROUP_LIST_16 ", %64, %65, %66, %67"
#define GROUP_TILE(as, j) as(d[j][0]), as(d[j][1]), as(d[j][2]), as(d[j][3])
#define GROUP_DATA_2(as) GROUP_TILE(as, 0), GROUP_TILE(as, 1)
#define GROUP_DATA_4(as) GROUP_DATA_2(as), GROUP_TILE(as, 2), GROUP_TILE(as, 3)
#define GROUP_DATA_8(as) GROUP_DATA_4(as), GROUP_TILE(as, 4), GROUP_TILE(as, 5), GROUP_TILE(as, 6), GROUP_TILE(as, 7)
#define GROUP_DATA_9(as) GROUP_DATA_8(as), GROUP_TILE(as, 8)
#define GROUP_DATA_12(as) GROUP_DATA_8(as), GROUP_TILE(as, 8), GROUP_TILE(as, 9), GROUP_TILE(as, 10), GROUP_TILE(as, 11)
#define GROUP_DATA_16(as) GROUP_DATA_12(as), GROUP_TILE(as, 12), GROUP_TILE(as, 13), GROUP_TILE(as, 14), GROUP_TILE(as, 15)
#define GROUP_DATA_17(as) GROUP_DATA_16(as), GROUP_TILE(as, 16)
#define GROUP_PRODUCT(name, kind, as, T, tiles, n, a0, a1, a2, a3, at, by, more)                                                                                 \
    DEVICE void name(T (&d)[tiles][4], const u32 (&a)[4], u64 b, bool on) {                                                                                      \
        asm volatile("{.reg .pred on; setp.ne.b32 on, %" #by ", 0; wgmma.mma_async.sync.aligned.m64n" #n kind " {" GROUP_LIST_##tiles "}, {%" #a0 ", %" #a1 ", %" #a2 \
                     ", %" #a3 "}, %" #at ", on" more ";}"                                                                                                      \
                     : GROUP_DATA_##tiles(as)                                                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((u32)on));                                                                        \
    }
#define GROUP_PRODUCTS(...)                                                   \
    GROUP_PRODUCT(group_s8, "k32.s32.s8.s8", "+r", i32, __VA_ARGS__, "")      \
    GROUP_PRODUCT(group_u8, "k32.s32.u8.s8", "+r", i32, __VA_ARGS__, "")      \
    GROUP_PRODUCT(group_f16, "k16.f32.f16.f16", "+f", float, __VA_ARGS__, ", 1, 1, 0")
// D[64, 8 tiles] += A[64, 32] B[32, 8 tiles], i8 or u8 by i8 to i32, exact; f16: A[64, 16] B[16, 8 tiles] to f32. D is what the product is where `on` does not hold.
GROUP_PRODUCTS(2, 16, 8, 9, 10, 11, 12, 13)
GROUP_PRODUCTS(4, 32, 16, 17, 18, 19, 20, 21)
GROUP_PRODUCTS(8, 64, 32, 33, 34, 35, 36, 37)
GROUP_PRODUCTS(12, 96, 48, 49, 50, 51, 52, 53)
GROUP_PRODUCTS(16, 128, 64, 65, 66, 67, 68, 69)
#define GROUP_HALVES(...) GROUP_PRODUCT(group_f16, "k16.f32.f16.f16", "+f", float, __VA_ARGS__, ", 1, 1, 0")
GROUP_HALVES(9, 72, 36, 37, 38, 39, 40, 41)
GROUP_HALVES(17, 136, 68, 69, 70, 71, 72, 73)
/// D[64, 64] += A[64, 16] B[16, 64], f16 to f32, both from shared memory.
DEVICE void group_f16(float (&d)[8][4], u64 a, u64 b, bool on) {
    asm volatile("{.reg .pred on; setp.ne.b32 on, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" GROUP_LIST_8 "}, %32, %33, on, 1, 1, 0, 0;}"
                 : GROUP_DATA_8("+f")
                 : "l"(a), "l"(b), "r"((u32)on));
}

/// Registers that are written before they are read: the compiler must not think of what they were.
template <typename T, int TILES>
DEVICE void anything(T (&x)[TILES][4]) {
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (sizeof(T) == 4 && T(0.5f) != T(0)) asm volatile("" : "=f"(x[j][e]));
            else asm volatile("" : "=r"(x[j][e]));
        }
}

/// What a product has left in registers is not read before a `group_wait` that stands before this.
template <int TILES>
DEVICE void settled(float (&x)[TILES][4]) {
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(x[j][e])::"memory");
}

// ---- barriers in shared memory, and registers

DEVICE void barrier_init(u32 at, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
DEVICE void barrier_arrive(u32 at) { asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(at) : "memory"); }
/// Eight bytes, aligned on both sides, as `copy16_async`.
DEVICE void copy8_async(u32 shared, const void* global) { asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(global) : "memory"); }
/// Arrives once all copies that this thread has asked for are there.
DEVICE void barrier_arrive_copied(u32 at) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory"); }
/// Waits for the end of the phase of this parity.
DEVICE void barrier_wait(u32 at, u32 parity) {
    u32 over;
    do {
        asm volatile("{.reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2; selp.u32 %0, 1, 0, over;}"
                     : "=r"(over)
                     : "r"(at), "r"(parity)
                     : "memory");
    } while (!over);
}
template <u32 count>
DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }
template <u32 count>
DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }

#endif
