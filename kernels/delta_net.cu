// The gated delta net for spans of a few rows: decoding and drafts. One launch does everything between the projections: convolution, norms of q and k, beta
// and decay, the rows' outputs, their norm, gate and quantisation, and the state's advance. Formula, state and macros: delta.cuh.
//
//     delta_step: out [rows, INNER] for the spans of at most `longest` rows (<= SHORT_ROWS); the others are left to delta_prompt.cu.
//
// Grid: (ceil(VD / 32), V_HEADS, most spans). Block: 128 threads. A block owns 32 columns of a value head: lane = column, warp = 4 rows.
// It computes its key head's lines and products itself (SHARE * VD / 32 times over in all): that costs less than a launch and a round trip through memory.
// Shared memory (dynamic): STEP_FLOATS * 4 bytes: 66 KB at KD and VD 128, so that 3 blocks share a multiprocessor of 228 KB; 62 KB with STEP_ROWS 4, for sm_75.
// `arrivals`: u32 [most spans, GROUPS], zero before the first launch, zero again after every one: the last block of a group of heads finishes its rows.
// Where launches overlap (griddepcontrol), the state is on its way before the projections are done; tables, state and weights must then be older than the
// launch before.
//
// Exactness: the same bits as src/cpu/delta_net.rs (a NaN's payload aside) and as delta_prompt.cu.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
#include "delta.cuh"

/// Rows that are computed together; longer spans take several turns. A multiple of 4.
#ifndef STEP_ROWS
#define STEP_ROWS 8
#endif
static_assert(STEP_ROWS % 4 == 0 && STEP_ROWS > 0 && STEP_ROWS <= 16, "STEP_ROWS");

#define STEP_COLUMNS 32
#define STEP_TILES ((VD + STEP_COLUMNS - 1) / STEP_COLUMNS)
#define STEP_WARPS 4
#define STEP_THREADS (32 * STEP_WARPS)
#define STEP_KEYS 0
#define STEP_S (STEP_KEYS + ANCHOR * KEY_STRIDE)
#define STEP_U (STEP_S + KD * STEP_COLUMNS)
#define STEP_QUERIES (STEP_U + ANCHOR * STEP_COLUMNS)
#define STEP_WEIGHTS (STEP_QUERIES + STEP_ROWS * KD)
#define STEP_G (STEP_WEIGHTS + STEP_ROWS * 2 * ANCHOR)
#define STEP_STRENGTHS (STEP_G + ANCHOR)
#define STEP_DECAYS (STEP_STRENGTHS + STEP_ROWS)
#define STEP_NORM (STEP_DECAYS + ANCHOR)
#define STEP_END (STEP_NORM + VD)
#define STEP_FLOATS (STEP_NORM > FINISH_FLOATS ? STEP_END : FINISH_FLOATS + VD)

/// Rows of a span that lie in one block of 64 positions and are computed together, for a block of threads.
struct Stretch {
    u32 anchor, pending, count; // rows of the block from `pending` on are new
    u32 start;                  // of the block in the rings of PENDING
    bool fresh;                 // the block's first turn in this launch
    float *keys;                // [64, KEY_STRIDE], by row of the block
    float *s;                   // [KD, 32]
    float *u;                   // [64, 32], by row of the block
    float *queries;             // [STEP_ROWS, KD], by new row
    float *weights;             // [STEP_ROWS, (keys, queries), 64]
    float *g;                   // [64], by row of the block
    float *strengths;           // [STEP_ROWS], by new row
    float *decays;              // [64]

    __device__ __forceinline__ const float* key(u32 row) const { return keys + (pending + least(row, count - 1)) * KEY_STRIDE; }
    __device__ __forceinline__ const float* query(u32 row) const { return queries + least(row, count - 1) * KD; }
};

/// What a block of threads works on, whatever the stretch.
struct Head {
    Span span;
    u32 v_head, k_head, nth;
    u32 columns, column; // of the block of threads; of the lane, in the head: lanes behind the last column compute it once more
    u32 channel;         // of the lane's column
    bool first_tile, first_of_key;
    const float* span_rows;
    float *s, *u, *keys, *g, *ring; // of the slot, from the head and the first column on
    u32* marks;
};

