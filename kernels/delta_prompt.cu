// The gated delta net for spans of many rows: prompts. Formula, state and macros: delta.cuh; spans of at most `longest` rows are left to delta_net.cu.
//
//     delta_blocks   what needs no state, all blocks of 64 positions at once: convolution and norms of q and k, products, decays -> scratch
//     delta_scan     what needs it, block after block: convolution of v, reads of S, u, outputs, the advance of S
//     delta_gate     norm, gate, quantisation of the outputs
//
// Grids: delta_blocks (SCRATCH_BLOCKS, K_HEADS), 256 threads; delta_scan (ceil(VD / SCAN_COLUMNS), V_HEADS, most spans), 256 threads; delta_gate
// (ceil(most rows / FINISH_ROWS), GROUPS), 128 threads. Blocks of threads beyond the live counts leave at once.
// Shared memory (dynamic): delta_blocks BLOCKS_FLOATS * 4 bytes (67 KB at KD 128; 34 KB with QUERIES_SHARED 0), delta_scan SCAN_FLOATS * 4 (92 KB; with
// SCAN_COLUMNS 16, SCAN_STAGES 2 and WEIGHTS_SHARED 0, for sm_75, 56 KB), delta_gate FINISH_FLOATS * 4.
// Scratch, for SCRATCH_BLOCKS = most rows / 64 + 3 most spans:
//     lines   [blocks, k heads, (keys [64, KD], queries transposed [KD, 64 places])] f32
//     weights [blocks, v heads, (keys [j 64, i 64], queries [j 64, 64 places])] f32: e^{G_i-G_j} times the product of row i's line with key j
//     factors [blocks, v heads, (beta, G, e^G, e^{G_C-G}), 64] f32
//
// delta_scan per block, 64 rows by SCAN_COLUMNS columns: warps 0..3 compute R = K S while warps 4..7 compute Q S; then warps 0..3 solve for u (a column's rows
// spread over lanes, four rows of one lane at a time) while the others decay the keys; then warps 0..3 fold and fetch the next block while warps 4..7 add the
// block's own u to the outputs. Shared memory is what limits it: hence few warps for each product, with many sums a lane. Queries and their weights come to the warp that reads them in slabs of SLAB channels or rows, SCAN_STAGES under way.
//
// Exactness: plain f32 chains, the same bits as delta_net.cu and src/cpu/delta_net.rs (a NaN's payload aside), whatever the chunks.
// Work at 4096 rows, 32 heads, 128 x 128: 8.5 G fused multiply-adds a layer.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
#include "delta.cuh"

/// Columns of a value head that a block of threads owns in `delta_scan`: 32 or 16.
#ifndef SCAN_COLUMNS
#define SCAN_COLUMNS 32
#endif
/// Slabs of queries under way.
#ifndef SCAN_STAGES
#define SCAN_STAGES 4
#endif
/// Whether the solving warps' weights are copied to shared memory ahead of time.
#ifndef WEIGHTS_SHARED
#define WEIGHTS_SHARED 1
#endif
/// Whether `delta_blocks` keeps a block's queries in shared memory.
#ifndef QUERIES_SHARED
#define QUERIES_SHARED 1
#endif

/// Whether activations are computed many at once: where blocks have less shared memory, registers are short as well.
constexpr bool MANY = SHARED_KIB > 160;

#define LINES_FLOATS (2 * ANCHOR * KD)
#define WEIGHTS_FLOATS (2 * ANCHOR * ANCHOR)
#define FACTORS_FLOATS (4 * ANCHOR)

struct DeltaScratch {
    float *lines, *weights, *factors;
};

/// The first anchor whose block a window needs.
DEVICE u32 first_anchor(u32 position) { return anchor_of(position) - (may_lag(position) ? ANCHOR : 0); }
DEVICE u32 blocks_of(const Span& span) { return (anchor_of(span.position + span.rows - 1) - first_anchor(span.position)) / ANCHOR + 1; }

/// Where a row stands in the scratch's order of queries: warp w of the four that compute outputs has places 16 w .., which are rows 8 w .. 8 w + 7 and
/// 56 - 8 w .. 63 - 8 w, two and two in turn, so that each warp has as many earlier rows to add as the others.
DEVICE u32 place_of(u32 row) {
    u32 eight = row / 8;
    return (eight < 4 ? 16 * eight : 16 * (7 - eight) + 2) + row % 8 / 2 * 4 + row % 2;
}
DEVICE u32 row_at(u32 place) {
    u32 warp = place / 16;
    return (place % 4 < 2 ? 8 * warp : 56 - 8 * warp) + place % 16 / 4 * 2 + place % 2;
}

// ---- what needs no state

#define BLOCKS_KEYS 0
#define BLOCKS_QUERIES (ANCHOR * KEY_STRIDE)
#define BLOCKS_G (BLOCKS_QUERIES + (QUERIES_SHARED ? ANCHOR * KEY_STRIDE : 0))
#define BLOCKS_FLOATS (BLOCKS_G + SHARE * ANCHOR)

