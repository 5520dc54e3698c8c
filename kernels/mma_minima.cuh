// The minima of a tile's weights: sums of 16 codes (256-wide types) or of a block's (32-wide types) times minima, in chains of their own. They are read
// from memory once more after the products of the codes, and lie where codes were: of weights, and, at `free`, of activations. See mma_tile.cuh.
#pragma once
#include "mma_shape.cuh"

// Of the 16 sums of a unit the even ones come first. Where a minimum is for 32 values it meets both of its sums, so 8 minima are the whole left operand.
// Of MINIMA_UNITS units at a time: in the weights' place ..
constexpr u32 MINIMA_AT = WEIGHTS_AT;                                             // [MINIMA_UNITS, TILE_OUTPUTS, MINIMA] f16
constexpr u32 LEAST_AT = MINIMA_AT + 2 * MINIMA * MINIMA_UNITS * TILE_OUTPUTS;    // [MINIMA_UNITS, TILE_OUTPUTS] f32
constexpr u32 LEAST_SCALES_AT = LEAST_AT + 4 * MINIMA_UNITS * TILE_OUTPUTS;       // [MINIMA_UNITS, TILE_ROWS] f32
static_assert(!C::MINIMA || !C::WIDE || LEAST_SCALES_AT + 4 * MINIMA_UNITS * TILE_ROWS <= ACTS_AT, "minima fit where codes were");
// .. and from `free` on: [MINIMA_UNITS, TILE_ROWS, 16] f16, sums.
static_assert(32 * MINIMA_UNITS <= 256, "sums fit where codes were");

/// Brings minima and sums of `units` units from `unit` on into shared memory.
template <class Codec, u32 ROWS>
DEVICE void fetch_minima(u8* shared, u8* free, const Table* table, Acts acts, u32 k, u32 unit, u32 units) {
    // neighbouring threads take units of one row, which lie close
    u32 at = threadIdx.x % MINIMA_UNITS, first = threadIdx.x / MINIMA_UNITS;
    if (at >= units) return;
    constexpr u32 STEP = TILE_THREADS / MINIMA_UNITS;
#pragma unroll
    for (u32 pass = 0; pass < TILE_OUTPUTS / STEP; pass++) {
        u32 row = pass * STEP + first;
        Head head;
        Codec::head((const u8*)table->starts[row] + (unit + at) * UNIT_BYTES, head);
        ((float*)(shared + LEAST_AT))[at * TILE_OUTPUTS + row] = head.dmin;
        u32 words[MINIMA / 2];
#pragma unroll
        for (u32 i = 0; i < MINIMA / 4; i++) {
            // minima 0 and 2, 1 and 3 of a word where they follow the sums, even ones first
            u32 four = MINIMA == 8 ? head.minima[i] : byte_perm(head.minima[2 * (i % 2)], head.minima[2 * (i % 2) + 1], i < 2 ? 0x6420 : 0x7531);
            words[2 * i] = bytes_to_halves(four);
            words[2 * i + 1] = bytes_to_halves(four >> 16);
        }
        u8* to = shared + MINIMA_AT + (at * TILE_OUTPUTS + row) * (2 * MINIMA);
        if constexpr (MINIMA == 8) {
            *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
        } else {
            *(uint4*)(to + swizzled_half(0, row)) = make_uint4(words[0], words[1], words[2], words[3]);
            *(uint4*)(to + swizzled_half(1, row)) = make_uint4(words[4], words[5], words[6], words[7]);
        }
    }
#pragma unroll
    for (u32 pass = 0; pass < (ROWS + STEP - 1) / STEP; pass++) {
        u32 row = pass * STEP + first;
        if (row >= ROWS) break;
        u64 from = table->from[row] * (u64)(k / 256) + unit + at;
        ((float*)(shared + LEAST_SCALES_AT))[at * TILE_ROWS + row] = acts.scales[from];
        u8* to = free + (at * TILE_ROWS + row) * 32;
        *(uint4*)(to + swizzled_half(0, row)) = load16(acts.halves + 16 * from);
        *(uint4*)(to + swizzled_half(1, row)) = load16(acts.halves + 16 * from + 8);
    }
}

/// The left operand of 16 outputs from `output` on.
DEVICE void minima_of(const u8* shared, u32 at, u32 output, u32 a[4]) {
    output += at * TILE_OUTPUTS + lane_of() % 16;
    ldmatrix4(a, shared + MINIMA_AT + output * (2 * MINIMA) + (MINIMA == 8 ? 0 : swizzled_half(lane_of() / 16, output)));
}

