// What the bytes of each integer-dot block type mean: codes in value order, four a word, integer sub-scales and minima, and one or two floats a block.
//
// A codec is a struct of static members, named as its type. Blocks lie anywhere (shared or global memory) as long as they are aligned as their type
// is; words are read whole, so that up to 3 bytes before a block and 4 bytes behind it are touched, all within words that the block shares.
//
// 256-wide types (`WIDE`). A block is 16 pieces of 16 values; a *unit* is four pieces, as many as one lane unpacks at once:
//     codes(block, u, codes)   codes[4 i ..] the 16 codes of piece i of unit u, piece i's first value being first(u, i)
//     head(block, head)        d, dmin; scales and minima of groups of SUB values, a byte a group (scales signed)
//     sub_scales(head, at)     scales by unit: unit u has the 64 / SUB bytes from byte u * 64 / SUB on
// value = d * scale * (code - BIAS) - dmin * minimum. Layouts of units: those of LINEAR types are 64 values in a row, those of the others four runs
// of 16 that are 32 apart.
//
// 32-wide types: codes(block, codes) all 32, scale(block), minimum(block). value = scale * (code - BIAS) + minimum.
//
// Source: layouts as in ggml's block types; the numbers are those of `src/quant` and `src/cpu/kernels/codec`.
//
// Macro: TYPES, a bit mask of the types that a kernel is built for (all without it).
#pragma once
#ifndef TYPES
/// The types that a kernel is built for: bit `i` is the type with the id `i` of GGUF.
#define TYPES 0x8040f77dcfull
#endif
#include "device.cuh"
#include "grids.cuh"

#define ID_F32 0
#define ID_F16 1
#define ID_Q4_0 2
#define ID_Q4_1 3
#define ID_Q5_0 6
#define ID_Q5_1 7
#define ID_Q8_0 8
#define ID_Q2_K 10
#define ID_Q3_K 11
#define ID_Q4_K 12
#define ID_Q5_K 13
#define ID_Q6_K 14
#define ID_IQ2_XXS 16
#define ID_IQ2_XS 17
#define ID_IQ3_XXS 18
#define ID_IQ4_NL 20
#define ID_IQ3_S 21
#define ID_IQ2_S 22
#define ID_IQ4_XS 23
#define ID_BF16 30
#define ID_MXFP4 39
#define HAS_TYPE(id) ((TYPES >> (id)) & 1)

// ---- words

/// `N` words from a byte on of whose address `ALIGN` is a divisor.
template <u32 ALIGN, u32 N>
DEVICE void words_at(const u8* at, u32 out[N]) {
    if (ALIGN % 16 == 0 && N % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i + 3 < N; i += 4) {
            uint4 x = *(const uint4*)(at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
        }
    } else if (ALIGN % 8 == 0 && N % 2 == 0) {
#pragma unroll
        for (u32 i = 0; i + 1 < N; i += 2) {
            uint2 x = *(const uint2*)(at + 4 * i);
            out[i] = x.x, out[i + 1] = x.y;
        }
    } else if (ALIGN % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < N; i++) out[i] = *(const u32*)(at + 4 * i);
    } else {
        u32 off = (u32)(u64)at & 3;
        const u32* from = (const u32*)(at - off);
        u32 low = from[0];
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            u32 high = from[i + 1];
            out[i] = __funnelshift_r(low, high, 8 * off);
            low = high;
        }
    }
}

/// Words at multiples of 4 behind an address, of whose remainder all of them have a share: it is taken apart once.
struct WordsBehind {
    const u8* from;
    u32 shift;

    __device__ __forceinline__ WordsBehind(const u8* at) {
        u32 off = (u32)(u64)at & 3;
        from = at - off, shift = 8 * off;
    }
    template <u32 N>
    __device__ __forceinline__ void words(u32 offset, u32 out[N]) const {
        const u32* at = (const u32*)(from + offset);
        u32 low = at[0];
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            u32 high = at[i + 1];
            out[i] = __funnelshift_r(low, high, shift);
            low = high;
        }
    }
};