/// Convolves lines `FIRST .. FIRST + COUNT` (queries, then keys) of the key head in rows `from .. to` of the block.
template <u32 FIRST, u32 COUNT>
DEVICE void convolve_lines(const DeltaIn& in, const DeltaWeights& weights, const Span& span, const float* ring, u32 k_head, u32 anchor, u32 from, u32 to,
                           float* queries, float* keys) {
    // a thread slides down some rows of a channel
    constexpr u32 PARTS = COUNT <= 128 ? 256 / COUNT : 1, PART_ROWS = (ANCHOR + PARTS - 1) / PARTS;
    const float* span_rows = in.qkv + (u64)span.row * CHANNELS;
    const i32 first = (i32)span.position;
    for (u32 task = threadIdx.x; task < COUNT * PARTS; task += 256) {
        const u32 part = task / COUNT, line = FIRST + task % COUNT;
        const u32 channel = line < KD ? k_head * KD + line : (K_HEADS + k_head) * KD + line - KD;
        u32 row = greatest(part * PART_ROWS, from);
        const u32 end = least((part + 1) * PART_ROWS, to);
        if (row >= end) continue;
        float taps[4], x[3];
        load_taps(weights.taps, channel, taps);
#pragma unroll
        for (int back = 0; back < 3; back++) x[back] = inputs_at(span_rows, ring, first, (i32)(anchor + row) - 3 + back).of(channel);
        float* at = line < KD ? queries + line : keys + line - KD;
        const float* own = span_rows + (u64)(anchor + row - span.position) * CHANNELS + channel;
        // the inputs of a run are asked for before the first is used
        for (; row < end; row += 8) {
            float y[8];
#pragma unroll
            for (u32 i = 0; i < 8; i++) y[i] = row + i < end ? own[(u64)i * CHANNELS] : 0.0f;
            own += 8 * CHANNELS;
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                if (row + i < end) at[(row + i) * KEY_STRIDE] = convolve<MANY>(taps, x[0], x[1], x[2], y[i]);
                x[0] = x[1], x[1] = x[2], x[2] = y[i];
            }
        }
    }
}

/// Queries [64, KEY_STRIDE] transposed to [KD, 64 places].
DEVICE void store_queries(const float* queries, float* to) {
    for (u32 piece = threadIdx.x; piece < ANCHOR * (KD / 4); piece += 256) {
        u32 row = piece % ANCHOR, c = piece / ANCHOR * 4;
        float4 q = *(const float4*)(queries + row * KEY_STRIDE + c);
        float* at = to + c * ANCHOR + place_of(row);
        at[0] = q.x, at[ANCHOR] = q.y, at[2 * ANCHOR] = q.z, at[3 * ANCHOR] = q.w;
    }
}

KERNEL_MIN(256, 2) delta_blocks(Rows rows, u32 longest, DeltaIn in, DeltaWeights weights, float* states, DeltaScratch scratch) {
    DYNAMIC_SHARED(dynamic);
    float* memory = (float*)dynamic;
    const u32 thread = threadIdx.x, warp = warp_of(), lane = lane_of(), k_head = blockIdx.y;

    // which block of which span
    const u32 spans = rows.counts[1];
    u32 number = blockIdx.x, at = 0;
    Span span;
    for (;; at++) {
        if (at >= spans) return;
        span = span_of(rows, at);
        if (span.rows <= longest) continue;
        u32 count = blocks_of(span);
        if (number < count) break;
        number -= count;
    }
    const u32 anchor = first_anchor(span.position) + number * ANCHOR;
    const u32 pending = rows_until(span.position, anchor), known = rows_until(span.position + span.rows, anchor);
    DeltaState state = state_of(states, span.slot);

    float* keys = memory + BLOCKS_KEYS;
    float* lines = scratch.lines + ((u64)blockIdx.x * K_HEADS + k_head) * LINES_FLOATS;
    float* g = memory + BLOCKS_G;
    float* queries_out = lines + ANCHOR * KD;

#if QUERIES_SHARED
    float* queries = memory + BLOCKS_QUERIES;
#else
    // through the place of the keys, first
    convolve_lines<0, KD>(in, weights, span, state.ring, k_head, anchor, pending, known, keys, keys);
    sync_block();
    for (u32 row = pending + warp; row < known; row += 8) l2_norm(keys + row * KEY_STRIDE, QUERY_SCALE);
    sync_block();
    store_queries(keys, queries_out);
    sync_block();
#endif
    const float* keys_at = state.keys + (u64)k_head * PENDING * KD;
    for (u32 piece = thread; piece < pending * (KD / 4); piece += 256) {
        u32 j = piece / (KD / 4), c = piece % (KD / 4) * 4;
        copy16_async(keys + j * KEY_STRIDE + c, keys_at + (anchor + j) % PENDING * KD + c);
    }
    copy_commit();

    // beta and decay of the key head's value heads
    for (u32 task = thread; task < SHARE * ANCHOR; task += 256) {
        const u32 nth = task / ANCHOR, i = task % ANCHOR, v_head = v_head_of(k_head, nth);
        float* factors = scratch.factors + ((u64)blockIdx.x * V_HEADS + v_head) * FACTORS_FLOATS;
        if (i < pending) {
            g[task] = state.g[v_head * PENDING + (anchor + i) % PENDING];
        } else if (i < known) {
            Strength strength = load_strength(in, weights, span.row + (anchor + i - span.position), k_head, nth);
            factors[i] = sigmoid_of(strength.beta);
            g[task] = step_of(strength);
        } else {
            g[task] = 0.0f;
        }
    }

#if QUERIES_SHARED
    convolve_lines<0, 2 * KD>(in, weights, span, state.ring, k_head, anchor, pending, known, queries, keys);
#else
    convolve_lines<KD, KD>(in, weights, span, state.ring, k_head, anchor, pending, known, keys, keys);
#endif
    sync_block();
    // the running sums, one thread a head
    if (lane == 0) {
        for (u32 nth = warp; nth < SHARE; nth += 8) {
            float sum = pending > 0 ? g[nth * ANCHOR + pending - 1] : 0.0f;
            for (u32 i = pending; i < ANCHOR; i += 8) {
                float step[8];
#pragma unroll
                for (u32 x = 0; x < 8; x++) step[x] = i + x < ANCHOR ? g[nth * ANCHOR + i + x] : 0.0f;
#pragma unroll
                for (u32 x = 0; x < 8; x++) {
                    sum = sum + step[x];
                    if (i + x < ANCHOR) g[nth * ANCHOR + i + x] = sum;
                }
            }
        }
    }
    sync_warp();
    for (u32 row = pending + warp; row < known; row += 8) {
        l2_norm(keys + row * KEY_STRIDE, 1.0f);
#if QUERIES_SHARED
        l2_norm(queries + row * KEY_STRIDE, QUERY_SCALE);
#endif
    }
    copy_wait<0>();
    sync_block();

    for (u32 task = thread; task < SHARE * ANCHOR; task += 256) {
        const u32 nth = task / ANCHOR, i = task % ANCHOR;
        float* factors = scratch.factors + ((u64)blockIdx.x * V_HEADS + v_head_of(k_head, nth)) * FACTORS_FLOATS;
        factors[ANCHOR + i] = g[task];
        factors[2 * ANCHOR + i] = exp_of(g[task]);
        factors[3 * ANCHOR + i] = exp_of(g[nth * ANCHOR + ANCHOR - 1] - g[task]);
    }
    for (u32 piece = thread; piece < ANCHOR * (KD / 4); piece += 256) {
        u32 row = piece / (KD / 4), c = piece % (KD / 4) * 4;
        *(float4*)(lines + row * KD + c) = *(const float4*)(keys + row * KEY_STRIDE + c);
    }
#if QUERIES_SHARED
    store_queries(queries, queries_out);
#endif

    // products: a warp 16 rows by 32 keys, a lane 4 by 4
    const u32 i0 = warp / 2 * 16 + lane / 8 * 4, j0 = warp % 2 * 32 + lane % 8;
    if (warp % 2 * 32 > warp / 2 * 16 + 15) return;
    float by_key[4][4], by_query[4][4];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int x = 0; x < 4; x++) by_key[r][x] = by_query[r][x] = 0.0f;
