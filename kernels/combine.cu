// A block's output joins the residual without a norm: where a pass is cut after a layer.
//
//     add:          residual += branch
//     combine_add:  residual += sum over ranks of weight * output, one chain of fused multiply-adds from 0, ranks ascending, the shared expert last, with
//                   weight sigmoid(gate) or 1
//
// Shapes: residual, branch, shared [rows, WIDTH] f32; outputs [rows, USED, WIDTH] f32; weights [rows, USED] f32; gate [rows] f32.
// Exact: the same bits as `add` and `Combine::run` of the CPU.
// Grid: (ceil(WIDTH / 1024), rows), 128 threads of 8 channels. No shared memory. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: WIDTH (a multiple of 8), USED (experts a row).
#include "device.cuh"
#include "rows.cuh"

#ifndef WIDTH
#define WIDTH 2048
#endif
#ifndef USED
#define USED 8
#endif
static_assert(WIDTH % 8 == 0, "a row of the residual");

KERNEL_MIN(128, 1) add(float* residual, const float* branch, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (row >= rows.counts[0] || at >= WIDTH) return;
    float x[8], y[8];
    load_eight(residual + (u64)row * WIDTH + at, x);
    load_eight(branch + (u64)row * WIDTH + at, y);
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] += y[i];
    store_eight(residual + (u64)row * WIDTH + at, x);
}

KERNEL_MIN(128, 1) combine_add(float* residual, Experts experts, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (row >= rows.counts[0] || at >= WIDTH) return;
    float x[8], sum[8];
    load_eight(residual + (u64)row * WIDTH + at, x);
    combine_eight<USED, WIDTH>(experts, row, at, sum);
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] += sum[i];
    store_eight(residual + (u64)row * WIDTH + at, x);
}
