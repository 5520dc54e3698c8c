// The router: which experts a row goes to, how much each counts, and the rows grouped by expert.
//
//     probability = softmax over all | sigmoid | logit | sqrt(softplus)           by GATING, of logits + bias
//     ids     = the USED greatest probability + choice bias, ties to the lower number, a NaN counts as the least
//     weights = probability of the chosen | softmax over the chosen; divided by their sum if `normalise`; times `scale`; times the expert's own
//     groups  = places (row * USED + rank) sorted by (expert, place)
//
// Shapes: logits [rows, EXPERTS] f32; biases, expert scale [EXPERTS] f32 or null; ids [rows, USED] u16; weights [rows, USED] f32; places [rows * USED] u32; group_expert
// [groups] u32, ascending, the experts that have rows; group_start [groups + 1] u32; group_count [1] u32.
// Exact: ids and weights are the CPU's, bit by bit (a NaN's payload aside): sums in the order of `rows.cuh`, the sum of the chosen in the order of rank.
//
// `route`        grid ceil(rows / ROUTE_ROWS), ROUTE_THREADS threads: a warp a row up to 1024 experts, else a block a row that works on `logits` in place.
// `route_group`  at most 16 rows and 1024 experts: one block of 32 * rows threads does both (rows: as many as
//                the launch is for; there are logits for all of them). Static shared memory: 128 USED + 2128 bytes.
// `group`        any number of rows: a block of 256 threads an expert looks through all ids; the last one to finish makes the list of groups.
//                `expert_rows [EXPERTS]` u32 is scratch, `done [1]` u32 is 0 before and after.
// Counts are read from the device; rows beyond them leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: EXPERTS, USED (at most 32), GATING.
#include "device.cuh"
#include "functions.cuh"
#include "rows.cuh"

#define GATING_SOFTMAX 0
#define GATING_SIGMOID 1
#define GATING_SOFTMAX_OF_CHOSEN 2
#define GATING_SQRT_SOFTPLUS 3

#ifndef EXPERTS
#define EXPERTS 128
#endif
#ifndef USED
#define USED 8
#endif
#ifndef GATING
#define GATING GATING_SOFTMAX
#endif
static_assert(USED >= 1 && USED <= 32 && USED <= EXPERTS && EXPERTS <= 65536, "experts");

/// The least sum that weights are divided by: the smallest normal half-precision number.
#define LEAST_SUM 6.1035156e-5f
/// Minus infinity.
#define LOWEST float_of(0xff800000u)

struct Choices {
    u16* ids;       // [rows, USED]
    float* weights; // [rows, USED]
};

/// Of experts, each [EXPERTS] or null.
struct Vectors {
    const float* bias;        // on the logits
    const float* choice_bias; // on what the choice goes by
    const float* scale;       // on the weight of the chosen
};

struct Groups {
    u32* places; // [rows * USED]
    u32* expert; // [groups]
    u32* start;  // [groups + 1]
    u32* count;  // [1]
};

/// A number that orders like the score, above 0; one zero, and a NaN counts as minus infinity.
DEVICE u32 rank_of(float score) {
    u32 bits = bits_of(score + 0.0f);
    if (score != score) bits = 0xff800000u;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// What is no sum over experts: the probability of a logit.
DEVICE float gated(float logit) {
    if (GATING == GATING_SIGMOID) return sigmoid_of(logit);
    if (GATING == GATING_SQRT_SOFTPLUS) return sqrtf(softplus_of(logit));
    return logit;
}

/// Lane r has the probability of the row's choice of rank r; gives its weight.
DEVICE float weight_of(float weight, u32 normalise, float scale) {
    u32 lane = lane_of();
    if (GATING == GATING_SOFTMAX_OF_CHOSEN) weight = exp_of(weight - warp_max_f32(lane < USED ? weight : LOWEST));
    if (normalise || GATING == GATING_SOFTMAX_OF_CHOSEN) {
        float sum = 0.0f;
#pragma unroll
        for (u32 rank = 0; rank < USED; rank++) sum += shfl(weight, rank);
        weight = weight / fmaxf(sum, LEAST_SUM);
    }
    return weight * scale;
}

#if EXPERTS <= 1024

#define ROUTE_ROWS 4
#define ROUTE_THREADS 128
/// Experts of a lane: lane, lane + 32, ..
#define SHARE ((EXPERTS + 31) / 32)

DEVICE void load_logits(const float* logits, const float* bias, float p[SHARE]) {
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        u32 expert = 32 * i + lane_of();
        p[i] = expert < EXPERTS ? logits[expert] : LOWEST;
        if (bias && expert < EXPERTS) p[i] += bias[expert];
    }
}