/// Two bytes from an even address on.
DEVICE u32 half_at(const u8* at) { return *(const u16*)at; }

/// The same bit or bits of every byte.
DEVICE u32 of_bytes(u32 word, u32 mask) { return word & mask * 0x01010101u; }

/// The low nibbles of N words, then the high ones.
template <u32 N>
DEVICE void nibbles(const u32* words, u32 codes[2 * N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        codes[i] = of_bytes(words[i], 15);
        codes[N + i] = of_bytes(words[i] >> 4, 15);
    }
}

/// Codes above their values by BIAS, at most 127 + BIAS, as signed bytes.
template <u32 BIAS>
DEVICE u32 unbias(u32 word) {
    return BIAS == 0 ? word : (word + (128 - BIAS) * 0x01010101u) ^ 0x80808080u;
}

/// Eight nibbles looked up in a table of 16 bytes: first the low ones of each byte, then the high ones.
DEVICE void look_up(u32 nibbles, const u32 table[4], u32* low, u32* high) {
    u32 eighth = nibbles & 0x77777777u, upper = 0x32103210u | (nibbles >> 1 & 0x44444444u);
    u32 pairs[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 a = permute(table[0], table[1], eighth >> 16 * i), b = permute(table[2], table[3], eighth >> 16 * i);
        pairs[i] = permute(a, b, upper >> 16 * i);
    }
    *low = byte_perm(pairs[0], pairs[1], 0x6420);
    *high = byte_perm(pairs[0], pairs[1], 0x7531);
}

/// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
#define IQ4_STEPS {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}
/// 0 1 2 3 4 6 8 12 and their negatives: twice the values of E2M1.
#define E2M1_DOUBLED {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}

/// Magnitudes (none is 0) with the signs that the lowest four bits ask for.
DEVICE u32 with_signs(u32 magnitudes, u32 signs) {
    u32 ones = ((signs & 15) * 0x00204081u) & 0x01010101u;
    return (magnitudes ^ ones * 255u) + ones;
}

/// Sign bits of 8 values from a code of 7: the eighth makes the number of minus signs even.
DEVICE u32 complete_signs(u32 code) { return (code & 127) | (u32)(__popc(code & 127) & 1) << 7; }

/// `2 n + 1` of nibbles, each in a byte.
DEVICE u32 odd(u32 nibbles) { return 2 * nibbles + 0x01010101u; }

/// Eight nibbles, lowest first, as eight bytes.
DEVICE void spread(u32 nibbles, u32 out[2]) {
    u32 even = of_bytes(nibbles, 15), odd = of_bytes(nibbles >> 4, 15);
    out[0] = byte_perm(even, odd, 0x5140);
    out[1] = byte_perm(even, odd, 0x7362);
}

// ---- 256-wide types

struct Head {
    float d, dmin;
    u32 scales[4];
    u32 minima[4];
};

/// What most 256-wide types have in common.
struct Wide256 {
    static constexpr bool WIDE = true, MINIMA = false;
    static constexpr u32 BIAS = 0;
    /// `d` times a constant; no minima, and no sub-scales yet.
    DEVICE void plain_head(const u8* d, float factor, Head& head) {
        head.d = half_to_float((u16)half_at(d)) * factor;
        head.dmin = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) head.scales[i] = head.minima[i] = 0;
    }
};

/// Unit u of LINEAR types: values 64 u .. 64 u + 63.
struct Linear : Wide256 {
    static constexpr bool LINEAR = true;
    DEVICE u32 first(u32 u, u32 i) { return 64 * u + 16 * i; }
    DEVICE void sub_scales(const Head& head, u32 by_unit[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) by_unit[i] = head.scales[i];
    }
};

