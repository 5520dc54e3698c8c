// attention_prompt on sm_90, compiled for sm_90a, with f16 keys and values and heads of 64, 128 or 256 channels: four warps (a group) multiply 64 lines at once, while
// warps of their own bring pages. Formula and arithmetic: attention.cuh; the instructions for groups add up as those for warps do, so rows have the same bits.
//
// A block has a tile of TILE_LINES lines and two groups that multiply. Up to 128 channels each has 64 lines of its own; with 256 both have the same 64 lines, each
// all of their scores and half of the channels of their sums, since registers hold no more. Scores of a page are made while the values of the page before are
// multiplied, and weights while both are.
//
// The right operand of an instruction is 16 channels of keys, or places of values, of which the cache holds 8 bytes next to each other: keys.x, y or z, w of
// `add_scores`. So copies take 8 bytes, and a block of eight rows of 16 bytes has them from two eights:
//     queries  [HEAD_DIM / 16 steps, 2 halves, TILE_LINES] 16 bytes
//     keys     [HEAD_DIM / 16 steps, 2 halves, 64 positions] 16 bytes
//     values   [4 steps, 2 halves, channels, with eight of ones behind those of each group] 16 bytes
// Positions of keys lie so that a lane's scores are those whose weights it multiplies: row 16 i + 8 o + 2 t + b is position 16 i + 4 o + 8 (t mod 2) + 2 (t / 2) + b.
//
// A stage has the keys of a page and the values of the page before. Barriers (mbarrier): it is full once the copies of all producers are there, and empty once all
// warps that multiply have left it.
#pragma once
#include "attention_tile.cuh"
#include "group.cuh"

#define GROUPED_ATTENTION (GROUPED_CODE && KV_TYPE == KV_F16 && !SELECTED && QUERY_PARTS == 1 && (HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256))

#if GROUPED_ATTENTION

/// Groups that share lines, and their channels.
#define VALUE_GROUPS (HEAD_DIM > 128 ? 2 : 1)
#define GROUP_CHANNELS (HEAD_DIM / VALUE_GROUPS)
#define TILE_LINES (64 * 2 / VALUE_GROUPS)
#define TILE_ROWS POWER_OF_TWO_BELOW(TILE_LINES / GROUP)
/// Eights of a group's channels, and one of ones.
constexpr u32 GROUP_TILES = GROUP_CHANNELS / 8 + 1;
constexpr u32 PRODUCERS = 128, CONSUMERS = 256;
#define THREADS (PRODUCERS + CONSUMERS)

constexpr u32 STEPS = HEAD_DIM / 16;
constexpr u32 STAGES = HEAD_DIM > 128 ? 2 : 4;
/// Stages that a producer asks for before it waits for one.
constexpr u32 ASKED = STAGES > 2 ? 2 : 1;
/// Bytes of half a step.
constexpr u32 QUERY_HALF = TILE_LINES * 16, KEY_HALF = PAGE * 16, VALUE_HALF = VALUE_GROUPS * GROUP_TILES * 128;
constexpr u32 KEYS_BYTES = STEPS * 2 * KEY_HALF, VALUES_BYTES = 8 * VALUE_HALF;
constexpr u32 QUERIES_AT = 0, STAGES_AT = QUERIES_AT + STEPS * 2 * QUERY_HALF, STAGE_BYTES = KEYS_BYTES + VALUES_BYTES;
constexpr u32 BARRIERS_AT = STAGES_AT + STAGES * STAGE_BYTES, GROUP_BYTES = (BARRIERS_AT + 2 * STAGES * 8 + 127) / 128 * 128;
DEVICE u8* keys_of(u8* shared, u32 stage) { return shared + STAGES_AT + stage * STAGE_BYTES; }
DEVICE u8* values_of(u8* shared, u32 stage) { return keys_of(shared, stage) + KEYS_BYTES; }

/// A stage and the parity of its phases.
struct Stage {
    u32 at, parity;

    __device__ __forceinline__ void next() {
        at = at + 1 == STAGES ? 0 : at + 1;
        parity ^= at == 0;
    }
};

DEVICE u32 full_at(const u8* shared, u32 stage) { return shared_address(shared + BARRIERS_AT) + 8 * stage; }
DEVICE u32 empty_at(const u8* shared, u32 stage) { return full_at(shared, STAGES + stage); }