DEVICE Head head_of(const Span& span, const DeltaIn& in, float* states) {
    const u32 tile = blockIdx.x * STEP_COLUMNS;
    const DeltaState state = state_of(states, span.slot);
    Head head;
    head.span = span;
    head.v_head = blockIdx.y, head.k_head = k_head_of(head.v_head), head.nth = nth_of(head.v_head);
    head.columns = least((u32)STEP_COLUMNS, VD - tile);
    head.column = tile + least(lane_of(), head.columns - 1);
    head.channel = 2 * K_HEADS * KD + head.v_head * VD + head.column;
    head.first_tile = tile == 0, head.first_of_key = tile == 0 && head.nth == 0;
    head.span_rows = in.qkv + (u64)span.row * CHANNELS;
    head.s = state.s + (u64)head.v_head * KD * VD + tile;
    head.u = state.u + (u64)head.v_head * PENDING * VD + tile;
    head.keys = state.keys + (u64)head.k_head * PENDING * KD;
    head.g = state.g + head.v_head * PENDING;
    head.ring = state.ring;
    head.marks = state.marks + head.v_head * (VD / 8) + tile / 8;
    return head;
}

/// Asks for S, or zeros.
DEVICE void fetch_state(const Head& head, bool blank, float* s) {
    const u32 c = threadIdx.x / (STEP_COLUMNS / 4), d = threadIdx.x % (STEP_COLUMNS / 4) * 4;
    const bool there = !blank && d < head.columns;
    const float* from = head.s + c * VD + (d < head.columns ? d : 0);
#pragma unroll
    for (u32 i = 0; i < (KD + 15) / 16; i++)
        if (KD % 16 == 0 || c + 16 * i < KD) copy16_async_or_zero(s + (c + 16 * i) * STEP_COLUMNS + d, from + 16 * i * VD, there);
}

DEVICE void store_state(const Head& head, const float* s) {
    for (u32 piece = threadIdx.x; piece < KD * (STEP_COLUMNS / 4); piece += STEP_THREADS) {
        u32 c = piece / (STEP_COLUMNS / 4), d = piece % (STEP_COLUMNS / 4) * 4;
        if (d < head.columns) *(float4*)(head.s + c * VD + d) = *(const float4*)(s + c * STEP_COLUMNS + d);
    }
}

/// Asks for what earlier windows left of the block.
DEVICE void fetch_pending(const Head& head, const Stretch& at) {
    const u32 thread = threadIdx.x;
#pragma unroll 4
    for (u32 piece = thread; piece < at.pending * (KD / 4); piece += STEP_THREADS) {
        u32 j = piece / (KD / 4), c = piece % (KD / 4) * 4;
        copy16_async(at.keys + j * KEY_STRIDE + c, head.keys + pending_row(at.start, j) * KD + c);
    }
    if (u32 d = thread % (STEP_COLUMNS / 4) * 4; d < head.columns) {
#pragma unroll
        for (u32 j = thread / (STEP_COLUMNS / 4); j < ANCHOR; j += 16)
            if (j < at.pending) copy16_async(at.u + j * STEP_COLUMNS + d, head.u + pending_row(at.start, j) * VD + d);
    }
    if (thread < at.pending) copy4_async(at.g + thread, head.g + pending_row(at.start, thread));
    copy_commit();
}

