// Attention of a window of many rows, in one launch.
//
// Formula and arithmetic: attention.cuh; every row has the bits that attention_decode.cu gives it. The window's keys and values are in the cache already.
// On sm_90, with f16, heads of 64, 128 or 256 channels and no masks it goes another way, with the same parameters: attention_group.cuh. All others:
// A block takes a tile, up to TILE_ROWS rows of one span within a page of positions, with the GROUP query heads of one KV head, and walks the pages up to its own.
// Pages come through shared memory in units of at most 16 KiB, one under way while one is used. A warp has 16 lines and, with COLUMN_WARPS 2 (head_dim above
// 128) or 4 (above 256), a half or a quarter of a page's positions for the scores and of the channels for the sums; weights then go through shared memory.
//
// Grid:    (KV_HEADS, at least the sum over the spans from `span0` of tiles(span)), block THREADS; tiles(span) = (first position + rows - 1) / TILE_ROWS -
//          first position / TILE_ROWS + 1; blocks beyond leave at once. TILE_ROWS is the greatest power of two with TILE_ROWS * GROUP <= 16 LINE_WARPS, at most 64.
//          Long spans should come first in the window.
// Block:   THREADS = 32 LINE_WARPS COLUMN_WARPS (f32: 256, or 512 with head_dim above 256; TILE_ROWS by 16 lines).
// Shared:  dynamic, PROMPT_BYTES (f32: static only):
//              1024 QUERY_PARTS ceil(head_dim / 32) LINE_WARPS                        queries
//            + COLUMN_WARPS > 1 ? (2048 + 64 COLUMN_WARPS) LINE_WARPS : 0             weights, maxima
//            + f16: 2 UNIT_BYTES; q8_0: UNIT_BYTES + 2 RAW_BYTES                      pages
//          UNIT_BYTES = max(min(head_dim / 8, 16) * 1056, (head_dim > 128 ? 4 : 8) * (16 PART_CHANNELS + 32)); RAW_BYTES = 8704.
//          With two query parts and LINE_WARPS 4: head_dim 128 65 KiB, 256 105 KiB (LINE_WARPS 2: 49 and 69 KiB).
//     span0    spans before it are left to others
//     query, cache, page_stride, scale   as in attention_decode.cu
//     sinks    [HEADS] f32, read with SINKS
//     masks    [rows of the window, pages] u64, read with SELECTED, or null
//     mixed    [rows, HEADS * HEAD_DIM] f32; with GATED times sigmoid(gate)
// Macros:  those of attention.cuh; LINE_WARPS (4, with head_dim above 256 2, or what of 2 and 1 fits the card's shared memory; the results do not depend on it).
// Architectures tried: sm_75, 80, 86, 89, 90, 100, 120; 246 registers with head_dim 128, 230 with 512, no spills but up to 12 bytes with head_dim 64 and 80 on sm_90
//          (where that makes room for a third block).
#include "attention_group.cuh"
#include "attention_tile.cuh"

// GROUPED_ATTENTION: the kernel stands in attention_group.cuh
#if !GROUPED_ATTENTION && KV_TYPE != KV_F32

#ifndef LINE_WARPS
#define LINE_WARPS 4
#endif
#define COLUMN_WARPS (HEAD_DIM > 256 ? 4 : HEAD_DIM > 128 ? 2 : 1)
#define THREADS (32 * LINE_WARPS * COLUMN_WARPS)
#define TILE_ROWS POWER_OF_TWO_BELOW(LINES * LINE_WARPS / GROUP)

/// Eights of positions and of channels that a warp has of a page.
#define SCORE_TILES (8 / COLUMN_WARPS)
#define VALUE_TILES ((EIGHTS + COLUMN_WARPS - 1) / COLUMN_WARPS)