/// `p[i] / sum`, correctly rounded, for `0 <= p[i] <= 1 <= sum < 2^24`, without a division each. A quotient that is off by less than a unit in the last
/// place is corrected by its remainder times the correctly rounded inverse (Markstein's theorem); the first of two such steps makes it that near.
DEVICE void divide_share(float p[SHARE], float sum) {
    const float tiny = 8.2718061e-25f; // 2^-80: below, a remainder may be too small to be a number
    float inverse = 1.0f / sum;
    bool plain = false;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) plain |= p[i] > 0.0f && p[i] < tiny;
    if (plain) {
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) p[i] = p[i] / sum;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        float q = p[i] * inverse;
        q = fmaf(fmaf(-sum, q, p[i]), inverse, q);
        p[i] = fmaf(fmaf(-sum, q, p[i]), inverse, q);
    }
}

/// Softmax over a warp. Lane l has the elements of the partial sums l and l + 32.
DEVICE void softmax_share(float p[SHARE]) {
    float top = p[0];
#pragma unroll
    for (u32 i = 1; i < SHARE; i++) top = fmaxf(top, p[i]);
    // a NaN may be missed here: it makes the sum, and so everything, NaN
    u32 rank = warp_max_u32(rank_of(top));
    top = float_of(rank >> 31 ? rank & 0x7fffffffu : ~rank);
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        p[i] = 32 * i + lane_of() < EXPERTS ? exp_of(p[i] - top) : 0.0f;
        (i % 2 ? high : low) += p[i];
    }
    divide_share(p, join_chains(low, high));
}

/// Routes the row whose logits the warp holds, and writes its choices if it is `live`. In shared memory, the warp's own: `keys [USED]`, which
/// gets expert << 16 | place (in `route` only the expert counts), and a word of the thread's own to spare.
DEVICE void route_share(float p[SHARE], const Vectors& of, u32 normalise, float scale, u32 row, bool live, Choices choices, u32* keys, u32* spare) {
    u32 lane = lane_of();
    if (GATING == GATING_SOFTMAX) {
        softmax_share(p);
    } else {
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) p[i] = gated(p[i]);
    }
    u32 ranks[SHARE], best = 0;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        u32 expert = 32 * i + lane;
        ranks[i] = expert < EXPERTS ? rank_of(of.choice_bias ? p[i] + of.choice_bias[expert] : p[i]) : 0;
        best = greatest(best, ranks[i]);
    }
#pragma unroll 1
    for (u32 rank = 0; rank < USED; rank++) {
        u32 top = warp_max_u32(best), at = 0;
#pragma unroll
        for (u32 i = SHARE; i-- > 0;) at = ranks[i] == top ? i : at;
        u32 expert = 32 * at + lane, having = ballot(best == top);
        bool mine = best == top;
        // of several lanes the one with the lowest number
        if (having & (having - 1)) mine &= warp_max_u32(mine ? ~expert : 0) == ~expert;
        // a store by all lanes: a branch for one would cost more
        *(mine ? keys + rank : spare) = expert << 16 | ((row * USED + rank) & 0xffff);
        best = 0;
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            ranks[i] = mine && i == at ? 0 : ranks[i];
            best = greatest(best, ranks[i]);
        }
    }
    sync_warp();
    u32 chosen = lane < USED ? keys[lane] >> 16 : 0;
    float weight = 0.0f;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++) {
        float other = shfl(p[i], chosen & 31);
        weight = chosen >> 5 == i ? other : weight;
    }
    weight = weight_of(weight, normalise, scale);
    if (of.scale && lane < USED) weight *= of.scale[chosen];
    if (live && lane < USED) {
        choices.ids[row * USED + lane] = (u16)chosen;
        choices.weights[row * USED + lane] = weight;
    }
}

KERNEL_MIN(ROUTE_THREADS, 1) route(const float* logits, Vectors of, u32 normalise, float scale, Choices choices, Rows rows) {
    SHARED(u32, keys, ROUTE_ROWS * USED);
    SHARED(u32, spare, ROUTE_THREADS);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x * ROUTE_ROWS + warp_of();
    if (row >= rows.counts[0]) return;
    float p[SHARE];
    load_logits(logits + (u64)row * EXPERTS, of.bias, p);
    route_share(p, of, normalise, scale, row, true, choices, keys + warp_of() * USED, spare + threadIdx.x);
}

