// Products of a group of four warps on sm_90, compiled for sm_90a: 64 outputs x 8 TILES rows at once, both operands' products added up beside what else the
// warps do. The left operand comes from registers, in the fragments of `mma_s8`; the right one from shared memory: rows of 128 bytes, eight rows a block of
// 1024 bytes, chunk c of 16 bytes of row r at c ^ (r mod 8). See mma_tile.cuh.
#pragma once
#include "mma_direct.cuh"

#if GROUPED_CODE

DEVICE void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left>
DEVICE void group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory"); }

/// What tells the tensor core where the right operand is.
DEVICE u64 group_operand(const u8* at) { return (u64)(shared_address(at) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

DEVICE void group_s8(i32 (&d)[2][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_u8(i32 (&d)[2][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_s8(i32 (&d)[4][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_u8(i32 (&d)[4][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_s8(i32 (&d)[8][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]), "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]), "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]), "+r"(d[7][2]), "+r"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_u8(i32 (&d)[8][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]), "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]), "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]), "+r"(d[7][2]), "+r"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_s8(i32 (&d)[16][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]), "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]), "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]), "+r"(d[7][2]), "+r"(d[7][3]), "+r"(d[8][0]), "+r"(d[8][1]), "+r"(d[8][2]), "+r"(d[8][3]), "+r"(d[9][0]), "+r"(d[9][1]), "+r"(d[9][2]), "+r"(d[9][3]), "+r"(d[10][0]), "+r"(d[10][1]), "+r"(d[10][2]), "+r"(d[10][3]), "+r"(d[11][0]), "+r"(d[11][1]), "+r"(d[11][2]), "+r"(d[11][3]), "+r"(d[12][0]), "+r"(d[12][1]), "+r"(d[12][2]), "+r"(d[12][3]), "+r"(d[13][0]), "+r"(d[13][1]), "+r"(d[13][2]), "+r"(d[13][3]), "+r"(d[14][0]), "+r"(d[14][1]), "+r"(d[14][2]), "+r"(d[14][3]), "+r"(d[15][0]), "+r"(d[15][1]), "+r"(d[15][2]), "+r"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_u8(i32 (&d)[16][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1;"
                 : "+r"(d[0][0]), "+r"(d[0][1]), "+r"(d[0][2]), "+r"(d[0][3]), "+r"(d[1][0]), "+r"(d[1][1]), "+r"(d[1][2]), "+r"(d[1][3]), "+r"(d[2][0]), "+r"(d[2][1]), "+r"(d[2][2]), "+r"(d[2][3]), "+r"(d[3][0]), "+r"(d[3][1]), "+r"(d[3][2]), "+r"(d[3][3]), "+r"(d[4][0]), "+r"(d[4][1]), "+r"(d[4][2]), "+r"(d[4][3]), "+r"(d[5][0]), "+r"(d[5][1]), "+r"(d[5][2]), "+r"(d[5][3]), "+r"(d[6][0]), "+r"(d[6][1]), "+r"(d[6][2]), "+r"(d[6][3]), "+r"(d[7][0]), "+r"(d[7][1]), "+r"(d[7][2]), "+r"(d[7][3]), "+r"(d[8][0]), "+r"(d[8][1]), "+r"(d[8][2]), "+r"(d[8][3]), "+r"(d[9][0]), "+r"(d[9][1]), "+r"(d[9][2]), "+r"(d[9][3]), "+r"(d[10][0]), "+r"(d[10][1]), "+r"(d[10][2]), "+r"(d[10][3]), "+r"(d[11][0]), "+r"(d[11][1]), "+r"(d[11][2]), "+r"(d[11][3]), "+r"(d[12][0]), "+r"(d[12][1]), "+r"(d[12][2]), "+r"(d[12][3]), "+r"(d[13][0]), "+r"(d[13][1]), "+r"(d[13][2]), "+r"(d[13][3]), "+r"(d[14][0]), "+r"(d[14][1]), "+r"(d[14][2]), "+r"(d[14][3]), "+r"(d[15][0]), "+r"(d[15][1]), "+r"(d[15][2]), "+r"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEVICE void group_first_s8(i32 (&d)[2][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_u8(i32 (&d)[2][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_s8(i32 (&d)[4][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_u8(i32 (&d)[4][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_s8(i32 (&d)[8][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3]), "=r"(d[4][0]), "=r"(d[4][1]), "=r"(d[4][2]), "=r"(d[4][3]), "=r"(d[5][0]), "=r"(d[5][1]), "=r"(d[5][2]), "=r"(d[5][3]), "=r"(d[6][0]), "=r"(d[6][1]), "=r"(d[6][2]), "=r"(d[6][3]), "=r"(d[7][0]), "=r"(d[7][1]), "=r"(d[7][2]), "=r"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_u8(i32 (&d)[8][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3]), "=r"(d[4][0]), "=r"(d[4][1]), "=r"(d[4][2]), "=r"(d[4][3]), "=r"(d[5][0]), "=r"(d[5][1]), "=r"(d[5][2]), "=r"(d[5][3]), "=r"(d[6][0]), "=r"(d[6][1]), "=r"(d[6][2]), "=r"(d[6][3]), "=r"(d[7][0]), "=r"(d[7][1]), "=r"(d[7][2]), "=r"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_s8(i32 (&d)[16][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3]), "=r"(d[4][0]), "=r"(d[4][1]), "=r"(d[4][2]), "=r"(d[4][3]), "=r"(d[5][0]), "=r"(d[5][1]), "=r"(d[5][2]), "=r"(d[5][3]), "=r"(d[6][0]), "=r"(d[6][1]), "=r"(d[6][2]), "=r"(d[6][3]), "=r"(d[7][0]), "=r"(d[7][1]), "=r"(d[7][2]), "=r"(d[7][3]), "=r"(d[8][0]), "=r"(d[8][1]), "=r"(d[8][2]), "=r"(d[8][3]), "=r"(d[9][0]), "=r"(d[9][1]), "=r"(d[9][2]), "=r"(d[9][3]), "=r"(d[10][0]), "=r"(d[10][1]), "=r"(d[10][2]), "=r"(d[10][3]), "=r"(d[11][0]), "=r"(d[11][1]), "=r"(d[11][2]), "=r"(d[11][3]), "=r"(d[12][0]), "=r"(d[12][1]), "=r"(d[12][2]), "=r"(d[12][3]), "=r"(d[13][0]), "=r"(d[13][1]), "=r"(d[13][2]), "=r"(d[13][3]), "=r"(d[14][0]), "=r"(d[14][1]), "=r"(d[14][2]), "=r"(d[14][3]), "=r"(d[15][0]), "=r"(d[15][1]), "=r"(d[15][2]), "=r"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void group_first_u8(i32 (&d)[16][4], const u32 a[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 0;"
                 : "=r"(d[0][0]), "=r"(d[0][1]), "=r"(d[0][2]), "=r"(d[0][3]), "=r"(d[1][0]), "=r"(d[1][1]), "=r"(d[1][2]), "=r"(d[1][3]), "=r"(d[2][0]), "=r"(d[2][1]), "=r"(d[2][2]), "=r"(d[2][3]), "=r"(d[3][0]), "=r"(d[3][1]), "=r"(d[3][2]), "=r"(d[3][3]), "=r"(d[4][0]), "=r"(d[4][1]), "=r"(d[4][2]), "=r"(d[4][3]), "=r"(d[5][0]), "=r"(d[5][1]), "=r"(d[5][2]), "=r"(d[5][3]), "=r"(d[6][0]), "=r"(d[6][1]), "=r"(d[6][2]), "=r"(d[6][3]), "=r"(d[7][0]), "=r"(d[7][1]), "=r"(d[7][2]), "=r"(d[7][3]), "=r"(d[8][0]), "=r"(d[8][1]), "=r"(d[8][2]), "=r"(d[8][3]), "=r"(d[9][0]), "=r"(d[9][1]), "=r"(d[9][2]), "=r"(d[9][3]), "=r"(d[10][0]), "=r"(d[10][1]), "=r"(d[10][2]), "=r"(d[10][3]), "=r"(d[11][0]), "=r"(d[11][1]), "=r"(d[11][2]), "=r"(d[11][3]), "=r"(d[12][0]), "=r"(d[12][1]), "=r"(d[12][2]), "=r"(d[12][3]), "=r"(d[13][0]), "=r"(d[13][1]), "=r"(d[13][2]), "=r"(d[13][3]), "=r"(d[14][0]), "=r"(d[14][1]), "=r"(d[14][2]), "=r"(d[14][3]), "=r"(d[15][0]), "=r"(d[15][1]), "=r"(d[15][2]), "=r"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/// Words of codes of a quarter of a block of one output times their sub-scales, in two planes: of sub-blocks 2 part and 2 part + 1 (Q4_K, Q5_K), of the runs
/// `part mod 2` and two further on of half `part / 2` (Q6_K).
template <class Codec>
DEVICE void part_planes(const u8* block, const Head& head, u32 part, u32 (&high)[2][4], u32 (&low)[2][4], u32 h) {
    if constexpr (Codec::ID == ID_Q6_K) {
        u32 half = part / 2, run = part % 2;
        const u8* at = block + 4 * (lane_of() % 4);
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            u32 word = word_at(at + 64 * half + 32 * run + 16 * c), top = word_at(at + 128 + 32 * half + 16 * c) >> 2 * run;
            folded<Codec>(of_bytes(word, 15) | of_bytes(top << 4, 0x30), signed_byte(head.scales[2 * half], 2 * run + c), &high[0][2 * c + h], &low[0][2 * c + h]);
            folded<Codec>(of_bytes(word >> 4, 15) | of_bytes(top, 0x30), signed_byte(head.scales[2 * half + 1], 2 * run + c), &high[1][2 * c + h],
                          &low[1][2 * c + h]);
        }
    } else {
        direct_words<Codec>(block, part, low, h);
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            u32 byte = head.scales[part / 2] >> 8 * (part % 2 * 2 + s) & 255;
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                high[s][2 * c + h] = low[s][2 * c + h] * (byte >> 3);
                low[s][2 * c + h] *= byte & 7;
            }
        }
    }
}

/// Adds a unit to the results.
template <class Codec, int TILES>
DEVICE void multiply_grouped(const u8* shared, const Table* table, u32 buffer, u32 unit, Share<TILES>& share) {
    i32 high[TILES][4], low[TILES][4];
    const u8* acts = shared + ACTS_AT + buffer * BUFFER_BYTES + warp_of() / OUTPUT_WARPS * (8 * TILES * 128);
    const u8* blocks[2];
    float factors[2];
    Head heads[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        blocks[h] = raw_unit(shared, table, lane_output() + 8 * h, unit, buffer);
        Codec::head(blocks[h], heads[h]);
        factors[h] = heads[h].d;
    }
#pragma unroll
    for (u32 part = 0; part < 4; part++) {
        u32 a[2][4], b[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) part_planes<Codec>(blocks[h], heads[h], part, a, b, h);
        group_fence();
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            u32 step = Codec::LINEAR ? 2 * part + s : part / 2 * 4 + part % 2 + 2 * s;
            u64 operand = group_operand(acts + step / 4 * (TILE_ROWS * 128) + 32 * (step % 4));
            // products of Q5_K reach 217
            if (part == 0 && s == 0) {
                if constexpr (Codec::ID == ID_Q5_K) group_first_u8(high, a[s], operand);
                else group_first_s8(high, a[s], operand);
                if constexpr (Codec::ID == ID_Q4_K) group_first_s8(low, b[s], operand);
                else group_first_u8(low, b[s], operand);
            } else {
                if constexpr (Codec::ID == ID_Q5_K) group_u8(high, a[s], operand);
                else group_s8(high, a[s], operand);
                if constexpr (Codec::ID == ID_Q4_K) group_s8(low, b[s], operand);
                else group_u8(low, b[s], operand);
            }
        }
        group_commit();
        if (part < 3) group_wait<1>();
    }
    group_wait<0>();
    const float* act_scales = (const float*)(shared + ACT_SCALES_AT) + buffer * TILE_ROWS + lane_row<TILES>();
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float2 scale = *(const float2*)(act_scales + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float factor = factors[e / 2] * (e % 2 ? scale.y : scale.x);
            float* to = &share.at[0][j][e];
            *to = fmaf(factor, (float)((Codec::ID == ID_Q6_K ? 256 : 8) * high[j][e] + low[j][e]), *to);
        }
    }
}

#endif
