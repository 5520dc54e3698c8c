// From the projections of a window's rows to queries and to what the cache holds.
//
//     query, key: + bias, norm over the whole projection or none, clamp, norm a head or none, rotation; value: + bias, clamp, norm a head without a weight or none
//     norm:       x / sqrt(mean(x^2) + eps) * weight
//     rotation:   (a, b) -> (a cos - b sin, a sin + b cos) for the pairs among the first ROPE_CHANNELS channels of a head
//
// Where `query` is null only keys and values are prepared. Queries are written back in their place, keys and values go to the row's place in the cache (kv.cuh). f16: bounded to +-65504, rounded to nearest even.
// q8_0: d = f16(min(max abs / 127, 515.5)), code = round_half_even(x / d) by the reciprocal. A NaN is stored as 0 but for f32.
//
// Shapes:  query [rows, HEADS * (HEAD_DIM, or 2 HEAD_DIM if GATED)], key, value [rows, KV_HEADS * HEAD_DIM] f32; biases [HEADS | KV_HEADS * HEAD_DIM] f32 or null;
//          norm weights [HEAD_DIM] or as wide as the projection; turns [positions, 2, ROPE_CHANNELS / 2] f32: cosines, then sines.
// Macros:  those of kv.cuh; HEADS, GATED; QK_NORM (0 none, 1 a head, 2 full width), V_NORM, ROPE_CHANNELS (0: no rotation), ROPE_HALVES (1: pairs i and
//          i + ROPE_CHANNELS / 2; 0: pairs 2i and 2i + 1), CLAMP (1: to +-clamp). GATED goes with neither CLAMP nor QK_NORM 2.
// Grid:    (rows, QK_NORM == 2 ? 3 : ceil((HEADS + 2 KV_HEADS) / 4)), block 128: a warp takes a head. Rows beyond counts[0] leave at once.
// Shared:  4 * HEAD_DIM f32, static.
// Exact:   the same bits as src/cpu (rows.rs, rope.rs, quantise.rs) for finite numbers, q8_0 scales above 515.5 excepted.
// Architectures tried: see attention_decode.cu.
#include "kv.cuh"

#ifndef HEADS
#define HEADS (8 * KV_HEADS)
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef QK_NORM
#define QK_NORM 1
#endif
#ifndef V_NORM
#define V_NORM 0
#endif
#ifndef ROPE_CHANNELS
#define ROPE_CHANNELS HEAD_DIM
#endif
#ifndef ROPE_HALVES
#define ROPE_HALVES 1
#endif
#ifndef CLAMP
#define CLAMP 0
#endif

#define FULL_WIDTH (QK_NORM == 2)
#define QUERY_STRIDE (GATED ? 2 * HEAD_DIM : HEAD_DIM)
#define KV_WIDTH (KV_HEADS * HEAD_DIM)
/// Channels of a lane: `lane + 32 i`.
#define PER_LANE ((HEAD_DIM + 31) / 32)
#define PAIRS_PER_LANE ((ROPE_CHANNELS / 2 + 31) / 32 + (ROPE_CHANNELS == 0))
#define PREPARE_WARPS 4

static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= 512 && ROPE_CHANNELS <= HEAD_DIM && ROPE_CHANNELS % 2 == 0, "shape");
static_assert(!(GATED && (CLAMP || FULL_WIDTH)), "gates are not clamped or normed");

enum Part { QUERY, KEY, VALUE };

#if FULL_WIDTH
/// 1 / sqrt(mean(x^2) + eps) of `width` values, with the bias if there is one, in the order of src/cpu/math/rows.rs: value i goes to sum i mod 64, joined by halves.
DEVICE float norm_scale(const float* x, const float* bias, u32 width, float eps) {
    float low = 0.0f, high = 0.0f;
#pragma unroll 8
    for (u32 i = 0; i < (width + 31) / 32; i++) {
        u32 at = 32 * i + lane_of();
        float y = at < width ? x[at] : 0.0f;
        if (bias && at < width) y += bias[at];
        float& sum = i % 2 == 0 ? low : high;
        sum = fmaf(y, y, sum);
    }
    return 1.0f / sqrtf(warp_sum_f32(low + high) / (float)width + eps);
}
#endif