/// A page's keys come in units of 16 eights of channels, its values in units of 64 or 32 positions of all channels or of half of them.
#define KEY_UNITS ((EIGHTS + 15) / 16)
#define UNIT_HALVES (HEAD_DIM > 128 ? 1 : 2)
#define VALUE_PARTS (HEAD_DIM > 256 ? 2 : 1)
#define VALUE_UNITS (2 / UNIT_HALVES * VALUE_PARTS)
#define UNITS (KEY_UNITS + VALUE_UNITS)
#define PART_CHANNELS (HEAD_DIM / VALUE_PARTS)
#define PART_BLOCKS ((PART_CHANNELS + 31) / 32)
/// Of a warp's eights of channels those in a part, and which eight of channels number `i` of them is.
#define PART_TILES (VALUE_TILES / VALUE_PARTS)
#define VALUE_EIGHT(i) ((i) / PART_TILES * (PART_CHANNELS / 8) + PART_TILES * column_warp + (i) % PART_TILES)
/// Bytes from one eight of keys, and from one unit of places of values, to the next: 32 more than there are, so that a quad reads from different banks.
#define KEY_PITCH (PAGE * 16 + 32)
#define VALUE_PITCH (PART_CHANNELS * 16 + 32)
#define KEY_UNIT_BYTES ((EIGHTS < 16 ? EIGHTS : 16) * KEY_PITCH)
#define VALUE_UNIT_BYTES (4 * UNIT_HALVES * VALUE_PITCH)
#define UNIT_BYTES (KEY_UNIT_BYTES > VALUE_UNIT_BYTES ? KEY_UNIT_BYTES : VALUE_UNIT_BYTES)
/// Codes of a unit of q8_0, then its scales.
#define RAW_CODES 8192
#define RAW_BYTES (RAW_CODES + 512)

/// Asks for unit `unit` of a page.
DEVICE void fetch(u8* to, const u8* page, u32 unit) {
    bool keys = unit < KEY_UNITS;
    u32 eights = least(EIGHTS - 16 * unit, 16u), half = (unit - KEY_UNITS) / VALUE_PARTS * UNIT_HALVES, part = (unit - KEY_UNITS) % VALUE_PARTS;
#if KV_TYPE == KV_F16
    if (keys) {
        page += unit * 16 * PAGE * 16;
        for (u32 i = threadIdx.x; i < eights * PAGE; i += THREADS) copy16_async(to + i / PAGE * KEY_PITCH + i % PAGE * 16, page + 16 * i);
    } else {
        page += KV_PART_BYTES + (half * 4 * HEAD_DIM + part * PART_CHANNELS) * 16;
        for (u32 i = threadIdx.x; i < 4 * UNIT_HALVES * PART_CHANNELS; i += THREADS) {
            u32 place = i / PART_CHANNELS, channel = i % PART_CHANNELS;
            copy16_async(to + place * VALUE_PITCH + channel * 16, page + (place * HEAD_DIM + channel) * 16);
        }
    }
#else
    if (keys) {
        const u8* scales = page + KV_CODE_BYTES + unit * 4 * PAGE * 2;
        page += unit * 16 * PAGE * 8;
        for (u32 i = threadIdx.x; i < eights * PAGE / 2; i += THREADS) copy16_async(to + 16 * i, page + 16 * i);
        for (u32 i = threadIdx.x; i < (eights + 3) / 4 * 8; i += THREADS) copy16_async(to + RAW_CODES + 16 * i, scales + 16 * i);
    } else {
        const u8* scales = page + KV_PART_BYTES + KV_CODE_BYTES + half * 4 * 16 + part * PART_BLOCKS * PAGE * 2;
        page += KV_PART_BYTES + (half * 4 * HEAD_DIM + part * PART_CHANNELS) * 8;
        for (u32 i = threadIdx.x; i < 4 * UNIT_HALVES * PART_CHANNELS / 2; i += THREADS) {
            u32 place = i / (PART_CHANNELS / 2), pair = i % (PART_CHANNELS / 2);
            copy16_async(to + 16 * i, page + place * HEAD_DIM * 8 + 16 * pair);
        }
        for (u32 i = threadIdx.x; i < PART_BLOCKS * 4 * UNIT_HALVES; i += THREADS)
            copy16_async(to + RAW_CODES + 16 * i, scales + i / (4 * UNIT_HALVES) * PAGE * 2 + i % (4 * UNIT_HALVES) * 16);
    }
#endif
}

#if KV_TYPE == KV_Q8_0
/// Makes halves of a unit.
DEVICE void convert(u8* to, const u8* raw, u32 unit) {
    if (unit < KEY_UNITS) {
        for (u32 i = threadIdx.x; i < least(EIGHTS - 16 * unit, 16u) * PAGE; i += THREADS) {
            u32 eight = i / PAGE, position = i % PAGE;
            u16 scale = ((const u16*)(raw + RAW_CODES))[eight / 4 * PAGE + position];
            *(uint4*)(to + eight * KEY_PITCH + position * 16) = key_halves(((const uint2*)raw)[i], scale);
        }
    } else {
        for (u32 i = threadIdx.x; i < 4 * UNIT_HALVES * PART_CHANNELS; i += THREADS) {
            u32 place = i / PART_CHANNELS, channel = i % PART_CHANNELS;
            uint4 scales = ((const uint4*)(raw + RAW_CODES))[channel / 32 * 4 * UNIT_HALVES + place];
            *(uint4*)(to + place * VALUE_PITCH + channel * 16) = value_halves(((const uint2*)raw)[i], scales);
        }
    }
}
#endif