/// Which group of those that multiply asks the tensor cores next: they take turns, so that one makes weights while the other multiplies.
DEVICE void await_turn(u32 group) { asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory"); }
DEVICE void give_turn(u32 group) { asm volatile("bar.arrive %0, 256;" ::"r"(2 + group) : "memory"); }

/// What tells the tensor core where 16 channels or places of an operand are: `half` bytes from the first eight to the others.
DEVICE u64 step_operand(const u8* at, u32 half) { return (u64)(shared_address(at) >> 4 & 0x3fff) | (u64)(half / 16) << 16 | 8ull << 32; }

// ---- producers

/// Asks for the keys of a page. Each quarter of a warp fills a block of eight rows with half a warp's bytes from two eights.
DEVICE void bring_keys(u8* to, const u8* page) {
    const u32 half = lane_of() % 2, row = lane_of() / 2 % 8, odd = lane_of() / 16;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 block = 2 * warp_of() + i, position = block / 2 * 16 + row / 2 % 2 * 8 + block % 2 * 4 + row / 4 * 2 + row % 2;
        const u8* from = page + (odd * PAGE + position) * 16 + 8 * half;
        const u32 at = shared_address(to) + half * (2 * KEY_HALF) + block * 128 + row * 16 + 8 * odd;
#pragma unroll
        for (u32 two = 0; two < HEAD_DIM / 16; two++) copy8_async(at + (two / 2 * 4 + two % 2) * KEY_HALF, from + two * (2 * PAGE * 16));
    }
}

/// Asks for the values of a page.
DEVICE void bring_values(u8* to, const u8* values) {
    const u32 half = lane_of() % 2, row = lane_of() / 2 % 8, odd = lane_of() / 16;
#pragma unroll
    for (u32 i = 0; i < HEAD_DIM / 32; i++) {
        const u32 eight = 4 * i + warp_of();
        const u8* from = values + (odd * HEAD_DIM + 8 * eight + row) * 16 + 8 * half;
        const u32 at = shared_address(to) + half * (2 * VALUE_HALF) + (eight + eight / (GROUP_CHANNELS / 8)) * 128 + row * 16 + 8 * odd;
#pragma unroll
        for (u32 two = 0; two < 4; two++) copy8_async(at + (two / 2 * 4 + two % 2) * VALUE_HALF, from + two * (2 * HEAD_DIM * 16));
    }
}

/// Tells that the oldest stage that was asked for is there, once all but the newest `left` are.
template <int left>
DEVICE void tell(const u8* shared, u32& stage) {
    copy_wait<left>();
    // what has been copied is what the tensor cores are to read
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_arrive(full_at(shared, stage));
    stage = stage + 1 == STAGES ? 0 : stage + 1;
}

/// Brings the pages `begin ..= last` of a sequence.
DEVICE void produce(u8* shared, const u8* cache, u64 page_stride, const u32* pages, u32 slot, u32 begin, u32 last) {
    Stage stage{0, 1};
    u32 told = 0, next = page_of(pages, slot, begin);
    const u8* before = cache;
#pragma unroll 1
    for (u32 page = begin; page <= last + 1; page++) {
        const u8* here = cache + next * page_stride;
        next = page_of(pages, slot, least(page + 1, last));
        barrier_wait(empty_at(shared, stage.at), stage.parity);
        if (page > begin) bring_values(values_of(shared, stage.at), before + KV_PART_BYTES);
        if (page <= last) bring_keys(keys_of(shared, stage.at), here);
        copy_commit();
        if (page >= begin + ASKED) tell<ASKED>(shared, told);
        before = here;
        stage.next();
    }
    if (ASKED > 1) tell<ASKED - 1>(shared, told);
    tell<0>(shared, told);
}

// ---- the others

/// The first of the two positions of a page whose scores a lane has of the rows 8 i .. of keys.
DEVICE u32 first_position(u32 i) { return i / 2 * 16 + i % 2 * 4 + lane_of() % 2 * 8 + lane_of() / 2 % 2 * 2; }

/// A warp's 16 lines.
struct Walk {
    u8* shared;
    const u8* queries; // of the group's lines
    u32 value_group;
    Stage stage;
    float low, high;           // maxima up to the page whose scores were made last
    float keep_low, keep_high; // what sums before it are multiplied by
    float scores[8][4];

