// A bias on rows: of a projection, or of the experts whose results the rows are.
//
//     row += bias,   or   row += bias[ids[row]]
//
// Shapes: x [rows, width] f32; bias [width] or [experts, width] f32; ids [rows] u16 or null; width a multiple of 8.
// Exact: the same bits as `add` of the CPU.
// Grid: (ceil(width / 1024), rows), 128 threads of 8 channels. No shared memory. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: none.
#include "device.cuh"
#include "rows.cuh"

KERNEL_MIN(128, 1) bias(float* x, const float* of, const u16* ids, u32 width, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (row >= rows.counts[0] || at >= width) return;
    float a[8], b[8];
    load_eight(x + (u64)row * width + at, a);
    load_eight(of + (ids ? (u64)ids[row] * width : 0) + at, b);
#pragma unroll
    for (u32 i = 0; i < 8; i++) a[i] += b[i];
    store_eight(x + (u64)row * width + at, a);
}