/// Unit u of the others: half u / 2, values 16 (u mod 2) .. of each of its four runs of 32.
struct Strided : Wide256 {
    static constexpr bool LINEAR = false;
    DEVICE u32 first(u32 u, u32 i) { return 128 * (u >> 1) + 16 * (u & 1) + 32 * i; }
    DEVICE void sub_scales(const Head& head, u32 by_unit[4]) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            by_unit[2 * half] = byte_perm(head.scales[2 * half], head.scales[2 * half + 1], 0x6420);
            by_unit[2 * half + 1] = byte_perm(head.scales[2 * half], head.scales[2 * half + 1], 0x7531);
        }
    }
};

/// `d`, `dmin` and 8 six-bit pairs of scale and minimum: the first 16 bytes.
struct Pairs : Linear {
    static constexpr u32 SUB = 32;
    static constexpr bool MINIMA = true;
    DEVICE void head(const u8* block, Head& head) {
        u32 w[4];
        words_at<16, 4>(block, w);
        head.d = half_to_float((u16)w[0]);
        head.dmin = half_to_float((u16)(w[0] >> 16));
        head.scales[0] = of_bytes(w[1], 0x3f);
        head.scales[1] = of_bytes(w[3], 0x0f) | of_bytes(w[1] >> 2, 0x30);
        head.minima[0] = of_bytes(w[2], 0x3f);
        head.minima[1] = of_bytes(w[3] >> 4, 0x0f) | of_bytes(w[2] >> 2, 0x30);
        head.scales[2] = head.scales[3] = head.minima[2] = head.minima[3] = 0;
    }
};

/// 4 bits; sub-scales and minima of 6 bits for 32 values each.
struct Q4_K : Pairs {
    static constexpr u32 ID = ID_Q4_K, BYTES = 144;
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[8];
        words_at<16, 8>(block + 16 + 32 * u, w);
        nibbles<8>(w, codes);
    }
};

/// As Q4_K, with fifth bits before the nibbles.
struct Q5_K : Pairs {
    static constexpr u32 ID = ID_Q5_K, BYTES = 176;
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[8], high[8];
        words_at<16, 8>(block + 48 + 32 * u, w);
        words_at<16, 8>(block + 16, high);
        nibbles<8>(w, codes);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 two = high[i] >> 2 * u;
            codes[i] |= of_bytes(two, 1) << 4;
            codes[8 + i] |= of_bytes(two, 2) << 3;
        }
    }
};

/// Two bits a value, for the four runs of a unit.
DEVICE void two_bits(const u8* bytes, u32 u, u32 align_four, u32 w[4]) {
    const u8* at = bytes + 32 * (u >> 1) + 16 * (u & 1);
    if (align_four) words_at<4, 4>(at, w);
    else words_at<2, 4>(at, w);
}

/// 2 bits; sub-scales and minima of 4 bits for 16 values each.
struct Q2_K : Strided {
    static constexpr u32 ID = ID_Q2_K, BYTES = 84, SUB = 16;
    static constexpr bool MINIMA = true;
    DEVICE void head(const u8* block, Head& head) {
        u32 w[4];
        words_at<4, 4>(block, w);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            head.scales[i] = of_bytes(w[i], 15);
            head.minima[i] = of_bytes(w[i] >> 4, 15);
        }
        u32 d = *(const u32*)(block + 80);
        head.d = half_to_float((u16)d);
        head.dmin = half_to_float((u16)(d >> 16));
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[4];
        two_bits(block + 16, u, 1, w);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 run = 0; run < 4; run++) codes[4 * run + i] = of_bytes(w[i] >> 2 * run, 3);
    }
};

