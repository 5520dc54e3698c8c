// The words that all kernels are written in.
//
// Compiled by NVRTC or nvcc with `-fmad=false` (a product and a sum are fused only where the source says `fmaf`), without fast-math and without any
// header; and by g++ for the host, where `tests/cuda-host/host.h`, included first, gives the same words with the same meaning.
// Architectures: sm_75 and up. What a card lacks is built here from what it has, with the same bits.
#pragma once

#ifndef HOST_EMULATION

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
/// A table in constant memory: for indices that a warp shares.
#define CONSTANT static __constant__ const
/// A table in global memory: for indices that differ within a warp.
#define TABLE static __device__ const

/// Begins a kernel of at most `threads` threads a block. Stands at the start of a line.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
/// The same, with at least `blocks` blocks on a multiprocessor.
#define KERNEL_MIN(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

/// `type name[count]`, shared by the block, 16-byte aligned.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
/// `unsigned char* name`: the shared memory that the launch asks for, 128-byte aligned (on the host as well if its size is a multiple of 128).
#define DYNAMIC_SHARED(name)                                      \
    extern __shared__ __align__(128) unsigned char dynamic_shared[]; \
    unsigned char* name = dynamic_shared

// ---- numbers

DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

DEVICE float half_to_float(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
/// Round to nearest, ties to even.
DEVICE u16 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
DEVICE float bf16_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }
/// Two halves in a word, `low` in the low half.
DEVICE u32 floats_to_halves(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 halves;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
    return halves;
#else
    return (u32)float_to_half(low) | (u32)float_to_half(high) << 16;
#endif
}
/// 2 to the power of `x`, by the card's own instruction: relative error 2^-22; 0 below 2^-126.
DEVICE float exp2_near(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// The inverse, by the card's own instruction: off by a unit in the last place.
DEVICE float inverse_near(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// The two lowest bytes, unsigned, as two halves.
DEVICE u32 bytes_to_halves(u32 pair) {
    // 0x6400 is 1024, from where halves count by ones
    u32 halves = __byte_perm(pair, 0x64646464u, 0x4140);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x64006400u));
    return halves;
}

