// A warp's part of the product of a unit of Q4_K, Q5_K or Q6_K, whose codes each warp unpacks in its registers: the left operand of the tensor core wants words
// of four codes in the order in which they lie in a block. No shared memory is written, and a unit needs one barrier. See mma_tile.cuh.
#pragma once
#include "mma_multiply.cuh"
#include "mma_unpack.cuh"

/// A word of which two divides the address.
DEVICE u32 word_at(const u8* at) {
    u32 word;
    words_at<2, 1>(at, &word);
    return word;
}

/// Words of codes of sub-blocks 2 u and 2 u + 1 of one output.
template <class Codec>
DEVICE void direct_words(const u8* block, u32 u, u32 (&a)[2][4], u32 h) {
    const u8* at = block + 4 * (lane_of() % 4);
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        u32 word = *(const u32*)(at + (Codec::ID == ID_Q5_K ? 48 : 16) + 32 * u + 16 * c);
        a[0][2 * c + h] = of_bytes(word, 15);
        a[1][2 * c + h] = of_bytes(word >> 4, 15);
        if (Codec::ID == ID_Q5_K) {
            u32 high = *(const u32*)(at + 16 + 16 * c) >> 2 * u;
            a[0][2 * c + h] |= of_bytes(high, 1) << 4;
            a[1][2 * c + h] |= of_bytes(high, 2) << 3;
        }
    }
}

/// Adds a unit of Q4_K or Q5_K to the results. Two sub-blocks are a turn of a loop.
template <class Codec, int TILES>
DEVICE void multiply_direct(const u8* shared, u32 buffer, Share<TILES>& share) {
    i32 total[OUTPUT_TILES][TILES][4];
    clear<TILES>(total);
    const u8* blocks = shared + RAW_AT + (buffer * TILE_OUTPUTS + lane_output()) * RAW_STRIDE;
    float factors[OUTPUT_TILES][2];
    u32 scales[OUTPUT_TILES][2][2];
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            Head head;
            Codec::head(blocks + (16 * i + 8 * h) * RAW_STRIDE, head);
            factors[i][h] = head.d;
            scales[i][h][0] = head.scales[0];
            scales[i][h][1] = head.scales[1];
        }
    const u8* acts = acts_lane<TILES>(shared, buffer);
#pragma unroll 1
    for (u32 u = 0; u < 4; u++) {
        u32 a[OUTPUT_TILES][2][4];
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) direct_words<Codec>(blocks + (16 * i + 8 * h) * RAW_STRIDE, u, a[i], h);
        const u8* acts_at = turned(at_half(acts, u / 2), u % 2 << 6);
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            i32 scale[OUTPUT_TILES][2];
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) scale[i][h] = (i32)(scales[i][h][0] >> 8 * s & 255);
            each_tile<TILES>(turned(acts_at, s << 5), [&](int i, int j, const u32* b) {
                i32 part[4] = {0, 0, 0, 0};
                mma_s8(part, a[i][s], b);
#pragma unroll
                for (int e = 0; e < 4; e++) total[i][j][e] += part[e] * scale[i][e / 2];
            });
        }
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scales[i][h][0] = __funnelshift_r(scales[i][h][0], scales[i][h][1], 16);
                scales[i][h][1] >>= 16;
            }
    }
    const float2* act_scales = act_scales_lane<TILES>(shared, buffer);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float2 scale = act_scales[4 * j];
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++) add_sums(share.at[i][j], factors[i], scale, [&](int e) { return total[i][j][e]; });
    }
}

/// Words of codes of half a block of one output of Q6_K times their sub-scales, in two planes.
template <class Codec>
DEVICE void half_planes(const u8* block, const Head& head, u32 half, u32 (*high)[4], u32 (*low)[4], u32 h) {
    const u8* at = block + 4 * (lane_of() % 4);
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        u32 a = word_at(at + 64 * half + 16 * c), b = word_at(at + 64 * half + 32 + 16 * c), top = word_at(at + 128 + 32 * half + 16 * c);
        u32 codes[4] = {of_bytes(a, 15) | of_bytes(top << 4, 0x30), of_bytes(b, 15) | of_bytes(top << 2, 0x30),
                        of_bytes(a >> 4, 15) | of_bytes(top, 0x30), of_bytes(b >> 4, 15) | of_bytes(top >> 2, 0x30)};
#pragma unroll
        for (u32 run = 0; run < 4; run++) {
            i32 scale = signed_byte(head.scales[2 * half + run / 2], run % 2 * 2 + c);
            folded<Codec>(codes[run], scale, &high[run][2 * c + h], &low[run][2 * c + h]);
        }
    }
}

/// Adds a unit of Q6_K to the results, by two planes of codes times sub-scales.
template <class Codec, int TILES>
DEVICE void multiply_planes(const u8* shared, const Table* table, u32 buffer, u32 unit, Share<TILES>& share) {
    const u8* acts = acts_lane<TILES>(shared, buffer);
    const float2* act_scales = act_scales_lane<TILES>(shared, buffer);
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++) {
        u32 high[8][4], low[8][4];
        float factors[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u8* block = raw_unit(shared, table, lane_output() + 16 * i + 8 * h, unit, buffer);
            Head head;
            Codec::head(block, head);
            factors[h] = head.d;
#pragma unroll
            for (u32 half = 0; half < 2; half++) half_planes<Codec>(block, head, half, high + 4 * half, low + 4 * half, h);
        }
#pragma unroll
        for (int pair = 0; pair < TILES / 2; pair++) {
            i32 sums[2][2][4];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sums[0][j][e] = sums[1][j][e] = 0;
#pragma unroll
            for (u32 step = 0; step < 8; step++) {
                u32 b[4];
                ldmatrix4(b, turned(at_half(acts, step / 4), step % 4 << 5) + pair * (16 * 256));
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    mma_s8(sums[0][j], high[step], b + 2 * j);
                    mma_us8(sums[1][j], low[step], b + 2 * j);
                }
            }
#pragma unroll
            for (int j = 0; j < 2; j++)
                add_sums(share.at[i][2 * pair + j], factors, act_scales[4 * (2 * pair + j)],
                         [&](int e) { return 256 * sums[0][j][e] + sums[1][j][e]; });
        }
    }
}
