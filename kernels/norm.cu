// The residual takes in a block's output and is normed for the next block.
//
//     x += branch                                             or, after experts,
//     x += sum over ranks of weight * output, one chain of fused multiply-adds from 0, ranks ascending, the shared expert last,
//          with weight sigmoid(gate) or 1
//     normed = x * (1 / sqrt(sum(x^2) / WIDTH + eps)) * weight
//
// `rms_norm`, `combine_norm`: all rows, x is updated in place. `head_norm`, `head_combine_norm`: the rows that need logits, packed; the residual stays as it
// is. `keep_norm`, `keep_combine_norm`: all rows, what is normed is kept by slot and position. `pair`: two norms side by side, of rows that take in nothing.
// What is written besides x, by `forms`: FORM_FLOAT normed [rows, WIDTH] f32, FORM_256 and FORM_32 the quantised forms.
//
// Shapes: residual, branch, shared [rows, WIDTH] f32; outputs [rows, USED, WIDTH] f32; weights [rows, USED] f32; gate [rows] f32; weight [WIDTH] f32.
// Exact: the same bits as `rms_norm_into`, `add`, `Combine::run` and `quantise` of the CPU (a NaN's payload aside).
// Grid: one block a row, NORM_THREADS threads (a warp a run of 256 values, at most 16 warps). Shared memory: 4 WIDTH + 16 bytes, static. Rows beyond the
// live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: WIDTH (a multiple of 32, of 256 for FORM_256), USED (experts a row, for the kernels that combine).
#include "device.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "rows.cuh"

#ifndef WIDTH
#define WIDTH 2048
#endif
#ifndef USED
#define USED 8
#endif

#define RUNS ((WIDTH + 255) / 256)
/// Runs of a warp, and as many warps as that leaves.
#define TURNS ((RUNS + 15) / 16)
#define WARPS ((RUNS + TURNS - 1) / TURNS)
#define NORM_THREADS (32 * WARPS)
static_assert(WIDTH % 32 == 0 && WIDTH <= 12224, "a row of the residual");

/// Where in a row this lane's eight values of a run lie.
DEVICE u32 eight_at(u32 turn) { return (turn * WARPS + warp_of()) * 256 + 8 * lane_of(); }

DEVICE void load_share(const float* row, float x[TURNS][8]) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] = 0.0f;
        if (eight_at(turn) < WIDTH) load_eight(row + eight_at(turn), x[turn]);
    }
}

DEVICE void store_share(float* row, const float x[TURNS][8]) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
        if (eight_at(turn) < WIDTH) store_eight(row + eight_at(turn), x[turn]);
}

DEVICE void add_share(const float* row, float x[TURNS][8]) {
    float branch[TURNS][8];
    load_share(row, branch);
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] += branch[turn][i];
}

DEVICE void combine_share(Experts experts, u32 row, float x[TURNS][8]) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        if (eight_at(turn) >= WIDTH) continue;
        float sum[8];
        combine_eight<USED, WIDTH>(experts, row, eight_at(turn), sum);
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] += sum[i];
    }
}

/// Where a normed row goes.
struct Normed {
    float* floats; // [rows, WIDTH]
    Acts256 acts256;
    Acts32 acts32;
    u32 forms;
};

/// Norms the row that the block holds and writes it as row `to`.
DEVICE void norm_share(const float x[TURNS][8], const float weight[TURNS][8], float eps, Normed normed, u32 to) {
    SHARED(float, row, WIDTH);
    SHARED(float, factor, 1);
    store_share(row, x);
    sync_block();
    if (warp_of() == 0) {
        float scale = 1.0f / sqrtf(sum_of_squares<WIDTH>(row) / (float)WIDTH + eps);
        if (lane_of() == 0) factor[0] = scale;
    }
    sync_block();
    float scale = factor[0];
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        float y[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) y[i] = x[turn][i] * scale * weight[turn][i];
        u32 at = eight_at(turn), first = at - 8 * lane_of();
        if (first >= WIDTH) continue;
        if (normed.forms & FORM_FLOAT && at < WIDTH) store_eight(normed.floats + (u64)to * WIDTH + at, y);
        if (normed.forms & FORM_256) store256(normed.acts256, to, WIDTH, first, y);
        if (normed.forms & FORM_32) store32(normed.acts32, to, WIDTH, first, y);
    }
}

