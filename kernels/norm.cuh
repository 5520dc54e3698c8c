// A block of threads that holds a row of the residual in registers, a share each, and norms it: what norm.cu, streams.cu and ngram.cu have in common.
//
// Macros: WIDTH (a multiple of 32, of 256 for FORM_256), USED (experts a row, for the kernels that combine), STREAMS (rows of WIDTH that a row of the residual consists of).
#pragma once
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
#ifndef STREAMS
#define STREAMS 1
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

DEVICE void add_share(const float y[TURNS][8], float x[TURNS][8]) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] += y[turn][i];
}

/// A block's output in a buffer; null: there is none.
struct Branch {
    const float* at;
};
DEVICE bool there(Branch from) { return from.at != nullptr; }
DEVICE bool there(Experts) { return true; }

DEVICE void load_branch(Branch from, u32 row, float y[TURNS][8]) { load_share(from.at + (u64)row * WIDTH, y); }
DEVICE void load_branch(Experts from, u32 row, float y[TURNS][8]) {
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) y[turn][i] = 0.0f;
        if (eight_at(turn) < WIDTH) combine_eight<USED, WIDTH>(from, row, eight_at(turn), y[turn]);
    }
}

/// What the row that the block holds is multiplied by before its norm's weight.
DEVICE float scale_of_row(const float x[TURNS][8], float eps) {
    SHARED(float, row, WIDTH);
    SHARED(float, factor, 1);
    store_share(row, x);
    sync_block();
    if (warp_of() == 0) {
        float scale = 1.0f / sqrtf(sum_of_squares<WIDTH>(row) / (float)WIDTH + eps);
        if (lane_of() == 0) factor[0] = scale;
    }
    sync_block();
    return factor[0];
}

/// Norms the row that the block holds.
DEVICE void weigh_share(float x[TURNS][8], const float weight[TURNS][8], float eps) {
    float scale = scale_of_row(x, eps);
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] = x[turn][i] * scale * weight[turn][i];
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
    float scale = scale_of_row(x, eps);
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

/// Where hidden states of sequences are kept, by position modulo `length`.
struct Kept {
    float* states; // [slots, length, STREAMS, WIDTH]
    u32 length;
    u32 ahead; // positions by which a state is kept after its row's own
};

/// Where a row's state is kept; ~0 where a later row of its sequence has the same place.
DEVICE u32 kept_place(const Kept& kept, u32 row, u32 live, const Rows& rows) {
    u32 slot = rows.slots[row], later = row + kept.length;
    if (later < live && rows.slots[later] == slot) return ~0u;
    return slot * kept.length + (rows.positions[row] + kept.ahead) % kept.length;
}