/// 3 bits above -4; sub-scales of 6 bits above -32 for 16 values each.
struct Q3_K : Strided {
    static constexpr u32 ID = ID_Q3_K, BYTES = 110, SUB = 16, BIAS = 4;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block + 108, 1.0f, head);
        u32 w[3];
        words_at<2, 3>(block + 96, w);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 six = of_bytes(w[i & 1] >> 4 * (i >> 1), 15) | of_bytes(w[2] >> 2 * i, 3) << 4;
            head.scales[i] = unbias<32>(six);
        }
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[4], high[4];
        two_bits(block + 32, u, 0, w);
        words_at<2, 4>(block + 16 * (u & 1), high);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 four = high[i] >> 4 * (u >> 1);
#pragma unroll
            for (u32 run = 0; run < 4; run++) {
                u32 third = run < 2 ? of_bytes(four, 1 << run) << (2 - run) : of_bytes(four, 1 << run) >> (run - 2);
                codes[4 * run + i] = of_bytes(w[i] >> 2 * run, 3) | third;
            }
        }
    }
};

/// 6 bits above -32; signed sub-scales of 8 bits for 16 values each.
struct Q6_K : Strided {
    static constexpr u32 ID = ID_Q6_K, BYTES = 210, SUB = 16, BIAS = 32;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block + 208, 1.0f, head);
        words_at<2, 4>(block + 192, head.scales);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        const WordsBehind at(block);
        u32 a[4], b[4], top[4], from = 16 * (u & 1) + 32 * (u >> 1);
        at.words<4>(from + 32 * (u >> 1), a);
        at.words<4>(from + 32 * (u >> 1) + 32, b);
        at.words<4>(from + 128, top);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            codes[i] = of_bytes(a[i], 15) | of_bytes(top[i] << 4, 0x30);
            codes[4 + i] = of_bytes(b[i], 15) | of_bytes(top[i] << 2, 0x30);
            codes[8 + i] = of_bytes(a[i] >> 4, 15) | of_bytes(top[i], 0x30);
            codes[12 + i] = of_bytes(b[i] >> 4, 15) | of_bytes(top[i] >> 2, 0x30);
        }
    }
};

/// 4 bits that name uneven steps; sub-scales of 6 bits above -32 for 32 values each.
struct IQ4_XS : Linear {
    static constexpr u32 ID = ID_IQ4_XS, BYTES = 136, SUB = 32;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 1.0f, head);
        u32 w[2], low[2];
        words_at<8, 2>(block, w);
        spread(w[1], low);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // four pairs of bits to four bytes
            u32 pairs = w[0] >> (16 + 8 * i) & 0xff;
            u32 high = (pairs | pairs << 6 | pairs << 12 | pairs << 18) & 0x03030303u;
            head.scales[i] = unbias<32>(low[i] | high << 4);
        }
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        const u32 steps[4] = IQ4_STEPS;
        u32 w[8];
        words_at<8, 8>(block + 8 + 32 * u, w);
#pragma unroll
        for (u32 i = 0; i < 8; i++) look_up(w[i], steps, &codes[8 * (i / 4) + i % 4], &codes[8 * (i / 4) + 4 + i % 4]);
    }
};

/// A vector of 8 with its signs.
DEVICE void put_eight(uint2 magnitudes, u32 signs, u32 codes[2]) {
    codes[0] = with_signs(magnitudes.x, signs);
    codes[1] = with_signs(magnitudes.y, signs >> 4);
}

/// Index `i` of those whose low bytes are `low`, and that have BITS further bits each in `high`.
template <u32 BITS>
DEVICE u32 index_of(const u32* low, u32 high, u32 i) {
    return (low[i / 4] >> 8 * (i % 4) & 255) | (high >> BITS * i & ((1 << BITS) - 1)) << 8;
}

/// 16 odd sub-scales, a nibble each.
DEVICE void odd_nibbles(const u8* at, Head& head) {
    u32 w[2];
    words_at<2, 2>(at, w);
    spread(w[0], head.scales);
    spread(w[1], head.scales + 2);
#pragma unroll
    for (u32 i = 0; i < 4; i++) head.scales[i] = odd(head.scales[i]);
}