#pragma unroll 2
    for (u32 c = 0; c < KD; c += 4) {
        float4 other[4];
#pragma unroll
        for (int x = 0; x < 4; x++) other[x] = *(const float4*)(keys + (j0 + 8 * x) * KEY_STRIDE + c);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float4 k = *(const float4*)(keys + (i0 + r) * KEY_STRIDE + c);
#if QUERIES_SHARED
            float4 q = *(const float4*)(queries + (i0 + r) * KEY_STRIDE + c);
#else
            const float* at = queries_out + c * ANCHOR + place_of(i0 + r);
            float4 q = make_float4(at[0], at[ANCHOR], at[2 * ANCHOR], at[3 * ANCHOR]);
#endif
#pragma unroll
            for (int x = 0; x < 4; x++) {
                by_key[r][x] = fmaf(k.w, other[x].w, fmaf(k.z, other[x].z, fmaf(k.y, other[x].y, fmaf(k.x, other[x].x, by_key[r][x]))));
                by_query[r][x] = fmaf(q.w, other[x].w, fmaf(q.z, other[x].z, fmaf(q.y, other[x].y, fmaf(q.x, other[x].x, by_query[r][x]))));
            }
        }
    }
    for (u32 nth = 0; nth < SHARE; nth++) {
        float* to = scratch.weights + ((u64)blockIdx.x * V_HEADS + v_head_of(k_head, nth)) * WEIGHTS_FLOATS;
        const float* sums = g + nth * ANCHOR;
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const u32 j = j0 + 8 * x;
            float k[4], q[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float decay = exp_of(sums[i0 + r] - sums[j]);
                k[r] = decay * by_key[r][x], q[r] = decay * by_query[r][x];
            }
            if (j > i0 + 3) continue;
            *(float4*)(to + j * ANCHOR + i0) = make_float4(k[0], k[1], k[2], k[3]);
            *(float2*)(to + (ANCHOR + j) * ANCHOR + place_of(i0)) = make_float2(q[0], q[1]);
            *(float2*)(to + (ANCHOR + j) * ANCHOR + place_of(i0 + 2)) = make_float2(q[2], q[3]);
        }
    }
}

// ---- what needs it

