// A row of activations shared by a block, and sums over it in the order that `src/cpu/math/rows.rs` fixes: 64 partial sums, element i goes to partial
// sum i mod 64 in ascending order, and they are joined by halves (32, 16, 8, 4, 2, 1).
//
// Threads hold a row as `quantise.cuh` wants it: a warp takes runs of 256 values, lane l the 8 values 8 l .. of a run.
#pragma once
#include "device.cuh"
#include "functions.cuh"

/// Joins 64 partial sums of which lane l has l and l + 32; all lanes get the same bits.
DEVICE float join_chains(float low, float high) { return warp_sum_f32(low + high); }

/// The sum of squares of `row [width]` in shared memory, by one warp. `width` is a multiple of 32.
template <u32 width>
DEVICE float sum_of_squares(const float* row) {
    float low = 0.0f, high = 0.0f;
#pragma unroll 16
    for (u32 at = 0; at + 64 <= width; at += 64) {
        float a = row[at + lane_of()], b = row[at + 32 + lane_of()];
        low = fmaf(a, a, low);
        high = fmaf(b, b, high);
    }
    if (width % 64 != 0) {
        float a = row[width - 32 + lane_of()];
        low = fmaf(a, a, low);
    }
    return join_chains(low, high);
}

/// The sum of products of two rows [width] in shared memory, likewise.
template <u32 width>
DEVICE float dot_of_rows(const float* a, const float* b) {
    float low = 0.0f, high = 0.0f;
#pragma unroll 16
    for (u32 at = lane_of(); at < width; at += 64) {
        low = fmaf(a[at], b[at], low);
        if (at + 32 < width) high = fmaf(a[at + 32], b[at + 32], high);
    }
    return join_chains(low, high);
}

/// Eight values, 16-byte aligned.
DEVICE void load_eight(const float* from, float x[8]) {
    float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
DEVICE void store_eight(float* to, const float x[8]) {
    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
    *(float4*)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

/// A form of rows besides FORM_256 and FORM_32: f32 as they are.
#define FORM_FLOAT 4u

/// What the experts of a window leave behind.
struct Experts {
    const float* outputs; // [rows, used, width]
    const float* weights; // [rows, used]
    const float* shared;  // [rows, width], of the expert that every row uses, or null
    const float* gate;    // [rows], through a sigmoid its weight; null: it counts in full
};

/// Eight channels of a row's experts, weighted and added: one chain of fused multiply-adds from 0, ranks ascending, the shared expert last.
template <u32 used, u32 width>
DEVICE void combine_eight(Experts experts, u32 row, u32 at, float sum[8]) {
    const float* outputs = experts.outputs + (u64)row * used * width + at;
    const float* weights = experts.weights + (u64)row * used;
    float shared[8];
    if (experts.shared) load_eight(experts.shared + (u64)row * width + at, shared);
#pragma unroll
    for (u32 i = 0; i < 8; i++) sum[i] = 0.0f;
    // eight ranks are on their way at a time
#pragma unroll
    for (u32 first = 0; first < used; first += 8) {
        float weight[8], output[8][8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (first + i >= used) break;
            weight[i] = weights[first + i];
            load_eight(outputs + (first + i) * width, output[i]);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (first + i >= used) break;
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum[j] = fmaf(weight[i], output[i][j], sum[j]);
        }
    }
    if (experts.shared) {
        float weight = experts.gate ? sigmoid_of(experts.gate[row]) : 1.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum[i] = fmaf(weight, shared[i], sum[i]);
    }
}