/// 8 odd sub-scales from the top nibbles of 8 words, the first at `at`, the others every `step` bytes.
DEVICE void odd_tops(const u8* at, u32 step, Head& head) {
    u32 tops[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) tops[i] = half_at(at + step * i + 2) >> 12;
#pragma unroll
    for (u32 i = 0; i < 2; i++) head.scales[i] = odd(tops[4 * i] | tops[4 * i + 1] << 8 | tops[4 * i + 2] << 16 | tops[4 * i + 3] << 24);
}

/// For 32 values four indices, then four sign codes and a scale.
struct IQ2_XXS : Linear {
    static constexpr u32 ID = ID_IQ2_XXS, BYTES = 66, SUB = 32;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 0.125f, head);
        odd_tops(block + 6, 8, head);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[4];
        words_at<2, 4>(block + 2 + 16 * u, w);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 index = w[i / 4 * 2] >> 8 * (i % 4) & 255, signs = w[i / 4 * 2 + 1] >> 7 * (i % 4);
            put_eight(load8(&GRID_IQ2_XXS[index]), complete_signs(signs), codes + 2 * i);
        }
    }
};

/// For 8 values a 9-bit index and a sign code, for 16 a scale.
struct IQ2_XS : Linear {
    static constexpr u32 ID = ID_IQ2_XS, BYTES = 74, SUB = 16;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 0.125f, head);
        odd_nibbles(block + 66, head);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 w[4];
        words_at<2, 4>(block + 2 + 16 * u, w);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 both = w[i / 2] >> 16 * (i % 2) & 0xffff;
            put_eight(load8(&GRID_IQ2_XS[both & 511]), complete_signs(both >> 9), codes + 2 * i);
        }
    }
};

/// For 8 values a 10-bit index in two places and 8 signs, for 16 a scale.
struct IQ2_S : Linear {
    static constexpr u32 ID = ID_IQ2_S, BYTES = 82, SUB = 16;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 0.125f, head);
        odd_nibbles(block + 74, head);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 low[2], signs[2], high = half_at(block + 66 + 2 * u);
        words_at<2, 2>(block + 2 + 8 * u, low);
        words_at<2, 2>(block + 34 + 8 * u, signs);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            put_eight(load8(&GRID_IQ2_S[index_of<2>(low, high, i)]), signs[i / 4] >> 8 * (i % 4), codes + 2 * i);
        }
    }
};

/// For 4 values an index, for 32 four sign codes and a scale.
struct IQ3_XXS : Linear {
    static constexpr u32 ID = ID_IQ3_XXS, BYTES = 98, SUB = 32;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 0.25f, head);
        odd_tops(block + 66, 4, head);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 low[4], rest[2];
        words_at<2, 4>(block + 2 + 16 * u, low);
        words_at<2, 2>(block + 66 + 8 * u, rest);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 two = low[i / 2] >> 16 * (i % 2), signs = complete_signs(rest[i / 4] >> 7 * (i % 4));
            codes[2 * i] = with_signs(load4(&GRID_IQ3_XXS[two & 255]), signs);
            codes[2 * i + 1] = with_signs(load4(&GRID_IQ3_XXS[two >> 8 & 255]), signs >> 4);
        }
    }
};

/// For 4 values a 9-bit index in two places and 4 signs, for 32 a scale.
struct IQ3_S : Linear {
    static constexpr u32 ID = ID_IQ3_S, BYTES = 110, SUB = 32;
    DEVICE void head(const u8* block, Head& head) {
        plain_head(block, 1.0f, head);
        u32 w[1];
        words_at<2, 1>(block + 106, w);
        spread(w[0], head.scales);
        head.scales[0] = odd(head.scales[0]);
        head.scales[1] = odd(head.scales[1]);
    }
    DEVICE void codes(const u8* block, u32 u, u32 codes[16]) {
        u32 low[4], signs[2], high = half_at(block + 66 + 2 * u);
        words_at<2, 4>(block + 2 + 16 * u, low);
        words_at<2, 2>(block + 74 + 8 * u, signs);
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            codes[i] = with_signs(load4(&GRID_IQ3_S[index_of<1>(low, high, i)]), signs[i / 8] >> 4 * (i % 8));
        }
    }
};

