// What the two attention kernels share, so that a row has the same bits whichever computes it.
//
// out = softmax(scale q . k) v over the positions up to the row's own, for the GROUP query heads of a KV head. A line is a row's head.
//
// - Scores are in units of log2: the query is multiplied by `scale * log2 e` in f32 and cut into QUERY_PARTS halves (the nearest half, then the nearest half to
//   the rest). A score is one chain of `mma_f16` from 0: blocks of 32 channels ascending, in each the even and the odd fours of an eight, in each the parts.
// - Pages are taken in ascending order with a running maximum m. Weights are 2^(score - m + 15), rounded to halves (2^15 keeps small ones from losing digits; it
//   cancels). They are multiplied with the values in one chain of `mma_f16` a channel: places of a page ascending (see kv.cuh), 16 at a time. A channel of ones
//   gives their sum. Before each page the sums are multiplied by 2^(old m - new m).
// - Every SPLIT positions a fresh state begins; splits are joined in ascending order:
//   m' = max(m, m_s), x' = fma(x_s, 2^(m_s - m'), x * 2^(m - m')), in f32.
// - With WINDOW positions before a row's window have weight 0 as well, and splits before it are left out. With SINKS a head's sink joins at the end, as a split
//   of one weight 1 (times 2^15) and values 0. With SELECTED positions that a row's mask leaves out have weight 0 too; a page or split of which nothing is seen adds nothing.
// - With f32 keys and values everything is a chain of `fmaf` in ascending order (weights without the 2^15, sums of 64 weights by halves 32, 16, .., 1).
//
// So a result depends on the row's position and the cache only: not on tiles, chunks, the rows of a window or the grid. A position behind a row's own has weight 0.
//
// Errors against f64 on the cache's numbers, root mean square relative to the output, scores of deviation 1 to 4: f16 1e-4 to 2e-4 with two parts (the rounding
// of weights), 3e-4 to 6e-4 with one part; q8_0 2e-4 to 3e-4 (it adds the rounding of `scale * code` to a half); f32 3e-7.
// Against f64 on keys and values that were never rounded: the f16 cache by itself 3.0e-4, 5.2e-4, 7.7e-4 (4000 positions, deviation 1, 2, 4), with these products
// of two parts 3.7e-4, 5.4e-4, 7.7e-4, of one part 4.2e-4, 6.7e-4, 9.6e-4. One part rounds a query once more than keys are rounded anyway, and is a third less work.
//
// Macros: those of kv.cuh; HEADS (at most 16 KV_HEADS), SPLIT (64, 128 or 256), QUERY_PARTS (1, or 2), GATED (queries come as `[query | gate]` a head), SINKS, SELECTED (rows may have masks: index.cu).
#pragma once
#include "functions.cuh"
#include "kv.cuh"

#ifndef HEADS
#define HEADS (8 * KV_HEADS)
#endif
#ifndef SPLIT
#define SPLIT 128
#endif
#ifndef QUERY_PARTS
#define QUERY_PARTS 1
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef SINKS
#define SINKS 0
#endif
#ifndef SELECTED
#define SELECTED 0
#endif

#define GROUP (HEADS / KV_HEADS)
#define SPLIT_PAGES (SPLIT / PAGE)
/// Lines of one tensor-core product.
#define LINES 16
/// Floats of a head's query with what follows it, and of a row of them.
#define QUERY_STRIDE (GATED ? 2 * HEAD_DIM : HEAD_DIM)
#define QUERY_WIDTH (HEADS * QUERY_STRIDE)
#define WIDTH (HEADS * HEAD_DIM)

static_assert(HEADS % KV_HEADS == 0 && GROUP <= LINES && SPLIT % PAGE == 0, "shape");
static_assert(HEAD_DIM % 8 == 0 && (HEAD_DIM <= 256 || HEAD_DIM % 64 == 0) && HEAD_DIM <= 512, "a head");

#define MINUS_INFINITY float_of(0xff800000u)
#define LOG2_E 1.44269504f

