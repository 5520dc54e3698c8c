// Attention of a window of few rows, in two launches: `attention_decode` sweeps splits of the context, `attention_combine` joins them.
//
// Formula and arithmetic: attention.cuh. The keys and values of all rows of the window are in the cache already.
// A block takes one split of one row for one KV head, with all the query heads that share it: its warps share out the positions for the scores and the channels for
// the sums, so that the keys and values of a split go straight from memory to registers, all at once, and every number is one warp's. With HEAD_DIM above 256 registers
// do not hold everything: keys are asked for when the queries are where they belong, values when the keys have been used.
//
// attention_decode   grid (any number of blocks that share a row's splits, KV_HEADS, rows), block DECODE_THREADS = HEAD_DIM > 128 ? 512 : 256 (f32: HEAD_DIM > 256 ? 512 : 256)
//     rows, row0     blockIdx.z is row `row0 + z` of the window; rows beyond counts[0] leave at once
//     query          [rows, HEADS * QUERY_STRIDE] f32, prepared; with GATED per head [query | gate]
//     cache          kv.cuh; page p of this layer at `cache + p * page_stride`
//     scale          factor on the scores
//     values         scratch [rows of the launch, splits_max, HEADS, HEAD_DIM] f32
//     states         scratch [rows of the launch, splits_max, HEADS, 2] f32: maximum, sum of weights
//     masks          [rows of the window, pages] u64, read with SELECTED, or null
//     splits_max     at least `position / SPLIT + 1` of every row
//                    A block goes on with split x + gridDim.x, so gridDim.x is a matter of speed only: about 4 blocks a multiprocessor in all are enough.
// attention_combine  grid (ceil(HEADS * HEAD_DIM / 256), rows), block 256: a thread takes a channel
//     sinks          [HEADS] f32, read with SINKS
//     forms          what is written: FORM_FLOAT `mixed [rows, HEADS * HEAD_DIM] f32`, FORM_256, FORM_32 (quantise.cuh); with GATED times sigmoid(gate)
// Shared:  static, 9 KiB with head_dim 128 and one query part, 13 KiB with 256, 21 KiB with 512; attention_combine 5 KiB.
// Errors:  attention.cuh. A row alone, among others and in a prompt tile (attention_prompt.cu): the same bits.
// Tables:  rows of the grid beyond counts[0] must lie in the tables (their contents do not matter).
// Architectures tried: sm_75, 80, 86, 89, 90, 100, 120 compile without spills (f16 with head_dim 128 on sm_90: 128 registers; all loads of a split precede the
//          first barrier).
#include "attention.cuh"
#include "quantise.cuh"

#ifndef FORM_FLOAT
#define FORM_FLOAT 4u
#endif

#if KV_TYPE != KV_F32

#define WARPS (HEAD_DIM > 128 ? 16 : 8)
/// Eights of positions of a split, and those of a warp: `warp + WARPS i`.
#define SCORE_TILES (SPLIT / 8)
#define SCORES_PER_WARP (SCORE_TILES / WARPS)
#define SCORE_PAGE(i) (WARPS == 8 ? (i) : warp_of() / 8 + WARPS / 8 * (i))
/// Eights of channels of a warp: `VALUES_PER_WARP warp + i`.
#define VALUES_PER_WARP ((EIGHTS + WARPS - 1) / WARPS)
static_assert(SCORE_TILES % WARPS == 0, "a split is shared out evenly");

/// A lane's part of a warp's keys and values of a split, as they come from memory.
struct Loads {
#if KV_TYPE == KV_F16
    uint4 keys[SCORES_PER_WARP][CHUNKS];
    uint4 values[SPLIT_PAGES][2][VALUES_PER_WARP];
#else
    uint2 keys[SCORES_PER_WARP][CHUNKS];
    u16 key_scales[SCORES_PER_WARP][CHUNKS];
    uint2 values[SPLIT_PAGES][2][VALUES_PER_WARP];
    uint4 value_scales[SPLIT_PAGES][2][VALUES_PER_WARP > 1 ? VALUES_PER_WARP / 4 + 1 : 1];
#endif
};
#define VALUE_SCALE(i) (VALUES_PER_WARP > 1 ? (i) / 4 : 0)
// a warp's eights of channels share blocks as VALUE_SCALE says
static_assert(VALUES_PER_WARP == 1 || VALUES_PER_WARP == 2 || VALUES_PER_WARP % 4 == 0, "blocks of a warp");