/// One block: a warp a row, then a thread a place.
KERNEL_MIN(512, 1) route_group(const float* logits, Vectors of, u32 normalise, float scale, Choices choices, Groups groups, Rows rows) {
    SHARED(u32, keys, 16 * USED + 4); // expert in the high half, place in the low
    SHARED(u32, sorted, 16 * USED);
    SHARED(u32, heads, 16);
    SHARED(u32, spare, 512);
    wait_for_previous();
    release_next();
    u32 row = warp_of(), lane = lane_of(), thread = threadIdx.x;
    float p[SHARE];
    u32 live = least(rows.counts[0], blockDim.x / 32);
    load_logits(logits + (u64)row * EXPERTS, of.bias, p);
    // a row beyond the live ones takes part until it would be written: so the logits need not wait for the count
    route_share(p, of, normalise, scale, row, row < live, choices, keys + row * USED, spare + thread);
    // behind the keys of live rows: the greatest there is
    if (row >= live && lane < USED) keys[row * USED + lane] = 0x7fffffff;
    if (thread < 4) keys[blockDim.x / 32 * USED + thread] = 0x7fffffff;
    sync_block();
    u32 count = live * USED, key = thread < count ? keys[thread] : 0;
    if (thread < count) {
        // the sign of a difference is 1 where the other key is less; four counts do not wait for each other
        u32 less[4] = {0, 0, 0, 0};
        for (u32 i = 0; i < count; i += 4)
#pragma unroll
            for (u32 j = 0; j < 4; j++) less[j] += (keys[i + j] - key) >> 31;
        sorted[less[0] + less[1] + less[2] + less[3]] = key;
    }
    sync_block();
    key = thread < count ? sorted[thread] : 0;
    bool head = thread < count && (thread == 0 || sorted[thread - 1] >> 16 != key >> 16);
    u32 those = ballot(head);
    if (lane == 0) heads[row] = __popc(those);
    sync_block();
    u32 before = __popc(those & ((1u << lane) - 1));
    for (u32 i = 0; i < row; i++) before += heads[i];
    if (thread < count) groups.places[thread] = key & 0xffff;
    if (head) {
        groups.expert[before] = key >> 16;
        groups.start[before] = thread;
    }
    if (thread == blockDim.x - 1) {
        u32 all = before + head;
        groups.count[0] = all;
        groups.start[all] = count;
    }
}

#else

#define ROUTE_ROWS 1
#define ROUTE_THREADS 256

/// The greatest key of the block; all threads get it. `held [8]` is shared.
DEVICE u64 block_max(u64 key, u64* held) {
#pragma unroll
    for (u32 by = 16; by > 0; by >>= 1) key = greatest(key, shfl_xor(key, by));
    sync_block();
    if (lane_of() == 0) held[warp_of()] = key;
    sync_block();
    key = 0;
    for (u32 i = 0; i < ROUTE_THREADS / 32; i++) key = greatest(key, held[i]);
    return key;
}

/// Logits become probabilities where they are.
KERNEL_MIN(ROUTE_THREADS, 1) route(float* logits, Vectors of, u32 normalise, float scale, Choices choices, Rows rows) {
    SHARED(u64, held, ROUTE_THREADS / 32);
    SHARED(float, total, 1);
    wait_for_previous();
    release_next();
    u32 row = blockIdx.x, thread = threadIdx.x, lane = lane_of();
    if (row >= rows.counts[0]) return;
    float* p = logits + (u64)row * EXPERTS;
    if (of.bias) {
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) p[i] += of.bias[i];
        sync_block();
    }
    if (GATING == GATING_SOFTMAX) {
        u32 rank = 0;
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) rank = greatest(rank, rank_of(p[i]));
        rank = (u32)block_max(rank, held);
        float top = float_of(rank >> 31 ? rank & 0x7fffffffu : ~rank);
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) p[i] = exp_of(p[i] - top);
        sync_block();
        if (thread < 32) {
            float low = 0.0f, high = 0.0f;
            for (u32 i = lane; i < EXPERTS; i += 64) {
                low += p[i];
                if (i + 32 < EXPERTS) high += p[i + 32];
            }
            float sum = join_chains(low, high);
            if (lane == 0) total[0] = sum;
        }
        sync_block();
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) p[i] = p[i] / total[0];
    } else {
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) p[i] = gated(p[i]);
    }
    sync_block();
    // each rank is the greatest (score, lower number first) below the one before
    u64 last = ~0ull;
    u32 chosen = 0;
    for (u32 rank = 0; rank < USED; rank++) {
        u64 best = 0;
        for (u32 i = thread; i < EXPERTS; i += ROUTE_THREADS) {
            u64 key = (u64)rank_of(of.choice_bias ? p[i] + of.choice_bias[i] : p[i]) << 32 | (u32)~i;
            if (key < last) best = greatest(best, key);
        }
        last = block_max(best, held);
        if (lane == rank) chosen = ~(u32)last;
    }
    if (thread >= 32) return;
    float weight = weight_of(p[chosen], normalise, scale);
    if (of.scale && lane < USED) weight *= of.scale[chosen];
    if (lane < USED) {
        choices.ids[row * USED + lane] = (u16)chosen;
        choices.weights[row * USED + lane] = weight;
    }
}