/// 2 to the power of `x + exponent`, `x <= 0`; relative error 1.1e-7. 2^(exponent - 126) for all `x` below -126, a NaN included.
DEVICE float power_of_two(float x) {
    x = fmaxf(x, -126.0f);
    float shifted = x + 12582912.0f, r = x - (shifted - 12582912.0f);
    float p = 1.3264727e-3f;
    p = fmaf(p, r, 9.671513e-3f);
    p = fmaf(p, r, 5.5507336e-2f);
    p = fmaf(p, r, 2.4022242e-1f);
    p = fmaf(p, r, 6.93147e-1f);
    p = fmaf(p, r, 1.0f);
    return float_of(bits_of(p) + (bits_of(shifted) << 23));
}
/// What is subtracted from scores whose maximum is `m`: weights are 2 to the power of the rest, at most 2^15. Nothing but minus infinity: all weights are 0.
DEVICE float base_of(float m) { return m == MINUS_INFINITY ? 0.0f : m - 15.0f; }
/// The weight of a score, before it is rounded to a half.
DEVICE float weight_of(float score, float base) { return exp2_near(score - base); }

/// The factors of a join: `*kept` for what is there, `*added` for the split that comes.
DEVICE void join_factors(float* m, float next, float* kept, float* added) {
    float top = fmaxf(*m, next);
    *kept = power_of_two(*m - top);
    *added = power_of_two(next - top);
    *m = top;
}

/// Which positions rows see: `of [rows, pages] u64`, a bit a position; null: all of them.
struct Masks {
    const u64* of;
    u64 pages;
};
/// Positions of a page that a row of the window sees.
DEVICE u64 seen_of(const Masks& masks, u32 row, u32 page) { return SELECTED && masks.of ? masks.of[row * masks.pages + page] : ~0ull; }

/// The weight of a sink, as weights are stored.
#define SINK_WEIGHT (KV_TYPE == KV_F32 ? 1.0f : 32768.0f)

/// Takes a sink into the sum of weights; `*kept` is the factor on the values.
DEVICE float with_sink(float m, float sum, float sink, float* kept) {
    float added;
    join_factors(&m, sink * LOG2_E, kept, &added);
    return fmaf(SINK_WEIGHT, added, sum * *kept);
}

#if KV_TYPE != KV_F32

/// Blocks of 32 channels, the last one perhaps of fewer.
#define CHUNKS KV_BLOCKS
/// Words of four of LINES queries, as operands: `[CHUNKS, 2, QUERY_PARTS, 32 lanes]`.
#define QUERY_OPERANDS (CHUNKS * 2 * QUERY_PARTS * 32)
#define QUERY_OPERAND(chunk, odd, part) ((((chunk) * 2 + (odd)) * QUERY_PARTS + (part)) * 32)

/// Four channels of a query, scaled, as the nearest halves.
DEVICE uint2 query_halves(float4 q, float scale) {
    float x[4] = {q.x * scale, q.y * scale, q.z * scale, q.w * scale};
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
    return make_uint2(pack_halves(x[0], x[1]), pack_halves(x[2], x[3]));
}
/// Puts four channels (`4 four ..`) of line `line` of LINES into the operands.
DEVICE void put_query(uint4* operands, u32 line, u32 four, float4 q, float scale) {
    u32 eight = four / 2, odd = four % 2;
    u32* to = (u32*)(operands + QUERY_OPERAND(eight / 4, odd, 0) + line % 8 * 4 + eight % 4) + line / 8;
    float x[4] = {q.x * scale, q.y * scale, q.z * scale, q.w * scale};
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
#pragma unroll
    for (u32 part = 0; part < QUERY_PARTS; part++) {
        u32 low = pack_halves(x[0], x[1]), high = pack_halves(x[2], x[3]);
        to[part * 128] = low;
        to[part * 128 + 2] = high;
        x[0] -= half_to_float((u16)low), x[1] -= half_to_float((u16)(low >> 16));
        x[2] -= half_to_float((u16)high), x[3] -= half_to_float((u16)(high >> 16));
    }
}