#define SCAN_TILES ((VD + SCAN_COLUMNS - 1) / SCAN_COLUMNS)
#define LANE_COLS (SCAN_COLUMNS / 4)
#define LANE_ROWS (32 / LANE_COLS)
#define U_STRIDE (SCAN_COLUMNS + 4)
#define SLAB (KD % 16 == 0 ? 16 : 8)
#define SLAB_FLOATS (SLAB * 16)
#define SCAN_KEYS 0
#define SCAN_S (SCAN_KEYS + ANCHOR * KEY_STRIDE)
#define SCAN_U (SCAN_S + KD * SCAN_COLUMNS)
#define SCAN_FACTORS (SCAN_U + ANCHOR * U_STRIDE)
#define SCAN_SLABS (SCAN_FACTORS + 2 * FACTORS_FLOATS)
#define SCAN_WEIGHTS (SCAN_SLABS + 4 * SCAN_STAGES * SLAB_FLOATS)
#define SCAN_FLOATS (SCAN_WEIGHTS + (WEIGHTS_SHARED ? ANCHOR * ANCHOR : 0))
static_assert(SCAN_COLUMNS == 32 || SCAN_COLUMNS == 16, "SCAN_COLUMNS");

/// Of warps 0..3.
typedef Fold<4, LANE_COLS> ScanFold;

/// A solving lane has 4 rows each of SOLVE_PARTS parts of a column: rows 4 (SOLVE_LANES part + own number) ...
#define SOLVE_COLS (SCAN_COLUMNS / 4)
#define SOLVE_LANES (32 / SOLVE_COLS)
#define SOLVE_PARTS (16 / SOLVE_LANES)

/// Where a span's blocks lie in the scratch, for one value head.
struct Blocks {
    const float *lines, *weights, *factors;

    __device__ __forceinline__ const float* keys(u32 block) const { return lines + (u64)block * K_HEADS * LINES_FLOATS; }
    __device__ __forceinline__ const float* queries(u32 block) const { return keys(block) + ANCHOR * KD; }
    __device__ __forceinline__ const float* by_key(u32 block) const { return weights + (u64)block * V_HEADS * WEIGHTS_FLOATS; }
    __device__ __forceinline__ const float* by_query(u32 block) const { return by_key(block) + ANCHOR * ANCHOR; }
    __device__ __forceinline__ const float* factors_of(u32 block) const { return factors + (u64)block * V_HEADS * FACTORS_FLOATS; }
};

/// Values of a block for a solving lane: v of new rows, u of pending ones.
struct Values {
    float of[SOLVE_PARTS][4];
};

struct ScanPlace {
    Span span;
    const float *span_rows, *ring, *taps, *u; // u [PENDING, VD], at the lane's column
    u32 channel;                              // of the lane's column
};

/// What the convolution of a block's values reads.
struct ValueInputs {
    float taps[4], of[SOLVE_PARTS][7];
};

DEVICE void ask_values(const ScanPlace& at, u32 anchor, u32 part_lane, ValueInputs& inputs) {
    const u32 start = at.span.position, end = start + at.span.rows;
    float(&x)[SOLVE_PARTS][7] = inputs.of;
    load_taps(at.taps, at.channel, inputs.taps);
    const bool inside = anchor >= start + 3 && anchor + ANCHOR <= end;
    if (inside) {
        const float* own = at.span_rows + (u64)(anchor - 3 - start + 4 * part_lane) * CHANNELS + at.channel;
#pragma unroll
        for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
            for (int i = 0; i < 7; i++) x[part][i] = own[(4 * SOLVE_LANES * part + i) * CHANNELS];
    } else {
        // behind the last row there is nothing to be read
        const i32 last = (i32)least(end, anchor + ANCHOR) - 1;
#pragma unroll
        for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
            for (int i = 0; i < 7; i++) {
                i32 position = (i32)(anchor + 4 * (SOLVE_LANES * part + part_lane)) - 3 + i;
                x[part][i] = inputs_at(at.span_rows, at.ring, (i32)start, least(position, last)).of(at.channel);
            }
    }
}

DEVICE Values values_of(const ScanPlace& at, u32 anchor, u32 part_lane, const ValueInputs& inputs) {
    const u32 start = at.span.position;
    const float(&x)[SOLVE_PARTS][7] = inputs.of;
    Values values;
#pragma unroll
    for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
        for (int r = 0; r < 4; r++) values.of[part][r] = convolve<MANY>(inputs.taps, x[part][r], x[part][r + 1], x[part][r + 2], x[part][r + 3]);
    if (const u32 pending = rows_until(start, anchor)) {
#pragma unroll
        for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                u32 row = 4 * (SOLVE_LANES * part + part_lane) + r;
                if (row < pending) values.of[part][r] = at.u[(u64)((anchor + row) % PENDING) * VD];
            }
    }
    return values;
}

/// R = e^G K S into `u`: each of warps 0..3 has 16 rows, a lane 16 / LANE_ROWS of them by 4 columns.
DEVICE void read_by_keys(const float* keys, const float* s, const float* decays, float* u) {
    constexpr int N = 16 / LANE_ROWS;
    const u32 row = warp_of() * 16 + lane_of() / LANE_COLS, column = lane_of() % LANE_COLS * 4;
    float sum[N][4];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int x = 0; x < 4; x++) sum[n][x] = 0.0f;