#if KV_TYPE != KV_Q8_0
/// Writes a head's key, `head [HEAD_DIM]` in shared memory.
DEVICE void store_key(u8* part, u32 place, const float* head) {
    u32 lane = lane_of();
#if KV_TYPE == KV_F32
    float4* to = (float4*)part + place;
    for (u32 four = lane; four < HEAD_DIM / 4; four += 32) to[four * PAGE] = ((const float4*)head)[four];
#else
    for (u32 eight = lane; eight < EIGHTS; eight += 32) {
        float y[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            float z = head[8 * eight + i];
            y[i] = z != z ? 0.0f : fminf(fmaxf(z, -65504.0f), 65504.0f);
        }
        ((uint4*)part)[eight * PAGE + place] = make_uint4(pack_halves(y[0], y[1]), pack_halves(y[2], y[3]), pack_halves(y[4], y[5]), pack_halves(y[6], y[7]));
    }
#endif
}

/// Writes a head's value; lane l has channels l + 32 i.
DEVICE void store_value(u8* part, u32 position, const float x[PER_LANE]) {
    u32 lane = lane_of(), place = value_place(position);
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        u32 channel = lane + 32 * i;
        if (channel >= HEAD_DIM) break;
#if KV_TYPE == KV_F32
        ((float*)part)[position * HEAD_DIM + channel] = x[i];
#else
        float y = x[i] != x[i] ? 0.0f : fminf(fmaxf(x[i], -65504.0f), 65504.0f);
        ((u16*)part)[(place / 8 * HEAD_DIM + channel) * 8 + place % 8] = float_to_half(y);
#endif
    }
}
#else
/// Writes a head's key or value in q8_0; a block is what the lanes have of one `i`.
DEVICE void store_q8(u8* part, u32 place, const float x[PER_LANE], bool value) {
    u32 lane = lane_of();
    u16* scales = (u16*)(part + KV_CODE_BYTES);
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i++) {
        u32 channel = lane + 32 * i;
        float greatest_abs = warp_max_f32(channel < HEAD_DIM ? fabsf(x[i]) : 0.0f);
        u16 bits = float_to_half(fminf(greatest_abs / 127.0f, 515.5f));
        float d = half_to_float(bits), inverse = d > 0.0f ? 1.0f / d : 0.0f;
        float y = x[i] * inverse;
        y = y != y ? 0.0f : fminf(fmaxf(y, -127.0f), 127.0f);
        u8 code = (u8)bits_of(y + 12582912.0f);
        if (lane == 0) scales[i * PAGE + place] = bits;
        u32 at = value ? (place / 8 * HEAD_DIM + channel) * 8 + place % 8 : (channel / 8 * PAGE + place) * 8 + channel % 8;
        if (channel < HEAD_DIM) part[at] = code;
    }
}
#endif

