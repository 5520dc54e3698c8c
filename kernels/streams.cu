// A residual of several streams: what a block's output adds to each, one input made of all, and what of them is kept.
//
//     x_s   += 2 sigmoid(inject_s / STREAMS) * branch, fused           or the experts' sum in place of the branch, as norm.cu has it
//     n_s    = x_s * (1 / sqrt(sum(x_s^2) / WIDTH + eps)) * weight_s   for each stream by itself
//     low    = silu(low / STREAMS)                                     of the projection from all n
//     input  = (sum over s of sigmoid(gate_s) * n_s) / STREAMS         one chain of fused multiply-adds from 0, streams ascending
//
// `streams_norm`: the first two lines, of all rows or, `packed`, of those that need logits, whose residual stays as it is. Without `inject` nothing joins, without a weight nothing is
// normed; with `kept.states` the rows' streams are kept by slot and position. `streams_low`, `streams_mean`: the other two.
// What is written, by `forms`: FORM_FLOAT, FORM_256 and FORM_32 (quantise.cuh).
//
// Shapes: residual, n, gate [rows, STREAMS, WIDTH] f32; branch, input [rows, WIDTH] f32; inject [rows, STREAMS] f32; weight [STREAMS, WIDTH] f32; low [rows, rank] f32; experts as in norm.cu.
// Exact: the same bits as `gather_streams`, `spread` and `quantise` of the CPU (a NaN's payload aside).
// Grid: streams_norm (rows, STREAMS or fewer: a block goes on with stream s + gridDim.y), NORM_THREADS threads; streams_low (ceil(rank / 512), rows), streams_mean
// (ceil(WIDTH / 512), rows), 64 threads: a warp a run of 256 values. Shared memory of streams_norm: 4 WIDTH + 16 bytes, static. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: those of norm.cuh.
#include "norm.cuh"

#define PART (1.0f / STREAMS)

KERNEL_MIN(NORM_THREADS, 1) streams_norm(float* residual, const float* branch, Experts experts, const float* inject, const float* weight, float eps, Normed normed, Kept kept,
                                         u32 packed, Rows rows) {
    wait_for_previous();
    release_next();
    u32 number = blockIdx.x, live = rows.counts[0];
    if (number >= live) return;
    u32 row = packed ? rows.logits[number] : number;
    float y[TURNS][8];
    if (inject) {
        if (branch) load_branch(Branch{branch}, row, y);
        else load_branch(experts, row, y);
    }
    u32 keep = kept.states ? kept_place(kept, row, live, rows) : ~0u;
    for (u32 stream = blockIdx.y; stream < STREAMS; stream += gridDim.y) {
        float x[TURNS][8], w[TURNS][8];
        float* at = residual + ((u64)row * STREAMS + stream) * WIDTH;
        load_share(at, x);
        if (weight) load_share(weight + stream * WIDTH, w);
        if (inject) {
            float share = 2.0f * sigmoid_of(inject[(u64)row * STREAMS + stream] * PART);
#pragma unroll
            for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (u32 i = 0; i < 8; i++) x[turn][i] = fmaf(share, y[turn][i], x[turn][i]);
            if (!packed) store_share(at, x);
        }
        if (keep != ~0u) store_share(kept.states + ((u64)keep * STREAMS + stream) * WIDTH, x);
        if (weight) norm_share(x, w, eps, normed, number * STREAMS + stream);
    }
}

KERNEL_MIN(64, 1) streams_low(float* low, u32 rank, Acts256 acts256, Acts32 acts32, u32 forms, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, first = 256 * (2 * blockIdx.x + warp_of()), at = first + 8 * lane_of();
    if (row >= rows.counts[0] || first >= rank) return;
    float x[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = at + i < rank ? silu_of(low[(u64)row * rank + at + i] * PART) : 0.0f;
    if (forms & FORM_FLOAT) {
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (at + i < rank) low[(u64)row * rank + at + i] = x[i];
    }
    if (forms & FORM_256) store256(acts256, row, rank, first, x);
    if (forms & FORM_32) store32(acts32, row, rank, first, x);
}

KERNEL_MIN(64, 1) streams_mean(const float* gate, const float* streams, float* input, Acts256 acts256, Acts32 acts32, u32 forms, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, first = 256 * (2 * blockIdx.x + warp_of()), at = first + 8 * lane_of();
    if (row >= rows.counts[0] || first >= WIDTH) return;
    float sum[8] = {};
    if (at < WIDTH) {
#pragma unroll
        for (u32 stream = 0; stream < STREAMS; stream++) {
            float open[8], x[8];
            u64 of = ((u64)row * STREAMS + stream) * WIDTH + at;
            load_eight(gate + of, open);
            load_eight(streams + of, x);
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[i] = fmaf(sigmoid_of(open[i]), x[i], sum[i]);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum[i] = sum[i] * PART;
        if (forms & FORM_FLOAT) store_eight(input + (u64)row * WIDTH + at, sum);
    }
    if (forms & FORM_256) store256(acts256, row, WIDTH, first, sum);
    if (forms & FORM_32) store32(acts32, row, WIDTH, first, sum);
}

/// How streams_norm is launched.
KERNEL(1) streams_launch(u32* to) { to[0] = NORM_THREADS; }
