// The activation of a feed-forward block or of experts' places: gate = activated(gate, up), in place, and in the quantised forms that the down projection reads.
//
// With biases, of experts: gate and up get those of the row's expert before, `ids [rows]` u16 says which it is.
// What is written, by `forms`: FORM_FLOAT gate itself, FORM_256 and FORM_32 the quantised forms.
// Shapes: gate, up [rows, width] f32; biases [experts, width] f32 or null; width a multiple of 32, of 256 for FORM_256.
// Exact: the same bits as `activate` and `quantise` of the CPU (a NaN's payload aside).
// Grid: (ceil(width / 512), rows), 64 threads: a warp a run of 256 values. No shared memory. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: ACTIVATION (functions.cuh).
#include "device.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "rows.cuh"

/// Biases of experts.
struct GateBias {
    const float *gate, *up; // [experts, width], or null
    const u16* ids;         // [rows]
};

KERNEL_MIN(64, 1) swiglu(float* gate, const float* up, u32 width, GateBias bias, Acts256 acts256, Acts32 acts32, u32 forms, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, first = 256 * (2 * blockIdx.x + warp_of()), at = first + 8 * lane_of();
    if (row >= rows.counts[0] || first >= width) return;
    float x[8] = {}, y[8] = {};
    if (at < width) {
        load_eight(gate + (u64)row * width + at, x);
        load_eight(up + (u64)row * width + at, y);
    }
    if (bias.gate && at < width) {
        float of_gate[8], of_up[8];
        u64 first_of = (u64)bias.ids[row] * width + at;
        load_eight(bias.gate + first_of, of_gate);
        load_eight(bias.up + first_of, of_up);
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] += of_gate[i], y[i] += of_up[i];
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] = activated_evenly(x[i], y[i]);
    if (forms & FORM_FLOAT && at < width) store_eight(gate + (u64)row * width + at, x);
    if (forms & FORM_256) store256(acts256, row, width, first, x);
    if (forms & FORM_32) store32(acts32, row, width, first, x);
}