/// `sum` + dot product of four i8 and four i8.
DEVICE i32 dp4a(i32 sum, u32 a, u32 b) { return __dp4a((i32)a, (i32)b, sum); }
/// `sum` + dot product of four u8 (`a`) and four i8 (`b`).
DEVICE i32 dp4a_us(i32 sum, u32 a, u32 b) {
    i32 d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
    return d;
}
/// Byte `i` of the result is byte `selector >> 4 i & 7` of `low`, `high`.
DEVICE u32 byte_perm(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
/// The same, of a selector that is not constant; a nibble with its highest bit set gives the sign of its byte, eight times.
DEVICE u32 permute(u32 low, u32 high, u32 selector) {
    u32 x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(low), "r"(high), "r"(selector));
    return x;
}
/// `sum` + dot product of two i16 (`a`) and the lower, or upper, two of four i8 (`b`).
DEVICE i32 dp2a_low(i32 sum, u32 a, u32 b) {
    i32 d;
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
    return d;
}
DEVICE i32 dp2a_high(i32 sum, u32 a, u32 b) {
    i32 d;
    asm("dp2a.hi.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
    return d;
}

// ---- memory

/// 16 bytes that no kernel in flight writes; `from` is 16-byte aligned.
DEVICE uint4 load16(const void* from) { return __ldg((const uint4*)from); }
DEVICE uint2 load8(const void* from) { return __ldg((const uint2*)from); }
DEVICE u32 load4(const void* from) { return __ldg((const u32*)from); }
/// `load16` for what is read once: it leaves the first-level cache to others.
DEVICE uint4 stream16(const void* from) {
    uint4 x;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
DEVICE uint2 stream8(const void* from) {
    uint2 x;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}
DEVICE u32 stream4(const void* from) {
    u32 x;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}
/// Four bytes of which `from` is 2-byte aligned.
DEVICE u32 load4_halves(const void* from) {
    const u16* at = (const u16*)from;
    return (u32)__ldg(at) | (u32)__ldg(at + 1) << 16;
}
/// A word that other blocks may be writing: read anew each time.
DEVICE u32 load_fresh(const u32* from) { return *(const volatile u32*)from; }

/// Adds and gives what was there before.
template <typename T>
DEVICE T atomic_add(T* at, T x) { return atomicAdd(at, x); }
DEVICE u32 atomic_max(u32* at, u32 x) { return atomicMax(at, x); }
DEVICE u64 atomic_max(u64* at, u64 x) { return atomicMax(at, x); }
DEVICE u32 atomic_exchange(u32* at, u32 x) { return atomicExch(at, x); }
DEVICE u32 atomic_or(u32* at, u32 x) { return atomicOr(at, x); }
/// What this thread wrote before is seen by all blocks before what it writes after.
DEVICE void fence() { __threadfence(); }

// ---- threads

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
/// Threads of the block for which `x` holds; a `sync_block` as well.
DEVICE i32 sync_block_count(bool x) { return __syncthreads_count(x); }

/// Of all 32 lanes at once, as are all words of a warp here.
template <typename T>
DEVICE T shfl(T x, u32 lane) { return __shfl_sync(0xffffffffu, x, (i32)lane); }
template <typename T>
DEVICE T shfl_xor(T x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, (i32)mask); }
template <typename T>
DEVICE T shfl_down(T x, u32 by) { return __shfl_down_sync(0xffffffffu, x, by); }
template <typename T>
DEVICE T shfl_up(T x, u32 by) { return __shfl_up_sync(0xffffffffu, x, by); }
#define ballot warp_ballot // the headers of nvcc have another `ballot`
DEVICE u32 ballot(bool x) { return __ballot_sync(0xffffffffu, x); }

/// The kernel that the launch before this one in the stream runs may still be running until here, where the launch allows it.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// From here on the next launch may begin, where it allows it.
DEVICE void release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- tensor cores
// g = lane / 4, t = lane % 4. D: d[0], d[1] row g, columns 2t, 2t + 1; d[2], d[3] row g + 8.

/// D[16, 8] += A[16, 32] B[32, 8], i8 to i32, exact. a[0] row g, k 4t..; a[1] row g + 8; a[2], a[3] the same at k 16 + 4t.
/// b[0] column g, k 4t..; b[1] k 16 + 4t.
DEVICE void mma_s8(i32 d[4], const u32 a[4], const u32 b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[2 * (i & 1)]), "+r"(d[2 * (i & 1) + 1])
            : "r"(a[i]), "r"(b[i >> 1]));
#endif
}

/// The same with A of u8.
DEVICE void mma_us8(i32 d[4], const u32 a[4], const u32 b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[2 * (i & 1)]), "+r"(d[2 * (i & 1) + 1])
            : "r"(a[i]), "r"(b[i >> 1]));
#endif
}

/// D[16, 8] += A[16, 16] B[16, 8], i8 to i32, exact. a[0] row g, k 4t..; a[1] row g + 8; b column g, k 4t...
DEVICE void mma_s8_k16(i32 d[4], const u32 a[2], u32 b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[2 * i]), "+r"(d[2 * i + 1])
            : "r"(a[i]), "r"(b));
#endif
}

