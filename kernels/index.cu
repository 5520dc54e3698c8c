// Which positions a row of attention sees: an index scores groups of GROUP positions, and past BUDGET groups the best are kept, beside the group that is not complete.
//
//     pooled = turn(norm(mean of the group's keys), its first position)      once the group is complete
//     query  = turn(norm(query), own position)                               a head
//     score  = sum over heads of relu(query . pooled) / sqrt(DIM)            sums as src/cpu/math/rows.rs cuts them; of equal scores the earlier group counts more
//
// Keys of single positions stay in a ring a slot, position p in row p mod RING, until their group is complete and for as long as rows may be taken back.
// `index_prepare`: queries in their place, pooled keys of the groups that the window's rows complete; with `keeps` the rows' keys to the ring: for windows with no more rows of a
//     sequence than RING has beside what is looked back at. Where `queries` is null only keys are prepared.
// `index_keep`: the rows' keys to the ring, after `index_prepare`, for windows of any number of rows.
// `index_scores`: scores of rows `row0 ..`, of those that see fewer groups than are complete. A warp takes a group of all rows of a tile.
// `index_select`: what these rows see, a bit a position: the BUDGET greatest by their bits (scores are not negative), found eight bits at a time. Rows that see everything get ones.
//
// Shapes: queries [rows, HEADS * DIM], keys [rows, DIM] f32; norms [DIM]; turns [positions, 2, ROPE_CHANNELS / 2] f32: cosines, then sines; pooled [pages, PAGE / GROUP, DIM] f32;
//         ring [slots, RING, DIM] f32; scores [ROWS of a launch, stride] f32; masks [rows, mask_pages] u64.
// Grid:   index_prepare (rows, ceil((HEADS + 1) / 4)), 128 threads: a warp takes a head; index_keep (rows), 32; index_scores (any number of blocks that share the groups, ceil(rows of the
//         launch / TILE)), 256; index_select (rows of the launch), 512. Rows beyond the live count leave at once.
// Shared: static: index_prepare 16 DIM bytes, index_scores 4 TILE HEADS DIM bytes, index_select 2 KiB.
// Exact:  the same bits as src/cpu/index.rs for finite numbers.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: HEADS, DIM (a multiple of 8 up to 256), GROUP (a divisor of PAGE), BUDGET, RING, ROPE_CHANNELS, ROPE_HALVES (as in attention_prepare.cu).
#include "device.cuh"

#ifndef HEADS
#define HEADS 4
#endif
#ifndef DIM
#define DIM 128
#endif
#ifndef GROUP
#define GROUP 4
#endif
#ifndef BUDGET
#define BUDGET 512
#endif
#ifndef RING
#define RING 28
#endif
#ifndef ROPE_CHANNELS
#define ROPE_CHANNELS 64
#endif
#ifndef ROPE_HALVES
#define ROPE_HALVES 1
#endif

/// Channels of a lane: `lane + 32 i`.
#define PER_LANE ((DIM + 31) / 32)
#define PAIRS_PER_LANE ((ROPE_CHANNELS / 2 + 31) / 32)
#define PAGE_GROUPS (PAGE / GROUP)
#define WIDTH (HEADS * DIM)
/// Rows of a tile: as many as 16 KiB have the queries of.
#define TILE (WIDTH <= 512 ? 8 : WIDTH <= 1024 ? 4 : WIDTH <= 2048 ? 2 : 1)
#define SCORE_WARPS 8
#define SELECT_THREADS 512

static_assert(DIM % 8 == 0 && DIM <= 256 && ROPE_CHANNELS <= DIM && ROPE_CHANNELS % 2 == 0 && PAGE % GROUP == 0 && BUDGET > 0, "shape");

/// The sum over all lanes of what `low` and `high`, the chains of even and odd `i`, have.
DEVICE float channels_sum(float low, float high) { return warp_sum_f32(low + high); }

/// Norms and turns the channels that a warp holds; `head [DIM]` is its in shared memory.
DEVICE void norm_and_turn(float x[PER_LANE], const float* norm, float eps, const float* turn, float* head) {
    const u32 lane = lane_of();
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        float& sum = i % 2 == 0 ? low : high;
        sum = fmaf(x[i], x[i], sum);
    }
    float scale = 1.0f / sqrtf(channels_sum(low, high) / (float)DIM + eps);
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++)
        if (lane + 32 * i < DIM) head[lane + 32 * i] = x[i] * scale * norm[lane + 32 * i];
    sync_warp();
