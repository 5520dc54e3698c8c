// Products of a group of four warps on sm_90, compiled for sm_90a: 64 outputs x 8 TILES rows at once, both operands' products added up beside what else the
// warps do. The left operand comes from registers, in the fragments of `mma_s8`; the right one from shared memory: rows of 128 bytes, eight rows a block of
// 1024 bytes, chunk c of 16 bytes of row r at c ^ (r mod 8). What minima need is put aside meanwhile. How units come to shared memory: mma_pipeline.cuh.
#pragma once
#include "mma_direct.cuh"
#include "mma_minima.cuh"

#if GROUPED_CODE

/// What tells the tensor core where the right operand is: rows of 128 bytes, or of 32 whose halves lie at `swizzled_half`.
DEVICE u64 group_operand(const u8* at) { return (u64)(shared_address(at) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
DEVICE u64 short_operand(const u8* at) { return (u64)(shared_address(at) >> 4 & 0x3fff) | 1ull << 16 | 16ull << 32 | 3ull << 62; }

// ---- products

/// Words of a quarter of a block of one output, as they lie there: of sub-blocks 2 part and 2 part + 1 (Q4_K, Q5_K), of the runs `part mod 2` and two further
/// on of half `part / 2` (Q6_K). `tops` are the bits above the fourth.
template <class Codec>
DEVICE void part_words(const u8* block, u32 part, u32 (&words)[2], u32 (&tops)[2]) {
    const u8* at = block + 4 * (lane_of() % 4);
#pragma unroll
    for (u32 c = 0; c < 2; c++) {
        if constexpr (Codec::ID == ID_Q6_K) {
            words[c] = word_at(at + 64 * (part / 2) + 32 * (part % 2) + 16 * c);
            tops[c] = word_at(at + 128 + 32 * (part / 2) + 16 * c) >> 2 * (part % 2);
        } else {
            words[c] = *(const u32*)(at + (Codec::ID == ID_Q5_K ? 48 : 16) + 32 * part + 16 * c);
            if constexpr (Codec::ID == ID_Q5_K) tops[c] = *(const u32*)(at + 16 + 16 * c) >> 2 * part;
        }
    }
}

/// The codes of the lower (`s` 0) or the upper nibbles of such words.
template <class Codec>
DEVICE u32 step_codes(u32 word, u32 top, u32 s) {
    u32 codes = of_bytes(word >> 4 * s, 15);
    if constexpr (Codec::ID == ID_Q6_K) codes |= of_bytes(s ? top : top << 4, 0x30);
    if constexpr (Codec::ID == ID_Q5_K) codes |= s ? of_bytes(top, 2) << 3 : of_bytes(top, 1) << 4;
    return codes;
}

/// Codes times their sub-scale, in two planes: Q4_K and Q5_K count by 8 in the upper one, Q6_K by 256.
template <class Codec>
DEVICE void step_planes(u32 codes, const Head& head, u32 part, u32 s, u32 c, u32* high, u32* low) {
    if constexpr (Codec::ID == ID_Q6_K) {
        folded<Codec>(codes, signed_byte(head.scales[part / 2 * 2 + s], part % 2 * 2 + c), high, low);
    } else {
        u32 scale = head.scales[part / 2] >> 8 * (part % 2 * 2 + s) & 255;
        *high = codes * (scale >> 3);
        *low = codes * (scale & 7);
    }
}

/// Keeps the minima of unit `unit` of this lane's outputs until all products are added up.
DEVICE void put_minima(u8* shared, const Head (&heads)[2], u32 unit) {
    u32 t = lane_of() % 4;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 at = unit * TILE_OUTPUTS + lane_output() + 8 * h;
        if (t < 2) ((u32*)(shared + KEPT_MINIMA_AT))[2 * at + t] = t == 0 ? heads[h].minima[0] : heads[h].minima[1];
        if (t == 2) ((float*)(shared + KEPT_LEAST_AT))[at] = heads[h].dmin;
    }
}

/// Adds a unit to the results: its raw weights and the lane's rows of scales are where `stage` says. What minima need of it is put aside.
template <class Codec, int TILES>
DEVICE void multiply_grouped(u8* shared, const Placed* placed, u32 stage, u32 unit, Share<TILES>& share) {
    i32 high[TILES][4], low[TILES][4];
    anything(high), anything(low);
    // addresses in it count by 16; what is added later stays in its lowest 14 bits
    u64 acts = group_operand(shared + STAGE_ACTS_AT + stage * BUFFER_BYTES);
    const u8* blocks[2];
    float factors[2];
    Head heads[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 output = lane_output() + 8 * h, shift = ALIGNED ? 0 : (u32)placed->starts[output] + unit * UNIT_BYTES & 15;
        blocks[h] = shared + STAGE_RAW_AT + (stage * TILE_OUTPUTS + output) * RAW_STRIDE + shift;
        Codec::head(blocks[h], heads[h]);
        factors[h] = heads[h].d;
    }
    u32 words[2][2], tops[2][2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) part_words<Codec>(blocks[h], 0, words[h], tops[h]);
#pragma unroll
    for (u32 part = 0; part < 4; part++) {
#pragma unroll
        for (u32 s = 0; s < 2; s++) {
            u32 a[4], b[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                step_planes<Codec>(step_codes<Codec>(words[i % 2][i / 2], tops[i % 2][i / 2], s), heads[i % 2], part, s, i / 2, &a[i], &b[i]);
            u64 operand = acts + part / 2 * (TILE_ROWS * 8) + 2 * (Codec::LINEAR ? part % 2 * 2 + s : part % 2 + 2 * s);
            group_fence();
            // of Q5_K products reach 217
            if constexpr (Codec::ID == ID_Q5_K) group_u8(high, a, operand, part + s > 0);
            else group_s8(high, a, operand, part + s > 0);
            if constexpr (Codec::ID == ID_Q4_K) group_s8(low, b, operand, part + s > 0);
            else group_u8(low, b, operand, part + s > 0);
            group_commit();
            if (s == 1 && part < 3) {
#pragma unroll
                for (int h = 0; h < 2; h++) part_words<Codec>(blocks[h], part + 1, words[h], tops[h]);
            }
            // the operands of the step before may be written
            if (part < 3 || s == 0) group_wait<1>();
        }
        if constexpr (Codec::MINIMA)
            if (part == 0 && unit < KEPT_MINIMA) put_minima(shared, heads, unit);
    }
    group_wait<0>();
    const float2* act_scales = (const float2*)((const float*)(shared + STAGE_SCALES_AT) + stage * TILE_ROWS + lane_row<TILES>());
#pragma unroll
    for (int j = 0; j < TILES; j++)
        add_sums(share.at[0][j], factors, act_scales[4 * j], [&](int e) { return (Codec::ID == ID_Q6_K ? 256 : 8) * high[j][e] + low[j][e]; });
}

// ---- minima

/// Adds the minima of a unit to their chains; its sums are those of `at` in shared memory.
template <class Codec, int TILES>
DEVICE void add_least(const u8* shared, const Placed* placed, u32 unit, u32 at, Share<TILES>& least) {
    u32 t = lane_of() % 4, a[4];
    float factors[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 output = lane_output() + 8 * h, word;
        if (unit < KEPT_MINIMA) {
            word = ((const u32*)(shared + KEPT_MINIMA_AT))[2 * (unit * TILE_OUTPUTS + output) + t / 2];
            factors[h] = ((const float*)(shared + KEPT_LEAST_AT))[unit * TILE_OUTPUTS + output];
        } else {
            Head head;
            Codec::head((const u8*)placed->starts[output] + unit * UNIT_BYTES, head);
            word = t < 2 ? head.minima[0] : head.minima[1];
            factors[h] = head.dmin;
        }
        // 8 minima are the whole left operand: each meets both sums of its 32 codes
        a[h] = a[h + 2] = bytes_to_halves(word >> 16 * (t % 2));
    }
    float sums[TILES][4];
    anything(sums);
    group_fence();
    group_f16(sums, a, short_operand(shared + SUMS_AT + at * (TILE_ROWS * 32)), false);
    group_commit();
    const float* act_scales = (const float*)(shared + SUMS_SCALES_AT) + at * TILE_ROWS + lane_row<TILES>();
    group_wait<0>();
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float2 scale = *(const float2*)(act_scales + 8 * j);
#pragma unroll
        for (int e = 0; e < 4; e++) least.at[0][j][e] = fmaf(factors[e / 2] * (e % 2 ? scale.y : scale.x), sums[j][e], least.at[0][j][e]);
    }
}

#endif
