// The residual takes in a block's output and is normed for the next block.
//
//     x += branch                                             or, after experts,
//     x += sum over ranks of weight * output, one chain of fused multiply-adds from 0, ranks ascending, the shared expert last,
//          with weight sigmoid(gate) or 1
//     normed = x * (1 / sqrt(sum(x^2) / WIDTH + eps)) * weight
//
// With SANDWICH what is added is first normed, gets `aside` added and is normed again, and the sum is multiplied by a factor: each where it is asked for.
//
// `rms_norm`, `combine_norm`: all rows, x is updated in place; without a weight that is all. `head_norm`, `head_combine_norm`: the rows that need logits, packed; the
// residual stays as it is. `keep_norm`, `keep_combine_norm`: all rows, what is normed is kept by slot and position. `pair`: two norms side by side, of rows that take in
// nothing. `branch_alone`, with SANDWICH: what would join the residual, for who wants it elsewhere.
// What is written besides x, by `forms`: FORM_FLOAT normed [rows, WIDTH] f32, FORM_256 and FORM_32 the quantised forms.
//
// Shapes: residual, branch, aside, shared [rows, WIDTH] f32; outputs [rows, USED, WIDTH] f32; weights [rows, USED] f32; gate [rows] f32; weight [WIDTH] f32.
// Exact: the same bits as `rms_norm_into`, `rms_norm`, `add`, `Combine::run` and `quantise` of the CPU (a NaN's payload aside).
// Grid: one block a row, NORM_THREADS threads (a warp a run of 256 values, at most 16 warps). Shared memory: 4 WIDTH + 16 bytes, static. Rows beyond the
// live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: those of norm.cuh, SANDWICH.
#include "norm.cuh"

#ifndef SANDWICH
#define SANDWICH 0
#endif

/// What stands around a block's output, each if it is not null. Only with SANDWICH is anything of it read.
struct Around {
    const float* norm;  // [WIDTH], weight of a norm of the output
    const float* aside; // [rows, WIDTH], added to it
    const float* outer; // [WIDTH], weight of a norm of both
    float norm_eps, outer_eps;
    float factor; // on the residual with the output in it
};

/// This thread's share of it.
struct AroundShare {
    float norm[TURNS][8], aside[TURNS][8], outer[TURNS][8];
};
/// Asks for weights, which do not depend on the kernel before.
DEVICE void ask(AroundShare& share, const Around& around) {
    if (SANDWICH && around.norm) load_share(around.norm, share.norm);
    if (SANDWICH && around.outer) load_share(around.outer, share.outer);
}
DEVICE void ask_row(AroundShare& share, const Around& around, u32 row) {
    if (SANDWICH && around.aside) load_share(around.aside + (u64)row * WIDTH, share.aside);
}
/// Does to a block's output what stands around it.
DEVICE void apply(const AroundShare& share, const Around& around, float y[TURNS][8]) {
    if (!SANDWICH) return;
    if (around.norm) weigh_share(y, share.norm, around.norm_eps);
    if (around.aside) add_share(share.aside, y);
    if (around.outer) weigh_share(y, share.outer, around.outer_eps);
}

/// Norms the row that the block holds into its place among those that are kept, unless a later row of its sequence has the same place.
DEVICE void keep_share(const float x[TURNS][8], const float weight[TURNS][8], float eps, Kept kept, u32 row, u32 live, Rows rows) {
    u32 to = kept_place(kept, row, live, rows);
    if (to != ~0u) norm_share(x, weight, eps, {kept.states, {}, {}, FORM_FLOAT}, to);
}

/// A row of the residual, what joins it, and the weight of the norm that follows.
struct Joined {
    float x[TURNS][8], y[TURNS][8], weight[TURNS][8];
    AroundShare share;
};
DEVICE void ask(Joined& joined, const Around& around, const float* weight) {
    if (weight) load_share(weight, joined.weight);
    ask(joined.share, around);
}
template <class From>
DEVICE void load(Joined& joined, const float* residual, From from, const Around& around, u32 row) {
    load_share(residual + (u64)row * WIDTH, joined.x);
    if (there(from)) load_branch(from, row, joined.y);
    ask_row(joined.share, around, row);
}
template <class From>
DEVICE void join(Joined& joined, From from, const Around& around) {
    if (there(from)) {
        apply(joined.share, around, joined.y);
        add_share(joined.y, joined.x);
    }
#if SANDWICH
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) joined.x[turn][i] *= around.factor;
#endif
}

/// One of all rows takes in what joins it, if it is `live`; gives its number.
template <class From>
DEVICE u32 take_in(Joined& joined, float* residual, From from, const Around& around, u32 live) {
    u32 row = blockIdx.x;
    load(joined, residual, from, around, row);
    if (row >= live) return row;
    join(joined, from, around);
    if (there(from) || (SANDWICH && around.factor != 1.0f)) store_share(residual + (u64)row * WIDTH, joined.x);
    return row;
}

