// From memory to operands for tensor cores: raw weights and codes of activations come to shared memory by copies that do not wait, and all threads of the
// block unpack the weights there. Four threads take a row, so that a warp asks for 64 bytes of eight rows at a time. See mma_tile.cuh.
#pragma once
#include "mma_shape.cuh"

/// Asks for the raw weights of a unit.
DEVICE void fetch_weights(u8* shared, const Table* table, u32 k, u32 unit, u32 buffer) {
    u32 bytes = C::WIDE ? UNIT_BYTES : least(k / 32 - 8 * unit, 8u) * C::BYTES;
#pragma unroll
    for (u32 pass = 0; pass < (TILE_OUTPUTS + PASS - 1) / PASS; pass++) {
        u32 row = pass * PASS + threadIdx.x / 4;
        u64 at = table->starts[row] + unit * UNIT_BYTES;
        u32 shift = ALIGNED ? 0 : (u32)at & 15;
        const u8* from = (const u8*)(at - shift) + 16 * (threadIdx.x % 4);
        u8* to = shared + RAW_AT + (buffer * TILE_OUTPUTS + row) * RAW_STRIDE + 16 * (threadIdx.x % 4);
#pragma unroll
        for (u32 chunk = 0; chunk < HULL; chunk += 4)
            if (16 * (chunk + threadIdx.x % 4) < shift + bytes) copy16_async(to + 16 * chunk, from + 16 * chunk);
    }
}

/// Asks for the codes and scales of a unit of the first `room` rows, a multiple of 16.
DEVICE void fetch_acts(u8* shared, const Table* table, Acts acts, u32 k, u32 unit, u32 buffer, u32 room) {
    u32 values = least(k - 256 * unit, 256u), c = threadIdx.x % 4;
    u8* to = shared + ACTS_AT + buffer * BUFFER_BYTES + threadIdx.x / 4 * 256 + 16 * swizzled(c, threadIdx.x / 4);
#pragma unroll
    for (u32 pass = 0; pass < (TILE_ROWS + PASS - 1) / PASS; pass++) {
        u32 row = pass * PASS + threadIdx.x / 4;
        if (row >= room) break;
        const u8* from = (const u8*)table->codes[row] + 256 * unit + 16 * c;
#pragma unroll
        for (u32 four = 0; four < 16; four += 4)
            if (C::WIDE || 16 * (four + c) < values)
                copy16_async(turned(to, 16 * (four & 4 | four >> 3 << 1)) + 16 * (four & 8) + pass * (PASS * 256), from + 16 * four);
    }
    float* scales = (float*)(shared + ACT_SCALES_AT) + buffer * (ACT_SCALES * TILE_ROWS);
    if (C::WIDE) {
        if (threadIdx.x < room) copy4_async(scales + threadIdx.x, acts.scales + (u64)table->from[threadIdx.x] * (k / 256) + unit);
    } else {
#pragma unroll
        for (u32 i = threadIdx.x; i < 8 * TILE_ROWS; i += TILE_THREADS)
            if (i / 8 < room && i % 8 < values / 32)
                copy4_async(scales + i / 8 * ACT_SCALES + i % 8, acts.scales + (u64)table->from[i / 8] * (k / 32) + 8 * unit + i % 8);
    }
}

// ---- unpacking

/// The raw bytes of a unit of weight row `row`.
DEVICE const u8* raw_unit(const u8* shared, const Table* table, u32 row, u32 unit, u32 buffer = 0) {
    u32 shift = ALIGNED ? 0 : (u32)table->starts[row] + unit * UNIT_BYTES & 15;
    return shared + RAW_AT + (buffer * TILE_OUTPUTS + row) * RAW_STRIDE + shift;
}

/// Puts 16 codes, made signed, in their place.
DEVICE void put_codes(u8* to, const u32 codes[4]) {
    *(uint4*)to = make_uint4(unbias<C::BIAS>(codes[0]), unbias<C::BIAS>(codes[1]), unbias<C::BIAS>(codes[2]), unbias<C::BIAS>(codes[3]));
}

/// Byte `i` of a word as a signed number.
DEVICE i32 signed_byte(u32 word, u32 i) { return (i32)(word << (24 - 8 * i)) >> 24; }

/// Four codes times their sub-scale, in one plane.
template <class Codec>
DEVICE u32 folded(u32 word, i32 scale) {
    if constexpr (Codec::ID == ID_Q2_K) return word * (u32)scale;
    // -(word - 4) scale, from -128 to 124, counted from -128
    else return (word * (0 - (u32)scale) + (128 + 4 * (u32)scale) * 0x01010101u) ^ 0x80808080u;
}