/// Whether a warp's registers hold its queries, keys and values at once, and of how many pages they hold the values.
#define AT_ONCE (HEAD_DIM <= 256)
#define PAGES_HELD (AT_ONCE || KV_TYPE != KV_F16 ? SPLIT_PAGES : 1)

/// Asks for the keys that this warp needs of the pages that are there.
DEVICE void load_keys(Loads& loads, const u8* const pages[SPLIT_PAGES], u32 pages_there) {
    u32 lane = lane_of(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 i = 0; i < SCORES_PER_WARP; i++) {
        u32 page = SCORE_PAGE(i), position = 8 * (warp_of() % 8) + g;
        const u8* keys = pages[0];
#pragma unroll
        for (u32 other = 1; other < SPLIT_PAGES; other++)
            if (page == other) keys = pages[other];
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            u32 eight = 4 * chunk + t;
            bool there = page < pages_there && (EIGHTS % 4 == 0 || eight < EIGHTS);
            u32 at = eight * PAGE + position;
#if KV_TYPE == KV_F16
            loads.keys[i][chunk] = there ? stream16(keys + 16 * at) : make_uint4(0, 0, 0, 0);
#else
            loads.keys[i][chunk] = there ? stream8(keys + 8 * at) : make_uint2(0, 0);
            loads.key_scales[i][chunk] = page < pages_there ? ((const u16*)(keys + KV_CODE_BYTES))[chunk * PAGE + position] : (u16)0;
#endif
        }
    }
}

/// And for the values of one of them.
DEVICE void load_values(Loads& loads, const u8* const pages[SPLIT_PAGES], u32 pages_there, u32 page) {
    u32 lane = lane_of(), g = lane / 4, t = lane % 4;
    const u8* values = pages[page] + KV_PART_BYTES;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 unit = 4 * half + t;
#pragma unroll
        for (u32 i = 0; i < VALUES_PER_WARP; i++) {
            u32 eight = VALUES_PER_WARP * warp_of() + i;
            bool there = page < pages_there && (EIGHTS % WARPS == 0 || eight < EIGHTS);
            u32 at = unit * HEAD_DIM + 8 * eight + g;
#if KV_TYPE == KV_F16
            loads.values[page][half][i] = there ? stream16(values + 16 * at) : make_uint4(0, 0, 0, 0);
#else
            loads.values[page][half][i] = there ? stream8(values + 8 * at) : make_uint2(0, 0);
            if (VALUES_PER_WARP == 1 || i % 4 == 0)
                loads.value_scales[page][half][VALUE_SCALE(i)] =
                    there ? load16(values + KV_CODE_BYTES + (eight / 4 * PAGE + unit * 8) * 2) : make_uint4(0, 0, 0, 0);
#endif
        }
    }
}

DEVICE bool nothing(const u64 seen[SPLIT_PAGES]) {
    u64 any = 0;
#pragma unroll
    for (u32 i = 0; i < SPLIT_PAGES; i++) any |= seen[i];
    return any == 0;
}