    __device__ __forceinline__ void await_stage() { barrier_wait(full_at(shared, stage.at), stage.parity); }
    __device__ __forceinline__ void leave_stage() {
        if (lane_of() == 0) barrier_arrive(empty_at(shared, stage.at));
        stage.next();
    }
    /// Begins to multiply the keys of the stage with the queries.
    __device__ __forceinline__ void begin_scores() {
        u64 a = step_operand(queries, QUERY_HALF), b = step_operand(keys_of(shared, stage.at), KEY_HALF);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) group_f16(scores, a + step * (2 * QUERY_HALF / 16), b + step * (2 * KEY_HALF / 16), step > 0);
        group_commit();
    }
    /// Begins to multiply the values of the stage with the weights; `on`: sums are added to.
    __device__ __forceinline__ void begin_values(float (&sums)[GROUP_TILES][4], const u32 (&weights)[4][4], bool on) {
        u64 b = step_operand(values_of(shared, stage.at) + value_group * (GROUP_TILES * 128), VALUE_HALF);
        group_fence();
#pragma unroll
        for (u32 step = 0; step < 4; step++) group_f16(sums, weights[step], b + step * (2 * VALUE_HALF / 16), on || step > 0);
        group_commit();
    }
    /// Makes weights of the scores of a page, in their place; `fresh`: the first of a split.
    __device__ __forceinline__ void weigh(bool fresh) {
        float top_low = scores[0][0], top_high = scores[0][2];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            top_low = fmaxf(top_low, fmaxf(scores[i][0], scores[i][1]));
            top_high = fmaxf(top_high, fmaxf(scores[i][2], scores[i][3]));
        }
        top_low = line_top(top_low), top_high = line_top(top_high);
        if (fresh) low = high = MINUS_INFINITY;
        top_low = fmaxf(low, top_low), top_high = fmaxf(high, top_high);
        keep_low = power_of_two(low - top_low), keep_high = power_of_two(high - top_high);
        low = top_low, high = top_high;
        const float base_low = base_of(low), base_high = base_of(high);
#pragma unroll
        for (u32 i = 0; i < 8; i++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) scores[i][e] = weight_of(scores[i][e], e < 2 ? base_low : base_high);
    }
    /// The weights as operands. Not while a product with others is under way: their registers are the same.
    __device__ __forceinline__ void pack(u32 (&weights)[4][4]) const {
#pragma unroll
        for (u32 i = 0; i < 16; i++) weights[i / 4][i % 4] = pack_halves(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
    }
};