#pragma unroll
    for (u32 i = 0; i < PAIRS_PER_LANE; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= ROPE_CHANNELS / 2) break;
        u32 at = ROPE_HALVES ? pair : 2 * pair, other = ROPE_HALVES ? pair + ROPE_CHANNELS / 2 : 2 * pair + 1;
        float cos = turn[pair], sin = turn[ROPE_CHANNELS / 2 + pair], a = head[at], b = head[other];
        head[at] = fmaf(a, cos, -(b * sin));
        head[other] = fmaf(a, sin, b * cos);
    }
    sync_warp();
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) x[i] = lane + 32 * i < DIM ? head[lane + 32 * i] : 0.0f;
}

/// Where the pooled key of the group of a position lies.
DEVICE float* pooled_at(float* pooled, u32 page, u32 position) { return pooled + ((u64)page * PAGE_GROUPS + position % PAGE / GROUP) * DIM; }

KERNEL(128) index_prepare(Rows rows, float* queries, const float* keys, const float* query_norm, const float* key_norm, const float* turns, float eps, float* pooled, float* ring,
                          u32 keeps) {
    SHARED(float, heads, 4 * DIM);
    wait_for_previous();
    release_next();
    const u32 row = blockIdx.x, item = 4 * blockIdx.y + warp_of(), lane = lane_of();
    if (row >= rows.counts[0] || item > HEADS || (!queries && item < HEADS)) return;
    const u32 position = rows.positions[row], slot = rows.slots[row];
    float* head = heads + warp_of() * DIM;
    float x[PER_LANE];
    if (item < HEADS) {
        float* query = queries + (u64)row * WIDTH + item * DIM;
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) x[i] = lane + 32 * i < DIM ? query[lane + 32 * i] : 0.0f;
        norm_and_turn(x, query_norm, eps, turns + (u64)position * ROPE_CHANNELS, head);
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++)
            if (lane + 32 * i < DIM) query[lane + 32 * i] = x[i];
        return;
    }
    if ((position + 1) % GROUP == 0) {
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) x[i] = 0.0f;
        for (u32 back = GROUP; back-- > 0;) {
            // a sequence has its rows of a window side by side
            bool own = row >= back && rows.slots[row - back] == slot;
            const float* key = own ? keys + (u64)(row - back) * DIM : ring + ((u64)slot * RING + (position - back) % RING) * DIM;
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) x[i] += lane + 32 * i < DIM ? key[lane + 32 * i] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) x[i] = x[i] / (float)GROUP;
        norm_and_turn(x, key_norm, eps, turns + (u64)(position + 1 - GROUP) * ROPE_CHANNELS, head);
        float* to = pooled_at(pooled, rows.pages[rows.row_pages[row] + position / PAGE], position);
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++)
            if (lane + 32 * i < DIM) to[lane + 32 * i] = x[i];
    }
    if (!keeps) return;
    float* to = ring + ((u64)slot * RING + position % RING) * DIM;
    for (u32 at = lane; at < DIM; at += 32) to[at] = keys[(u64)row * DIM + at];
}

KERNEL(32) index_keep(Rows rows, const float* keys, float* ring) {
    wait_for_previous();
    release_next();
    const u32 row = blockIdx.x, live = rows.counts[0], later = row + RING;
    if (row >= live || (later < live && rows.slots[later] == rows.slots[row])) return;
    float* to = ring + ((u64)rows.slots[row] * RING + rows.positions[row] % RING) * DIM;
    for (u32 at = lane_of(); at < DIM; at += 32) to[at] = keys[(u64)row * DIM + at];
}

/// Groups that are complete for the row at a position, itself included.
DEVICE u32 complete_at(u32 position) { return (position + 1) / GROUP; }

KERNEL(32 * SCORE_WARPS) index_scores(Rows rows, u32 row0, const float* queries, float* pooled, float* scores, u64 stride) {
    SHARED(float, staged, TILE * WIDTH);
    wait_for_previous();
    release_next();
    const u32 first = row0 + blockIdx.y * TILE, live = rows.counts[0], lane = lane_of();
    if (first >= live) return;
    const u32 count = least(live - first, (u32)TILE);
    u32 most = 0;
    for (u32 i = 0; i < count; i++) most = greatest(most, complete_at(rows.positions[first + i]));
    if (most <= BUDGET) return;
    for (u32 at = threadIdx.x; at < count * WIDTH; at += 32 * SCORE_WARPS) staged[at] = queries[(u64)first * WIDTH + at];
    sync_block();
    for (u32 group = blockIdx.x * SCORE_WARPS + warp_of(); group < most; group += gridDim.x * SCORE_WARPS) {
        float key[PER_LANE];
        u32 list = ~0u;
        for (u32 i = 0; i < count; i++) {
            const u32 row = first + i, complete = complete_at(rows.positions[row]);
            if (complete <= BUDGET || group >= complete) continue;
            // rows of one sequence are side by side and have the same keys
            if (rows.row_pages[row] != list) {
                list = rows.row_pages[row];
                const float* from = pooled_at(pooled, rows.pages[list + group * GROUP / PAGE], group * GROUP);
#pragma unroll
                for (u32 c = 0; c < PER_LANE; c++) key[c] = lane + 32 * c < DIM ? from[lane + 32 * c] : 0.0f;
            }
            float score = 0.0f;
#pragma unroll
            for (u32 head = 0; head < HEADS; head++) {
                const float* query = staged + i * WIDTH + head * DIM;
                float low = 0.0f, high = 0.0f;
#pragma unroll
                for (u32 c = 0; c < PER_LANE; c++) {
                    float q = lane + 32 * c < DIM ? query[lane + 32 * c] : 0.0f;
                    float& sum = c % 2 == 0 ? low : high;
                    sum = fmaf(q, key[c], sum);
                }
                score += fmaxf(channels_sum(low, high), 0.0f);
            }
            if (lane == 0) scores[(u64)(row - row0) * stride + group] = score / sqrtf((float)DIM);
        }
    }
}

