// The shape of a tile of a product on tensor cores (mma_tile.cuh), and where its parts lie in shared memory.
//
// Shared memory is addressed in chunks of 16 bytes; chunk c of the 16 of a row of 256 codes lies at `swizzled(c, row)`: eight rows of one chunk
// (ldmatrix), two rows of four chunks 4 or 2 apart (unpacking) and of four neighbouring chunks (copies) all fall on different banks. Addresses are taken
// apart with exclusive or, so rows begin at multiples of 128 bytes.
//
// Macros: TYPE, a codec's name. Of the others a card's own are taken: TILE_OUTPUTS (64 or 128) and TILE_ROWS; TILE_THREADS, BLOCKS; ACT_BUFFERS
// (1 or 2); FOLD, DIRECT, GROUPED, OUTPUT_TILES.
#pragma once
#include "codec.cuh"
#include "group.cuh"

#ifndef TYPE
#define TYPE Q4_K
#endif
typedef TYPE C;

template <bool WIDE>
struct ActsOf { typedef Acts256 T; };
template <>
struct ActsOf<false> { typedef Acts32 T; };
typedef ActsOf<C::WIDE>::T Acts;

constexpr u32 UNIT_BYTES = C::WIDE ? C::BYTES : 8 * C::BYTES;
/// Whether every unit begins at a multiple of 16 bytes.
constexpr bool ALIGNED = C::WIDE && C::BYTES % 16 == 0;
/// Chunks that a unit touches at most.
constexpr u32 HULL = ALIGNED ? UNIT_BYTES / 16 : (UNIT_BYTES + 30) / 16;
constexpr u32 RAW_STRIDE = 16 * (HULL | 1);
/// Values that share a sub-scale, or a scale.
template <class Codec>
DEVICE constexpr u32 sub_of() {
    if constexpr (Codec::WIDE) return Codec::SUB;
    else return 32;
}
/// Sub-scales, or scales, of a unit.
constexpr u32 GROUPS = 256 / sub_of<C>();

// ---- what fits a card

#ifdef __CUDA_ARCH__
constexpr u32 ARCH = __CUDA_ARCH__;
#else
constexpr u32 ARCH = 900;
#endif
/// The cards of data centres: more shared memory, and a product of their tensor cores takes 4 or 8 cycles a quarter of a multiprocessor, not 16.
constexpr bool LARGE = ARCH == 800 || (ARCH >= 900 && ARCH < 1200);
/// Bytes that a block may have.
constexpr u32 SHARED_MAX = ARCH < 800 ? 65536 : ARCH == 800 ? 166912 : LARGE ? 232448 : 101376;

/// Whether codes are multiplied with their sub-scales while they are unpacked: see mma_tile.cuh.
#ifndef FOLD
#define FOLD (C::ID == ID_Q2_K || C::ID == ID_Q3_K ? 1 : C::WIDE && GROUPS == 16 && ARCH >= 900 && LARGE ? 2 : 0)
#endif
/// Whether four warps multiply together: see mma_group.cuh. Compiled for sm_90a alone.
#ifndef GROUPED
#if GROUPED_CODE
#define GROUPED (C::ID == ID_Q4_K || C::ID == ID_Q5_K || C::ID == ID_Q6_K)
#else
#define GROUPED 0
#endif
#endif
/// Whether weights are unpacked in registers, by each warp for itself: see mma_direct.cuh.
#ifndef DIRECT
#define DIRECT ((C::ID == ID_Q4_K || C::ID == ID_Q5_K || C::ID == ID_Q6_K && FOLD == 2) && ARCH >= 800)
#endif
/// Units of raw weights in shared memory.
constexpr u32 RAW_BUFFERS = DIRECT ? 2 : 1;
/// Minima of a unit that are multiplied (Q2_K, Q4_K, Q5_K).
constexpr u32 MINIMA = sub_of<C>() == 32 ? 8 : 16;
/// Units whose minima are in shared memory at a time.
constexpr u32 MINIMA_UNITS = MINIMA == 8 ? 8 : 4;
/// Bytes of theirs an output and a row have: minima, their factors; scales.
constexpr u32 MINIMA_OUTPUT = (2 * MINIMA + 4) * MINIMA_UNITS, MINIMA_ROW = 4 * MINIMA_UNITS;
/// Copies of the codes.
constexpr u32 PLANES = FOLD == 2 ? 2 : 1;
/// Scales of a unit of a row of activations; 8 of which 12 keep banks apart.
constexpr u32 ACT_SCALES = C::WIDE ? 1 : 12;