#pragma unroll 4
    for (u32 c = 0; c < KD; c += 4) {
        float4 a[N];
#pragma unroll
        for (int n = 0; n < N; n++) a[n] = *(const float4*)(keys + (row + n * LANE_ROWS) * KEY_STRIDE + c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 b = *(const float4*)(s + (c + i) * SCAN_COLUMNS + column);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float k = i == 0 ? a[n].x : i == 1 ? a[n].y : i == 2 ? a[n].z : a[n].w;
                sum[n][0] = fmaf(k, b.x, sum[n][0]);
                sum[n][1] = fmaf(k, b.y, sum[n][1]);
                sum[n][2] = fmaf(k, b.z, sum[n][2]);
                sum[n][3] = fmaf(k, b.w, sum[n][3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float decay = decays[row + n * LANE_ROWS];
        *(float4*)(u + (row + n * LANE_ROWS) * U_STRIDE + column) =
            make_float4(sum[n][0] * decay, sum[n][1] * decay, sum[n][2] * decay, sum[n][3] * decay);
    }
}

/// Solves for the block's u, in place of R: four rows of a column at a time, then what they add to all later rows. Warps 0..3.
template <bool PENDING_ROWS>
DEVICE void solve(const float* weights, const float* strengths, u32 pending, const Values& values, float* u) {
    const u32 lane = lane_of(), own = lane / SOLVE_COLS, column = warp_of() * SOLVE_COLS + lane % SOLVE_COLS;
    float sum[SOLVE_PARTS][4];
#pragma unroll
    for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
        for (int r = 0; r < 4; r++) sum[part][r] = u[(4 * (SOLVE_LANES * part + own) + r) * U_STRIDE + column];
#pragma unroll
    for (int part = 0; part < SOLVE_PARTS; part++) {
        const float4 strength = *(const float4*)(strengths + 4 * (SOLVE_LANES * part + own));
#pragma unroll 2
        for (u32 turn = 0; turn < SOLVE_LANES; turn++) {
            const float* row = weights + 4 * (SOLVE_LANES * part + turn) * ANCHOR + 4 * (SOLVE_LANES * part + own);
            float4 w[4];
#pragma unroll
            for (int x = 0; x < 4; x++) w[x] = *(const float4*)(row + x * ANCHOR);
            // every lane as if it were its turn; those of the lane whose turn it is are kept
            const u32 first = 4 * (SOLVE_LANES * part + own);
            const float *v = values.of[part], *t = sum[part];
            float y[4];
            y[0] = PENDING_ROWS && first < pending ? v[0] : strength.x * (v[0] - t[0]);
            float t1 = fmaf(w[0].y, y[0], t[1]);
            y[1] = PENDING_ROWS && first + 1 < pending ? v[1] : strength.y * (v[1] - t1);
            float t2 = fmaf(w[1].z, y[1], fmaf(w[0].z, y[0], t[2]));
            y[2] = PENDING_ROWS && first + 2 < pending ? v[2] : strength.z * (v[2] - t2);
            float t3 = fmaf(w[2].w, y[2], fmaf(w[1].w, y[1], fmaf(w[0].w, y[0], t[3])));
            y[3] = PENDING_ROWS && first + 3 < pending ? v[3] : strength.w * (v[3] - t3);
            if (own == turn) {
#pragma unroll
                for (int x = 0; x < 4; x++) u[(first + x) * U_STRIDE + column] = y[x];
            }
#pragma unroll
            for (int x = 0; x < 4; x++) y[x] = shfl(y[x], turn * SOLVE_COLS + lane % SOLVE_COLS);
            if (own > turn) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    sum[part][0] = fmaf(w[x].x, y[x], sum[part][0]);
                    sum[part][1] = fmaf(w[x].y, y[x], sum[part][1]);
                    sum[part][2] = fmaf(w[x].z, y[x], sum[part][2]);
                    sum[part][3] = fmaf(w[x].w, y[x], sum[part][3]);
                }
            }
#pragma unroll
            for (int later = part + 1; later < SOLVE_PARTS; later++) {
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    float4 far = *(const float4*)(row + x * ANCHOR + 4 * SOLVE_LANES * (later - part));
                    sum[later][0] = fmaf(far.x, y[x], sum[later][0]);
                    sum[later][1] = fmaf(far.y, y[x], sum[later][1]);
                    sum[later][2] = fmaf(far.z, y[x], sum[later][2]);
                    sum[later][3] = fmaf(far.w, y[x], sum[later][3]);
                }
            }
        }
    }
}

/// The stream of slabs [SLAB, 16 places] that one of warps 4..7 reads: of every block the queries, channel by channel, then their weights up to the warp's
/// last row.
struct Slabs {
    const Blocks& blocks;
    float* memory; // [SCAN_STAGES, SLAB_FLOATS]
    u32 warp, end;
    const float* at; // the lane's piece of the slab to be asked for next
    u32 block, left; // of which block; slabs left of its queries or weights
    bool queries;
    u32 to, from; // stages of the slabs to be asked for and to be read next

    static constexpr u32 QUERIES = KD / SLAB;

