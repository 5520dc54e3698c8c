// The activation of a dense feed-forward: gate = silu(gate) * up, in place, and in the quantised forms that the down projection reads.
//
// What is written, by `forms`: FORM_FLOAT gate itself, FORM_256 and FORM_32 the quantised forms.
// Shapes: gate, up [rows, width] f32; width a multiple of 32, of 256 for FORM_256.
// Exact: the same bits as `swiglu` and `quantise` of the CPU (a NaN's payload aside).
// Grid: (ceil(width / 512), rows), 64 threads: a warp a run of 256 values. No shared memory. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: none.
#include "device.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "rows.cuh"

KERNEL_MIN(64, 1) swiglu(float* gate, const float* up, u32 width, Acts256 acts256, Acts32 acts32, u32 forms, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, first = 256 * (2 * blockIdx.x + warp_of()), at = first + 8 * lane_of();
    if (row >= rows.counts[0] || first >= width) return;
    float x[8] = {}, y[8] = {};
    if (at < width) {
        load_eight(gate + (u64)row * width + at, x);
        load_eight(up + (u64)row * width + at, y);
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = silu_of(x[i]) * y[i];
    if (forms & FORM_FLOAT && at < width) store_eight(gate + (u64)row * width + at, x);
    if (forms & FORM_256) store256(acts256, row, width, first, x);
    if (forms & FORM_32) store32(acts32, row, width, first, x);
}