/// What a tile takes, without what does not depend on its size.
DEVICE constexpr u32 bytes_of(u32 outputs, u32 rows, u32 buffers) {
    u32 weights = DIRECT ? (C::MINIMA ? MINIMA_OUTPUT : 0) : 256 * PLANES + (FOLD ? 0 : 4 * GROUPS) + 4;
    return outputs * (weights + RAW_BUFFERS * RAW_STRIDE + 16) + rows * (buffers * (256 + 4 * ACT_SCALES) + 2 * 16 + 4 + (DIRECT && C::MINIMA ? MINIMA_ROW : 0));
}
DEVICE constexpr bool fits(u32 outputs, u32 rows, u32 buffers) { return bytes_of(outputs, rows, buffers) + 256 <= SHARED_MAX; }

/// Outputs and rows of a tile, and units of activations in shared memory.
#ifndef TILE_OUTPUTS
#define TILE_OUTPUTS (GROUPED || C::WIDE && (fits(128, 128, 2) || fits(128, 64, 2)) ? 128u : 64u)
#endif
#ifndef TILE_ROWS
#define TILE_ROWS (GROUPED || C::WIDE && TILE_OUTPUTS == 128 && fits(128, 128, 2) ? 128u : 64u)
#endif
#ifndef ACT_BUFFERS
#define ACT_BUFFERS (fits(TILE_OUTPUTS, TILE_ROWS, 2) ? 2u : 1u)
#endif

/// Threads of a block. Of GROUPED the first PRODUCERS do not multiply: see mma_pipeline.cuh.
constexpr u32 PRODUCERS = 128;
#ifndef TILE_THREADS
#define TILE_THREADS (GROUPED ? 256u + PRODUCERS : 256u)
#endif
constexpr u32 WARPS = (TILE_THREADS - (GROUPED ? PRODUCERS : 0)) / 32;
/// Rows that are fetched at once, by four threads each.
constexpr u32 PASS = TILE_THREADS / 4;
/// Blocks on a multiprocessor.
#ifndef BLOCKS
#define BLOCKS 1
#endif
/// Tiles of 16 outputs that a warp has.
#ifndef OUTPUT_TILES
#define OUTPUT_TILES (GROUPED || DIRECT && FOLD == 2 ? 1 : 2)
#endif
constexpr u32 OUTPUT_WARPS = TILE_OUTPUTS / (16 * OUTPUT_TILES);
constexpr u32 ROW_WARPS = WARPS / OUTPUT_WARPS;
/// Tiles of 8 rows that a warp has when the block's tile is full.
constexpr int ROW_TILES = TILE_ROWS / 8 / ROW_WARPS;
static_assert(OUTPUT_WARPS * ROW_WARPS == WARPS && ROW_TILES * ROW_WARPS * 8 == TILE_ROWS && TILE_OUTPUTS <= 128 && TILE_ROWS <= 128, "a tile");
static_assert(ROW_TILES == 2 || ROW_TILES == 4 || ROW_TILES == 8 || ROW_TILES == 16, "a warp's part");