/// Adds the minima of unit `at` of those fetched to their chains.
template <int TILES>
DEVICE void multiply_minima(const u8* shared, const u8* free, u32 at, Share<TILES>& least) {
    u32 row = warp_of() / OUTPUT_WARPS * (8 * TILES) + lane_of() / 16 * 8 + lane_of() % 8;
    u32 a[2][4];
    float factors[2][2];
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++) {
        minima_of(shared, at, warp_of() % OUTPUT_WARPS * (16 * OUTPUT_TILES) + 16 * i, a[i]);
#pragma unroll
        for (int h = 0; h < 2; h++) factors[i][h] = ((const float*)(shared + LEAST_AT))[at * TILE_OUTPUTS + lane_output() + 16 * i + 8 * h];
    }
    const float* act_scales = (const float*)(shared + LEAST_SCALES_AT) + at * TILE_ROWS + lane_row<TILES>();
#pragma unroll
    for (int pair = 0; pair < TILES / 2; pair++) {
        u32 b[4];
        ldmatrix4(b, free + (at * TILE_ROWS + row + 16 * pair) * 32 + swizzled_half(lane_of() / 8 % 2, row));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float2 scale = *(const float2*)(act_scales + 8 * (2 * pair + j));
#pragma unroll
            for (int i = 0; i < OUTPUT_TILES; i++) {
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                mma_f16(sum, a[i], b + 2 * j);
                float* chain = least.at[i][2 * pair + j];
#pragma unroll
                for (int e = 0; e < 4; e++) chain[e] = fmaf(factors[i][e / 2] * (e % 2 ? scale.y : scale.x), sum[e], chain[e]);
            }
        }
    }
}

/// Takes the minima of all units from the results (256-wide types).
template <class Codec, int TILES>
DEVICE void subtract_minima(u8* shared, u8* free, const Table* table, Acts acts, u32 k, Share<TILES>& share) {
    Share<TILES> least;
    clear<TILES>(least.at);
#pragma unroll 1
    for (u32 unit = 0; unit < k / 256; unit += MINIMA_UNITS) {
        u32 units = ::least(k / 256 - unit, MINIMA_UNITS);
        sync_block();
        fetch_minima<Codec, 8 * TILES * ROW_WARPS>(shared, free, table, acts, k, unit, units);
        sync_block();
#pragma unroll 1
        for (u32 at = 0; at < units; at++) multiply_minima<TILES>(shared, free, at, least);
    }
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) share.at[i][j][e] -= least.at[i][j][e];
}

/// Adds the minima of all blocks to the results (32-wide types).
template <class Codec, int TILES>
DEVICE void add_minima(u8* shared, const Table* table, Acts acts, u32 k, Share<TILES>& share) {
    constexpr u32 ROWS = 8 * TILES * ROW_WARPS;
    float* minima = (float*)(shared + WEIGHTS_AT);        // [2, TILE_OUTPUTS, 4]
    float* act_scales = minima + 8 * TILE_OUTPUTS;        // [TILE_ROWS, ACT_SCALES]
    float* sums = act_scales + ACT_SCALES * TILE_ROWS;    // [TILE_ROWS, ACT_SCALES]
    static_assert(4 * (8 * TILE_OUTPUTS + 24 * TILE_ROWS) <= PLANE_BYTES, "minima fit where codes were");
    Chains<TILES> chains;
#pragma unroll
    for (int b = 0; b < 8; b++) clear<TILES>(chains.at[b]);
#pragma unroll 1
    for (u32 unit = 0; unit < ceil_div(k, 256); unit++) {
        u32 blocks = least(k / 32 - 8 * unit, 8u);
        sync_block();
        for (u32 i = threadIdx.x; i < 8 * TILE_OUTPUTS; i += TILE_THREADS) {
            u32 row = i / 8, b = i % 8;
            const u8* block = (const u8*)table->starts[row] + unit * UNIT_BYTES + b * Codec::BYTES;
            if (b < blocks) minima[(b / 4 * TILE_OUTPUTS + row) * 4 + b % 4] = Codec::minimum(block);
        }
        for (u32 i = threadIdx.x; i < 8 * ROWS; i += TILE_THREADS) {
            u32 row = i / 8, b = i % 8;
            if (b >= blocks) continue;
            u64 at = (u64)table->from[row] * (k / 32) + 8 * unit + b;
            act_scales[row * ACT_SCALES + b] = acts.scales[at];
            sums[row * ACT_SCALES + b] = (float)acts.sums[at];
        }
        sync_block();
#pragma unroll
        for (u32 b = 0; b < 8; b++) {
            if (b >= blocks) break;
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        u32 row = (lane_row<TILES>() + 8 * j + e % 2) * ACT_SCALES + b;
                        float factor = minima[(b / 4 * TILE_OUTPUTS + lane_output() + 16 * i + 8 * (e / 2)) * 4 + b % 4] * act_scales[row];
                        chains.at[b][i][j][e] = fmaf(factor, sums[row], chains.at[b][i][j][e]);
                    }
        }
    }
    Share<TILES> joined;
    join<TILES>(chains, joined);
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) share.at[i][j][e] += joined.at[i][j][e];
}
