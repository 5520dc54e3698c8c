// Products of 2 to 16 rows of activations with matrices of 256-wide types, by int8 tensor cores: what a warp does with a *tile*, 16 neighbouring outputs.
//
// An item of the ring (matvec.cuh) is one block of 256 values of each of a tile's outputs. Outputs are the rows of the tensor core's left operand, rows of
// activations the columns of the right one, 8 at a time. A sub-block's products are whole in the lanes that hold them, so that its sub-scale is one more
// multiplication there; minima (or what codes are above their values) times the sums of 16 codes are a product of their own. What lane (g, t) = (lane / 4,
// lane mod 4) has in element e is of output g + 8 (e / 2) and row 2 t + e mod 2.
//
// Lanes read codes of Q4_K, Q5_K and Q6_K from where they lie, a word of four for themselves; those of other types are unpacked to a place of the warp
// first, half a block at a time.
//
// Rows of activations lie in shared memory as records, record `block * R + row`: codes in value order, the sums of 16 codes s as bytes l and h (s = l + 128 h,
// first all l), the scale.
#pragma once
#include "matvec.cuh"

/// The records of eight rows have all their words in different banks.
#define TILE_RECORD 304
#define TILE_SUMS 256
#define TILE_SCALE 288
/// From one output to the next where half blocks are unpacked: likewise.
#define UNPACKED_PITCH 144

/// Bytes of a warp's own where it unpacks.
constexpr u32 UNPACKED_BYTES = TYPES & WIDE_TYPES & ~(BIT_OF(Q4_K) | BIT_OF(Q5_K) | BIT_OF(Q6_K)) ? TILE_OUTPUTS * UNPACKED_PITCH : 0;

/// A block of up to 8 PARTS rows, for the outputs and rows that a lane has.
template <u32 PARTS>
struct TileSums {
    /// Codes times sub-scales, and minima times sums.
    i32 total[PARTS][4], aside[PARTS][4];
    /// Of outputs g and g + 8.
    float d[2], dmin[2];
};

/// The scale of a row.
template <u32 R>
DEVICE float tile_scale(const u8* records, u32 row) {
    return *(const float*)(records + least(row, R - 1) * TILE_RECORD + TILE_SCALE);
}

/// The bytes of groups of 16 values 4 t .. of an output: minima, or sub-scales.
template <class C>
DEVICE u32 group_bytes(const Head& head) {
    const u32* bytes = C::MINIMA ? head.minima : head.scales;
    u32 t = lane_of() % 4;
    if (C::SUB == 16) return t < 2 ? (t == 0 ? bytes[0] : bytes[1]) : (t == 2 ? bytes[2] : bytes[3]);
    return permute(t < 2 ? bytes[0] : bytes[1], 0, t % 2 ? 0x3322 : 0x1100);
}

/// Whether the second of two steps is of codes times 16, and unsigned.
template <class C>
constexpr bool SECOND_BY_16 = C::ID == ID_Q4_K;

/// Two steps of 32 values, of the tile's outputs, as a left operand: values 64 q .. of a block. `at(o)` is where the block of an output lies; `kept` is what
/// is read once for several of them.
template <class C, class At>
DEVICE void tile_codes(u32 codes[2][4], At at, u32 q, u32 kept[12], u8* unpacked) {
    u32 lane = lane_of();
    if constexpr (C::ID == ID_Q6_K) {
        if (q % 2 == 0) {
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const WordsBehind words(at(lane / 4 + 8 * h) + 4 * (lane % 4));
#pragma unroll
                for (u32 c = 0; c < 2; c++) {
                    words.words<1>(32 * q + 16 * c, kept + 2 * c + h);
                    words.words<1>(32 * q + 32 + 16 * c, kept + 4 + 2 * c + h);
                    words.words<1>(128 + 16 * q + 16 * c, kept + 8 + 2 * c + h);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 a = kept[i], b = kept[4 + i], top = kept[8 + i];
            codes[0][i] = q % 2 == 0 ? of_bytes(a, 15) | of_bytes(top << 4, 0x30) : of_bytes(a >> 4, 15) | of_bytes(top, 0x30);
            codes[1][i] = q % 2 == 0 ? of_bytes(b, 15) | of_bytes(top << 2, 0x30) : of_bytes(b >> 4, 15) | of_bytes(top >> 2, 0x30);
        }
    } else if constexpr (C::ID == ID_Q4_K || C::ID == ID_Q5_K) {
        if (C::ID == ID_Q5_K && q == 0) ldmatrix4(kept, at(lane % 16) + 16 + 16 * (lane / 16));
        u32 words[4];
        ldmatrix4(words, at(lane % 16) + (C::ID == ID_Q5_K ? 48 : 16) + 32 * q + 16 * (lane / 16));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            codes[0][i] = of_bytes(words[i], 15);
            codes[1][i] = C::ID == ID_Q4_K ? of_bytes(words[i], 0xf0) : of_bytes(words[i] >> 4, 15);
            if (C::ID == ID_Q5_K) {
                codes[0][i] |= of_bytes(kept[i] >> 2 * q, 1) << 4;
                codes[1][i] |= of_bytes(kept[i] >> 2 * q, 2) << 3;
            }
        }
    } else {
        if (q % 2 == 0) {
            u32 unit = q + lane / 16, all[16];
            C::codes(at(lane % 16), unit, all);
            sync_warp();
            u8* to = unpacked + lane % 16 * UNPACKED_PITCH;
#pragma unroll
            for (u32 i = 0; i < 4; i++) *(uint4*)(to + C::first(unit, i) % 128) = make_uint4(all[4 * i], all[4 * i + 1], all[4 * i + 2], all[4 * i + 3]);
            sync_warp();
        }
#pragma unroll
        for (u32 s = 0; s < 2; s++) ldmatrix4(codes[s], unpacked + lane % 16 * UNPACKED_PITCH + q % 2 * 64 + 32 * s + 16 * (lane / 16));
    }
}