    __device__ __forceinline__ Slabs(const Blocks& blocks, float* memory, u32 warp, u32 first, u32 end)
        : blocks(blocks), memory(memory), warp(warp), end(end), at(piece(blocks.queries(first))), block(first), left(QUERIES), queries(true), to(0), from(0) {
        for (int i = 0; i < SCAN_STAGES - 1; i++) ask();
    }
    __device__ __forceinline__ const float* piece(const float* of) const { return of + lane_of() / 4 * ANCHOR + warp * 16 + lane_of() % 4 * 4; }
    /// Asks for one more.
    __device__ __forceinline__ void ask() {
        if (block < end) {
            float* place = memory + to * SLAB_FLOATS + lane_of() * 4;
#pragma unroll
            for (u32 eight = 0; eight < SLAB / 8; eight++) copy16_async(place + eight * 8 * 16, at + eight * 8 * ANCHOR);
            at += SLAB * ANCHOR;
            if (--left == 0) {
                queries = !queries;
                block += queries;
                at = piece(queries ? blocks.queries(block) : blocks.by_query(block));
                left = queries ? QUERIES : ceil_div(8 - warp, SLAB / 8);
            }
            to = (to + 1) % SCAN_STAGES;
        }
        copy_commit();
    }
    /// The next slab; it stays until the call after.
    __device__ __forceinline__ const float* next() {
        copy_wait<SCAN_STAGES - 2>();
        sync_warp();
        ask();
        const float* slab = memory + from * SLAB_FLOATS;
        from = (from + 1) % SCAN_STAGES;
        return slab;
    }
};

#define QUERY_ROWS (16 / LANE_ROWS)

/// The sums of a lane's 4 columns and QUERY_ROWS places of the 16 of its warp.
struct Outputs {
    float of[QUERY_ROWS][4];
};

/// Which rows of a lane take part in a step: all, those from the step's own row on, or none.
enum Part { ALL, DIAGONAL, NONE };