/// Convolution, write strengths and running sums of the new rows: fills keys and queries (not normed yet), `strengths`, `g` and the lane's `values`, and the rings.
/// Where the kernel `waits` for the projections, here.
DEVICE void prepare_rows(const Head& head, const Stretch& at, const DeltaIn& in, const DeltaWeights& weights, bool waits, float (&values)[4]) {
    const u32 thread = threadIdx.x, warp = warp_of(), lane = lane_of(), own = 4 * warp;
    const i32 first = (i32)head.span.position, position = (i32)(at.anchor + at.pending);
    // everything is asked for before anything is used
    constexpr int LINES = (2 * KD + STEP_THREADS - 1) / STEP_THREADS;
    float taps[LINES][4], x[LINES][4], v_taps[4], v[7];
    u32 channel[LINES];
#pragma unroll
    for (int i = 0; i < LINES; i++) {
        u32 line = least(thread + STEP_THREADS * i, 2u * KD - 1);
        channel[i] = line < KD ? head.k_head * KD + line : (K_HEADS + head.k_head) * KD + line - KD;
        load_taps(weights.taps, channel[i], taps[i]);
    }
    load_taps(weights.taps, head.channel, v_taps);
    if (waits) {
        wait_for_previous();
        release_next();
    }
    Inputs inputs[4];
#pragma unroll
    for (int back = 0; back < 4; back++) {
        inputs[back] = inputs_at(head.span_rows, head.ring, first, position - 3 + back);
#pragma unroll
        for (int i = 0; i < LINES; i++) x[i][back] = inputs[back].of(channel[i]);
        v[back] = inputs[back].of(head.channel);
    }
    float later[STEP_ROWS - 1][LINES];
#pragma unroll
    for (u32 r = 1; r < STEP_ROWS; r++)
#pragma unroll
        for (int i = 0; i < LINES; i++) later[r - 1][i] = r < at.count ? inputs[3].row[(u64)r * CHANNELS + channel[i]] : 0.0f;
    if (at.count > 1 && own < at.count) {
#pragma unroll
        for (int i = 0; i < 7; i++) v[i] = inputs_at(head.span_rows, head.ring, first, position - 3 + (i32)least(own + i, at.count + 2)).of(head.channel);
    }
    Strength strength = {};
    float sum = 0.0f;
    if (warp == STEP_WARPS - 1) {
        if (lane < at.count) strength = load_strength(in, weights, head.span.row + (position - first) + lane, head.k_head, head.nth);
        // in the block's first turn the sum is still on its way to `g`
        if (at.pending > 0) sum = at.fresh ? head.g[pending_row(at.start, at.pending - 1)] : at.g[at.pending - 1];
    }

#pragma unroll
    for (u32 r = 0; r < STEP_ROWS; r++) {
        if (r >= at.count) break;
#pragma unroll
        for (int i = 0; i < LINES; i++) {
            u32 line = thread + STEP_THREADS * i;
            float y = convolve(taps[i], x[i][0], x[i][1], x[i][2], x[i][3]);
            if (line < KD) at.queries[r * KD + line] = y;
            else if (line < 2 * KD) at.keys[(at.pending + r) * KEY_STRIDE + line - KD] = y;
            if (head.first_of_key && line < 2 * KD) head.ring[((u32)position + r) % CONV_RING * CHANNELS + channel[i]] = x[i][3];
            x[i][0] = x[i][1], x[i][1] = x[i][2], x[i][2] = x[i][3];
            if (r + 1 < STEP_ROWS) x[i][3] = later[r][i];
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (own + r >= at.count) break;
        values[r] = convolve(v_taps, v[r], v[r + 1], v[r + 2], v[r + 3]);
        if (lane < head.columns) head.ring[((u32)position + own + r) % CONV_RING * CHANNELS + head.channel] = v[r + 3];
    }
    if (warp == STEP_WARPS - 1) {
        float step = step_of(strength);
        if (lane < at.count) at.strengths[lane] = sigmoid_of(strength.beta);
        for (u32 r = 0; r < at.count; r++) {
            sum = sum + shfl(step, r);
            if (lane == r) {
                at.g[at.pending + r] = sum;
                if (head.first_tile) head.g[pending_row(at.start, at.pending + r)] = sum;
            }
        }
    }
}

/// What a lane's column of S gives to the rows from `first` on.
template <int ROWS>
DEVICE void read_state(const Stretch& at, u32 first, float (&by_key)[ROWS], float (&by_query)[ROWS]) {
    const u32 lane = lane_of();
    const float *keys[ROWS], *queries[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) by_key[r] = by_query[r] = 0.0f, keys[r] = at.key(first + r), queries[r] = at.query(first + r);
#pragma unroll(ROWS == 1 ? 8 : 1)
    for (u32 c = 0; c < KD; c += 4) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = at.s[(c + i) * STEP_COLUMNS + lane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 k = *(const float4*)(keys[r] + c), q = *(const float4*)(queries[r] + c);
            by_key[r] = fmaf(k.w, x[3], fmaf(k.z, x[2], fmaf(k.y, x[1], fmaf(k.x, x[0], by_key[r]))));
            by_query[r] = fmaf(q.w, x[3], fmaf(q.z, x[2], fmaf(q.y, x[1], fmaf(q.x, x[0], by_query[r]))));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float decay = exp_of(at.g[at.pending + least(first + r, at.count - 1)]);
        by_key[r] = by_key[r] * decay, by_query[r] = by_query[r] * decay;
    }
}

/// Products of the rows from `first` on with key `j` of the block, decayed.
template <int ROWS>
DEVICE void weigh(const Stretch& at, u32 first, u32 j) {
    const float* key = at.keys + j * KEY_STRIDE;
    const float *keys[ROWS], *queries[ROWS];
    float by_key[ROWS], by_query[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) by_key[r] = by_query[r] = 0.0f, keys[r] = at.key(first + r), queries[r] = at.query(first + r);
#pragma unroll(ROWS == 1 ? 8 : 1)
    for (u32 c = 0; c < KD; c += 4) {
        float4 x = *(const float4*)(key + c);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 k = *(const float4*)(keys[r] + c), q = *(const float4*)(queries[r] + c);
            by_key[r] = fmaf(k.w, x.w, fmaf(k.z, x.z, fmaf(k.y, x.y, fmaf(k.x, x.x, by_key[r]))));
            by_query[r] = fmaf(q.w, x.w, fmaf(q.z, x.z, fmaf(q.y, x.y, fmaf(q.x, x.x, by_query[r]))));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        u32 row = first + r;
        if (row >= at.count || j > at.pending + row) continue;
        float decay = exp_of(at.g[at.pending + row] - at.g[j]);
        float* to = at.weights + row * 2 * ANCHOR + j;
        to[0] = decay * by_key[r];
        to[ANCHOR] = decay * by_query[r];
    }
}

/// Continues the chains of a lane's column with what the rows `j ..` of the block, before the new ones, have written.
template <int ROWS>
DEVICE void add_pending(const Stretch& at, u32 first, float (&by_key)[ROWS], float (&by_query)[ROWS]) {
    const u32 lane = lane_of();
    const float* weights[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) weights[r] = at.weights + least(first + r, at.count - 1) * 2 * ANCHOR;
    u32 j = 0;
#pragma unroll(ROWS == 1 ? 4 : 2)
    for (; j + 4 <= at.pending; j += 4) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = at.u[(j + i) * STEP_COLUMNS + lane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 k = *(const float4*)(weights[r] + j), q = *(const float4*)(weights[r] + ANCHOR + j);
            by_key[r] = fmaf(k.w, x[3], fmaf(k.z, x[2], fmaf(k.y, x[1], fmaf(k.x, x[0], by_key[r]))));
            by_query[r] = fmaf(q.w, x[3], fmaf(q.z, x[2], fmaf(q.y, x[1], fmaf(q.x, x[0], by_query[r]))));
        }
    }
    for (; j < at.pending; j++) {
        float x = at.u[j * STEP_COLUMNS + lane];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            by_key[r] = fmaf(weights[r][j], x, by_key[r]);
            by_query[r] = fmaf(weights[r][ANCHOR + j], x, by_query[r]);
        }
    }
}