// ---- 32-wide types

template <u32 ALIGN>
DEVICE void nibbles_at(const u8* at, u32 codes[8]) {
    u32 w[4];
    words_at<ALIGN, 4>(at, w);
    nibbles<4>(w, codes);
}

/// Fifth bits, in value order.
DEVICE void add_fifths(u32 bits, u32 codes[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) codes[i] |= ((bits >> 4 * i & 15) * 0x02040810u) & 0x10101010u;
}

template <u32 ALIGN>
DEVICE void look_up_all(const u8* at, const u32 table[4], u32 codes[8]) {
    u32 w[4];
    words_at<ALIGN, 4>(at, w);
#pragma unroll
    for (u32 i = 0; i < 4; i++) look_up(w[i], table, &codes[i], &codes[4 + i]);
}

struct Narrow {
    static constexpr bool WIDE = false;
};
struct HalfScale : Narrow {
    static constexpr bool MINIMA = false;
    DEVICE float scale(const u8* block) { return half_to_float((u16)half_at(block)); }
    DEVICE float minimum(const u8*) { return 0.0f; }
};
struct HalfScaleAndMinimum : Narrow {
    static constexpr bool MINIMA = true;
    DEVICE float scale(const u8* block) { return half_to_float((u16)half_at(block)); }
    DEVICE float minimum(const u8* block) { return half_to_float((u16)half_at(block + 2)); }
};

