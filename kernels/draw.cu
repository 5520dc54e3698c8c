// The token behind each row, drawn from its logits; then the rows are those tokens, one position further: so that predictions follow each other without the host.
//
//     kept   = the tokens that top-k, top-p and min-p leave, by the row's candidates; all of them where candidates do not reach that far
//     weight = exp((logit - peak) * sharpness) of what is kept
//     token  = where the sums of weights, counted along the ids, reach share * sum; the likeliest where sharpness is 0
//
// As `Sampler::choose` of src/sampler.rs does, but for bias and penalties and but for rounding: what is drawn here is a guess.
//
// A row's token, position and span move on by one; `counts` become those of rows that are asked for a token more, which come first. A row that is not finite leaves
// NONE as its draft and goes on with token 0.
//
// Shapes: logits [rows, VOCAB] f32; choices [rows], ids [rows, CANDIDATES] u32, values [rows, CANDIDATES] f32 of `choose`; see `Chain`. Rows are asked one by one: row i of
// the window is the i-th that needs logits, and a span.
// Grid: (rows), DRAW_THREADS threads. Static shared memory: 4 VOCAB / 128 bytes and some words.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: VOCAB, CANDIDATES, STREAMS (of the residual).
#include "choice.cuh"
#include "device.cuh"
#include "functions.cuh"

#ifndef VOCAB
#define VOCAB 151936
#endif
#ifndef CANDIDATES
#define CANDIDATES 256
#endif
#ifndef STREAMS
#define STREAMS 1
#endif

#define DRAW_THREADS 512
#define DRAW_WARPS (DRAW_THREADS / 32)
/// Logits of a warp: four a lane.
#define CHUNK 128
#define CHUNKS ((VOCAB + CHUNK - 1) / CHUNK)
/// Chunks and candidates of a lane, where one warp has all.
#define CHUNK_SHARE ((CHUNKS + 31) / 32)
#define CANDIDATE_SHARE ((CANDIDATES + 31) / 32)
#define NONE (~0u)

/// How a row's tokens are drawn.
struct Odds {
    float sharpness; // 1 / temperature; 0: the likeliest
    float least;     // of min-p: a logit this far from the greatest stays; minus infinity: all
    float p;         // of top-p
    u32 k;           // of top-k; 0: all
};

/// A chain of predictions.
struct Chain {
    u32* state;           // [2]: steps done; blocks of this launch that are done, 0 between launches
    const u32* depths;    // [rows]: tokens that a row is asked for, descending
    const Odds* odds;     // [rows]
    const double* shares; // [steps, stride]
    u32* drafts;          // [steps, stride]
    u64 stride;
};

/// Tokens with a higher logit stay, and of those with just this one those up to `last`.
struct Line {
    float logit;
    u32 last;
};

DEVICE double inclusive_sum(double x) {
#pragma unroll
    for (u32 by = 1; by < 32; by <<= 1) {
        double other = shfl_up(x, by);
        if (lane_of() >= by) x += other;
    }
    return x;
}

/// What top-k, top-p and min-p leave. By one warp.
DEVICE Line draw_line(Odds odds, Choice choice, const u32* ids, const float* values) {
    u32 lane = lane_of(), known = choice.candidates, kept = NONE;
    bool top = odds.k && odds.k <= known;
    if (top) kept = known = odds.k;
    if (odds.p < 1.0f && known) {
        double own = 0.0;
        for (u32 i = 0; i < CANDIDATE_SHARE; i++) {
            u32 at = lane * CANDIDATE_SHARE + i;
            if (at < known) own += (double)exp_of(values[at] - choice.peak);
        }
        double above = inclusive_sum(own), sum = shfl(above, 31);
        double target = (double)odds.p * (top ? sum : choice.sum);
        above -= own;
        u32 reached = NONE;
        for (u32 i = 0; i < CANDIDATE_SHARE; i++) {
            u32 at = lane * CANDIDATE_SHARE + i;
            if (at < known) above += (double)exp_of(values[at] - choice.peak);
            if (at < known && reached == NONE && above >= target) reached = at + 1;
        }
        reached = ~warp_max_u32(~reached);
        if (reached != NONE) kept = reached;
    }
    Line line = {float_of(0xff800000u), NONE};
    if (kept != NONE) line = {values[kept - 1], ids[kept - 1]};
    float lowest = choice.peak + odds.least;
    if (lowest > line.logit) line = {lowest, NONE};
    return line;
}