/// The new rows of a stretch: fills `u`, leaves the outputs of rows 4 warp .. in `by_query`. All threads of the block.
template <int ROWS>
DEVICE void compute_rows(const Stretch& at, const float (&values)[ROWS], float (&by_query)[ROWS]) {
    const u32 warp = warp_of(), lane = lane_of(), groups = ceil_div(at.count, ROWS), first = warp * ROWS;
    float by_key[ROWS];
    if (warp < groups) read_state(at, first, by_key, by_query);
    // a task is four rows with half of the block's keys; warps that read no state begin
    for (u32 task = (warp + STEP_WARPS - groups) % STEP_WARPS; task < 2 * groups; task += STEP_WARPS) {
        u32 row = task / 2 * ROWS, j = task % 2 * 32 + lane;
        if (j - lane <= at.pending + least(row + ROWS, at.count) - 1) weigh<ROWS>(at, row, j);
    }
    sync_block();
    if (warp < groups) add_pending(at, first, by_key, by_query);
    for (u32 group = 0; group < groups; group++) {
        if (warp == group) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (first + r >= at.count) break;
                const u32 own = at.pending + first + r;
                float x = at.strengths[first + r] * (values[r] - by_key[r]);
                at.u[own * STEP_COLUMNS + lane] = x;
#pragma unroll
                for (int later = r; later < ROWS; later++) {
                    const float* weights = at.weights + least(first + later, at.count - 1) * 2 * ANCHOR + own;
                    if (later > r) by_key[later] = fmaf(weights[0], x, by_key[later]);
                    by_query[later] = fmaf(weights[ANCHOR], x, by_query[later]);
                }
            }
        }
        if (group + 1 == groups) break;
        sync_block();
        if (warp > group && warp < groups) {
            // all rows of a group before the last are there
#pragma unroll
            for (int before = 0; before < ROWS; before++) {
                const u32 j = at.pending + group * ROWS + before;
                float x = at.u[j * STEP_COLUMNS + lane];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const float* weights = at.weights + least(first + r, at.count - 1) * 2 * ANCHOR + j;
                    by_key[r] = fmaf(weights[0], x, by_key[r]);
                    by_query[r] = fmaf(weights[ANCHOR], x, by_query[r]);
                }
            }
        }
    }
}