/// Four codes times their sub-scale, in two planes.
template <class Codec>
DEVICE void folded(u32 word, i32 scale, u32* high, u32* low) {
    // codes without a bias may be signed
    u32 bias = Codec::BIAS ? Codec::BIAS : 128;
    if (Codec::BIAS == 0) word ^= 0x80808080u;
    // two codes a word, counted from -2^15
    u32 from = 0x80008000u - bias * (u32)scale * 0x00010001u;
    u32 even = byte_perm(word, 0, 0x4240) * (u32)scale + from, odd = byte_perm(word, 0, 0x4341) * (u32)scale + from;
    *high = byte_perm(even, odd, 0x7351) ^ 0x80808080u;
    *low = byte_perm(even, odd, 0x6240);
}

/// Unpacks part `part` of row `row`: piece i goes to `to`, turned by `i` chunks (LINEAR) or `2 i`.
template <class Codec>
DEVICE void unpack_part(u8* shared, const Table* table, u32 to, u32 row, u32 part, u32 unit) {
    const u8* block = raw_unit(shared, table, row, unit);
    u32 codes[16];
    Codec::codes(block, part, codes);
    i32 scales[4];
    if constexpr (FOLD != 0) {
        Head head;
        Codec::head(block, head);
        if (part == 0) ((float*)(shared + FACTORS_AT))[row] = Codec::ID == ID_Q3_K ? -head.d : head.d;
        u32 by_unit[4];
        Codec::sub_scales(head, by_unit);
        constexpr u32 EACH = Codec::SUB == 16 ? 4 : 2;
        u32 word = by_unit[0];
#pragma unroll
        for (u32 i = 1; i < 4; i++)
            if (part == i) word = by_unit[i * EACH / 4] >> (8 * EACH * i % 32);
#pragma unroll
        for (u32 i = 0; i < 4; i++) scales[i] = signed_byte(word, i * EACH / 4);
    }
#pragma unroll
    for (u32 piece = 0; piece < 4; piece++) {
        u8* at = shared + (to ^ (Codec::LINEAR ? 16 * piece : 32 * piece));
        const u32* from = codes + 4 * piece;
        if constexpr (FOLD == 0) {
            put_codes(at, from);
        } else if constexpr (FOLD == 1) {
            i32 scale = scales[piece];
            *(uint4*)at = make_uint4(folded<Codec>(from[0], scale), folded<Codec>(from[1], scale), folded<Codec>(from[2], scale),
                                     folded<Codec>(from[3], scale));
        } else {
            u32 high[4], low[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) folded<Codec>(from[i], scales[piece], &high[i], &low[i]);
            *(uint4*)at = make_uint4(high[0], high[1], high[2], high[3]);
            *(uint4*)(at + PLANE_BYTES) = make_uint4(low[0], low[1], low[2], low[3]);
        }
    }
}

/// Unpacks a unit of all rows, from where `fetch_weights` brought it.
template <class Codec>
DEVICE void unpack(u8* shared, const Table* table, u32 k, u32 unit) {
    if constexpr (Codec::WIDE) {
        u32 row = threadIdx.x / 4, part = threadIdx.x % 4;
        u32 to = WEIGHTS_AT + row * 256 + 16 * swizzled(Codec::first(part, 0) / 16, row);
#pragma unroll 1
        for (u32 pass = 0; pass < (TILE_OUTPUTS + PASS - 1) / PASS; pass++) unpack_part<Codec>(shared, table, to + pass * (PASS * 256), pass * PASS + row, part, unit);
        row = threadIdx.x;
        if (FOLD == 0 && row < TILE_OUTPUTS) {
            Head head;
            Codec::head(raw_unit(shared, table, row, unit), head);
            ((float*)(shared + FACTORS_AT))[row] = head.d;
#pragma unroll
            for (u32 four = 0; four < GROUPS / 4; four++) {
                u32 word = head.scales[four];
                ((int4*)(shared + SCALES_AT))[four * TILE_OUTPUTS + row] =
                    make_int4(signed_byte(word, 0), signed_byte(word, 1), signed_byte(word, 2), signed_byte(word, 3));
            }
        }
    } else {
        u32 blocks = least(k / 32 - 8 * unit, 8u);
#pragma unroll
        for (u32 i = threadIdx.x; i < 8 * TILE_OUTPUTS; i += TILE_THREADS) {
            u32 row = i / 8, b = i % 8, codes[8];
            if (b >= blocks) continue;
            const u8* block = raw_unit(shared, table, row, unit) + b * Codec::BYTES;
            Codec::codes(block, codes);
            u8* to = shared + WEIGHTS_AT + row * 256;
            put_codes(to + 16 * swizzled(2 * b, row), codes);
            put_codes(to + 16 * swizzled(2 * b + 1, row), codes + 4);
            ((float*)(shared + SCALES_AT))[(b / 4 * TILE_OUTPUTS + row) * 4 + b % 4] = Codec::scale(block);
        }
    }
}