/// One step of a chain for all of a lane's sums: its places' values `a`, the columns' values `b`. Step `j` of eight; LOW and HIGH say what the rows of the first
/// and second half of a warp do.
template <Part LOW, Part HIGH>
DEVICE void add_products(const float* a, float4 b, u32 j, Outputs& sums) {
    const u32 first = lane_of() / LANE_COLS * QUERY_ROWS;
    float x[QUERY_ROWS];
    if constexpr (QUERY_ROWS == 4) {
        float4 y = *(const float4*)a;
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else {
        float2 y = *(const float2*)a;
        x[0] = y.x, x[1] = y.y;
    }
#pragma unroll
    for (int r = 0; r < QUERY_ROWS; r++) {
        const u32 place = first + r, row = place / 4 * 2 + place % 2; // of eight
        const bool low = QUERY_ROWS == 4 ? r < 2 : place % 4 < 2;
        const Part part = low ? LOW : HIGH;
        if (part == NONE || (part == DIAGONAL && row < j)) continue;
        sums.of[r][0] = fmaf(x[r], b.x, sums.of[r][0]);
        sums.of[r][1] = fmaf(x[r], b.y, sums.of[r][1]);
        sums.of[r][2] = fmaf(x[r], b.z, sums.of[r][2]);
        sums.of[r][3] = fmaf(x[r], b.w, sums.of[r][3]);
    }
}
/// Eight steps.
template <Part LOW, Part HIGH>
DEVICE void add_eight(const float* a, const float* b, u32 b_stride, Outputs& sums) {
#pragma unroll
    for (int j = 0; j < 8; j++) add_products<LOW, HIGH>(a + j * 16, *(const float4*)(b + j * b_stride), j, sums);
}

/// e^G Q S for a warp's 16 rows.
DEVICE void read_by_queries(Slabs& slabs, const float* s, const float* decays, Outputs& sums) {
    const u32 first = lane_of() / LANE_COLS * QUERY_ROWS, column = lane_of() % LANE_COLS * 4;
#pragma unroll
    for (int r = 0; r < QUERY_ROWS; r++)
#pragma unroll
        for (int x = 0; x < 4; x++) sums.of[r][x] = 0.0f;
    s += column;
    for (u32 slab = 0; slab < Slabs::QUERIES; slab++) {
        const float* a = slabs.next() + first;
#pragma unroll
        for (int eight = 0; eight < SLAB / 8; eight++, s += 8 * SCAN_COLUMNS) add_eight<ALL, ALL>(a + eight * 8 * 16, s, SCAN_COLUMNS, sums);
    }
#pragma unroll
    for (int r = 0; r < QUERY_ROWS; r++) {
        const float decay = decays[row_at(16 * slabs.warp + first + r)];
#pragma unroll
        for (int x = 0; x < 4; x++) sums.of[r][x] = sums.of[r][x] * decay;
    }
}

/// What the rows of the block up to each own one add.
DEVICE void add_written(Slabs& slabs, const float* u, Outputs& sums) {
    const u32 first = lane_of() / LANE_COLS * QUERY_ROWS, column = lane_of() % LANE_COLS * 4;
    const float* a = nullptr;
    u += column;
    for (u32 eight = 0; eight < 8 - slabs.warp; eight++, u += 8 * U_STRIDE) {
        a = eight % (SLAB / 8) == 0 ? slabs.next() + first : a + 8 * 16;
        if (eight < slabs.warp) add_eight<ALL, ALL>(a, u, U_STRIDE, sums);
        else if (eight == slabs.warp) add_eight<DIAGONAL, ALL>(a, u, U_STRIDE, sums);
        else if (eight < 7 - slabs.warp) add_eight<NONE, ALL>(a, u, U_STRIDE, sums);
        else add_eight<NONE, DIAGONAL>(a, u, U_STRIDE, sums);
    }
}

KERNEL_MIN(256, 1) delta_scan(Rows rows, u32 longest, DeltaIn in, DeltaWeights weights, float* states, DeltaScratch scratch, float* mixed) {
    DYNAMIC_SHARED(dynamic);
    float* memory = (float*)dynamic;
    const u32 spans = rows.counts[1];
    if (blockIdx.z >= spans) return;
    const Span span = span_of(rows, blockIdx.z);
    if (span.rows <= longest) return;
    u32 block = 0;
    for (u32 before = 0; before < blockIdx.z; before++) {
        Span other = span_of(rows, before);
        if (other.rows > longest) block += blocks_of(other);
    }

    const u32 thread = threadIdx.x, warp = warp_of(), lane = lane_of();
    const u32 v_head = blockIdx.y, k_head = k_head_of(v_head), tile = blockIdx.x * SCAN_COLUMNS, columns = least((u32)SCAN_COLUMNS, VD - tile);
    const u32 end = span.position + span.rows;
    DeltaState state = state_of(states, span.slot);
    float* s_at = state.s + (u64)v_head * KD * VD + tile;
    float* u_at = state.u + (u64)v_head * PENDING * VD + tile;
    u32* marks = state.marks + v_head * (VD / 8) + tile / 8;
    const u32 base = base_of(span.position, marks), target = target_of(base, span.position, span.rows);

    float *keys = memory + SCAN_KEYS, *s = memory + SCAN_S, *u = memory + SCAN_U;
    Blocks blocks;
    blocks.lines = scratch.lines + (u64)k_head * LINES_FLOATS;
    blocks.weights = scratch.weights + (u64)v_head * WEIGHTS_FLOATS;
    blocks.factors = scratch.factors + (u64)v_head * FACTORS_FLOATS;
    const u32 first_block = block, last_block = block + blocks_of(span);
    block += (base - first_anchor(span.position)) / ANCHOR;

    // a warp fetches the columns of the keys that it alone reads when the block is folded, so that it can do so as soon as it has folded
    const auto fetch_keys = [&](u32 of) {
        constexpr u32 PIECES = ScanFold::ROWS / 4;
        for (u32 piece = lane; piece < ANCHOR * PIECES; piece += 32) {
            u32 j = piece / PIECES, c = warp * ScanFold::ROWS + piece % PIECES * 4;
            if (c < KD) copy16_async(keys + j * KEY_STRIDE + c, blocks.keys(of) + j * KD + c);
        }
        copy_commit();
    };
    // warps 0..3
    const auto fetch_rest = [&](u32 of) {
        if (thread < FACTORS_FLOATS / 4) copy16_async(memory + SCAN_FACTORS + of % 2 * FACTORS_FLOATS + thread * 4, blocks.factors_of(of) + thread * 4);
        if (WEIGHTS_SHARED)
            for (u32 piece = thread; piece < ANCHOR * ANCHOR / 4; piece += 128) copy16_async(memory + SCAN_WEIGHTS + piece * 4, blocks.by_key(of) + piece * 4);
        copy_commit();
    };

    const u32 solve_column = least(warp % 4 * SOLVE_COLS + lane % SOLVE_COLS, columns - 1);
    ScanPlace place;
    place.span = span, place.span_rows = in.qkv + (u64)span.row * CHANNELS, place.ring = state.ring, place.taps = weights.taps;
    place.u = u_at + solve_column, place.channel = 2 * K_HEADS * KD + v_head * VD + tile + solve_column;

    for (u32 piece = thread; piece < KD * LANE_COLS; piece += 256) {
        u32 c = piece / LANE_COLS, d = piece % LANE_COLS * 4;
        bool there = base > 0 && d < columns;
        copy16_async_or_zero(s + c * SCAN_COLUMNS + d, s_at + (there ? c * VD + d : 0), there);
    }
    Values values;
    Outputs outputs;
    if (warp < 4) {
        fetch_keys(block);
        fetch_rest(block);
        ValueInputs inputs;
        ask_values(place, base, lane / SOLVE_COLS, inputs);
        values = values_of(place, base, lane / SOLVE_COLS, inputs);
    }
    Slabs slabs(blocks, memory + SCAN_SLABS + warp % 4 * SCAN_STAGES * SLAB_FLOATS, warp % 4, warp < 4 ? last_block : block, last_block);

    for (u32 anchor = base;; anchor += ANCHOR, block++) {
        copy_wait<0>();
        sync_block();
        const float* factors = memory + SCAN_FACTORS + block % 2 * FACTORS_FLOATS;
        const u32 pending = rows_until(span.position, anchor), known = rows_until(end, anchor);
        const bool last = anchor + ANCHOR >= end;
        if (anchor == target && target > base) {
            for (u32 piece = thread; piece < KD * LANE_COLS; piece += 256) {
                u32 c = piece / LANE_COLS, d = piece % LANE_COLS * 4;
                if (d < columns) *(float4*)(s_at + c * VD + d) = *(const float4*)(s + c * SCAN_COLUMNS + d);
            }
        }
        if (warp < 4) read_by_keys(keys, s, factors + 2 * ANCHOR, u);
        else read_by_queries(slabs, s, factors + 2 * ANCHOR, outputs);
        sync_block();
        if (warp < 4) {
            const float* by_key = WEIGHTS_SHARED ? memory + SCAN_WEIGHTS : blocks.by_key(block);
            if (pending > 0) solve<true>(by_key, factors, pending, values, u);
            else solve<false>(by_key, factors, pending, values, u);
            if (anchor >= target && lane % SOLVE_COLS + warp * SOLVE_COLS < columns) {
#pragma unroll
                for (int part = 0; part < SOLVE_PARTS; part++)
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        u32 row = 4 * (SOLVE_LANES * part + lane / SOLVE_COLS) + r;
                        if (row >= pending && row < known) u_at[(u64)((anchor + row) % PENDING) * VD + solve_column] = u[row * U_STRIDE + solve_column];
                    }
            }
        } else if (!last) {
            decay_keys(keys, factors + 3 * ANCHOR, thread - 128, 128);
        }
        sync_block();
        if (warp < 4) {
            if (!last) {
                // the next block is on its way meanwhile
                fetch_rest(block + 1);
                ValueInputs inputs;
                ask_values(place, anchor + ANCHOR, lane / SOLVE_COLS, inputs);
                ScanFold::fold(warp, keys, u, U_STRIDE, factors[2 * ANCHOR + ANCHOR - 1], s);
                sync_warp();
                fetch_keys(block + 1);
                values = values_of(place, anchor + ANCHOR, lane / SOLVE_COLS, inputs);
            }
        } else {
            add_written(slabs, u, outputs);
            const u32 column = lane % LANE_COLS * 4;
#pragma unroll
            for (int r = 0; r < QUERY_ROWS; r++) {
                const u32 row = row_at(slabs.warp * 16 + lane / LANE_COLS * QUERY_ROWS + r);
                if (row < pending || row >= known || column >= columns) continue;
                *(float4*)(mixed + (u64)(span.row + (anchor + row - span.position)) * INNER + v_head * VD + tile + column) =
                    make_float4(outputs.of[r][0], outputs.of[r][1], outputs.of[r][2], outputs.of[r][3]);
            }
        }
        if (last) break;
    }
    copy_wait<0>();

    // what later windows need: the pending rows' keys and sums, and the convolution's last inputs
    sync_block();
    if (thread < columns / 8) marks[thread] = target;
    const u32 pending_from = greatest(span.position, target), first = first_anchor(span.position);
    const u32 inputs_from = end - least(span.rows, (u32)(CUT_ROWS + 3));
    if (blockIdx.x == 0) {
        for (u32 p = pending_from + thread; p < end; p += 256) {
            u32 of = first_block + (p - first) / ANCHOR;
            state.g[v_head * PENDING + p % PENDING] = blocks.factors_of(of)[ANCHOR + p % ANCHOR];
        }
    }
    if (blockIdx.x == 0 && nth_of(v_head) == 0) {
        for (u32 piece = thread; piece < (end - pending_from) * (KD / 4); piece += 256) {
            u32 p = pending_from + piece / (KD / 4), c = piece % (KD / 4) * 4, of = first_block + (p - first) / ANCHOR;
            *(float4*)(state.keys + ((u64)k_head * PENDING + p % PENDING) * KD + c) = *(const float4*)(blocks.keys(of) + p % ANCHOR * KD + c);
        }
        for (u32 piece = thread; piece < (end - inputs_from) * 2 * KD; piece += 256) {
            u32 p = inputs_from + piece / (2 * KD), c = piece % (2 * KD), channel = c < KD ? k_head * KD + c : (K_HEADS + k_head) * KD + c - KD;
            state.ring[p % CONV_RING * CHANNELS + channel] = place.span_rows[(u64)(p - span.position) * CHANNELS + channel];
        }
    }
    for (u32 piece = thread; piece < (end - inputs_from) * columns; piece += 256) {
        u32 p = inputs_from + piece / columns, channel = 2 * K_HEADS * KD + v_head * VD + tile + piece % columns;
        state.ring[p % CONV_RING * CHANNELS + channel] = place.span_rows[(u64)(p - span.position) * CHANNELS + channel];
    }
}