/// Adds one chunk of channels to the scores of LINES lines for eight positions; `keys` are this lane's eight channels of its position.
DEVICE void add_scores(float scores[4], const uint4 queries[2 * QUERY_PARTS], uint4 keys) {
    u32 even[2] = {keys.x, keys.y}, odd[2] = {keys.z, keys.w};
#pragma unroll
    for (u32 part = 0; part < QUERY_PARTS; part++) mma_f16(scores, (const u32*)&queries[part], even);
#pragma unroll
    for (u32 part = 0; part < QUERY_PARTS; part++) mma_f16(scores, (const u32*)&queries[QUERY_PARTS + part], odd);
}

/// Adds 32 positions to the sums of LINES lines for eight channels; `values` are the eight places of this lane's unit for its channel.
DEVICE void add_values(float sums[4], const uint4 weights[2], uint4 values) {
    u32 even[2] = {values.x, values.y}, odd[2] = {values.z, values.w};
    mma_f16(sums, (const u32*)&weights[0], even);
    mma_f16(sums, (const u32*)&weights[1], odd);
}
/// Values of the channel whose sum is the sum of the weights.
#define ONES make_uint4(0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u)

/// The greatest of a lane's scores of lines g and g + 8 with those of the other lanes of these lines.
DEVICE float line_top(float x) {
    x = fmaxf(x, shfl_xor(x, 1));
    return fmaxf(x, shfl_xor(x, 2));
}
/// Minus infinity for what of the positions `at` and `at + 1` of a page lies behind a line's `last`; scores are of lines g and g + 8.
DEVICE void mask_from(float scores[4], u32 at, u32 last_low, u32 last_high) {
    if (at > last_low) scores[0] = MINUS_INFINITY;
    if (at + 1 > last_low) scores[1] = MINUS_INFINITY;
    if (at > last_high) scores[2] = MINUS_INFINITY;
    if (at + 1 > last_high) scores[3] = MINUS_INFINITY;
}
/// The same for what lies before `from`.
DEVICE void mask_to(float scores[4], u32 at, u32 from_low, u32 from_high) {
    if (at < from_low) scores[0] = MINUS_INFINITY;
    if (at + 1 < from_low) scores[1] = MINUS_INFINITY;
    if (at < from_high) scores[2] = MINUS_INFINITY;
    if (at + 1 < from_high) scores[3] = MINUS_INFINITY;
}
/// The same for what is not seen.
DEVICE void mask_seen(float scores[4], u32 at, u64 low, u64 high) {
    if (!(low >> at & 1)) scores[0] = MINUS_INFINITY;
    if (!(low >> at & 2)) scores[1] = MINUS_INFINITY;
    if (!(high >> at & 1)) scores[2] = MINUS_INFINITY;
    if (!(high >> at & 2)) scores[3] = MINUS_INFINITY;
}
/// The first of the two positions of this lane in the eight positions `tile` of a page, where lanes have them in order.
DEVICE u32 position_in(u32 tile) { return 8 * tile + 2 * (lane_of() % 4); }
/// What of the positions before `from` lies in a page that begins at `start`.
DEVICE u32 hidden_of(u32 from, u32 start) { return from > start ? from - start : 0; }

#else

#define FLOAT_THREADS (HEAD_DIM > 256 ? 512 : 256)
/// Threads a line: a thread has one channel of FLOAT_LINES lines.
#define FLOAT_CHANNELS (HEAD_DIM <= 16 ? 16 : HEAD_DIM <= 32 ? 32 : HEAD_DIM <= 64 ? 64 : HEAD_DIM <= 128 ? 128 : HEAD_DIM <= 256 ? 256 : 512)
#define FLOAT_LINES (LINES * FLOAT_CHANNELS / FLOAT_THREADS)
#define FLOAT_CHANNEL (threadIdx.x % FLOAT_CHANNELS)
#define FLOAT_LINE(i) (threadIdx.x / FLOAT_CHANNELS * FLOAT_LINES + (i))