/// Weights of four tokens from `at` on.
DEVICE void weigh_four(const float* row, u32 at, Odds odds, float peak, Line line, float weights[4]) {
    float x[4];
    if (VOCAB % 4 == 0 && at < VOCAB) {
        float4 four = *(const float4*)(row + at);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[i] = at + i < VOCAB ? row[at + i] : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        bool kept = at + i < VOCAB && (x[i] > line.logit || (x[i] == line.logit && at + i <= line.last));
        weights[i] = kept ? exp_of((x[i] - peak) * odds.sharpness) : 0.0f;
    }
}

/// Of lanes with these weights the one in which `left` falls, and what is left of it there; NONE if rounding leaves it in none.
DEVICE u32 falls_in(double weight, double* left) {
    double end = inclusive_sum(weight);
    u32 those = ballot(weight > 0.0 && *left < end);
    if (!those) return NONE;
    u32 lane = 0;
    while (!(those >> lane & 1)) lane++;
    *left -= shfl(end - weight, lane);
    return lane;
}

KERNEL_MIN(DRAW_THREADS, 1) draw(const float* logits, const Choice* choices, const u32* ids, const float* values, Chain chain, Rows rows) {
    SHARED(float, sums, CHUNKS);
    SHARED(Line, cut, 1);
    wait_for_previous();
    release_next();
    u32 number = blockIdx.x, thread = threadIdx.x, lane = lane_of(), warp = warp_of();
    u32 live = rows.counts[2], step = chain.state[0], token = 0;
    bool finite = true;
    if (number < live) {
        Choice choice = choices[number];
        Odds odds = chain.odds[number];
        token = choice.token, finite = choice.finite;
        if (odds.sharpness > 0.0f && finite) {
            const float* row = logits + (u64)number * VOCAB;
            if (warp == 0) {
                Line line = draw_line(odds, choice, ids + (u64)number * CANDIDATES, values + (u64)number * CANDIDATES);
                if (lane == 0) cut[0] = line;
            }
            sync_block();
            Line line = cut[0];
            float weights[4];
            for (u32 chunk = warp; chunk < CHUNKS; chunk += DRAW_WARPS) {
                weigh_four(row, CHUNK * chunk + 4 * lane, odds, choice.peak, line, weights);
                float sum = warp_sum_f32((weights[0] + weights[1]) + (weights[2] + weights[3]));
                if (lane == 0) sums[chunk] = sum;
            }
            sync_block();
            if (warp == 0) {
                u32 first = lane * CHUNK_SHARE;
                double own = 0.0;
                for (u32 i = 0; i < CHUNK_SHARE; i++)
                    if (first + i < CHUNKS) own += (double)sums[first + i];
                double left = chain.shares[step * chain.stride + number] * shfl(inclusive_sum(own), 31);
                u32 found = falls_in(own, &left);
                if (found != NONE) {
                    u32 chunk = found * CHUNK_SHARE, end = least(chunk + CHUNK_SHARE, (u32)CHUNKS);
                    while (chunk + 1 < end && left >= (double)sums[chunk]) left -= (double)sums[chunk++];
                    weigh_four(row, CHUNK * chunk + 4 * lane, odds, choice.peak, line, weights);
                    found = falls_in((double)weights[0] + (double)weights[1] + (double)weights[2] + (double)weights[3], &left);
                    u32 within = 0;
                    while (within < 3 && left >= (double)weights[within]) left -= (double)weights[within++];
                    // the lane in which it falls speaks for all
                    if (found != NONE) token = CHUNK * chunk + 4 * found + shfl(within, found);
                }
            }
        }
    }
    sync_block();
    if (thread) return;
    if (number < live) {
        chain.drafts[step * chain.stride + number] = finite ? token : NONE;
        ((u32*)rows.tokens)[number] = finite ? token : 0;
        ((u32*)rows.positions)[number] += 1;
        ((u32*)rows.spans)[4 * number + 2] += 1;
    }
    fence();
    if (atomic_add(chain.state + 1, 1u) + 1 < gridDim.x) return;
    // the last block: all others have read what changes here
    u32 next = 0;
    while (next < live && chain.depths[next] > step + 1) next++;
    u32* counts = (u32*)rows.counts;
    counts[0] = counts[1] = counts[2] = next;
    counts[3] = next * STREAMS;
    chain.state[0] = step + 1;
    chain.state[1] = 0;
}