/// Sums of a warp's 16 lines: channels, then the weights.
struct Sums {
    float of[VALUE_TILES + 1][4];
    float low, high; // maxima of lines g and g + 8
};

DEVICE void clear(Sums& sums) {
#pragma unroll
    for (u32 i = 0; i <= VALUE_TILES; i++) sums.of[i][0] = sums.of[i][1] = sums.of[i][2] = sums.of[i][3] = 0.0f;
    sums.low = sums.high = MINUS_INFINITY;
}

KERNEL(THREADS) attention_prompt(Rows rows, u32 span0, const float* query, const u8* cache, u64 page_stride, float scale, const float* sinks, float* mixed, Masks masks) {
    DYNAMIC_SHARED(shared);
    uint4* operands = (uint4*)shared;
    uint4* all_weights = operands + LINE_WARPS * QUERY_OPERANDS;
    float* all_tops = (float*)(all_weights + (COLUMN_WARPS > 1 ? LINE_WARPS * 4 * 32 : 0));
    u8* ring = (u8*)(all_tops + (COLUMN_WARPS > 1 ? LINE_WARPS * COLUMN_WARPS * LINES : 0));

    u32 kv_head = blockIdx.x, lane = lane_of(), g = lane / 4, t = lane % 4;
    u32 line_warp = warp_of() / COLUMN_WARPS, column_warp = warp_of() % COLUMN_WARPS;
    Tile tile = find_tile<TILE_ROWS>(rows, span0, blockIdx.y);
    wait_for_previous();
    release_next();
    if (!tile.there) return;
    const u32* pages = rows.pages + tile.pages;
    const u32 slot = tile.slot, begin = visible_from(tile.first) / PAGE;
    u32 last_page = tile.position / PAGE, next = page_of(pages, slot, begin);
    cache += kv_head * KV_HEAD_BYTES;
    fetch(ring + (KV_TYPE == KV_Q8_0 ? UNIT_BYTES : 0), cache + next * page_stride, 0);
    copy_commit();
    next = page_of(pages, slot, least(begin + 1, last_page));

    for (u32 item = threadIdx.x; item < LINE_WARPS * LINES * CHUNKS * 8; item += THREADS) {
        u32 line = item / (CHUNKS * 8), four = item % (CHUNKS * 8), at = tile.position + line / GROUP;
        float4 q = make_float4(0, 0, 0, 0);
        if (line < TILE_ROWS * GROUP && at >= tile.first && at < tile.end && 4 * four < HEAD_DIM)
            q = *(const float4*)(query + (u64)(tile.row + line / GROUP) * QUERY_WIDTH + (kv_head * GROUP + line % GROUP) * QUERY_STRIDE + 4 * four);
        put_query(operands + line / LINES * QUERY_OPERANDS, line % LINES, four, q, scale * LOG2_E);
    }
    operands += line_warp * QUERY_OPERANDS;
#if HEAD_DIM > 128
    u32* weights_at = (u32*)(all_weights + line_warp * 4 * 32);
    float* tops = all_tops + line_warp * COLUMN_WARPS * LINES;
#endif

    // positions of this lane's two lines in their page
    u32 line_low = line_warp * LINES + g, line_high = line_low + 8;
    u32 last_low = tile.position % PAGE + line_low / GROUP, last_high = tile.position % PAGE + line_high / GROUP;
    // lines of rows that are not there see what they like
    auto has_row = [&](u32 line) { u32 at = tile.position + line / GROUP; return SELECTED && line < TILE_ROWS * GROUP && at >= tile.first && at < tile.end; };
    const bool row_low = has_row(line_low), row_high = has_row(line_high);
    Sums sums, total;
    clear(sums);
    clear(total);
    for (u32 page = begin; page <= last_page; page++) {
        const u8* here = cache + (u64)page_of(pages, slot, page) * page_stride;
        const u8* after = cache + (u64)next * page_stride;
        next = page_of(pages, slot, least(page + 2, last_page));
        const u64 seen_low = row_low ? seen_of(masks, tile.row + line_low / GROUP, page) : ~0ull;
        const u64 seen_high = row_high ? seen_of(masks, tile.row + line_high / GROUP, page) : ~0ull;
        float scores[SCORE_TILES][4];
        uint4 weights[4];
#pragma unroll
        for (u32 i = 0; i < SCORE_TILES; i++) scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.0f;
#pragma unroll
        for (u32 unit = 0; unit < UNITS; unit++) {
            copy_wait<0>();
            sync_block();
            bool more = unit + 1 < UNITS || page < last_page;
#if KV_TYPE == KV_F16
            const u8* at = ring + unit % 2 * UNIT_BYTES;
            u8* to = ring + (unit + 1) % 2 * UNIT_BYTES;
            static_assert(UNITS % 2 == 0, "a page begins in the same place");
            if (more) fetch(to, unit + 1 < UNITS ? here : after, (unit + 1) % UNITS);
            copy_commit();
#else
            const u8* at = ring;
            u8* raw = ring + UNIT_BYTES;
            if (more) fetch(raw + (unit + 1) % 2 * RAW_BYTES, unit + 1 < UNITS ? here : after, (unit + 1) % UNITS);
            copy_commit();
            convert(ring, raw + unit % 2 * RAW_BYTES, unit);
            sync_block();
#endif
            if (unit < KEY_UNITS) {
#pragma unroll
                for (u32 chunk = 4 * unit; chunk < 4 * unit + 4; chunk++) {
                    if (chunk >= CHUNKS) break;
                    uint4 queries[2 * QUERY_PARTS];
#pragma unroll
                    for (u32 i = 0; i < 2 * QUERY_PARTS; i++) queries[i] = operands[QUERY_OPERAND(chunk, 0, i) + lane];
                    u32 eight = 4 * (chunk - 4 * unit) + t;
                    bool there = EIGHTS % 4 == 0 || 4 * chunk + t < EIGHTS;
#pragma unroll
                    for (u32 i = 0; i < SCORE_TILES; i++) {
                        u32 position = 8 * (SCORE_TILES * column_warp + i) + g;
                        uint4 keys = there ? *(const uint4*)(at + eight * KEY_PITCH + position * 16) : make_uint4(0, 0, 0, 0);
                        add_scores(scores[i], queries, keys);
                    }
                }
            } else {
#pragma unroll
                for (u32 half = 0; half < UNIT_HALVES; half++) {
                    const u32 part = (unit - KEY_UNITS) % VALUE_PARTS;
                    const uint4* w = weights + 2 * ((unit - KEY_UNITS) / VALUE_PARTS * UNIT_HALVES + half);
#pragma unroll
                    for (u32 i = 0; i < PART_TILES; i++) {
                        u32 eight = PART_TILES * column_warp + i;
                        if (EIGHTS % COLUMN_WARPS != 0 && eight >= EIGHTS) break;
                        add_values(sums.of[part * PART_TILES + i], w, *(const uint4*)(at + (4 * half + t) * VALUE_PITCH + (8 * eight + g) * 16));
                    }
                    if (part == 0) add_values(sums.of[VALUE_TILES], w, ONES);
                }
            }
            if (unit != KEY_UNITS - 1) continue;

            // the page's weights
            if (page == last_page) {
#pragma unroll
                for (u32 i = 0; i < SCORE_TILES; i++) mask_from(scores[i], position_in(SCORE_TILES * column_warp + i), last_low, last_high);
            }
            if (WINDOW) {
                u32 from_low = hidden_of(visible_from(tile.position + line_low / GROUP), page * PAGE);
                u32 from_high = hidden_of(visible_from(tile.position + line_high / GROUP), page * PAGE);
#pragma unroll
                for (u32 i = 0; i < SCORE_TILES; i++) mask_to(scores[i], position_in(SCORE_TILES * column_warp + i), from_low, from_high);
            }
            if (SELECTED) {
#pragma unroll
                for (u32 i = 0; i < SCORE_TILES; i++) mask_seen(scores[i], position_in(SCORE_TILES * column_warp + i), seen_low, seen_high);
            }
            float low = scores[0][0], high = scores[0][2];
#pragma unroll
            for (u32 i = 0; i < SCORE_TILES; i++) {
                low = fmaxf(low, fmaxf(scores[i][0], scores[i][1]));
                high = fmaxf(high, fmaxf(scores[i][2], scores[i][3]));
            }
            low = line_top(low), high = line_top(high);
#if HEAD_DIM > 128
            tops[column_warp * LINES + g] = low;
            tops[column_warp * LINES + g + 8] = high;
            sync_block();
#pragma unroll
            for (u32 i = 0; i < COLUMN_WARPS; i++) {
                low = fmaxf(low, tops[i * LINES + g]);
                high = fmaxf(high, tops[i * LINES + g + 8]);
            }
#endif
            low = fmaxf(sums.low, low), high = fmaxf(sums.high, high);
            float keep_low = power_of_two(sums.low - low), keep_high = power_of_two(sums.high - high);
            sums.low = low, sums.high = high;
            const float base_low = base_of(low), base_high = base_of(high);
#pragma unroll
            for (u32 i = 0; i <= VALUE_TILES; i++) {
                sums.of[i][0] *= keep_low, sums.of[i][1] *= keep_low;
                sums.of[i][2] *= keep_high, sums.of[i][3] *= keep_high;
            }
#pragma unroll
            for (u32 i = 0; i < SCORE_TILES; i++) {
                u32 of_low = pack_halves(weight_of(scores[i][0], base_low), weight_of(scores[i][1], base_low));
                u32 of_high = pack_halves(weight_of(scores[i][2], base_high), weight_of(scores[i][3], base_high));
#if HEAD_DIM > 128
                u32 eight = SCORE_TILES * column_warp + i;
                *(uint2*)(weights_at + (eight / 2 * 32 + lane) * 4 + eight % 2 * 2) = make_uint2(of_low, of_high);
#else
                uint4& w = weights[i / 2];
                if (i % 2 == 0) w.x = of_low, w.y = of_high;
                else w.z = of_low, w.w = of_high;
#endif
            }
#if HEAD_DIM > 128
            sync_block();
#pragma unroll
            for (u32 i = 0; i < 4; i++) weights[i] = ((const uint4*)weights_at)[i * 32 + lane];
#endif
        }
        if ((page + 1) % SPLIT_PAGES != 0 && page != last_page) continue;
        float kept_low, kept_high, added_low, added_high;
        join_factors(&total.low, sums.low, &kept_low, &added_low);
        join_factors(&total.high, sums.high, &kept_high, &added_high);
#pragma unroll
        for (u32 i = 0; i <= VALUE_TILES; i++) {
            total.of[i][0] = fmaf(sums.of[i][0], added_low, total.of[i][0] * kept_low);
            total.of[i][1] = fmaf(sums.of[i][1], added_low, total.of[i][1] * kept_low);
            total.of[i][2] = fmaf(sums.of[i][2], added_high, total.of[i][2] * kept_high);
            total.of[i][3] = fmaf(sums.of[i][3], added_high, total.of[i][3] * kept_high);
        }
        clear(sums);
    }
#pragma unroll
    for (u32 which = 0; which < 2; which++) {
        u32 line = which == 0 ? line_low : line_high, at = tile.position + line / GROUP, head = kv_head * GROUP + line % GROUP;
        if (line >= TILE_ROWS * GROUP || at < tile.first || at >= tile.end) continue;
        u64 row = tile.row + line / GROUP;
        float sum = total.of[VALUE_TILES][2 * which], kept = 1.0f;
        if (SINKS) sum = with_sink(which == 0 ? total.low : total.high, sum, sinks[head], &kept);
        const float inverse = 1.0f / sum;
#pragma unroll
        for (u32 i = 0; i < VALUE_TILES; i++) {
            u32 eight = VALUE_EIGHT(i), channel = 8 * eight + 2 * t;
            if (EIGHTS % COLUMN_WARPS != 0 && eight >= EIGHTS) break;
            float x = total.of[i][2 * which], y = total.of[i][2 * which + 1];
            if (SINKS) x *= kept, y *= kept;
            x = x * inverse, y = y * inverse;
            if (GATED) {
                const float* gate = query + row * QUERY_WIDTH + head * QUERY_STRIDE + HEAD_DIM + channel;
                x = x * sigmoid_of(gate[0]), y = y * sigmoid_of(gate[1]);
            }
            *(float2*)(mixed + row * WIDTH + head * HEAD_DIM + channel) = make_float2(x, y);
        }
    }
}

