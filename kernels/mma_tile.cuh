// A tile of a product of quantised weights with many rows of quantised activations, by int8 tensor cores.
//
//     out[row, output] = the canonical dot product of both (src/cpu/kernels.rs): the same bits as every other kernel gives.
//
// A block takes tiles of TILE_OUTPUTS x TILE_ROWS of the result, one after another (as many apart as the grid has blocks), and walks along K
// in units of 256 values. Of each unit the raw weight blocks and the codes of the activations come by asynchronous copies, one unit ahead, also from one
// tile to the next. Weights are the left operand: a lane holds outputs g and g + 8 of one or two tiles of 16, and rows 2 t and 2 t + 1 of every tile of 8
// (g = lane / 4, t = lane % 4). A tile with few rows takes a smaller `Share`. Three ways to multiply:
//     all threads unpack the weights, once, to i8 codes and integer sub-scales in shared memory (mma_unpack.cuh); then each warp multiplies its part of 32
//     outputs x 8 ROW_TILES rows (mma_multiply.cuh)
//     DIRECT: Q4_K, Q5_K and, with two planes, Q6_K are unpacked in registers (mma_direct.cuh)
//     GROUPED: the same on sm_90, four warps together (mma_group.cuh), with warps of their own for the copies (mma_pipeline.cuh)
//
// 256-wide types, three ways to the exact integer sum of a unit, by FOLD; then one fmaf per result:
//     0  the sum of each sub-block is exact in the tensor core and multiplied with its sub-scale as an integer
//     1  code * sub-scale fits 8 bits (Q2_K, Q3_K with the sign turned): folded while unpacking, one product a unit
//     2  code * sub-scale fits 16 bits: folded into two planes, 256 high + low, both products added up in the tensor core
// 2 trades multiplications of integers for products of the tensor core: it pays where those are fast (sm_90, 100) and sub-scales change every 16 values.
// Minima follow in a loop of their own, so that their chains need no registers before: the sums of 16 codes and the minima are exact in f16, and what
// their products add up to (below 2^21) in f32, so one f16 product does a unit.
// 32-wide types: eight chains per result stay in registers, for which the tile is smaller. The tensor core starts from 1.5 * 2^23 as an integer, so that
// its result is, as bits, a float above that number by the sum (below 2^20).
#pragma once
#include "mma_direct.cuh"
#include "mma_minima.cuh"
#include "mma_multiply.cuh"
#include "mma_unpack.cuh"

/// `store(at, j, e, on)` for the rows of this lane, whose results are `[.][j][e]` and `[.][j][e + 2]` of a `Share`: `at` is the row in `out`, rows of which are
/// `stride` apart; it counts if `on` holds.
template <int TILES, class Store>
DEVICE void each_row(const Placed* table, float* out, u32 stride, Store store) {
    u32 first = lane_row<TILES>(), left = table->rows - least(first, table->rows);
    // read before anything is stored: what is stored might be the table, as far as the compiler knows
    uint2 to[TILES];
#pragma unroll
    for (int j = 0; j < TILES; j++) to[j] = *(const uint2*)(table->to + first + 8 * j);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) store((float*)((u64)out + (u64)(e ? to[j].y : to[j].x) * (4 * stride)), j, e, (u32)(8 * j + e) < left);
}

