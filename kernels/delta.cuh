// The gated delta net, anchored to blocks of 64 positions: what its kernels share. Same order of every sum as src/cpu/delta_net.rs, hence the same bits,
// whatever window a row comes in and whichever kernel computes it.
//
//     u_i = beta_i (v_i - (e^{G_i} S^T k_i + sum_{j<i} e^{G_i-G_j} (k_j . k_i) u_j))
//     o_i = e^{G_i} S^T q_i + sum_{j<=i} e^{G_i-G_j} (k_j . q_i) u_j
//     at the block's end:  S <- e^{G_C} S + sum_j e^{G_C-G_j} k_j u_j^T
//
// Every inner product is one chain of fmaf, channels ascending; every sum over j continues its element's chain, rows ascending. Before the heads: a causal
// convolution of 4 inputs with silu, q and k normalised. After them: rms norm of each head's output, times its weight, times silu(z), or sigmoid(z) with OUT_GATE 1.
//
// When S advances. `mark` is the anchor that S in memory stands at. The block behind it is folded into S, and stored so, once none of its rows can be taken back:
// at the start of a window whose first row lies behind the block, or within a window that ends CUT_ROWS or more behind it. Rows of a window that lie behind a
// block which is not to be stored yet are computed from a folded copy. So rows are taken back by giving their positions again, and a slot begins
// anew at position 0: nothing is to be reset on the device. Needed of the caller: rows of a slot come in order; at most CUT_ROWS rows, all of the last
// window, are taken back.
//
// State of a slot in one layer, SLOT_FLOATS f32 (a layer's states: [slots, SLOT_FLOATS]); it may begin as anything:
//     s     [v heads, KD, VD]            u [v heads, PENDING, VD]       keys [k heads, PENDING, KD]      position p in row p mod PENDING
//     g     [v heads, PENDING]           ring [CONV_RING, CHANNELS]     position p in row p mod CONV_RING
//     marks [v heads, VD / 8] u32        one for each 8 columns, so that blocks of threads with any share of the columns keep their own
//
// Macros: K_HEADS, V_HEADS, KD, VD (multiples of 8), TILED (v head j uses k head j % K_HEADS; else j / (V_HEADS / K_HEADS)), INTERLEAVED (beta and decay come in
// one projection), OUT_GATE, SHORT_ROWS (rows of a span that `delta_step` can take, a multiple of 4 up to 16; rings are the longer for it).
#pragma once
#include "functions.cuh"
#include "quantise.cuh"

#ifndef K_HEADS
#define K_HEADS 16
#endif
#ifndef V_HEADS
#define V_HEADS 32
#endif
#ifndef KD
#define KD 128
#endif
#ifndef VD
#define VD 128
#endif
#ifndef TILED
#define TILED 1
#endif
#ifndef INTERLEAVED
#define INTERLEAVED 0
#endif
#ifndef OUT_GATE
#define OUT_GATE 0
#endif
#ifndef SHORT_ROWS
#define SHORT_ROWS 12
#endif

#define ANCHOR 64
#define CUT_ROWS 8
/// Value heads of a key head.
#define SHARE (V_HEADS / K_HEADS)
#define CHANNELS (2 * K_HEADS * KD + V_HEADS * VD)
#define INNER (V_HEADS * VD)
/// A block, rows behind it, and the rows of a window that other blocks of threads may write while one still reads the old ones.
#define PENDING (ANCHOR + CUT_ROWS + SHORT_ROWS)
/// Likewise: rows of a window, or rows that may be taken back, and three before them.
#define CONV_RING ((SHORT_ROWS > CUT_ROWS ? SHORT_ROWS : CUT_ROWS) + 4)
/// Keys in shared memory: eight rows' 16 bytes of one channel fall on different banks.
#define KEY_STRIDE (KD + 4)

#define U_AT ((u64)V_HEADS * KD * VD)
#define KEYS_AT (U_AT + (u64)V_HEADS * PENDING * VD)
#define G_AT (KEYS_AT + (u64)K_HEADS * PENDING * KD)
#define RING_AT (G_AT + (u64)V_HEADS * PENDING)
#define MARKS_AT (RING_AT + (u64)CONV_RING * CHANNELS)
#define SLOT_FLOATS ((MARKS_AT + V_HEADS * (VD / 8) + 63) / 64 * 64)

static_assert(KD % 8 == 0 && VD % 8 == 0 && V_HEADS % K_HEADS == 0, "shape");
static_assert(SHORT_ROWS % 4 == 0 && SHORT_ROWS > 0 && SHORT_ROWS <= 16, "SHORT_ROWS");