/// The products of a block of the tile's outputs with R rows, whose records of the block begin at `records`.
template <class C, u32 R, class At>
DEVICE void multiply_tile(TileSums<(R + 7) / 8>& sums, At at, const u8* records, u8* unpacked) {
    constexpr u32 PARTS = (R + 7) / 8;
    u32 lane = lane_of();
    u32 scales[2][4], beside[2], kept[12];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        Head head;
        C::head(at(lane / 4 + 8 * h), head);
        sums.d[h] = head.d, sums.dmin[h] = head.dmin;
#pragma unroll
        for (u32 i = 0; i < 4; i++) scales[h][i] = head.scales[i];
        beside[h] = group_bytes<C>(head);
    }
    const u8* row[PARTS];
    i32 by_16[PARTS][4];
#pragma unroll
    for (u32 j = 0; j < PARTS; j++) {
        row[j] = records + least(8 * j + lane % 8, R - 1) * TILE_RECORD;
#pragma unroll
        for (u32 e = 0; e < 4; e++) sums.total[j][e] = sums.aside[j][e] = by_16[j][e] = 0;
    }
#pragma unroll
    for (u32 q = 0; q < 4; q++) {
        u32 codes[2][4];
        tile_codes<C>(codes, at, q, kept, unpacked);
#pragma unroll
        for (u32 j = 0; j < PARTS; j++) {
            u32 acts[4];
            ldmatrix4(acts, row[j] + 16 * (lane / 8) + 64 * q);
#pragma unroll
            for (u32 i = 0; i < 64 / C::SUB; i++) {
                i32 part[4] = {0, 0, 0, 0};
                const bool second = SECOND_BY_16<C> && i == 1;
                if (second) mma_us8(part, codes[i], acts + 2 * i);
                else if (C::SUB == 32) mma_s8(part, codes[i], acts + 2 * i);
                else mma_s8_k16(part, codes[i / 2] + 2 * (i % 2), acts[i]);
                u32 group = q * (64 / C::SUB) + i;
#pragma unroll
                for (u32 e = 0; e < 4; e++) (second ? by_16 : sums.total)[j][e] += part[e] * signed_byte(scales[e / 2][group / 4], group % 4);
            }
        }
    }
    if (SECOND_BY_16<C>) {
#pragma unroll
        for (u32 j = 0; j < PARTS; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) sums.total[j][e] += by_16[j][e] >> 4;
    }
    if (C::MINIMA || C::BIAS != 0) {
#pragma unroll
        for (u32 j = 0; j < PARTS; j++) {
            u32 both[2];
            i32 low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
            ldmatrix2(both, row[j] + TILE_SUMS + lane / 8 % 2 * 16);
            mma_s8_k16(low, beside, both[0]);
            mma_s8_k16(high, beside, both[1]);
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                i32 aside = low[e] + 128 * high[e];
                if (C::MINIMA) sums.aside[j][e] = aside;
                else sums.total[j][e] -= (i32)C::BIAS * aside;
            }
        }
    }
}