/// Stores what counts of the results: rows of `out` are `stride` apart and have `outputs` outputs.
template <int TILES>
DEVICE void store_share(const Placed* table, const Share<TILES>& share, float* out, u32 outputs, u32 stride) {
    u32 output = table->output + lane_output();
    each_row<TILES>(table, out + output, stride, [&](float* at, int j, int e, bool on) {
#pragma unroll
        for (int i = 0; i < OUTPUT_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (on && output + 16 * i + 8 * h < outputs) at[16 * i + 8 * h] = share.at[i][j][e + 2 * h];
    });
}

// ---- the walk

// The work of a launch is told by a class with
//     acts, k                           what all tiles read
//     count()                           tiles
//     name(shared, number, tile)        asks for what names tile `tile`, the block's `number`th
//     ask(shared, number)               asks for what `settle` needs; its name is there
//     settle(shared, number, tile)      fills Table `number % 2`
//     store<TILES>(table, share)        takes the results
// and where tiles are GROUPED, in place of name and ask, with what they ask for in registers
//     name_ahead(ahead, tile)           asks for what names the tile
//     ask_ahead(ahead)                  asks for what `settle` needs
//     put_ahead(shared, number, ahead)  puts it where `settle` looks

DEVICE Table* table_of(u8* shared, u32 number) { return (Table*)(shared + TABLES_AT) + number % TABLES; }

/// How many rows of a tile count, and its first output.
DEVICE void set_table(u8* shared, u32 number, u32 output, u32 rows) {
    Table* table = table_of(shared, number);
    if (threadIdx.x == 0) {
        table->rows = rows;
        table->room = room_for(rows);
        table->output = output;
    }
}
/// Row `i` of a tile.
DEVICE void set_row(u8* shared, u32 number, u32 i, Acts acts, u32 k, u32 from, u32 to) {
    Table* table = table_of(shared, number);
    table->from[i] = from;
    table->to[i] = to;
    table->codes[i] = (u64)acts.codes + (u64)from * k;
}
/// Output `i` of a tile: row `row` of the matrix at `matrix`.
DEVICE void set_output(u8* shared, u32 number, u32 i, u64 matrix, u32 row, u32 k) {
    table_of(shared, number)->starts[i] = matrix + (u64)(k / (C::WIDE ? 256 : 32)) * C::BYTES * row;
}

#include "mma_pipeline.cuh"

/// Where a block is.
template <class Work>
struct Walk {
    u8* shared;
    Work work;
    /// All tiles, tiles from one of the block's to the next, the current one and how many were before it.
    u32 tiles, stride, tile, number;
    /// Units done, of all tiles: says which buffer is whose.
    u32 turn;

    __device__ __forceinline__ bool more() const { return tile + stride < tiles; }

    /// What `settle` needs for the next tile, and the name of the one after.
    __device__ __forceinline__ void ask() {
        work.ask(shared, number + 1);
        if (tile + 2 * stride < tiles) work.name(shared, number + 2, tile + 2 * stride);
    }

    __device__ __forceinline__ void fetch(const Table* table, u32 unit, u32 turn) {
        fetch_weights(shared, table, work.k, unit, turn % RAW_BUFFERS);
    }
    __device__ __forceinline__ void fetch_rows(const Table* table, u32 unit, u32 turn) {
        fetch_acts(shared, table, work.acts, work.k, unit, turn % ACT_BUFFERS, table->room);
    }

    /// Fills the first table and asks for the first unit.
    __device__ __forceinline__ void begin() {
        work.name(shared, 0, tile);
        if (more()) work.name(shared, 1, tile + stride);
        copy_commit();
        copy_wait<0>();
        sync_block();
        work.ask(shared, 0);
        turn_over(0);
    }

    /// With nothing to hide behind: waits for what was asked for, settles tile `number`, asks for its first unit.
    __device__ __forceinline__ void turn_over(u32 number) {
        copy_commit();
        copy_wait<0>();
        sync_block();
        work.settle(shared, number, tile + (number - this->number) * stride);
        sync_block();
        fetch(table_of(shared, number), 0, turn);
        fetch_rows(table_of(shared, number), 0, turn);
        copy_commit();
    }

    /// Computes the tile, whose first unit is on its way, and asks for the first unit of the next.
    template <int TILES>
    __device__ __forceinline__ void run() {
        const Table *table = table_of(shared, number), *next = table_of(shared, number + 1);
        u32 k = work.k, units = ceil_div(k, 256);
        Share<TILES> share;
        Chains<C::WIDE ? 1 : TILES> chains; // not used by WIDE types
        if constexpr (C::WIDE) {
            clear<TILES>(share.at);
        } else {
#pragma unroll
            for (int b = 0; b < 8; b++) clear<TILES>(chains.at[b]);
        }
#pragma unroll 1
        for (u32 unit = 0; unit < units; unit++) {
            copy_wait<0>();
            sync_block();
            bool last = unit + 1 == units, on = last && unit > 0 && more();
            if constexpr (DIRECT) {
                if (units > 2 ? unit + 2 == units && more() : on) {
                    work.settle(shared, number + 1, tile + stride);
                    if (units == 2) sync_block();
                }
            } else {
                unpack<C>(shared, table, k, unit);
                if (on) work.settle(shared, number + 1, tile + stride);
                sync_block();
            }
            // what comes next: of the same tile or of the next one
            const bool wanted = !last || on;
            const Table* from = on ? next : table;
            const u32 coming = on ? 0 : unit + 1;
            if (wanted) {
                fetch(from, coming, turn + 1);
                if (ACT_BUFFERS == 2) fetch_rows(from, coming, turn + 1);
            }
            if (unit == 0 && !last && more()) ask();
            copy_commit();
            if constexpr (DIRECT && FOLD == 2) multiply_planes<C, TILES>(shared, table, turn % 2, unit, share);
            else if constexpr (DIRECT) multiply_direct<C, TILES>(shared, turn % 2, share);
            else if constexpr (C::WIDE) multiply_wide<C, TILES>(shared, turn % ACT_BUFFERS, share);
            else multiply_narrow<C, TILES>(shared, turn % ACT_BUFFERS, least(k / 32 - 8 * unit, 8u), chains);
            turn++;
            if (ACT_BUFFERS == 1 && !last) {
                sync_block();
                fetch_rows(table, unit + 1, turn);
                copy_commit();
            }
        }
        if constexpr (!C::WIDE) join<TILES>(chains, share);
        if constexpr (C::MINIMA && C::WIDE) {
            // the sums that came beside the last unit; what was asked for after them may still be under way
            copy_wait<1>();
            subtract_minima<C, TILES>(shared, shared + ACTS_AT + (turn - 1) % ACT_BUFFERS * BUFFER_BYTES, table, work.acts, k, share);
        }
        if constexpr (C::MINIMA && !C::WIDE) add_minima<C, TILES>(shared, table, work.acts, k, share);
        work.template store<TILES>(table, share);
        if (units == 1 && more()) {
            ask();
            turn_over(number + 1);
        } else if (ACT_BUFFERS == 1 && more()) {
            sync_block();
            fetch_rows(next, 0, turn);
            copy_commit();
        }
    }
};

/// All tiles of the block.
template <class Work>
DEVICE void walk(u8* shared, Work work) {
#if GROUPED_CODE
    if constexpr (GROUPED) {
        walk_grouped(shared, work);
    } else
#endif
    {
        Walk<Work> at{shared, work, work.count(), gridDim.x * gridDim.y, blockIdx.y * gridDim.x + blockIdx.x, 0, 0};
        if (at.tile >= at.tiles) return;
        at.begin();
#pragma unroll 1
        for (;;) {
            u32 room = table_of(shared, at.number)->room;
            if (room == 16 * ROW_WARPS) at.template run<2>();
            else if (room == 32 * ROW_WARPS) at.template run<ROW_TILES < 4 ? 2 : 4>();
            else if (room == 64 * ROW_WARPS) at.template run<ROW_TILES < 8 ? ROW_TILES : 8>();
            else at.template run<ROW_TILES>();
            if (!at.more()) return;
            at.tile += at.stride;
            at.number++;
        }
    }
}