/// Up to LINES lines of consecutive rows within a page of positions; line `row * GROUP + head`.
struct FloatLines {
    const float* queries; // [LINES, HEAD_DIM], shared, times `scale * log2 e`
    float* scores;        // [LINES, PAGE], shared
    float* states;        // [3, LINES], shared: maxima, sums of weights, factors
    const u8* cache;      // of the KV head
    u64 page_stride;
    const u32* pages; // of the sequence
    u32 slot;
    u32 position; // of the first row
    u32 rows;
    u32 row;   // of the window for that position, perhaps before the span's first (then the number has wrapped)
    u32 first; // position of the span's first row
    Masks masks;
};

/// Runs the lines over a split from a fresh state; the block takes part. Maxima and sums of weights are left in `states` until the next call.
DEVICE void sweep_split(const FloatLines& lines, u32 split, float sums[FLOAT_LINES]) {
    u32 count = lines.rows * GROUP, last = lines.position + lines.rows - 1, lane = lane_of();
    if (threadIdx.x < LINES) {
        lines.states[threadIdx.x] = MINUS_INFINITY;
        lines.states[LINES + threadIdx.x] = 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < FLOAT_LINES; i++) sums[i] = 0.0f;
    sync_block();
    for (u32 page = greatest(split * SPLIT_PAGES, visible_from(lines.position) / PAGE); page < (split + 1) * SPLIT_PAGES && page * PAGE <= last; page++) {
        const u8* keys = lines.cache + page_of(lines.pages, lines.slot, page) * lines.page_stride;
        const float* values = (const float*)(keys + KV_PART_BYTES);
        u32 seen = least(last + 1 - page * PAGE, (u32)PAGE);
        u32 place = threadIdx.x % PAGE, first = threadIdx.x / PAGE * 4;
        float score[4] = {0, 0, 0, 0};
        if (place < seen && first < count) {
#pragma unroll 1
            for (u32 four = 0; four < HEAD_DIM / 4; four++) {
                float4 k = ((const float4*)keys)[four * PAGE + place];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float4 q = ((const float4*)(lines.queries + (first + i) * HEAD_DIM))[four];
                    score[i] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, score[i]))));
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (first >= LINES) break;
            u32 own = lines.position + (first + i) / GROUP;
            bool visible = page * PAGE + place <= own && page * PAGE + place >= visible_from(own);
            // rows before a span's first, and lines that are not there, have no masks
            if (SELECTED && visible && own >= lines.first && (first + i) / GROUP < lines.rows)
                visible = seen_of(lines.masks, lines.row + (first + i) / GROUP, page) >> place & 1;
            lines.scores[(first + i) * PAGE + place] = visible ? score[i] : MINUS_INFINITY;
        }
        sync_block();
        for (u32 line = warp_of(); line < count; line += FLOAT_THREADS / 32) {
            float* of = lines.scores + line * PAGE;
            float a = of[lane], b = of[lane + 32], before = lines.states[line], m = fmaxf(before, warp_max_f32(fmaxf(a, b)));
            a = a - m < -126.0f ? 0.0f : power_of_two(a - m);
            b = b - m < -126.0f ? 0.0f : power_of_two(b - m);
            float sum = warp_sum_f32(a + b), keep = power_of_two(before - m);
            of[lane] = a;
            of[lane + 32] = b;
            sync_warp();
            if (lane == 0) {
                lines.states[line] = m;
                lines.states[LINES + line] = fmaf(lines.states[LINES + line], keep, sum);
                lines.states[2 * LINES + line] = keep;
            }
        }
        sync_block();
        if (FLOAT_CHANNEL < HEAD_DIM) {
#pragma unroll
            for (u32 i = 0; i < FLOAT_LINES; i++)
                if (FLOAT_LINE(i) < count) sums[i] *= lines.states[2 * LINES + FLOAT_LINE(i)];
#pragma unroll 2
            for (u32 at = 0; at < seen; at++) {
                float value = values[at * HEAD_DIM + FLOAT_CHANNEL];
#pragma unroll
                for (u32 i = 0; i < FLOAT_LINES; i++)
                    if (FLOAT_LINE(i) < count) sums[i] = fmaf(lines.scores[FLOAT_LINE(i) * PAGE + at], value, sums[i]);
            }
        }
        sync_block();
    }
}

#endif