KERNEL(32 * WARPS) attention_decode(Rows rows, u32 row0, const float* query, const u8* cache, u64 page_stride, float scale, float* values, float* states,
                                    u32 splits_max, Masks masks) {
    SHARED(uint4, operands, QUERY_OPERANDS);
    SHARED(uint4, weights, SPLIT_PAGES * 4 * 32);
    SHARED(float, tops, SPLIT_PAGES * LINES * 8);
    u32 row = row0 + blockIdx.z, kv_head = blockIdx.y, lane = lane_of(), warp = warp_of(), g = lane / 4, t = lane % 4;
    u32 count = rows.counts[0], position = rows.positions[row], first_page = rows.row_pages[row], slot = WINDOW ? rows.slots[row] : 0;
    if (row >= count) position = 0, first_page = 0, slot = 0;
    const u32 from = visible_from(position), begin = from / SPLIT + blockIdx.x;
    bool staged = false;
    for (u32 split = begin; split * SPLIT <= position; split += gridDim.x) {
        const u8* pages[SPLIT_PAGES];
        u32 pages_there = least(position / PAGE - split * SPLIT_PAGES + 1, (u32)SPLIT_PAGES);
#pragma unroll
        for (u32 i = 0; i < SPLIT_PAGES; i++) {
            u32 page = page_of(rows.pages + first_page, slot, split * SPLIT_PAGES + least(i, pages_there - 1));
            pages[i] = cache + page * page_stride + kv_head * KV_HEAD_BYTES;
        }
        if (split == begin) {
            wait_for_previous();
            release_next();
            if (row >= count) return;
        }
        u64 seen[SPLIT_PAGES];
#pragma unroll
        for (u32 i = 0; i < SPLIT_PAGES; i++) seen[i] = SELECTED ? seen_of(masks, row, split * SPLIT_PAGES + least(i, pages_there - 1)) : ~0ull;
        if (SELECTED && nothing(seen)) {
            // what would come of it, without reading it
            u64 head = ((u64)blockIdx.z * splits_max + split) * HEADS + kv_head * GROUP;
            for (u32 at = threadIdx.x; at < GROUP * HEAD_DIM; at += 32 * WARPS) values[head * HEAD_DIM + at] = 0.0f;
            if (threadIdx.x < GROUP) *(float2*)(states + (head + threadIdx.x) * 2) = make_float2(MINUS_INFINITY, 0.0f);
            continue;
        }
        const bool first = SELECTED ? !staged : split == begin;
        staged = true;
        // the queries are asked for first, because they are needed first
        constexpr u32 fours = LINES * CHUNKS * 8, per_thread = (fours + 32 * WARPS - 1) / (32 * WARPS);
        float4 q[per_thread];
        if (first) {
#pragma unroll
            for (u32 i = 0; i < per_thread; i++) {
                u32 item = threadIdx.x + 32 * WARPS * i, line = item / (CHUNKS * 8), four = item % (CHUNKS * 8);
                const float* from = query + (u64)row * QUERY_WIDTH + (kv_head * GROUP + line) * QUERY_STRIDE + 4 * four;
                q[i] = line < GROUP && 4 * four < HEAD_DIM ? *(const float4*)from : make_float4(0, 0, 0, 0);
            }
        }
        Loads loads;
        if (AT_ONCE) load_keys(loads, pages, pages_there);
#pragma unroll
        for (u32 page = 0; AT_ONCE && page < PAGES_HELD; page++) load_values(loads, pages, pages_there, page);
        if (first) {
#pragma unroll
            for (u32 i = 0; i < per_thread; i++) {
                u32 item = threadIdx.x + 32 * WARPS * i;
                if (item < fours) put_query(operands, item / (CHUNKS * 8), item % (CHUNKS * 8), q[i], scale * LOG2_E);
            }
        }
        sync_block();
        if (!AT_ONCE) load_keys(loads, pages, pages_there);

        float scores[SCORES_PER_WARP][4];
#pragma unroll
        for (u32 i = 0; i < SCORES_PER_WARP; i++) scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.0f;
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            uint4 queries[2 * QUERY_PARTS];
#pragma unroll
            for (u32 i = 0; i < 2 * QUERY_PARTS; i++) queries[i] = operands[QUERY_OPERAND(chunk, 0, i) + lane];
#pragma unroll
            for (u32 i = 0; i < SCORES_PER_WARP; i++) {
#if KV_TYPE == KV_F16
                add_scores(scores[i], queries, loads.keys[i][chunk]);
#else
                add_scores(scores[i], queries, key_halves(loads.keys[i][chunk], loads.key_scales[i][chunk]));
#endif
            }
        }
#pragma unroll
        for (u32 page = 0; !AT_ONCE && page < PAGES_HELD; page++) load_values(loads, pages, pages_there, page);
#pragma unroll
        for (u32 i = 0; i < SCORES_PER_WARP; i++) {
            u32 tile = warp % 8, page = SCORE_PAGE(i), last = position - (split * SPLIT_PAGES + page) * PAGE;
            if (page < pages_there && last < PAGE - 1) mask_from(scores[i], position_in(tile), last, last);
            if (WINDOW) {
                u32 hidden = hidden_of(from, (split * SPLIT_PAGES + page) * PAGE);
                mask_to(scores[i], position_in(tile), hidden, hidden);
            }
            if (SELECTED) {
                u64 own = seen[0];
#pragma unroll
                for (u32 other = 1; other < SPLIT_PAGES; other++)
                    if (page == other) own = seen[other];
                mask_seen(scores[i], position_in(tile), own, own);
            }
            float low = line_top(fmaxf(scores[i][0], scores[i][1])), high = line_top(fmaxf(scores[i][2], scores[i][3]));
            if (t == 0) {
                tops[(page * LINES + g) * 8 + tile] = low;
                tops[(page * LINES + g + 8) * 8 + tile] = high;
            }
        }
        sync_block();

        // running maxima after each page, and what the sums are multiplied by before it
        float low[SPLIT_PAGES], high[SPLIT_PAGES], keep_low[SPLIT_PAGES], keep_high[SPLIT_PAGES];
#pragma unroll
        for (u32 page = 0; page < SPLIT_PAGES; page++) {
            float top[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float4* of = (const float4*)(tops + (page * LINES + g + 8 * i) * 8);
                float4 a = of[0], b = of[1];
                top[i] = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
            }
            low[page] = page == 0 || page >= pages_there ? top[0] : fmaxf(low[page - 1], top[0]);
            high[page] = page == 0 || page >= pages_there ? top[1] : fmaxf(high[page - 1], top[1]);
            keep_low[page] = page == 0 ? 0.0f : power_of_two(low[page - 1] - low[page]);
            keep_high[page] = page == 0 ? 0.0f : power_of_two(high[page - 1] - high[page]);
        }
#pragma unroll
        for (u32 i = 0; i < SCORES_PER_WARP; i++) {
            u32 tile = warp % 8, page = SCORE_PAGE(i);
            float m_low = low[0], m_high = high[0];
#pragma unroll
            for (u32 other = 1; other < SPLIT_PAGES; other++)
                if (page == other) m_low = low[other], m_high = high[other];
            // operands of the places that this tile's positions have
            u32* to = (u32*)(weights + (page * 4 + tile / 2) * 32 + lane) + tile % 2 * 2;
            m_low = base_of(m_low), m_high = base_of(m_high);
            *(uint2*)to = make_uint2(pack_halves(weight_of(scores[i][0], m_low), weight_of(scores[i][1], m_low)),
                                     pack_halves(weight_of(scores[i][2], m_high), weight_of(scores[i][3], m_high)));
        }
        sync_block();

        // the last warp, which may have fewer channels, sums the weights as well
        float sums[VALUES_PER_WARP + 1][4];
#pragma unroll
        for (u32 page = 0; page < SPLIT_PAGES; page++) {
            if (page >= pages_there) break;
            if (page + PAGES_HELD < SPLIT_PAGES) load_values(loads, pages, pages_there, page + PAGES_HELD);
#pragma unroll
            for (u32 i = 0; i <= VALUES_PER_WARP; i++) {
                if (page == 0) {
                    sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
                } else {
                    sums[i][0] *= keep_low[page], sums[i][1] *= keep_low[page];
                    sums[i][2] *= keep_high[page], sums[i][3] *= keep_high[page];
                }
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                uint4 w[2] = {weights[(page * 4 + 2 * half) * 32 + lane], weights[(page * 4 + 2 * half + 1) * 32 + lane]};
#pragma unroll
                for (u32 i = 0; i < VALUES_PER_WARP; i++) {
#if KV_TYPE == KV_F16
                    add_values(sums[i], w, loads.values[page][half][i]);
#else
                    add_values(sums[i], w, value_halves(loads.values[page][half][i], loads.value_scales[page][half][VALUE_SCALE(i)]));
#endif
                }
                if (warp == WARPS - 1) add_values(sums[VALUES_PER_WARP], w, ONES);
            }
        }
        u64 head = ((u64)blockIdx.z * splits_max + split) * HEADS + kv_head * GROUP;
#pragma unroll
        for (u32 i = 0; i < VALUES_PER_WARP; i++) {
            u32 eight = VALUES_PER_WARP * warp + i;
            if (EIGHTS % WARPS != 0 && eight >= EIGHTS) break;
            float* to = values + (head + g) * HEAD_DIM + 8 * eight + 2 * t;
            if (g < GROUP) *(float2*)to = make_float2(sums[i][0], sums[i][1]);
            if (g + 8 < GROUP) *(float2*)(to + 8 * HEAD_DIM) = make_float2(sums[i][2], sums[i][3]);
        }
        if (warp == WARPS - 1 && t == 0) {
            float m_low = low[0], m_high = high[0];
#pragma unroll
            for (u32 page = 1; page < SPLIT_PAGES; page++)
                if (page < pages_there) m_low = low[page], m_high = high[page];
            if (g < GROUP) *(float2*)(states + (head + g) * 2) = make_float2(m_low, sums[VALUES_PER_WARP][0]);
            if (g + 8 < GROUP) *(float2*)(states + (head + g + 8) * 2) = make_float2(m_high, sums[VALUES_PER_WARP][2]);
        }
    }
}