/// Where a tile's results go.
struct Placed {
    u64 starts[TILE_OUTPUTS]; // addresses of rows of weights
    u32 to[TILE_ROWS];        // rows of the output
    u32 rows;                 // those that count; the others repeat the last
    u32 room;                 // those that are computed
    u32 output;               // the first output
    u32 unused;
};
/// What a tile is made of.
struct Table : Placed {
    u64 codes[TILE_ROWS]; // addresses of rows of codes
    u32 from[TILE_ROWS];  // rows of the activations
};

// Shared memory, bytes from the start.
constexpr u32 PLANE_BYTES = 256 * TILE_OUTPUTS;
constexpr u32 BUFFER_BYTES = 256 * TILE_ROWS;
constexpr u32 WEIGHTS_AT = 0;                                                   // [PLANES, TILE_OUTPUTS, 256] i8; plane 1: u8
constexpr u32 ACTS_AT = WEIGHTS_AT + (DIRECT ? (C::MINIMA ? MINIMA_OUTPUT * TILE_OUTPUTS + MINIMA_ROW * TILE_ROWS : 0) : PLANES * PLANE_BYTES); // [ACT_BUFFERS, TILE_ROWS, 256] i8
constexpr u32 SCALES_AT = ACTS_AT + ACT_BUFFERS * BUFFER_BYTES;                 // [GROUPS / 4, TILE_OUTPUTS, 4] i32 (WIDE, FOLD 0), f32 (not WIDE)
constexpr u32 FACTORS_AT = SCALES_AT + (FOLD || DIRECT ? 0 : 4 * GROUPS * TILE_OUTPUTS);  // [TILE_OUTPUTS] f32 (WIDE)
constexpr u32 ACT_SCALES_AT = FACTORS_AT + (DIRECT ? 0 : 4 * TILE_OUTPUTS);                    // [ACT_BUFFERS, TILE_ROWS, ACT_SCALES] f32

// GROUPED, instead of these: STAGES units; of types with minima sums of the codes of SUMS_UNITS units with the scales of their rows, and minima of the weights of
// the first KEPT_MINIMA units with their factors.
constexpr u32 STAGES = 3;
constexpr u32 SUMS_UNITS = UNIT_BYTES <= 144 ? 8 : 4;
constexpr u32 KEPT_MINIMA = 16;
constexpr u32 STAGE_ACTS_AT = 0;                                                                     // [STAGES, 2, TILE_ROWS, 128] i8
constexpr u32 STAGE_SCALES_AT = STAGE_ACTS_AT + STAGES * BUFFER_BYTES;                               // [STAGES, TILE_ROWS] f32
constexpr u32 SUMS_AT = STAGE_SCALES_AT + STAGES * 4 * TILE_ROWS;                                    // [SUMS_UNITS, TILE_ROWS, 16] f16
constexpr u32 SUMS_SCALES_AT = SUMS_AT + (C::MINIMA ? SUMS_UNITS * 32 * TILE_ROWS : 0);              // [SUMS_UNITS, TILE_ROWS] f32
constexpr u32 KEPT_MINIMA_AT = SUMS_SCALES_AT + (C::MINIMA ? SUMS_UNITS * 4 * TILE_ROWS : 0);        // [KEPT_MINIMA, TILE_OUTPUTS, 8] u8
constexpr u32 KEPT_LEAST_AT = KEPT_MINIMA_AT + (C::MINIMA ? KEPT_MINIMA * 8 * TILE_OUTPUTS : 0);     // [KEPT_MINIMA, TILE_OUTPUTS] f32
constexpr u32 BARRIERS_AT = KEPT_LEAST_AT + (C::MINIMA ? KEPT_MINIMA * 4 * TILE_OUTPUTS : 0);        // [2 STAGES + 2] u64
constexpr u32 STAGE_RAW_AT = BARRIERS_AT + 8 * (2 * STAGES + 2);                                     // [STAGES, TILE_OUTPUTS, RAW_STRIDE]; 32 bytes behind may be read