/// Stores the outputs of the new rows, before norm and gate, and what later windows need of them.
DEVICE void store_rows(const Head& head, const Stretch& at, const float (&outputs)[4], float* mixed) {
    const u32 lane = lane_of(), row = head.span.row + (at.anchor + at.pending - head.span.position);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        u32 own = 4 * warp_of() + r;
        if (own >= at.count || lane >= head.columns) break;
        mixed[(u64)(row + own) * INNER + head.v_head * VD + head.column] = outputs[r];
        head.u[pending_row(at.start, at.pending + own) * VD + lane] = at.u[(at.pending + own) * STEP_COLUMNS + lane];
    }
    if (!head.first_of_key) return;
    for (u32 piece = threadIdx.x; piece < at.count * (KD / 4); piece += STEP_THREADS) {
        u32 j = at.pending + piece / (KD / 4), c = piece % (KD / 4) * 4;
        *(float4*)(head.keys + pending_row(at.start, j) * KD + c) = *(const float4*)(at.keys + j * KEY_STRIDE + c);
    }
}

/// One turn: the new rows of a stretch from their projections to their outputs.
DEVICE void take_turn(const Head& head, const Stretch& at, const DeltaIn& in, const DeltaWeights& weights, bool waits, float* mixed) {
    float values[4], outputs[4];
    if (at.count > 0) prepare_rows(head, at, in, weights, waits, values);
    sync_block();
    for (u32 line = warp_of(); line < 2 * at.count; line += STEP_WARPS) {
        u32 r = line / 2;
        if (line % 2 == 0) l2_norm(at.keys + (at.pending + r) * KEY_STRIDE, 1.0f);
        else l2_norm(at.queries + r * KD, QUERY_SCALE);
    }
    copy_wait<0>();
    sync_block();
    if (at.count == 0) return;
    if (at.count == 1) {
        const float value[1] = {values[0]};
        float output[1] = {0.0f};
        compute_rows(at, value, output);
        outputs[0] = output[0];
    } else {
        compute_rows(at, values, outputs);
    }
    store_rows(head, at, outputs, mixed);
}