#endif

#define GROUP_THREADS 256
#define GROUP_WARPS (GROUP_THREADS / 32)

/// Eight ids from place `at` on, those from `count` on replaced by an expert that there is not.
DEVICE void load_ids(const u16* ids, u32 at, u32 count, u32 expert[8]) {
    uint4 words = at < count ? *(const uint4*)(ids + at) : make_uint4(0, 0, 0, 0);
    u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (u32 i = 0; i < 8; i++) expert[i] = at + i < count ? word[i / 2] >> (16 * (i % 2)) & 0xffff : 0x10000;
}

KERNEL_MIN(GROUP_THREADS, 1) group(const u16* ids, Groups groups, u32* expert_rows, u32* done, Rows rows) {
    SHARED(u32, less, GROUP_WARPS);
    SHARED(u32, equal, GROUP_WARPS);
    SHARED(u32, last, 1);
    SHARED(u64, sums, GROUP_WARPS);
    wait_for_previous();
    release_next();
    u32 lane = lane_of(), warp = warp_of(), thread = threadIdx.x, expert = blockIdx.x;
    u32 count = rows.counts[0] * USED;
    // a warp looks through a stretch of its own, in steps of 256 ids
    u32 stretch = ceil_div(ceil_div(count, GROUP_WARPS), 256) * 256, first = warp * stretch, end = least(first + stretch, count);
    u32 lower = 0, mine = 0;
    for (u32 at = first; at < end; at += 256) {
        u32 id[8];
        load_ids(ids, at + 8 * lane, count, id);
#pragma unroll
        for (u32 i = 0; i < 8; i++) lower += id[i] < expert, mine += id[i] == expert;
    }
    lower = (u32)warp_sum_i32((i32)lower), mine = (u32)warp_sum_i32((i32)mine);
    if (lane == 0) less[warp] = lower, equal[warp] = mine;
    sync_block();
    u32 to = 0, all = 0;
    for (u32 i = 0; i < GROUP_WARPS; i++) {
        to += less[i] + (i < warp ? equal[i] : 0);
        all += equal[i];
    }
    for (u32 at = first; at < end && mine; at += 256) {
        u32 id[8], before = 0, here = 0;
        load_ids(ids, at + 8 * lane, count, id);
        bool any = false;
#pragma unroll
        for (u32 i = 0; i < 8; i++) any |= id[i] == expert;
        if (!ballot(any)) continue;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 those = ballot(id[i] == expert);
            before += __popc(those & ((1u << lane) - 1));
            here += __popc(those);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (id[i] == expert) groups.places[to + before++] = at + 8 * lane + i;
        to += here, mine -= here;
    }
    if (thread == 0) {
        expert_rows[expert] = all;
        fence();
        last[0] = atomic_add(done, 1u) == gridDim.x - 1;
    }
    sync_block();
    if (!last[0]) return;
    // experts with rows in the high half, rows in the low
    u64 past = 0;
    for (u32 base = 0; base < EXPERTS; base += GROUP_THREADS) {
        u32 own = base + thread < EXPERTS ? load_fresh(expert_rows + base + thread) : 0;
        u64 sum = (u64)(own > 0) << 32 | own, self = sum;
#pragma unroll
        for (u32 by = 1; by < 32; by <<= 1) {
            u64 other = shfl_up(sum, by);
            if (lane >= by) sum += other;
        }
        sync_block();
        if (lane == 31) sums[warp] = sum;
        sync_block();
        u64 total = past;
        for (u32 i = 0; i < GROUP_WARPS; i++) {
            if (i < warp) past += sums[i];
            total += sums[i];
        }
        u64 before = past + sum - self;
        if (own) {
            groups.expert[before >> 32] = base + thread;
            groups.start[before >> 32] = (u32)before;
        }
        past = total;
    }
    if (thread == 0) {
        groups.count[0] = (u32)(past >> 32);
        groups.start[past >> 32] = (u32)past;
        *done = 0;
    }
}

/// How these kernels are launched.
KERNEL(1) route_launch(u32* to) {
    to[0] = ROUTE_ROWS;
    to[1] = ROUTE_THREADS;
}