KERNEL(32 * PREPARE_WARPS) attention_prepare(Rows rows, float* query, const float* key, const float* value, const float* query_bias, const float* key_bias,
                                             const float* value_bias, const float* query_norm, const float* key_norm, const float* turns, float eps, float clamp,
                                             u8* cache, u64 page_stride) {
    SHARED(float, heads, PREPARE_WARPS * HEAD_DIM);
    u32 row = blockIdx.x, lane = lane_of();
    float* head = heads + warp_of() * HEAD_DIM;
    u32 count = rows.counts[0], position = rows.positions[row], first_page = rows.row_pages[row];
    if (row >= count) position = 0, first_page = 0;
    u32 page = page_of(rows.pages + first_page, row < count ? rows.slots[row] : 0, position / PAGE);
    wait_for_previous();
    release_next();
    if (row >= count) return;
    bool remembers = !query; // keys and values alone
    query += (u64)row * HEADS * QUERY_STRIDE;
    key += (u64)row * KV_WIDTH;
    value += (u64)row * KV_WIDTH;
#if FULL_WIDTH
    if (remembers && blockIdx.y == QUERY) return;
    // a block takes a whole projection, because its rows change in place
    u32 first = blockIdx.y == QUERY ? 0 : blockIdx.y == KEY ? HEADS : HEADS + KV_HEADS;
    u32 end = blockIdx.y == QUERY ? HEADS : blockIdx.y == KEY ? HEADS + KV_HEADS : HEADS + 2 * KV_HEADS;
    float whole = 0.0f;
    if (blockIdx.y == QUERY) whole = norm_scale(query, query_bias, HEADS * HEAD_DIM, eps);
    if (blockIdx.y == KEY) whole = norm_scale(key, key_bias, KV_WIDTH, eps);
    sync_block();
    for (u32 item = first + warp_of(); item < end; item += PREPARE_WARPS) {
#else
    {
        u32 item = blockIdx.y * PREPARE_WARPS + warp_of();
        if (item >= HEADS + 2 * KV_HEADS || (remembers && item < HEADS)) return;
#endif
        Part part = item < HEADS ? QUERY : item < HEADS + KV_HEADS ? KEY : VALUE;
        u32 number = part == QUERY ? item : part == KEY ? item - HEADS : item - HEADS - KV_HEADS;
        float* from = part == QUERY ? query + number * QUERY_STRIDE : (float*)(part == KEY ? key : value) + number * HEAD_DIM;
        const float* bias = part == QUERY ? query_bias : part == KEY ? key_bias : value_bias;
        bool turned = ROPE_CHANNELS > 0 && part != VALUE;
        if (bias) bias += number * HEAD_DIM;
        float x[PER_LANE], cos[PAIRS_PER_LANE], sin[PAIRS_PER_LANE];
#if QK_NORM
        bool normed = part != VALUE;
        const float* norm = part == QUERY ? query_norm : key_norm;
        if (FULL_WIDTH) norm += number * HEAD_DIM;
        float weight[PER_LANE];
#endif
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) {
            u32 channel = lane + 32 * i;
            bool there = HEAD_DIM % 32 == 0 || channel < HEAD_DIM;
            x[i] = there ? from[channel] : 0.0f;
#if QK_NORM
            weight[i] = there && normed ? norm[channel] : 0.0f;
#endif
            if (bias && there) x[i] += bias[channel];
        }
        if (turned) {
#pragma unroll
            for (u32 i = 0; i < PAIRS_PER_LANE; i++) {
                const float* turn = turns + (u64)position * ROPE_CHANNELS + least(lane + 32 * i, ROPE_CHANNELS / 2 - 1u);
                cos[i] = turn[0];
                sin[i] = turn[ROPE_CHANNELS / 2];
            }
        }
#if FULL_WIDTH
        if (normed) {
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) x[i] = x[i] * whole * weight[i];
        }
#endif
#if CLAMP
#pragma unroll
        for (u32 i = 0; i < PER_LANE; i++) x[i] = x[i] < -clamp ? -clamp : x[i] > clamp ? clamp : x[i];
#endif
#if QK_NORM == 1 || V_NORM
        if (part == VALUE ? V_NORM : QK_NORM == 1) {
            float low = 0.0f, high = 0.0f;
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) {
                float& sum = i % 2 == 0 ? low : high;
                sum = fmaf(x[i], x[i], sum);
            }
            float scale = 1.0f / sqrtf(warp_sum_f32(low + high) / (float)HEAD_DIM + eps);
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++) x[i] = x[i] * scale;
#if QK_NORM == 1
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++)
                if (normed) x[i] = x[i] * weight[i];
#endif
        }
#endif
        if (part != VALUE) {
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++)
                if (HEAD_DIM % 32 == 0 || lane + 32 * i < HEAD_DIM) head[lane + 32 * i] = x[i];
            sync_warp();
        }
        if (turned) {
#pragma unroll
            for (u32 i = 0; i < PAIRS_PER_LANE; i++) {
                u32 pair = lane + 32 * i;
                if (pair >= ROPE_CHANNELS / 2) break;
                u32 at = ROPE_HALVES ? pair : 2 * pair, other = ROPE_HALVES ? pair + ROPE_CHANNELS / 2 : 2 * pair + 1;
                float a = head[at], b = head[other];
                head[at] = fmaf(a, cos[i], -(b * sin[i]));
                head[other] = fmaf(a, sin[i], b * cos[i]);
            }
            sync_warp();
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++)
                if (HEAD_DIM % 32 == 0 || lane + 32 * i < HEAD_DIM) x[i] = head[lane + 32 * i];
        }
        if (part == QUERY) {
#pragma unroll
            for (u32 i = 0; i < PER_LANE; i++)
                if (HEAD_DIM % 32 == 0 || lane + 32 * i < HEAD_DIM) from[lane + 32 * i] = x[i];
        } else {
            u8* to = cache + page * page_stride + number * KV_HEAD_BYTES + (part == VALUE ? KV_PART_BYTES : 0);
            u32 place = position % PAGE;
#if KV_TYPE == KV_Q8_0
            store_q8(to, part == VALUE ? value_place(place) : place, x, part == VALUE);
#else
            if (part == KEY) store_key(to, place, head);
            else store_value(to, place, x);
#endif
        }
        sync_warp();
    }
}
