// A warp's part of the product of a unit, from shared memory into registers. See mma_tile.cuh.
#pragma once
#include "mma_shape.cuh"

/// Where this lane points for the left operand of 16 outputs, values 0 ..; see `at_half`.
DEVICE const u8* weights_lane(const u8* shared) {
    u32 row = warp_of() % OUTPUT_WARPS * (16 * OUTPUT_TILES) + lane_of() % 16;
    return shared + WEIGHTS_AT + row * 256 + 16 * swizzled(lane_of() / 16, row);
}
/// The same for the right operand of 2 x 8 rows.
template <int TILES>
DEVICE const u8* acts_lane(const u8* shared, u32 buffer) {
    u32 row = warp_of() / OUTPUT_WARPS * (8 * TILES) + lane_of() / 16 * 8 + lane_of() % 8;
    return shared + ACTS_AT + buffer * BUFFER_BYTES + row * 256 + 16 * swizzled(lane_of() / 8 % 2, row);
}
/// The same for values `128 half ..`. Values `32 s` further on lie at this, turned by `32 s`, s < 4.
DEVICE const u8* at_half(const u8* lane, u32 half) { return turned(lane, half << 5) + half * 128; }

/// `multiply(i, j, b)` for every tile of a warp's outputs and rows, for whose rows' 32 values at `acts` `b` is the right operand.
template <int TILES, class Multiply>
DEVICE void each_tile(const u8* acts, Multiply multiply) {
#pragma unroll
    for (int pair = 0; pair < TILES / 2; pair++) {
        u32 b[4];
        ldmatrix4(b, acts + pair * (16 * 256));
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; i++) multiply(i, 2 * pair + j, b + 2 * j);
    }
}

/// The scales of a unit of this lane's rows: of rows `lane_row` and the next, those of the next tile four further on.
template <int TILES>
DEVICE const float2* act_scales_lane(const u8* shared, u32 buffer) {
    return (const float2*)((const float*)(shared + ACT_SCALES_AT) + buffer * TILE_ROWS + lane_row<TILES>());
}

/// Adds the integer sums of a unit of 16 outputs and 8 rows: `scale` is of the rows, as `act_scales_lane` points at it.
template <class Sum>
DEVICE void add_sums(float (&to)[4], const float factors[2], float2 scale, Sum sum) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float factor = factors[e / 2] * (e % 2 ? scale.y : scale.x);
        to[e] = fmaf(factor, (float)sum(e), to[e]);
    }
}

/// The integer sums of a unit, sub-scales apart.
template <class Codec, int TILES>
DEVICE void sum_scaled(const u8* shared, u32 buffer, i32 (&total)[OUTPUT_TILES][TILES][4]) {
    // two sub-scales are read at once
    constexpr u32 STEPS = Codec::SUB == 32 ? 2 : 1;
    const u8 *weights = weights_lane(shared), *acts = acts_lane<TILES>(shared, buffer);
    // not unrolled: what is executed for a unit has to fit the first instruction cache
#pragma unroll 1
    for (u32 two = 0; two < GROUPS / 2; two++) {
        int2 scales[2][2];
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                scales[i][h] = ((const int2*)(shared + SCALES_AT))[2 * (two / 2 * TILE_OUTPUTS + lane_output() + 16 * i + 8 * h) + two % 2];
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            u32 step = two * STEPS + s, a[2][4];
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; i++) ldmatrix4(a[i], turned(at_half(weights, step / 4), step % 4 << 5) + i * (16 * 256));
            each_tile<TILES>(turned(at_half(acts, step / 4), step % 4 << 5), [&](int i, int j, const u32* b) {
#pragma unroll
                for (int h = 0; h < (Codec::SUB == 32 ? 1 : 2); h++) {
                    i32 part[4] = {0, 0, 0, 0};
                    if constexpr (Codec::SUB == 32) mma_s8(part, a[i], b);
                    else mma_s8_k16(part, a[i] + 2 * h, b[h]);
#pragma unroll
                    for (int e = 0; e < 4; e++) total[i][j][e] += part[e] * ((s + h) % 2 ? scales[i][e / 2].y : scales[i][e / 2].x);
                }
            });
        }
    }
}