template <class From>
DEVICE void norm_row(float* residual, From from, const Around& around, const float* weight, float eps, Normed normed, Rows rows) {
    Joined joined;
    ask(joined, around, weight);
    wait_for_previous();
    release_next();
    // the count is on its way together with the row, which is there for every block of the grid
    u32 live = rows.counts[0], row = take_in(joined, residual, from, around, live);
    if (row < live && weight) norm_share(joined.x, joined.weight, eps, normed, row);
}

KERNEL_MIN(NORM_THREADS, 1)
rms_norm(float* residual, const float* branch, Around around, const float* weight, float eps, Normed normed, Rows rows) {
    norm_row(residual, Branch{branch}, around, weight, eps, normed, rows);
}

KERNEL_MIN(NORM_THREADS, 1)
combine_norm(float* residual, Experts experts, Around around, const float* weight, float eps, Normed normed, Rows rows) {
    norm_row(residual, experts, around, weight, eps, normed, rows);
}

/// Row i of the output is the i-th row that needs logits.
template <class From>
DEVICE void head_row(const float* residual, From from, const Around& around, const float* weight, float eps, Normed normed, Rows rows) {
    Joined joined;
    ask(joined, around, weight);
    wait_for_previous();
    release_next();
    u32 live = rows.counts[2], row = rows.logits[blockIdx.x];
    if (blockIdx.x >= live) return;
    load(joined, residual, from, around, row);
    join(joined, from, around);
    norm_share(joined.x, joined.weight, eps, normed, blockIdx.x);
}

KERNEL_MIN(NORM_THREADS, 1)
head_norm(const float* residual, const float* branch, Around around, const float* weight, float eps, Normed normed, Rows rows) {
    head_row(residual, Branch{branch}, around, weight, eps, normed, rows);
}

KERNEL_MIN(NORM_THREADS, 1)
head_combine_norm(const float* residual, Experts experts, Around around, const float* weight, float eps, Normed normed, Rows rows) {
    head_row(residual, experts, around, weight, eps, normed, rows);
}

template <class From>
DEVICE void keep_row(float* residual, From from, const Around& around, const float* weight, float eps, Kept kept, Rows rows) {
    Joined joined;
    ask(joined, around, weight);
    wait_for_previous();
    release_next();
    u32 live = rows.counts[0], row = take_in(joined, residual, from, around, live);
    if (row < live) keep_share(joined.x, joined.weight, eps, kept, row, live, rows);
}

KERNEL_MIN(NORM_THREADS, 1)
keep_norm(float* residual, const float* branch, Around around, const float* weight, float eps, Kept kept, Rows rows) {
    keep_row(residual, Branch{branch}, around, weight, eps, kept, rows);
}

KERNEL_MIN(NORM_THREADS, 1)
keep_combine_norm(float* residual, Experts experts, Around around, const float* weight, float eps, Kept kept, Rows rows) {
    keep_row(residual, experts, around, weight, eps, kept, rows);
}

#if SANDWICH
/// `to [rows, WIDTH]` = the branch, or where that is null the experts' sum, with what stands around it but for the factor.
KERNEL_MIN(NORM_THREADS, 1) branch_alone(const float* branch, Experts experts, Around around, float* to, Rows rows) {
    float y[TURNS][8];
    AroundShare share;
    ask(share, around);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x;
    if (row >= rows.counts[0]) return;
    if (branch) load_branch(Branch{branch}, row, y);
    else load_branch(experts, row, y);
    ask_row(share, around, row);
    apply(share, around, y);
    store_share(to + (u64)row * WIDTH, y);
}
#endif

/// `paired [rows, STREAMS, 2 WIDTH]`: the normed embedding of a row, then its normed hidden state: that which is kept for its position, or with `length` 0 row `row` of
/// `states`; of several streams each by itself. Grid: (rows, 2 STREAMS).
KERNEL_MIN(NORM_THREADS, 1) pair(const float* embedded, const float* states, u32 length, const float* embedded_weight, const float* state_weight, float eps,
                                 float* paired, Rows rows) {
    float x[TURNS][8], w[TURNS][8];
    u32 row = blockIdx.x, half = blockIdx.y % 2, stream = blockIdx.y / 2;
    load_share(half ? state_weight + stream * WIDTH : embedded_weight, w);
    wait_for_previous();
    release_next();
    if (row >= rows.counts[0]) return;
    u32 at = half && length ? rows.slots[row] * length + rows.positions[row] % length : row;
    load_share(half ? states + ((u64)at * STREAMS + stream) * WIDTH : embedded + (u64)at * WIDTH, x);
    norm_share(x, w, eps, {paired, {}, {}, FORM_FLOAT}, 2 * (row * STREAMS + stream) + half);
}

/// How these kernels are launched.
KERNEL(1) norm_launch(u32* to) { to[0] = NORM_THREADS; }