#else

KERNEL(FLOAT_THREADS) attention_decode(Rows rows, u32 row0, const float* query, const u8* cache, u64 page_stride, float scale, float* values, float* states,
                                       u32 splits_max, Masks masks) {
    SHARED(float, queries, LINES * HEAD_DIM);
    SHARED(float, scores, LINES * PAGE);
    SHARED(float, line_states, 3 * LINES);
    u32 row = row0 + blockIdx.z, kv_head = blockIdx.y;
    u32 count = rows.counts[0], position = rows.positions[row];
    const u32* pages = rows.pages + rows.row_pages[row];
    wait_for_previous();
    release_next();
    if (row >= count) return;
    for (u32 item = threadIdx.x; item < GROUP * HEAD_DIM; item += FLOAT_THREADS) {
        u32 line = item / HEAD_DIM, channel = item % HEAD_DIM;
        queries[item] = query[(u64)row * QUERY_WIDTH + (kv_head * GROUP + line) * QUERY_STRIDE + channel] * (scale * LOG2_E);
    }
    FloatLines lines = {queries, scores, line_states, cache + kv_head * KV_HEAD_BYTES, page_stride, pages, WINDOW ? rows.slots[row] : 0, position, 1, row, position, masks};
    for (u32 split = visible_from(position) / SPLIT + blockIdx.x; split * SPLIT <= position; split += gridDim.x) {
        float sums[FLOAT_LINES];
        sweep_split(lines, split, sums);
        u64 head = ((u64)blockIdx.z * splits_max + split) * HEADS + kv_head * GROUP;
#pragma unroll
        for (u32 i = 0; i < FLOAT_LINES; i++) {
            u32 line = FLOAT_LINE(i);
            if (line < GROUP && FLOAT_CHANNEL < HEAD_DIM) values[(head + line) * HEAD_DIM + FLOAT_CHANNEL] = sums[i];
        }
        if (threadIdx.x < GROUP) {
            states[(head + threadIdx.x) * 2] = line_states[threadIdx.x];
            states[(head + threadIdx.x) * 2 + 1] = line_states[LINES + threadIdx.x];
        }
        sync_block();
    }
}

