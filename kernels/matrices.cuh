// The matrices of a launch that multiplies a few rows with up to four of them.
#pragma once
#include "device.cuh"

struct Matrix {
    const u8* weights; // [outputs, k]
    float* to;         // [rows, outputs], a row every `to_stride` values
    u32 outputs;
    u32 to_stride;
    u32 type;
    /// Blocks of the grid that work on it.
    u32 first_block;
    u32 blocks;
    u32 unused;
};

struct Matrices {
    Matrix of[4];
};

/// The matrix of this block, one of the first `count`.
DEVICE const Matrix& matrix_of(const Matrices& matrices, u32 count) {
    u32 m = 0;
#pragma unroll
    for (u32 i = 1; i < 4; i++) m += i < count && blockIdx.x >= matrices.of[i].first_block;
    return matrices.of[m];
}