/// Sees positions `from .. to` of one page. Others may write the same page.
DEVICE void see(u64* masks, u32 from, u32 to) {
    u64 bits = (to - from == 64 ? ~0ull : (1ull << (to - from)) - 1) << from % PAGE;
    u32* words = (u32*)(masks + from / PAGE);
    if ((u32)bits) atomic_or(words, (u32)bits);
    if (bits >> 32) atomic_or(words + 1, (u32)(bits >> 32));
}

KERNEL(SELECT_THREADS) index_select(Rows rows, u32 row0, const float* scores, u64 stride, u64* masks, u64 mask_pages) {
    SHARED(u32, counts, 256);
    SHARED(u32, found, 2);
    SHARED(u32, equals, SELECT_THREADS / 32);
    wait_for_previous();
    release_next();
    const u32 row = row0 + blockIdx.x, thread = threadIdx.x;
    if (row >= rows.counts[0]) return;
    const u32 position = rows.positions[row], complete = complete_at(position);
    masks += row * mask_pages;
    for (u32 page = thread; page <= position / PAGE; page += SELECT_THREADS) masks[page] = complete <= BUDGET ? ~0ull : 0ull;
    if (complete <= BUDGET) return;
    const u32* keys = (const u32*)(scores + blockIdx.x * stride);
    // the BUDGET-th greatest, from the highest bits to the lowest; `left` of those that begin like it are to be taken
    u32 prefix = 0, left = BUDGET;
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        if (thread < 256) counts[thread] = 0;
        sync_block();
        for (u32 group = thread; group < complete; group += SELECT_THREADS) {
            u32 key = keys[group];
            if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8)) atomic_add(counts + (key >> shift & 255), 1u);
        }
        sync_block();
        if (warp_of() == 0) {
            // lane l has the eight values from 248 - 8 l on
            u32 lane = lane_of(), own = 0;
            for (u32 i = 0; i < 8; i++) own += counts[255 - 8 * lane - i];
            u32 above = own;
#pragma unroll
            for (u32 by = 1; by < 32; by <<= 1) {
                u32 other = shfl_up(above, by);
                if (lane >= by) above += other;
            }
            above -= own;
            if (above < left && left <= above + own) {
                u32 value = 255 - 8 * lane;
                while (above + counts[value] < left) above += counts[value--];
                found[0] = value;
                found[1] = left - above;
            }
        }
        sync_block();
        prefix |= found[0] << shift;
        left = found[1];
    }
    // all that are greater, and of those that are equal the first
    u32 before = 0;
    for (u32 start = 0; start < complete; start += SELECT_THREADS) {
        u32 group = start + thread, key = group < complete ? keys[group] : 0;
        bool equal = group < complete && key == prefix;
        u32 those = ballot(equal);
        u32 rank = __popc(those & ((1u << lane_of()) - 1));
        if (lane_of() == 0) equals[warp_of()] = __popc(those);
        sync_block();
        u32 sum = 0;
        for (u32 warp = 0; warp < SELECT_THREADS / 32; warp++) {
            if (warp == warp_of()) rank += before + sum;
            sum += equals[warp];
        }
        before += sum;
        if (group < complete && (key > prefix || (equal && rank < left))) see(masks, group * GROUP, (group + 1) * GROUP);
        sync_block();
    }
    if (thread == 0 && complete * GROUP <= position) see(masks, complete * GROUP, position + 1);
}

/// How index_scores is launched: rows of a tile, threads.
KERNEL(1) index_launch(u32* to) {
    to[0] = TILE;
    to[1] = 32 * SCORE_WARPS;
}