/// D[16, 8] += A[16, 16] B[16, 8], f16 to f32; the order of the sum is the card's. a[0] row g, k 2t, 2t + 1; a[1] row g + 8; a[2], a[3] the same at
/// k 8 + 2t. b[0] column g, k 2t, 2t + 1; b[1] k 8 + 2t.
DEVICE void mma_f16(float d[4], const u32 a[4], const u32 b[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

/// Four matrices [8, 8] of 16 bits: lane `8 i + r` points at row `r` (16 bytes, aligned) of matrix `i`; r[i] is row g, columns 2t, 2t + 1 of it.
DEVICE void ldmatrix4(u32 r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/// Likewise, transposed: r[i] is rows 2t, 2t + 1 of column g.
DEVICE void ldmatrix4_t(u32 r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/// Two matrices, of which lanes 0..16 point at the rows.
DEVICE void ldmatrix2(u32 r[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix2_t(u32 r[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// ---- copies from global to shared memory that do not wait

/// 16 bytes, aligned on both sides. They are there after `copy_wait`, for the other threads after a `sync_block` as well.
DEVICE void copy16_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    *(uint4*)shared = *(const uint4*)global;
#endif
}
/// The same, or 16 zero bytes where `there` does not hold (`global` is not read then, but is a valid address).
DEVICE void copy16_async_or_zero(void* shared, const void* global, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there ? 16 : 0) : "memory");
#else
    *(uint4*)shared = there ? *(const uint4*)global : make_uint4(0, 0, 0, 0);
#endif
}
/// Four bytes, aligned on both sides.
DEVICE void copy4_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    *(u32*)shared = *(const u32*)global;
#endif
}
/// Closes a group of copies of this thread.
DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most the newest `left` groups of this thread are under way.
template <int left>
DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

DEVICE i32 warp_sum_i32(i32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int by = 16; by > 0; by >>= 1) x += shfl_xor(x, by);
    return x;
#endif
}
DEVICE u32 warp_max_u32(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int by = 16; by > 0; by >>= 1) x = max(x, shfl_xor(x, by));
    return x;
#endif
}

#endif // HOST_EMULATION

/// Shared memory that a block may have, KiB.
#if !defined(__CUDA_ARCH__)
#define SHARED_KIB 227
#elif __CUDA_ARCH__ < 800
#define SHARED_KIB 64
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define SHARED_KIB 99
#elif __CUDA_ARCH__ < 900
#define SHARED_KIB 163
#else
#define SHARED_KIB 227
#endif

/// Lane of the calling thread, for blocks of one dimension.
DEVICE u32 lane_of() { return threadIdx.x & 31; }
DEVICE u32 warp_of() { return threadIdx.x >> 5; }

/// Sum over the warp in the order of a butterfly (16, 8, 4, 2, 1); all lanes get the same bits.
DEVICE float warp_sum_f32(float x) {
#pragma unroll
    for (int by = 16; by > 0; by >>= 1) x += shfl_xor(x, by);
    return x;
}
/// Greatest over the warp; a NaN counts as nothing.
DEVICE float warp_max_f32(float x) {
#pragma unroll
    for (int by = 16; by > 0; by >>= 1) x = fmaxf(x, shfl_xor(x, by));
    return x;
}

template <typename T>
DEVICE T least(T a, T b) { return b < a ? b : a; }
template <typename T>
DEVICE T greatest(T a, T b) { return a < b ? b : a; }
DEVICE u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// ---- tables that the host fills for a window of rows

/// Positions that a page of keys and values covers.
#define PAGE 64

struct Rows {
    /// [0] rows, [1] spans, [2] rows that need logits, [3] rows times the residual's streams.
    const u32* counts;
    /// `[rows]`
    const u32* tokens;
    const u32* positions;
    const u32* slots;
    /// `[rows]`: where in `pages` the list of the row's sequence begins.
    const u32* row_pages;
    /// Page `i` of a sequence covers positions `64 i ..`.
    const u32* pages;
    /// `[spans, 4]`: first row, rows, first position, slot.
    const u32* spans;
    /// Rows that need logits, ascending.
    const u32* logits;
};

/// Activations quantised in blocks of 256.
struct Acts256 {
    i8* codes;     // [rows, K]
    float* scales; // [rows, K / 256]
    i16* sums;     // [rows, K / 16], of 16 codes each
    u16* halves;   // the same as f16, exact; of every 16 sums the even ones come first
};

/// Activations quantised in blocks of 32.
struct Acts32 {
    i8* codes;     // [rows, K]
    float* scales; // [rows, K / 32]
    i16* sums;     // [rows, K / 32], of 32 codes each
    u16* halves;   // none
};