/// What the projections gave. All `[rows, ..] f32`.
struct DeltaIn {
    const float* qkv;   // [rows, CHANNELS]: q | k | v before the convolution
    const float* z;     // [rows, INNER]
    const float* beta;  // [rows, v heads], or INTERLEAVED [rows, k heads, (beta SHARE times, decay SHARE times)]
    const float* decay; // [rows, v heads]; not read if INTERLEAVED
};

struct DeltaWeights {
    const float* taps;  // [4, CHANNELS], the last for the row's own input
    const float* decay; // [v heads], -exp(A_log)
    const float* bias;  // [v heads]
    const float* norm;  // [VD]
    float eps;
    u32 padding;
};

/// Where the result goes. `mixed` is written in any case (before norm and gate); its values are the result only if `forms` has FORM_FLOAT.
struct DeltaOut {
    float* mixed; // [rows, INNER]
    Acts256 acts256;
    Acts32 acts32;
    u32 forms;
    u32 padding;
};

struct DeltaState {
    float *s, *u, *keys, *g, *ring;
    u32* marks;
};
DEVICE DeltaState state_of(float* states, u32 slot) {
    float* at = states + slot * (u64)SLOT_FLOATS;
    return {at, at + U_AT, at + KEYS_AT, at + G_AT, at + RING_AT, (u32*)(at + MARKS_AT)};
}

struct Span {
    u32 row, rows, position, slot;
};
DEVICE Span span_of(const Rows& rows, u32 number) {
    uint4 x = load16(rows.spans + 4 * number);
    return {x.x, x.y, x.z, x.w};
}

DEVICE u32 k_head_of(u32 v_head) { return TILED ? v_head % K_HEADS : v_head / SHARE; }
DEVICE u32 nth_of(u32 v_head) { return TILED ? v_head / K_HEADS : v_head % SHARE; }
DEVICE u32 v_head_of(u32 k_head, u32 nth) { return TILED ? nth * K_HEADS + k_head : k_head * SHARE + nth; }

// ---- positions

DEVICE u32 anchor_of(u32 position) { return position / ANCHOR * ANCHOR; }

/// Whether S may stand an anchor before the row's own.
DEVICE bool may_lag(u32 position) { return position >= ANCHOR && position % ANCHOR < CUT_ROWS; }

/// The anchor that S stands at when a window begins at `position`. Reads the mark only where it is needed, so that nothing waits for it elsewhere.
DEVICE u32 base_of(u32 position, const u32* mark) { return may_lag(position) ? *mark : anchor_of(position); }

/// The anchor that S is to stand at in memory after a window.
DEVICE u32 target_of(u32 base, u32 position, u32 rows) {
    u32 end = position + rows;
    u32 sure = end < CUT_ROWS ? 0 : anchor_of(end - CUT_ROWS);
    return greatest(greatest(base, base + ANCHOR <= position ? base + ANCHOR : base), sure);
}

/// The row of a ring of PENDING for row `j` of a block whose first is in row `start`.
DEVICE u32 pending_row(u32 start, u32 j) { return start + j < PENDING ? start + j : start + j - PENDING; }

/// Rows of the block at `anchor` that earlier windows left pending, and those that are known after this one.
DEVICE u32 rows_until(u32 position, u32 anchor) { return position <= anchor ? 0 : least(position - anchor, (u32)ANCHOR); }

// ---- before the heads

/// The inputs of the convolution at a position, which may lie before the span.
struct Inputs {
    const float* row;
    bool there;

    __device__ __forceinline__ float of(u32 channel) const {
        float x = row[channel];
        return there ? x : 0.0f;
    }
};
DEVICE Inputs inputs_at(const float* span_rows, const float* ring, i32 first, i32 position) {
    const bool own = position >= first;
    const u32 row = own ? (u32)(position - first) : (u32)greatest(position, 0) % CONV_RING;
    return {(own ? span_rows : ring) + (u64)row * CHANNELS, position >= 0};
}

/// `EVENLY`: for many at once.
template <bool EVENLY = false>
DEVICE float convolve(const float taps[4], float x0, float x1, float x2, float x3) {
    float sum = fmaf(taps[0], x0, 0.0f);
    sum = fmaf(taps[1], x1, sum);
    sum = fmaf(taps[2], x2, sum);
    sum = fmaf(taps[3], x3, sum);
    return EVENLY ? silu_evenly(sum) : silu_of(sum);
}