/// Tables of GROUPED: a tile's results may be stored after what the fourth tile behind it is made of has been told.
constexpr u32 TABLES = GROUPED ? 4 : 2;
constexpr u32 TABLES_AT = GROUPED ? STAGE_RAW_AT + STAGES * TILE_OUTPUTS * RAW_STRIDE + 32 : ACT_SCALES_AT + ACT_BUFFERS * 4 * ACT_SCALES * TILE_ROWS; // [TABLES] Table
constexpr u32 PLACES_AT = TABLES_AT + TABLES * sizeof(Table);                   // [TILE_ROWS] u32: of the next tile, where rows are gathered
constexpr u32 NAMES_AT = PLACES_AT + 4 * TILE_ROWS;                             // [2] uint4: of this and the next tile
constexpr u32 ADDRESSES_AT = NAMES_AT + 32;                                     // [2] addresses of matrices
constexpr u32 RAW_AT = ADDRESSES_AT + 16;                                       // [RAW_BUFFERS, TILE_OUTPUTS, RAW_STRIDE]; 32 bytes behind may be read
constexpr u32 TILE_BYTES = (RAW_AT + (GROUPED ? 0 : RAW_BUFFERS * RAW_STRIDE * TILE_OUTPUTS + 32) + 127) / 128 * 128;
static_assert(GROUPED || !DIRECT || ACT_BUFFERS == 2, "buffers");
static_assert(RAW_AT % 16 == 0 && TABLES_AT % 16 == 0 && STAGE_RAW_AT % 16 == 0 && TILE_BYTES <= SHARED_MAX, "shared memory");

/// Where chunk `c` of the 16 of a row lies.
DEVICE u32 swizzled(u32 c, u32 row) { return c ^ (row & 7) ^ ((row & 1) << 2) ^ ((c >> 3) << 1); }
/// Where half `c` of a row of 32 bytes lies.
DEVICE u32 swizzled_half(u32 c, u32 row) { return 16 * (c ^ (row >> 2 & 1)); }
/// One of four numbers.
DEVICE float part_of(float4 four, u32 i) { return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w; }
/// An address with some of its bits turned.
template <typename T>
DEVICE T* turned(T* at, u32 bits) { return (T*)((u64)at ^ bits); }

/// A warp's results: `[i][j][e]` is output `16 i + g + 8 (e / 2)` and row `8 j + 2 t + e % 2` of its share.
template <int TILES>
struct Share { float at[OUTPUT_TILES][TILES][4]; };

/// Rows that are computed where `rows` count: as a `Share` holds them. GROUPED has one more between the two largest.
DEVICE u32 room_for(u32 rows) {
    u32 room = 16 * ROW_WARPS;
    while (room < rows) room *= 2;
    return GROUPED && room == 128 * ROW_WARPS && rows <= 96 * ROW_WARPS ? 96 * ROW_WARPS : room;
}

/// Outputs and rows of the block that this lane's results begin with.
DEVICE u32 lane_output() { return warp_of() % OUTPUT_WARPS * (16 * OUTPUT_TILES) + lane_of() / 4; }
template <int TILES>
DEVICE u32 lane_row() { return (GROUPED ? 0 : warp_of() / OUTPUT_WARPS * (8 * TILES)) + 2 * (lane_of() % 4); }

template <int TILES, typename T>
DEVICE void clear(T (&x)[OUTPUT_TILES][TILES][4]) {
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[i][j][e] = 0;
}

/// Eight chains a result: `[b]` takes the blocks b mod 8.
template <int TILES>
struct Chains { float at[8][OUTPUT_TILES][TILES][4]; };

/// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))
template <int TILES>
DEVICE void join(const Chains<TILES>& chains, Share<TILES>& share) {
#pragma unroll
    for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float four[4];
#pragma unroll
                for (int c = 0; c < 4; c++) four[c] = chains.at[c][i][j][e] + chains.at[c + 4][i][j][e];
                share.at[i][j][e] = (four[0] + four[2]) + (four[1] + four[3]);
            }
}