KERNEL_MIN(THREADS, 1) attention_prompt(Rows rows, u32 span0, const float* query, const u8* cache, u64 page_stride, float scale, const float* sinks, float* mixed, Masks masks) {
    DYNAMIC_SHARED(shared);
    u32 kv_head = blockIdx.x;
    const Tile tile = find_tile<TILE_ROWS>(rows, span0, blockIdx.y);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full_at(shared, i), PRODUCERS);
            barrier_init(empty_at(shared, i), CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // eights of ones, whose sums are those of the weights: [STAGES, 8 halves, VALUE_GROUPS]
    for (u32 i = threadIdx.x; i < STAGES * 8 * VALUE_GROUPS * 8; i += THREADS)
        *(uint4*)(values_of(shared, i / (64 * VALUE_GROUPS)) + i / (8 * VALUE_GROUPS) % 8 * VALUE_HALF + (i / 8 % VALUE_GROUPS * GROUP_TILES + GROUP_TILES - 1) * 128 + i % 8 * 16) = ONES;
    wait_for_previous();
    release_next();
    if (!tile.there) return;
    sync_block();
    const u32* pages = rows.pages + tile.pages;
    const u32 begin = visible_from(tile.first) / PAGE, last_page = tile.position / PAGE;
    if (threadIdx.x < PRODUCERS) {
        fewer_registers<40>();
        produce(shared, cache + kv_head * KV_HEAD_BYTES, page_stride, pages, tile.slot, begin, last_page);
        return;
    }
    more_registers<232>();
    // eight lines and four fours of channels a warp, so that what it stores has all banks
    constexpr u32 FOURS = HEAD_DIM / 16;
#pragma unroll 8
    for (u32 item = warp_of() - PRODUCERS / 32; item < TILE_LINES / 8 * FOURS; item += CONSUMERS / 32) {
        u32 line = item / FOURS * 8 + lane_of() / 4, four = item % FOURS * 4 + lane_of() % 4, at = tile.position + line / GROUP, eight = four / 2;
        float4 q = make_float4(0, 0, 0, 0);
        if (line < TILE_ROWS * GROUP && at >= tile.first && at < tile.end)
            q = *(const float4*)(query + (u64)(tile.row + line / GROUP) * QUERY_WIDTH + (kv_head * GROUP + line % GROUP) * QUERY_STRIDE + 4 * four);
        *(uint2*)(shared + QUERIES_AT + (eight / 4 * 4 + four % 2 * 2 + eight % 4 / 2) * QUERY_HALF + line * 16 + eight % 2 * 8) = query_halves(q, scale * LOG2_E);
    }
    // both groups' queries, and the ones
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, 256;" ::: "memory");

    const u32 group = warp_of() / 4 - 1, group_line = VALUE_GROUPS > 1 ? 0 : 64 * group, value_group = VALUE_GROUPS > 1 ? group : 0;
    const u32 line_low = group_line + warp_of() % 4 * 16 + lane_of() / 4, line_high = line_low + 8;
    const u32 last_low = tile.position % PAGE + line_low / GROUP, last_high = tile.position % PAGE + line_high / GROUP;
    Walk walk{shared, shared + QUERIES_AT + group_line * 16, value_group, {0, 0}, MINUS_INFINITY, MINUS_INFINITY, 0.0f, 0.0f};
    float sums[GROUP_TILES][4], total[GROUP_TILES][4], total_low = MINUS_INFINITY, total_high = MINUS_INFINITY;
    anything(walk.scores);
    anything(sums);
#pragma unroll
    for (u32 i = 0; i < GROUP_TILES; i++) total[i][0] = total[i][1] = total[i][2] = total[i][3] = 0.0f;

    auto mask = [&](u32 page, bool last) {
        if (last) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) mask_from(walk.scores[i], first_position(i), last_low, last_high);
        }
        if (WINDOW) {
            u32 from_low = hidden_of(visible_from(tile.position + line_low / GROUP), page * PAGE);
            u32 from_high = hidden_of(visible_from(tile.position + line_high / GROUP), page * PAGE);
#pragma unroll
            for (u32 i = 0; i < 8; i++) mask_to(walk.scores[i], first_position(i), from_low, from_high);
        }
    };
    // joins a split's sums to those of the splits before
    auto join = [&](float low, float high) {
        float kept_low, kept_high, added_low, added_high;
        join_factors(&total_low, low, &kept_low, &added_low);
        join_factors(&total_high, high, &kept_high, &added_high);
#pragma unroll
        for (u32 i = 0; i < GROUP_TILES; i++) {
            total[i][0] = fmaf(sums[i][0], added_low, total[i][0] * kept_low);
            total[i][1] = fmaf(sums[i][1], added_low, total[i][1] * kept_low);
            total[i][2] = fmaf(sums[i][2], added_high, total[i][2] * kept_high);
            total[i][3] = fmaf(sums[i][3], added_high, total[i][3] * kept_high);
        }
    };
    auto keep = [&] {
#pragma unroll
        for (u32 i = 0; i < GROUP_TILES; i++) {
            sums[i][0] *= walk.keep_low, sums[i][1] *= walk.keep_low;
            sums[i][2] *= walk.keep_high, sums[i][3] *= walk.keep_high;
        }
    };

    u32 weights[4][4];
    bool fresh = true;
    if (group == 1) give_turn(0);
    walk.await_stage();
    walk.begin_scores();
    group_wait<0>();
    settled(walk.scores);
    walk.leave_stage();
    mask(begin, begin == last_page);
    walk.weigh(true);
    walk.pack(weights);
#pragma unroll 1
    for (u32 page = begin; page < last_page; page++) {
        const bool ends = (page + 1) % SPLIT_PAGES == 0;
        const float low = walk.low, high = walk.high;
        walk.await_stage();
        await_turn(group);
        walk.begin_scores();
        walk.begin_values(sums, weights, !fresh);
        give_turn(1 - group);
        group_wait<1>();
        settled(walk.scores);
        mask(page + 1, page + 1 == last_page);
        walk.weigh(ends);
        group_wait<0>();
        settled(sums);
        walk.leave_stage();
        if (ends) join(low, high);
        else keep();
        fresh = ends;
        walk.pack(weights);
    }
    walk.await_stage();
    walk.begin_values(sums, weights, !fresh);
    group_wait<0>();
    settled(sums);
    join(walk.low, walk.high);
#pragma unroll
    for (u32 which = 0; which < 2; which++) {
        u32 line = which == 0 ? line_low : line_high, at = tile.position + line / GROUP, head = kv_head * GROUP + line % GROUP;
        if (line >= TILE_ROWS * GROUP || at < tile.first || at >= tile.end) continue;
        u64 row = tile.row + line / GROUP;
        float sum = total[GROUP_TILES - 1][2 * which], kept = 1.0f;
        if (SINKS) sum = with_sink(which == 0 ? total_low : total_high, sum, sinks[head], &kept);
        const float inverse = 1.0f / sum;
#pragma unroll
        for (u32 i = 0; i + 1 < GROUP_TILES; i++) {
            u32 channel = value_group * GROUP_CHANNELS + 8 * i + lane_of() % 4 * 2;
            float x = total[i][2 * which], y = total[i][2 * which + 1];
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

#endif