#endif

/// A channel of a head, the sum of the weights, and the greatest score.
struct Joined {
    float x, sum, top;
};

#if HEAD_DIM % 32 == 0

/// Splits that are joined at once, those of a lane of a warp each; the next are on their way.
#define AHEAD 32

DEVICE void ask(float to[AHEAD], const float* values, u32 first, u32 splits) {
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) to[i] = first + i < splits ? values[(u64)(first + i) * WIDTH] : 0.0f;
}

/// Of a head of which the whole warp has channels.
DEVICE Joined join_splits(const float* values, const float2* state, u32 splits) {
    SHARED(float4, factors, 8 * AHEAD);
    float4* own = factors + AHEAD * warp_of();
    u32 lane = lane_of();
    float m = MINUS_INFINITY, sum = 0.0f, x = 0.0f, next[AHEAD];
    float2 with = state[(u64)least(lane, splits - 1) * HEADS];
    ask(next, values, 0, splits);
    for (u32 first = 0; first < splits; first += AHEAD) {
        float now[AHEAD];
        float2 of = with;
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) now[i] = next[i];
        if (first + AHEAD < splits) {
            with = state[(u64)least(first + AHEAD + lane, splits - 1) * HEADS];
            ask(next, values, first + AHEAD, splits);
        }
        // lane i computes the factors of split `first + i`
        float after = of.x;
#pragma unroll
        for (u32 by = 1; by < AHEAD; by *= 2) {
            float other = shfl_up(after, by);
            if (lane >= by) after = fmaxf(after, other);
        }
        after = fmaxf(after, m);
        float before = shfl_up(after, 1);
        if (lane == 0) before = m;
        sync_warp();
        own[lane] = make_float4(power_of_two(before - after), power_of_two(of.x - after), of.y, 0.0f);
        m = shfl(after, AHEAD - 1);
        sync_warp();
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (first + i >= splits) break;
            float4 factor = own[i];
            sum = fmaf(factor.z, factor.y, sum * factor.x);
            x = fmaf(now[i], factor.y, x * factor.x);
        }
    }
    return {x, sum, m};
}

