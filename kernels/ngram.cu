// What n-grams add to the streams of the residual: rows of a table, gated stream by stream, and their convolution over time.
//
//     score_s = norm(key_s) . norm(x_s) / sqrt(WIDTH)
//     g_s     = sigmoid(sign(score_s) sqrt(max(|score_s|, 1e-6))) * value
//     x      += g + silu(sum over taps of taps[t] * norm(g) at (TAPS - 1 - t) * TOKENS positions before)       one chain of fused multiply-adds from 0, the oldest first
//
// `ngram_gate`: keys become g, `inputs` what the convolution reads. `ngram_convolve`: the last line; what lies before the window is in the slot's ring. `ngram_keep`: the window's inputs to
// the ring, position p in row p mod RING; after `ngram_convolve`, which reads what they replace.
//
// Shapes: key, residual, inputs [rows, STREAMS, WIDTH] f32; value [rows, WIDTH] f32; norms [STREAMS, WIDTH] f32; taps [TAPS, STREAMS * WIDTH] f32; ring [slots, RING, STREAMS * WIDTH] f32.
// Exact: the same bits as `ngrams` of the CPU (a NaN's payload aside).
// Grid: ngram_gate (rows, STREAMS), NORM_THREADS threads; the others (ceil(STREAMS * WIDTH / 1024), rows), 128 threads of 8 channels. Shared memory of ngram_gate: 12 WIDTH + 32 bytes, static.
// Rows beyond the live count leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: those of norm.cuh (WIDTH up to 4064), TAPS, TOKENS, RING (no fewer than a window's looks back, and rows that may be taken back).
#include "norm.cuh"

#ifndef TAPS
#define TAPS 4
#endif
#ifndef TOKENS
#define TOKENS 3
#endif
#ifndef RING
#define RING 32
#endif
#define ALL (STREAMS * WIDTH)

/// The sum of products of two rows that the block holds.
DEVICE float dot_of_shares(const float x[TURNS][8], const float y[TURNS][8]) {
    SHARED(float, a, WIDTH);
    SHARED(float, b, WIDTH);
    SHARED(float, result, 1);
    store_share(a, x);
    store_share(b, y);
    sync_block();
    if (warp_of() == 0) {
        float dot = dot_of_rows<WIDTH>(a, b);
        if (lane_of() == 0) result[0] = dot;
    }
    sync_block();
    return result[0];
}

KERNEL_MIN(NORM_THREADS, 1) ngram_gate(const float* residual, float* key, const float* value, const float* key_norm, const float* query_norm, const float* input_norm, float eps,
                                       float* inputs, Rows rows) {
    float x[TURNS][8], y[TURNS][8], w[TURNS][8];
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x, stream = blockIdx.y;
    if (row >= rows.counts[0]) return;
    u64 at = ((u64)row * STREAMS + stream) * WIDTH;
    load_share(key + at, x);
    load_share(key_norm + stream * WIDTH, w);
    weigh_share(x, w, eps);
    load_share(residual + at, y);
    load_share(query_norm + stream * WIDTH, w);
    weigh_share(y, w, eps);
    float score = dot_of_shares(x, y) * (1.0f / sqrtf((float)WIDTH));
    float sign = score > 0.0f ? 1.0f : score < 0.0f ? -1.0f : score;
    float open = sigmoid_of(sqrtf(fmaxf(fabsf(score), 1e-6f)) * sign);
    load_share(value + (u64)row * WIDTH, x);
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[turn][i] = open * x[turn][i];
    store_share(key + at, x);
    load_share(input_norm + stream * WIDTH, w);
    weigh_share(x, w, eps);
    store_share(inputs + at, x);
}

KERNEL_MIN(128, 1) ngram_convolve(float* residual, const float* gated, const float* inputs, const float* taps, const float* ring, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (row >= rows.counts[0] || at >= ALL) return;
    u32 slot = rows.slots[row], position = rows.positions[row];
    float sum[8] = {};
#pragma unroll
    for (u32 tap = 0; tap < TAPS; tap++) {
        const u32 back = (TAPS - 1 - tap) * TOKENS;
        if (position < back) continue;
        // a sequence has its rows of a window side by side
        bool own = row >= back && rows.slots[row - back] == slot;
        float weight[8], x[8];
        load_eight(taps + tap * ALL + at, weight);
        load_eight((own ? inputs + (u64)(row - back) * ALL : ring + ((u64)slot * RING + (position - back) % RING) * ALL) + at, x);
#pragma unroll
        for (u32 i = 0; i < 8; i++) sum[i] = fmaf(weight[i], x[i], sum[i]);
    }
    float x[8], g[8];
    load_eight(residual + (u64)row * ALL + at, x);
    load_eight(gated + (u64)row * ALL + at, g);
#pragma unroll
    for (u32 i = 0; i < 8; i++) x[i] += g[i] + silu_of(sum[i]);
    store_eight(residual + (u64)row * ALL + at, x);
}

KERNEL_MIN(128, 1) ngram_keep(const float* inputs, float* ring, Rows rows) {
    wait_for_previous();
    release_next();
    u32 row = blockIdx.y, at = 8 * (blockIdx.x * 128 + threadIdx.x);
    if (row >= rows.counts[0] || at >= ALL) return;
    u32 place = kept_place({ring, RING, 0}, row, rows.counts[0], rows);
    if (place == ~0u) return;
    float x[8];
    load_eight(inputs + (u64)row * ALL + at, x);
    store_eight(ring + (u64)place * ALL + at, x);
}

/// How ngram_gate is launched.
KERNEL(1) ngram_launch(u32* to) { to[0] = NORM_THREADS; }