/// The same with sub-scales in the codes: `total` counts by 256 where there are two planes, `low` has the rest.
template <int TILES>
DEVICE void sum_folded(const u8* shared, u32 buffer, i32 (&total)[OUTPUT_TILES][TILES][4], i32 (&low)[OUTPUT_TILES][TILES][4]) {
    const u8 *weights = weights_lane(shared), *acts = acts_lane<TILES>(shared, buffer);
#pragma unroll 1
    for (u32 half = 0; half < 2; half++) {
        const u8 *weights_at = at_half(weights, half), *acts_at = at_half(acts, half);
#pragma unroll
        for (u32 s = 0; s < 4; s++) {
            u32 a[PLANES][2][4];
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++)
#pragma unroll
                for (int i = 0; i < OUTPUT_TILES; i++) ldmatrix4(a[plane][i], turned(weights_at, s << 5) + i * (16 * 256) + plane * PLANE_BYTES);
            each_tile<TILES>(turned(acts_at, s << 5), [&](int i, int j, const u32* b) {
                mma_s8(total[i][j], a[0][i], b);
                if constexpr (PLANES == 2) mma_us8(low[i][j], a[1][i], b);
            });
        }
    }
}

/// Adds a unit to the results.
template <class Codec, int TILES>
DEVICE void multiply_wide(const u8* shared, u32 buffer, Share<TILES>& share) {
    i32 total[OUTPUT_TILES][TILES][4], low[OUTPUT_TILES][TILES][4];
    clear<TILES>(total);
    clear<TILES>(low);
    if constexpr (FOLD == 0) sum_scaled<Codec, TILES>(shared, buffer, total);
    else sum_folded<TILES>(shared, buffer, total, low);
    float factors[2][2];
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) factors[i][h] = ((const float*)(shared + FACTORS_AT))[lane_output() + 16 * i + 8 * h];
    const float2* act_scales = act_scales_lane<TILES>(shared, buffer);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float2 scale = act_scales[4 * j];
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
            add_sums(share.at[i][j], factors[i], scale, [&](int e) { return PLANES == 2 ? 256 * total[i][j][e] + low[i][j][e] : total[i][j][e]; });
    }
}

/// `1.5 * 2^23`: from here on floats count by ones.
#define COUNTING 0x4b400000

/// Adds the first `blocks` blocks of a unit to the chains.
template <class Codec, int TILES>
DEVICE void multiply_narrow(const u8* shared, u32 buffer, u32 blocks, Chains<TILES>& chains) {
    const u8 *weights = weights_lane(shared), *acts = acts_lane<TILES>(shared, buffer);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u8 *weights_at = at_half(weights, half), *acts_at = at_half(acts, half);
        float4 scales[2][2], act_scales[TILES][2];
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) scales[i][h] = ((const float4*)(shared + SCALES_AT))[half * TILE_OUTPUTS + lane_output() + 16 * i + 8 * h];
        const float* from = (const float*)(shared + ACT_SCALES_AT) + buffer * (ACT_SCALES * TILE_ROWS) + 4 * half;
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) act_scales[j][h] = *(const float4*)(from + ACT_SCALES * (lane_row<TILES>() + 8 * j + h));
#pragma unroll
        for (u32 s = 0; s < 4; s++) {
            if (4 * half + s >= blocks) break;
            u32 a[2][4];
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; i++) ldmatrix4(a[i], turned(weights_at, s << 5) + i * (16 * 256));
            each_tile<TILES>(turned(acts_at, s << 5), [&](int i, int j, const u32* b) {
                i32 sum[4] = {COUNTING, COUNTING, COUNTING, COUNTING};
                mma_s8(sum, a[i], b);
                float* chain = chains.at[4 * half + s][i][j];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float factor = part_of(scales[i][e / 2], s) * part_of(act_scales[j][e % 2], s);
                    chain[e] = fmaf(factor, float_of((u32)sum[e]) - float_of(COUNTING), chain[e]);
                }
            });
        }
    }
}