#else

#define AHEAD 8

DEVICE Joined join_splits(const float* values, const float2* state, u32 splits) {
    float m = MINUS_INFINITY, sum = 0.0f, x = 0.0f;
    for (u32 first = 0; first < splits; first += AHEAD) {
        float next[AHEAD];
        float2 with[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 split = least(first + i, splits - 1);
            next[i] = values[(u64)split * WIDTH];
            with[i] = state[(u64)split * HEADS];
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (first + i >= splits) break;
            float kept, added;
            join_factors(&m, with[i].x, &kept, &added);
            sum = fmaf(with[i].y, added, sum * kept);
            x = fmaf(next[i], added, x * kept);
        }
    }
    return {x, sum, m};
}

#endif

KERNEL(256) attention_combine(Rows rows, u32 row0, const float* query, const float* values, const float* states, u32 splits_max, const float* sinks, float* mixed, u32 forms,
                              Acts256 to256, Acts32 to32) {
    SHARED(float, out, 256);
    u32 row = row0 + blockIdx.y, piece = 256 * blockIdx.x;
    u32 count = rows.counts[0], begin = visible_from(rows.positions[row]) / SPLIT, splits = rows.positions[row] / SPLIT + 1 - begin;
    wait_for_previous();
    release_next();
    if (row >= count) return;
    u32 at = least(piece + threadIdx.x, WIDTH - 1u), head = at / HEAD_DIM, channel = at % HEAD_DIM;
    float gate = GATED ? query[(u64)row * QUERY_WIDTH + head * QUERY_STRIDE + HEAD_DIM + channel] : 0.0f;
    u64 first = (u64)blockIdx.y * splits_max + begin;
    Joined joined = join_splits(values + first * WIDTH + at, (const float2*)states + first * HEADS + head, splits);
    if (SINKS) {
        float kept;
        joined.sum = with_sink(joined.top, joined.sum, sinks[head], &kept);
        joined.x *= kept;
    }
    float x = KV_TYPE == KV_F32 ? joined.x / joined.sum : joined.x * (1.0f / joined.sum);
    if (GATED) x = x * sigmoid_of(gate);
    if (forms & FORM_FLOAT && piece + threadIdx.x < WIDTH) mixed[(u64)row * WIDTH + at] = x;
    if (!(forms & (FORM_256 | FORM_32))) return;
    out[threadIdx.x] = x;
    sync_block();
    if (warp_of() == 0) {
        float run[8];
        read_run(out, least(256u, WIDTH - piece), 0, run);
        if (forms & FORM_256) store256(to256, row, WIDTH, piece, run);
        if (forms & FORM_32) store32(to32, row, WIDTH, piece, run);
    }
}

/// How attention_decode is launched.
#if KV_TYPE == KV_F32
KERNEL(1) attention_decode_launch(u32* to) { to[0] = FLOAT_THREADS; }
#else
KERNEL(1) attention_decode_launch(u32* to) { to[0] = 32 * WARPS; }
#endif
