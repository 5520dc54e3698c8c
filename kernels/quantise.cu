// Rows of activations in the forms that products read.
//
// `quantise_rows`: `from [rows, k] f32` (a row every `stride` values) -> those of the two quantised forms that `forms` names, see
// `quantise.cuh`. Exact: the same bits as `quantise` of the CPU (a NaN's payload aside).
// Grid: (ceil(k / 256 / 4), rows), 128 threads, a warp a run of 256 values. No shared memory. Rows beyond `counts[0]` leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
#include "device.cuh"
#include "quantise.cuh"

KERNEL(128) quantise_rows(const float* from, u64 stride, u32 k, u32 forms, Acts256 acts256, Acts32 acts32, const u32* counts) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, first = 256 * (blockIdx.x * 4 + warp_of());
    if (row >= counts[0] || first >= k) return;
    float x[8];
    read_run(from + row * stride, k, first, x);
    if (forms & FORM_256) store256(acts256, row, k, first, x);
    if (forms & FORM_32) store32(acts32, row, k, first, x);
}