/// Products of `rows` <= R rows with the tile that begins with output `first`, by one warp: `emit(o, r, x)`, once for every output of the tile and row.
template <class C, u32 R, class RingOf, class Emit>
DEVICE void wide_tile(const Job& given, u32 blocks, u32 first, u32 rows, const u8* records, RingOf& ring, u8* unpacked, Emit emit) {
    constexpr u32 PARTS = (R + 7) / 8;
    const Job job = job_as<C::ID>(given, 256 * blocks);
    u32 g = lane_of() / 4, t = lane_of() % 4;
    float main[PARTS][4], minima[PARTS][4];
#pragma unroll
    for (u32 j = 0; j < PARTS; j++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) main[j][e] = minima[j][e] = 0.0f;
#pragma unroll 1
    for (u32 block = 0; block < blocks; block++, records += R * TILE_RECORD) {
        const u8* place = ring.next();
        TileSums<PARTS> sums;
        multiply_tile<C, R>(sums, [&](u32 o) { return place + offset_of(job, first, block, o); }, records, unpacked);
        ring.done();
#pragma unroll
        for (u32 j = 0; j < PARTS; j++)
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                float scale = tile_scale<R>(records, 8 * j + 2 * t + c);
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    u32 e = 2 * h + c;
                    main[j][e] = fmaf(sums.d[h] * scale, (float)sums.total[j][e], main[j][e]);
                    if (C::MINIMA) minima[j][e] = fmaf(sums.dmin[h] * scale, (float)sums.aside[j][e], minima[j][e]);
                }
            }
    }
#pragma unroll
    for (u32 j = 0; j < PARTS; j++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            u32 r = 8 * j + 2 * t + e % 2;
            if (r < rows) emit(g + 8 * (e / 2), r, C::MINIMA ? main[j][e] - minima[j][e] : main[j][e]);
        }
}

// ---- a tile shared by the warps of a block: warp w has its blocks w, w + warps, ..

/// What a warp tells of a block of a tile: `total`, with minima `total` and `aside`, [16 outputs, 8 PARTS rows], then `d` and `dmin` [16].
__device__ constexpr u32 told_bytes(u32 rows) { return TILE_OUTPUTS * ((rows + 7) / 8 * 64 + 8); }

/// Tells the block what a warp's block of a tile came to.
template <class C, u32 PARTS>
DEVICE void tell(u8* told, const TileSums<PARTS>& sums) {
    u32 g = lane_of() / 4, t = lane_of() % 4;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
#pragma unroll
        for (u32 j = 0; j < PARTS; j++) {
            const i32 *total = sums.total[j] + 2 * h, *aside = sums.aside[j] + 2 * h;
            u32 result = (g + 8 * h) * (8 * PARTS) + 8 * j + 2 * t;
            if (C::MINIMA) *(uint4*)(told + 8 * result) = make_uint4((u32)total[0], (u32)aside[0], (u32)total[1], (u32)aside[1]);
            else *(uint2*)(told + 4 * result) = make_uint2((u32)total[0], (u32)total[1]);
        }
        if (t == 0) *(float2*)(told + TILE_OUTPUTS * PARTS * 64 + (g + 8 * h) * 8) = make_float2(sums.d[h], sums.dmin[h]);
    }
}