#elif !GROUPED_ATTENTION

#define TILE_ROWS POWER_OF_TWO_BELOW(LINES / GROUP)

KERNEL(FLOAT_THREADS) attention_prompt(Rows rows, u32 span0, const float* query, const u8* cache, u64 page_stride, float scale, const float* sinks, float* mixed, Masks masks) {
    SHARED(float, queries, LINES * HEAD_DIM);
    SHARED(float, scores, LINES * PAGE);
    SHARED(float, line_states, 3 * LINES);
    u32 kv_head = blockIdx.x;
    Tile tile = find_tile<TILE_ROWS>(rows, span0, blockIdx.y);
    wait_for_previous();
    release_next();
    if (!tile.there) return;
    for (u32 item = threadIdx.x; item < LINES * HEAD_DIM; item += FLOAT_THREADS) {
        u32 line = item / HEAD_DIM, channel = item % HEAD_DIM, at = tile.position + line / GROUP;
        bool there = line < TILE_ROWS * GROUP && at >= tile.first && at < tile.end;
        const float* from = query + (u64)(tile.row + line / GROUP) * QUERY_WIDTH + (kv_head * GROUP + line % GROUP) * QUERY_STRIDE + channel;
        queries[item] = there ? *from * (scale * LOG2_E) : 0.0f;
    }
    // rows behind the span's last are left out, those before its first have queries of zeros
    FloatLines lines = {queries, scores, line_states, cache + kv_head * KV_HEAD_BYTES, page_stride, rows.pages + tile.pages, tile.slot,
                        tile.position, tile.end - tile.position, tile.row, tile.first, masks};
    float sums[FLOAT_LINES], total[FLOAT_LINES], weights[FLOAT_LINES], m[FLOAT_LINES];
#pragma unroll
    for (u32 i = 0; i < FLOAT_LINES; i++) total[i] = weights[i] = 0.0f, m[i] = MINUS_INFINITY;
    for (u32 split = visible_from(tile.position) / SPLIT; split * SPLIT < tile.end; split++) {
        sweep_split(lines, split, sums);
#pragma unroll
        for (u32 i = 0; i < FLOAT_LINES; i++) {
            u32 line = FLOAT_LINE(i);
            float kept, added;
            join_factors(&m[i], line_states[line], &kept, &added);
            weights[i] = fmaf(line_states[LINES + line], added, weights[i] * kept);
            total[i] = fmaf(sums[i], added, total[i] * kept);
        }
        sync_block();
    }
#pragma unroll
    for (u32 i = 0; i < FLOAT_LINES; i++) {
        u32 line = FLOAT_LINE(i), at = tile.position + line / GROUP, head = kv_head * GROUP + line % GROUP;
        if (line >= TILE_ROWS * GROUP || at < tile.first || at >= tile.end || FLOAT_CHANNEL >= HEAD_DIM) continue;
        u64 row = tile.row + line / GROUP;
        float x = total[i], sum = weights[i];
        if (SINKS) {
            float kept;
            sum = with_sink(m[i], sum, sinks[head], &kept);
            x *= kept;
        }
        x = x / sum;
        if (GATED) x = x * sigmoid_of(query[row * QUERY_WIDTH + head * QUERY_STRIDE + HEAD_DIM + FLOAT_CHANNEL]);
        mixed[row * WIDTH + head * HEAD_DIM + FLOAT_CHANNEL] = x;
    }
}

#endif

/// How attention_prompt is launched: rows of a tile, threads, bytes of dynamic shared memory.
#if GROUPED_ATTENTION
KERNEL(1) attention_prompt_launch(u32* to) {
    to[0] = TILE_ROWS;
    to[1] = THREADS;
    to[2] = GROUP_BYTES;
}
#elif KV_TYPE == KV_F32
KERNEL(1) attention_prompt_launch(u32* to) {
    to[0] = TILE_ROWS;
    to[1] = FLOAT_THREADS;
    to[2] = 0;
}
#else
KERNEL(1) attention_prompt_launch(u32* to) {
    to[0] = TILE_ROWS;
    to[1] = THREADS;
    to[2] = LINE_WARPS * QUERY_OPERANDS * 16 + (COLUMN_WARPS > 1 ? LINE_WARPS * (4 * 32 * 16 + COLUMN_WARPS * LINES * 4) : 0) +
            (KV_TYPE == KV_F16 ? 2 * UNIT_BYTES : UNIT_BYTES + 2 * RAW_BYTES);
}
#endif