/// Folds a full block into S, in shared memory.
DEVICE void fold_block(const Stretch& at) {
    const float decay = exp_of(at.g[ANCHOR - 1]);
    if (threadIdx.x < ANCHOR) at.decays[threadIdx.x] = exp_of(at.g[ANCHOR - 1] - at.g[threadIdx.x]);
    sync_block();
    decay_keys(at.keys, at.decays, threadIdx.x, STEP_THREADS);
    sync_block();
    Fold<STEP_WARPS, STEP_COLUMNS / 4>::fold(warp_of(), at.keys, at.u, STEP_COLUMNS, decay, at.s);
    sync_block();
}

KERNEL_MIN(STEP_THREADS, 3) delta_step(Rows rows, u32 longest, DeltaIn in, DeltaWeights weights, float* states, DeltaOut out, u32* arrivals) {
    DYNAMIC_SHARED(dynamic);
    SHARED(u32, last_of_group, 1);
    const u32 spans = rows.counts[1];
    const Span span = span_of(rows, blockIdx.z); // asked for together: the table has room for all blocks of the grid
    if ((blockIdx.z >= spans) | (span.rows > longest)) return;

    float* memory = (float*)dynamic;
    float* norm = memory + (STEP_FLOATS - VD);
    const Head head = head_of(span, in, states);
    const u32 end = span.position + span.rows;
    const u32 base = base_of(span.position, head.marks), target = target_of(base, span.position, span.rows);
    Stretch at;
    at.keys = memory + STEP_KEYS, at.s = memory + STEP_S, at.u = memory + STEP_U, at.queries = memory + STEP_QUERIES;
    at.weights = memory + STEP_WEIGHTS, at.g = memory + STEP_G, at.strengths = memory + STEP_STRENGTHS, at.decays = memory + STEP_DECAYS;

    fetch_state(head, base == 0, at.s);
#pragma unroll
    for (u32 i = 0; i < (VD / 4 + STEP_THREADS - 1) / STEP_THREADS; i++)
        if (u32 piece = threadIdx.x + STEP_THREADS * i; piece < VD / 4) copy16_async(norm + 4 * piece, weights.norm + 4 * piece);

    bool waits = true; // for the projections
    for (at.anchor = base;; at.anchor += ANCHOR) {
        const u32 known = rows_until(end, at.anchor);
        at.pending = rows_until(span.position, at.anchor), at.start = at.anchor % PENDING, at.fresh = true;
        fetch_pending(head, at);
        for (;;) {
            at.count = least(known - at.pending, (u32)STEP_ROWS);
            take_turn(head, at, in, weights, waits, out.mixed);
            waits = waits && at.count == 0;
            if (at.fresh && at.anchor == target && target > base) store_state(head, at.s);
            at.pending += at.count;
            if (at.pending == known) break;
            at.fresh = false;
            sync_block();
        }
        if (at.anchor + ANCHOR >= end) break;
        fold_block(at);
    }
    if (threadIdx.x < head.columns / 8) head.marks[threadIdx.x] = target;

    // the last block of a group's heads finishes the group's rows
    const u32 group = head.v_head / GROUP_HEADS;
    fence();
    sync_block();
    if (threadIdx.x == 0) {
        u32* arrived = arrivals + blockIdx.z * GROUPS + group;
        bool last = atomic_add(arrived, 1u) + 1 == heads_in(group) * STEP_TILES;
        if (last) *arrived = 0;
        fence();
        last_of_group[0] = last;
    }
    sync_block();
    if (!last_of_group[0]) return;
    for (u32 r = 0; r < span.rows; r += FINISH_ROWS) {
        finish_rows(out, in.z, norm, weights.eps, span.row + r, least(span.rows - r, (u32)FINISH_ROWS), group, memory, STEP_WARPS);
        sync_block();
    }
}

/// How delta_step is launched: bytes of shared memory, rows of a span that it takes.
KERNEL(1) delta_net_launch(u32* to) {
    to[0] = 4 * (u32)(STEP_FLOATS);
    to[1] = SHORT_ROWS;
}