DEVICE void load_taps(const float* taps, u32 channel, float to[4]) {
#pragma unroll
    for (int tap = 0; tap < 4; tap++) to[tap] = taps[tap * CHANNELS + channel];
}

/// Values of a lane of which all lanes together hold a row of `n`: lane, lane + 32, ...
#define PER_LANE(n) (((n) + 31) / 32)

/// Sum of squares over the warp: 64 chains, joined by halves, as `dot` in src/cpu/math/rows.rs.
template <int N>
DEVICE float sum_of_squares(const float (&x)[N]) {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i % 2 == 0) low = fmaf(x[i], x[i], low);
        else high = fmaf(x[i], x[i], high);
    }
    return warp_sum_f32(low + high);
}

/// A query or key in shared memory to unit length, times `scale`. One warp.
DEVICE void l2_norm(float* row, float scale) {
    float x[PER_LANE(KD)];
#pragma unroll
    for (int i = 0; i < PER_LANE(KD); i++) x[i] = 32 * i + lane_of() < KD ? row[32 * i + lane_of()] : 0.0f;
    float factor = scale / sqrtf(sum_of_squares(x) + 1e-6f);
#pragma unroll
    for (int i = 0; i < PER_LANE(KD); i++)
        if (32 * i + lane_of() < KD) row[32 * i + lane_of()] = x[i] * factor;
}
#define QUERY_SCALE (1.0f / sqrtf((float)KD))

/// What a row's write strength and decay for a value head are made of.
struct Strength {
    float beta, decay, factor, bias;
};
DEVICE Strength load_strength(const DeltaIn& in, const DeltaWeights& weights, u32 row, u32 k_head, u32 nth) {
    const u32 v_head = v_head_of(k_head, nth);
    const u64 at = INTERLEAVED ? (u64)row * 2 * V_HEADS + k_head * 2 * SHARE + nth : (u64)row * V_HEADS + v_head;
    return {in.beta[at], INTERLEAVED ? in.beta[at + SHARE] : in.decay[at], weights.decay[v_head], weights.bias[v_head]};
}
/// The row's step of the decay's running sum.
DEVICE float step_of(const Strength& x) { return x.factor * softplus_of(x.decay + x.bias); }

// ---- the block's end

/// S in shared memory [KD, 4 LANE_COLS], a warp's share of its rows: `CT` rows by 4 columns a lane.
template <int WARPS, int LANE_COLS>
struct Fold {
    static constexpr int LANE_ROWS = 32 / LANE_COLS;
    static constexpr int CT = (KD + WARPS * LANE_ROWS - 1) / (WARPS * LANE_ROWS);
    static constexpr int ROWS = CT * LANE_ROWS;

    /// `keys` are decayed already.
    DEVICE void fold(u32 warp, const float* keys, const float* u, u32 u_stride, float decay, float* s) {
        const u32 lane = lane_of(), first = warp * ROWS + lane / LANE_COLS * CT, column = lane % LANE_COLS * 4;
        float sum[CT][4];
#pragma unroll
        for (int x = 0; x < CT; x++) {
            float4 old = first + x < KD ? *(const float4*)(s + (first + x) * 4 * LANE_COLS + column) : make_float4(0, 0, 0, 0);
            sum[x][0] = old.x * decay, sum[x][1] = old.y * decay, sum[x][2] = old.z * decay, sum[x][3] = old.w * decay;
        }
        if (first >= KD) return;
#pragma unroll 8
        for (u32 j = 0; j < ANCHOR; j++) {
            float4 b = *(const float4*)(u + j * u_stride + column);
            const float* key = keys + j * KEY_STRIDE + first;
            float a[CT];
            if constexpr (CT % 4 == 0) {
#pragma unroll
                for (int x = 0; x < CT; x += 4) {
                    float4 k = *(const float4*)(key + x);
                    a[x] = k.x, a[x + 1] = k.y, a[x + 2] = k.z, a[x + 3] = k.w;
                }
            } else if constexpr (CT == 2) {
                float2 k = *(const float2*)key;
                a[0] = k.x, a[1] = k.y;
            } else {
#pragma unroll
                for (int x = 0; x < CT; x++) a[x] = key[x];
            }
#pragma unroll
            for (int x = 0; x < CT; x++) {
                sum[x][0] = fmaf(a[x], b.x, sum[x][0]);
                sum[x][1] = fmaf(a[x], b.y, sum[x][1]);
                sum[x][2] = fmaf(a[x], b.z, sum[x][2]);
                sum[x][3] = fmaf(a[x], b.w, sum[x][3]);
            }
        }
#pragma unroll
        for (int x = 0; x < CT; x++)
            if (first + x < KD) *(float4*)(s + (first + x) * 4 * LANE_COLS + column) = make_float4(sum[x][0], sum[x][1], sum[x][2], sum[x][3]);
    }
};