/// Products of `rows` <= R rows with the tile that begins with output `first`, by TEAM warps: `emit(o, r, x)`, once for every output of the tile and row.
/// `told` has room for two blocks of each warp, of which `turn` says which is written next.
template <class C, u32 R, u32 TEAM, class RingOf, class Emit>
DEVICE void shared_tile(const Job& given, u32 blocks, u32 first, u32 rows, const u8* records, RingOf& ring, u8* unpacked, u8* told, u32& turn, Emit emit) {
    constexpr u32 PARTS = (R + 7) / 8, ROOM = told_bytes(R), RESULTS = TILE_OUTPUTS * 8 * PARTS, EACH = (RESULTS + 32 * TEAM - 1) / (32 * TEAM);
    const Job job = job_as<C::ID>(given, 256 * blocks);
    float main[EACH], minima[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) main[i] = minima[i] = 0.0f;
#pragma unroll 1
    for (u32 from = 0; from < blocks; from += TEAM) {
        u8* here = told + turn * (TEAM * ROOM);
        u32 block = from + warp_of();
        turn ^= 1;
        if (block < blocks) {
            const u8* place = ring.next();
            TileSums<PARTS> sums;
            multiply_tile<C, R>(sums, [&](u32 o) { return place + offset_of(job, first, block, o); }, records + block * (R * TILE_RECORD), unpacked);
            ring.done();
            tell<C, PARTS>(here + warp_of() * ROOM, sums);
        }
        sync_block();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 result = threadIdx.x + i * 32 * TEAM, o = result / (8 * PARTS), r = result % (8 * PARTS);
            if (result >= RESULTS) break;
            auto add = [&](u32 w) {
                const u8* sum = here + w * ROOM + result * (C::MINIMA ? 8 : 4);
                float2 d = *(const float2*)(here + w * ROOM + TILE_OUTPUTS * PARTS * 64 + o * 8);
                float scale = tile_scale<R>(records + (from + w) * (R * TILE_RECORD), r);
                main[i] = fmaf(d.x * scale, (float)*(const i32*)sum, main[i]);
                if (C::MINIMA) minima[i] = fmaf(d.y * scale, (float)*(const i32*)(sum + 4), minima[i]);
            };
            if (from + TEAM <= blocks) {
                // all loads are under way together
#pragma unroll
                for (u32 w = 0; w < TEAM; w++) add(w);
            } else {
#pragma unroll 1
                for (u32 w = 0; from + w < blocks; w++) add(w);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 result = threadIdx.x + i * 32 * TEAM, r = result % (8 * PARTS);
        if (result < RESULTS && r < rows) emit(result / (8 * PARTS), r, C::MINIMA ? main[i] - minima[i] : main[i]);
    }
}

// ---- activations brought to shared memory by a block; `sync_block` follows

/// Four sums of 16 codes in two bytes each.
DEVICE void split_sums(uint2 sums, u32& low, u32& high) {
    low = high = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        i32 sum = (i32)((i < 2 ? sums.x : sums.y) << (i % 2 ? 0 : 16)) >> 16;
        i32 h = (sum + 64) >> 7;
        low |= (u32)(sum - 128 * h & 255) << 8 * i;
        high |= (u32)(h & 255) << 8 * i;
    }
}

/// Rows `row(r)`, r < rows, of `Acts256`, a warp a row.
template <u32 R, class Row>
DEVICE void stage_tile(u8* to, const Acts256& from, u32 k, u32 rows, Row row) {
    u32 lane = lane_of(), blocks = k / 256;
    for (u32 r = warp_of(); r < rows; r += blockDim.x / 32) {
        u64 at = (u64)row(r) * k;
        u8* records = to + r * TILE_RECORD;
#pragma unroll 4
        for (u32 i = lane; i < 16 * blocks; i += 32) *(uint4*)(records + (i >> 4) * (R * TILE_RECORD) + 16 * (i & 15)) = words_of(from.codes + at + 16 * i);
        for (u32 i = lane; i < 4 * blocks; i += 32) {
            u32 low, high;
            split_sums(*(const uint2*)(from.sums + (at >> 4) + 4 * i), low, high);
            u8* sums = records + (i >> 2) * (R * TILE_RECORD) + TILE_SUMS + 4 * (i & 3);
            *(u32*)sums = low;
            *(u32*)(sums + 16) = high;
        }
        for (u32 i = lane; i < blocks; i += 32) *(float*)(records + i * (R * TILE_RECORD) + TILE_SCALE) = from.scales[(at >> 8) + i];
    }
}

/// Quantises rows `from(r) [k] f32` to records. The warps of the block share the work.
template <u32 R, class From>
DEVICE void quantise_tile(u8* to, u32 k, u32 rows, From from) {
    u32 lane = lane_of(), blocks = k / 256, warps = blockDim.x / 32;
    float x[8], next[8];
    if (warp_of() < rows * blocks) read_run(from(warp_of() / blocks), k, 256 * (warp_of() % blocks), next);
    for (u32 i = warp_of(); i < rows * blocks; i += warps) {
        u32 r = i / blocks, block = i % blocks, codes[2];
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = next[j];
        if (i + warps < rows * blocks) read_run(from((i + warps) / blocks), k, 256 * ((i + warps) % blocks), next);
        i32 sum;
        float d = quantise256(x, codes, &sum);
        u8* record = to + (block * R + r) * TILE_RECORD;
        *(uint2*)(record + 8 * lane) = make_uint2(codes[0], codes[1]);
        i32 h = (sum + 64) >> 7;
        if (lane % 2 == 0) {
            record[TILE_SUMS + lane / 2] = (u8)(sum - 128 * h);
            record[TILE_SUMS + 16 + lane / 2] = (u8)h;
        }
        if (lane == 0) *(float*)(record + TILE_SCALE) = d;
    }
}