// ---- after the heads

KERNEL(128) delta_gate(Rows rows, u32 longest, DeltaIn in, DeltaWeights weights, DeltaOut out) {
    DYNAMIC_SHARED(dynamic);
    const u32 first = blockIdx.x * FINISH_ROWS, spans = rows.counts[1];
    if (first >= rows.counts[0]) return;
    // the rows of long spans among these; spans are in the order of their rows
    for (u32 at = 0; at < spans; at++) {
        const Span span = span_of(rows, at);
        const u32 from = greatest(first, span.row), to = least(first + FINISH_ROWS, span.row + span.rows);
        if (span.rows <= longest || from >= to) continue;
        finish_rows(out, in.z, weights.norm, weights.eps, from, to - from, blockIdx.y, (float*)dynamic, 4);
        sync_block();
    }
}

/// How these kernels are launched: bytes of delta_blocks and delta_scan, columns of a block of delta_scan, bytes, rows and groups of delta_gate.
KERNEL(1) delta_prompt_launch(u32* to) {
    to[0] = 4 * BLOCKS_FLOATS;
    to[1] = 4 * SCAN_FLOATS;
    to[2] = SCAN_COLUMNS;
    to[3] = 4 * FINISH_FLOATS;
    to[4] = FINISH_ROWS;
    to[5] = GROUPS;
}