/// `keys[j] *= factors[j]` over a whole block, by `threads` threads of which this is number `thread`.
DEVICE void decay_keys(float* keys, const float* factors, u32 thread, u32 threads) {
    for (u32 at = thread; at < ANCHOR * (KD / 4); at += threads) {
        u32 j = at / (KD / 4);
        float4* key = (float4*)(keys + j * KEY_STRIDE) + at % (KD / 4);
        float factor = factors[j];
        float4 k = *key;
        *key = make_float4(factor * k.x, factor * k.y, factor * k.z, factor * k.w);
    }
}

// ---- after the heads

/// Heads that are normed together, so that whole runs of 256 values can be quantised.
#define GROUP_HEADS_WISHED (256 % VD == 0 ? 256 / VD : VD % 256 == 0 ? 1 : V_HEADS)
#define GROUP_HEADS (GROUP_HEADS_WISHED < V_HEADS ? GROUP_HEADS_WISHED : V_HEADS)
#define GROUP_WIDTH (GROUP_HEADS * VD)
#define GROUPS ((V_HEADS + GROUP_HEADS - 1) / GROUP_HEADS)
/// Rows that are finished together.
#define FINISH_ROWS (GROUP_WIDTH <= 512 ? 4 : 1)
#define FINISH_FLOATS (FINISH_ROWS * GROUP_WIDTH)

DEVICE u32 heads_in(u32 group) { return least((u32)GROUP_HEADS, V_HEADS - group * GROUP_HEADS); }

/// Norms and gates one head of one row, from `mixed` into `to` (shared) and where asked back. One warp.
DEVICE void finish_head(const DeltaOut& out, const float* z, const float* norm, float eps, u32 row, u32 head, float* to) {
    const u64 at = (u64)row * INNER + head * VD;
    float x[PER_LANE(VD)], gate[PER_LANE(VD)];
#pragma unroll
    for (int i = 0; i < PER_LANE(VD); i++) {
        u32 d = 32 * i + lane_of();
        x[i] = d < VD ? out.mixed[at + d] : 0.0f;
        gate[i] = d < VD ? z[at + d] : 0.0f;
    }
    float scale = 1.0f / sqrtf(sum_of_squares(x) / (float)VD + eps);
#pragma unroll
    for (int i = 0; i < PER_LANE(VD); i++) {
        u32 d = 32 * i + lane_of();
        if (d < VD) {
            float y = x[i] * scale * norm[d] * (OUT_GATE ? sigmoid_of(gate[i]) : silu_of(gate[i]));
            to[d] = y;
            if (out.forms & FORM_FLOAT) out.mixed[at + d] = y;
        }
    }
}

/// Norms, gates and quantises a group's heads of `count` rows, at most FINISH_ROWS, from `row` on. All threads of the block, of which there are `warps` warps;
/// `buffer [FINISH_FLOATS]` is in shared memory and free.
DEVICE void finish_rows(const DeltaOut& out, const float* z, const float* norm, float eps, u32 row, u32 count, u32 group, float* buffer, u32 warps) {
    const u32 heads = heads_in(group);
    for (u32 task = warp_of(); task < count * heads; task += warps) {
        u32 r = task / heads, head = task % heads;
        finish_head(out, z, norm, eps, row + r, group * GROUP_HEADS + head, buffer + r * GROUP_WIDTH + head * VD);
    }
    sync_block();
    if (out.forms & (FORM_256 | FORM_32)) {
        const u32 runs = ceil_div(heads * VD, 256);
        for (u32 task = warp_of(); task < count * runs; task += warps) {
            u32 r = task / runs, first = task % runs * 256;
            float x[8];
            read_run(buffer + r * GROUP_WIDTH, heads * VD, first, x);
            if (out.forms & FORM_256) store256(out.acts256, row + r, INNER, group * GROUP_WIDTH + first, x);
            if (out.forms & FORM_32) store32(out.acts32, row + r, INNER, group * GROUP_WIDTH + first, x);
        }
    }
}