/// 8 bits, signed.
struct Q8_0 : HalfScale {
    static constexpr u32 ID = ID_Q8_0, BYTES = 34, BIAS = 0;
    DEVICE void codes(const u8* block, u32 codes[8]) { words_at<2, 8>(block + 2, codes); }
};
/// 4 bits above -8.
struct Q4_0 : HalfScale {
    static constexpr u32 ID = ID_Q4_0, BYTES = 18, BIAS = 8;
    DEVICE void codes(const u8* block, u32 codes[8]) { nibbles_at<2>(block + 2, codes); }
};
/// 4 bits and a minimum.
struct Q4_1 : HalfScaleAndMinimum {
    static constexpr u32 ID = ID_Q4_1, BYTES = 20, BIAS = 0;
    DEVICE void codes(const u8* block, u32 codes[8]) { nibbles_at<4>(block + 4, codes); }
};
/// 5 bits above -16.
struct Q5_0 : HalfScale {
    static constexpr u32 ID = ID_Q5_0, BYTES = 22, BIAS = 16;
    DEVICE void codes(const u8* block, u32 codes[8]) {
        u32 w[5];
        words_at<2, 5>(block + 2, w);
        nibbles<4>(w + 1, codes);
        add_fifths(w[0], codes);
    }
};
/// 5 bits and a minimum.
struct Q5_1 : HalfScaleAndMinimum {
    static constexpr u32 ID = ID_Q5_1, BYTES = 24, BIAS = 0;
    DEVICE void codes(const u8* block, u32 codes[8]) {
        nibbles_at<8>(block + 8, codes);
        add_fifths(*(const u32*)(block + 4), codes);
    }
};
/// 4 bits that name uneven steps.
struct IQ4_NL : HalfScale {
    static constexpr u32 ID = ID_IQ4_NL, BYTES = 18, BIAS = 0;
    DEVICE void codes(const u8* block, u32 codes[8]) {
        const u32 steps[4] = IQ4_STEPS;
        look_up_all<2>(block + 2, steps, codes);
    }
};
/// E2M1 in halves, under a power of two.
struct MXFP4 : Narrow {
    static constexpr u32 ID = ID_MXFP4, BYTES = 17, BIAS = 0;
    static constexpr bool MINIMA = false;
    /// `2^(e - 128)`; for `e` < 2 that is a subnormal number.
    DEVICE float scale(const u8* block) {
        u32 e = block[0];
        return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    DEVICE float minimum(const u8*) { return 0.0f; }
    DEVICE void codes(const u8* block, u32 codes[8]) {
        const u32 steps[4] = E2M1_DOUBLED;
        look_up_all<1>(block + 1, steps, codes);
    }
};

// ---- choice by number

#define CASE_OF(name, ...)                       \
    case ID_##name:                              \
        if constexpr (HAS_TYPE(ID_##name)) {     \
            typedef name C;                      \
            __VA_ARGS__;                         \
        }                                        \
        break;

/// Does the last argument, in which `C` is the 256-wide codec of the type `id`, if that is one of TYPES.
#define WITH_WIDE(id, ...)             \
    switch (id) {                      \
        CASE_OF(Q2_K, __VA_ARGS__)     \
        CASE_OF(Q3_K, __VA_ARGS__)     \
        CASE_OF(Q4_K, __VA_ARGS__)     \
        CASE_OF(Q5_K, __VA_ARGS__)     \
        CASE_OF(Q6_K, __VA_ARGS__)     \
        CASE_OF(IQ2_XXS, __VA_ARGS__)  \
        CASE_OF(IQ2_XS, __VA_ARGS__)   \
        CASE_OF(IQ2_S, __VA_ARGS__)    \
        CASE_OF(IQ3_XXS, __VA_ARGS__)  \
        CASE_OF(IQ3_S, __VA_ARGS__)    \
        CASE_OF(IQ4_XS, __VA_ARGS__)   \
    }

/// The same for 32-wide codecs.
#define WITH_NARROW(id, ...)           \
    switch (id) {                      \
        CASE_OF(Q8_0, __VA_ARGS__)     \
        CASE_OF(Q4_0, __VA_ARGS__)     \
        CASE_OF(Q4_1, __VA_ARGS__)     \
        CASE_OF(Q5_0, __VA_ARGS__)     \
        CASE_OF(Q5_1, __VA_ARGS__)     \
        CASE_OF(IQ4_NL, __VA_ARGS__)   \
        CASE_OF(MXFP4, __VA_ARGS__)    \
    }

#define FLOAT_CASE_OF(name, ...)                 \
    case ID_##name:                              \
        if constexpr (HAS_TYPE(ID_##name)) {     \
            constexpr u32 ID = ID_##name;        \
            __VA_ARGS__;                         \
        }                                        \
        break;

/// The same for float types, of which `ID` is the number.
#define WITH_FLOAT(id, ...)              \
    switch (id) {                        \
        FLOAT_CASE_OF(F32, __VA_ARGS__)  \
        FLOAT_CASE_OF(F16, __VA_ARGS__)  \
        FLOAT_CASE_OF(BF16, __VA_ARGS__) \
    }

#define BIT_OF(name) (1ull << ID_##name)
#define WIDE_TYPES                                                                                                                       \
    (BIT_OF(Q2_K) | BIT_OF(Q3_K) | BIT_OF(Q4_K) | BIT_OF(Q5_K) | BIT_OF(Q6_K) | BIT_OF(IQ2_XXS) | BIT_OF(IQ2_XS) | BIT_OF(IQ2_S) | \
     BIT_OF(IQ3_XXS) | BIT_OF(IQ3_S) | BIT_OF(IQ4_XS))
#define NARROW_TYPES (BIT_OF(Q8_0) | BIT_OF(Q4_0) | BIT_OF(Q4_1) | BIT_OF(Q5_0) | BIT_OF(Q5_1) | BIT_OF(IQ4_NL) | BIT_OF(MXFP4))
#define FLOAT_TYPES (BIT_OF(F32) | BIT_OF(F16) | BIT_OF(BF16))
