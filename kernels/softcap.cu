// Logits are capped: none is greater than `cap`, nor less than its negative.
//
//     x = cap * tanh(x / cap), tanh y as twice the sigmoid of 2 y, less one
//
// Shapes: logits [rows, vocab] f32, in place; the rows that need logits, `rows.counts[2]` of them.
// Exact: the same bits as `softcap` of the CPU (a NaN's payload aside).
// Grid: (ceil(vocab / 1024), rows), 256 threads of 4 logits. No shared memory. Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: none.
#include "device.cuh"
#include "functions.cuh"

KERNEL_MIN(256, 1) softcap(float* logits, u32 vocab, float cap, Rows rows) {
    wait_for_previous();
    release_next();
    if (blockIdx.y >= rows.counts[2]) return;
    float* row = logits + (u64)blockIdx.y * vocab;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 at = 1024 * blockIdx.x + 256 * i + threadIdx.x;
        if (at >= vocab) break;
        float y = row[at] / cap;
        row[at] = cap * (2.0f * sigmoid_of(2.0f * y) - 1.0f);
    }
}