/// `branch` null: nothing is added.
KERNEL_MIN(NORM_THREADS, 1) rms_norm(float* residual, const float* branch, const float* weight, float eps, Normed normed, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    // the count is on its way together with the row, which is there for every block of the grid
    u32 row = blockIdx.x, live = rows.counts[0];
    load_share(residual + (u64)row * WIDTH, x);
    if (branch) add_share(branch + (u64)row * WIDTH, x);
    if (row >= live) return;
    if (branch) store_share(residual + (u64)row * WIDTH, x);
    norm_share(x, w, eps, normed, row);
}

KERNEL_MIN(NORM_THREADS, 1) combine_norm(float* residual, Experts experts, const float* weight, float eps, Normed normed, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x, live = rows.counts[0];
    load_share(residual + (u64)row * WIDTH, x);
    combine_share(experts, row, x);
    if (row >= live) return;
    store_share(residual + (u64)row * WIDTH, x);
    norm_share(x, w, eps, normed, row);
}

/// Row i of the output is the i-th row that needs logits.
KERNEL_MIN(NORM_THREADS, 1) head_norm(const float* residual, const float* branch, const float* weight, float eps, Normed normed, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    u32 live = rows.counts[2], row = rows.logits[blockIdx.x];
    if (blockIdx.x >= live) return;
    load_share(residual + (u64)row * WIDTH, x);
    if (branch) add_share(branch + (u64)row * WIDTH, x);
    norm_share(x, w, eps, normed, blockIdx.x);
}

KERNEL_MIN(NORM_THREADS, 1) head_combine_norm(const float* residual, Experts experts, const float* weight, float eps, Normed normed, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    u32 live = rows.counts[2], row = rows.logits[blockIdx.x];
    if (blockIdx.x >= live) return;
    load_share(residual + (u64)row * WIDTH, x);
    combine_share(experts, row, x);
    norm_share(x, w, eps, normed, blockIdx.x);
}

/// Where hidden states of sequences are kept, by position modulo `length`.
struct Kept {
    float* states; // [slots, length, WIDTH]
    u32 length;
    u32 ahead; // positions by which a state is kept after its row's own
};

/// Norms the row that the block holds into its place among those that are kept, unless a later row of its sequence has the same place.
DEVICE void keep_share(const float x[TURNS][8], const float weight[TURNS][8], float eps, Kept kept, u32 row, u32 live, Rows rows) {
    u32 slot = rows.slots[row], later = row + kept.length;
    if (later < live && rows.slots[later] == slot) return;
    u32 to = slot * kept.length + (rows.positions[row] + kept.ahead) % kept.length;
    norm_share(x, weight, eps, {kept.states, {}, {}, FORM_FLOAT}, to);
}

KERNEL_MIN(NORM_THREADS, 1) keep_norm(float* residual, const float* branch, const float* weight, float eps, Kept kept, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x, live = rows.counts[0];
    load_share(residual + (u64)row * WIDTH, x);
    if (branch) add_share(branch + (u64)row * WIDTH, x);
    if (row >= live) return;
    if (branch) store_share(residual + (u64)row * WIDTH, x);
    keep_share(x, w, eps, kept, row, live, rows);
}

KERNEL_MIN(NORM_THREADS, 1) keep_combine_norm(float* residual, Experts experts, const float* weight, float eps, Kept kept, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    load_share(weight, w);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x, live = rows.counts[0];
    load_share(residual + (u64)row * WIDTH, x);
    combine_share(experts, row, x);
    if (row >= live) return;
    store_share(residual + (u64)row * WIDTH, x);
    keep_share(x, w, eps, kept, row, live, rows);
}

/// `paired [rows, 2 WIDTH]`: the normed embedding of a row, then its normed hidden state: that which is kept for its position, or with `length` 0 row `row` of `states`.
KERNEL_MIN(NORM_THREADS, 1) pair(const float* embedded, const float* states, u32 length, const float* embedded_weight, const float* state_weight, float eps,
                                 float* paired, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    u32 row = blockIdx.x, half = blockIdx.y;
    load_share(half ? state_weight : embedded_weight, w);
    wait_for_previous();
    release_next();
    if (row >= rows.counts[0]) return;
    u32 at = half && length ? rows.slots[row] * length + rows.positions[row] % length : row;
    load_share((half ? states : embedded) + (u64)at * WIDTH, x);
    norm_share(x, w, eps, {paired, {}, {}, FORM_FLOAT}, 2 * row + half);
}

/// How these kernels are launched.
KERNEL(1) norm_launch(u32* to) { to[0] = NORM_THREADS; }
