// What a card gives at most: how fast its memory is read, and how fast its tensor cores multiply bytes.
//
//     read_memory         exclusive or of all words
//     multiply_registers  D += A B, i8 to i32, without end
//
// Shapes: from [count] of 16 bytes; to [1] u32, hardly ever written: it keeps the compiler from leaving the work out.
//
// `read_memory`         2 blocks of 1024 threads a multiprocessor.
// `multiply_registers`  4 blocks of 256 threads a multiprocessor; each warp does 8 independent products [16, 32] [32, 8] a round.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
#include "device.cuh"

#define PRODUCTS 8

KERNEL_MIN(1024, 1) read_memory(const uint4* from, u64 count, u32* to) {
    u64 step = (u64)gridDim.x * blockDim.x, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; at + 3 * step < count; at += 4 * step) {
        uint4 x[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = stream16(from + at + i * step);
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
    }
    for (; at < count; at += step) {
        uint4 x = stream16(from + at);
        sum ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (sum == 0x9e3779b9u) *to = sum;
}

KERNEL_MIN(256, 1) multiply_registers(u32 rounds, u32* to) {
    // operands as dense as weights and activations are: a card may be faster on zeros
    u32 a[4], b[2], seed = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u + 1;
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = seed = seed * 1664525u + 1013904223u;
#pragma unroll
    for (u32 i = 0; i < 2; i++) b[i] = seed = seed * 1664525u + 1013904223u;
    i32 d[PRODUCTS][4];
#pragma unroll
    for (u32 i = 0; i < PRODUCTS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) d[i][j] = (i32)(4 * i + j);
    for (u32 round = 0; round < rounds; round++)
#pragma unroll
        for (u32 i = 0; i < PRODUCTS; i++) mma_s8(d[i], a, b);
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < PRODUCTS; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) sum ^= (u32)d[i][j];
    if (sum == 0x9e3779b9u) *to = sum;
}
