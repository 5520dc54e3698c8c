// The walk of GROUPED tiles (mma_group.cuh). Four warps bring units to shared memory, STAGES of them; twice four warps multiply, each four 64 outputs by all
// rows of the tile, and wait for nobody but the former: while the ones add up or store, the others have the tensor cores.
//
// Barriers (mbarrier): a stage is full once the copies of all producers are there, and empty once all warps that multiply have left it. Likewise the sums that
// minima are multiplied with, SUMS_UNITS units at a time, which are read when all codes are multiplied.
#pragma once
#include "mma_group.cuh"

#if GROUPED_CODE

/// Barrier `i` of a block: full stages, empty stages, full sums, empty sums.
DEVICE u32 barrier_at(const u8* shared, u32 i) { return shared_address(shared + BARRIERS_AT) + 8 * i; }
DEVICE u32 full_at(const u8* shared, u32 stage) { return barrier_at(shared, stage); }
DEVICE u32 empty_at(const u8* shared, u32 stage) { return barrier_at(shared, STAGES + stage); }
DEVICE u32 sums_full_at(const u8* shared) { return barrier_at(shared, 2 * STAGES); }
DEVICE u32 sums_empty_at(const u8* shared) { return barrier_at(shared, 2 * STAGES + 1); }

DEVICE void sync_producers() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
/// A stage and the parity of its phases.
struct Stage {
    u32 at, parity;

    __device__ __forceinline__ void next() {
        at = at + 1 == STAGES ? 0 : at + 1;
        parity ^= at == 0;
    }
};

// ---- producers

// Eight threads take 128 bytes of a row, so that a warp's copy touches few lines of memory and each quarter of it all banks.

/// Asks for the raw weights of a unit.
DEVICE void fetch_weights_grouped(u8* shared, const Table* table, u32 unit, u32 stage) {
    constexpr u32 STEP = PRODUCERS / 8;
    // what is behind 128 bytes: there is some in types that are multiplied in this way
    constexpr u32 REST = HULL > 8 ? HULL - 8 : 1, LANES = REST > 4 ? 8 : REST > 2 ? 4 : REST, REST_STEP = PRODUCERS / LANES;
    u32 row = threadIdx.x / 8, c = threadIdx.x % 8;
    u8* raw = shared + STAGE_RAW_AT + stage * (TILE_OUTPUTS * RAW_STRIDE);
    u8* to = raw + row * RAW_STRIDE + 16 * c;
#pragma unroll
    for (u32 pass = 0; pass < TILE_OUTPUTS / STEP; pass++) {
        u64 start = table->starts[pass * STEP + row] + unit * UNIT_BYTES;
        u32 shift = ALIGNED ? 0 : (u32)start & 15;
        copy16_async(to + pass * (STEP * RAW_STRIDE), (const u8*)(start - shift) + 16 * c);
    }
    row = threadIdx.x / LANES, c = 8 + threadIdx.x % LANES;
    to = raw + row * RAW_STRIDE + 16 * c;
#pragma unroll
    for (u32 pass = 0; pass < TILE_OUTPUTS / REST_STEP; pass++) {
        u64 start = table->starts[pass * REST_STEP + row] + unit * UNIT_BYTES;
        u32 shift = ALIGNED ? 0 : (u32)start & 15;
        if (16 * c < shift + UNIT_BYTES) copy16_async(to + pass * (REST_STEP * RAW_STRIDE), (const u8*)(start - shift) + 16 * c);
    }
}

/// Asks for the codes and scales of a unit of the first `room` rows, a multiple of 16.
DEVICE void fetch_acts_grouped(u8* shared, const Table* table, Acts acts, u32 units, u32 unit, u32 stage, u32 room) {
    constexpr u32 STEP = PRODUCERS / 8;
    u32 row = threadIdx.x / 8, c = threadIdx.x % 8;
    u8* to = shared + STAGE_ACTS_AT + stage * BUFFER_BYTES + row * 128 + 16 * (c ^ row % 8);
#pragma unroll
    for (u32 pass = 0; pass < TILE_ROWS / STEP; pass++) {
        if (pass * STEP >= room) break;
        const u8* from = (const u8*)table->codes[pass * STEP + row] + 256 * unit + 16 * c;
        copy16_async(to + pass * (STEP * 128), from);
        copy16_async(to + pass * (STEP * 128) + TILE_ROWS * 128, from + 128);
    }
    if (threadIdx.x < room)
        copy4_async((float*)(shared + STAGE_SCALES_AT) + stage * TILE_ROWS + threadIdx.x, acts.scales + (u64)table->from[threadIdx.x] * units + unit);
}

/// Asks for the sums, and the scales, of units `first ..`, SUMS_UNITS of them, as many as there are.
DEVICE void fetch_sums(u8* shared, const Table* table, Acts acts, u32 units, u32 first, u32 room) {
    constexpr u32 LANES = 2 * SUMS_UNITS, STEP = PRODUCERS / LANES;
    u32 c = threadIdx.x % LANES, at = c / 2, half = c % 2;
    if (first + at >= units) return;
#pragma unroll 4
    for (u32 row = threadIdx.x / LANES; row < room; row += STEP) {
        u64 from = (u64)table->from[row] * units + first + at;
        copy16_async(shared + SUMS_AT + (at * TILE_ROWS + row) * 32 + swizzled_half(half, row), (const u8*)acts.halves + 32 * from + 16 * half);
        if (half == 0) copy4_async((float*)(shared + SUMS_SCALES_AT) + at * TILE_ROWS + row, acts.scales + from);
    }
}

/// Brings everything that the block's tiles need.
template <class Work>
DEVICE void produce(u8* shared, const Work& work, u32 tile, u32 tiles, u32 stride) {
    const u32 units = work.k / 256;
    Stage stage{0, 1};
    u32 sums_parity = 1;
    typename Work::Ahead now, next;
    work.name_ahead(now, tile);
    work.ask_ahead(now);
    if (tile + stride < tiles) work.name_ahead(next, tile + stride);
#pragma unroll 1
    for (u32 number = 0; tile < tiles; number++, tile += stride) {
        // whoever has left the stage has left the table that the new one lies over
        barrier_wait(empty_at(shared, stage.at), stage.parity);
        work.put_ahead(shared, number, now);
        sync_producers();
        work.settle(shared, number, tile);
        sync_producers();
        const Table* table = table_of(shared, number);
        // of the tiles behind this one, while it is brought
        now = next;
        if (tile + stride < tiles) work.ask_ahead(now);
        if (tile + 2 * stride < tiles) work.name_ahead(next, tile + 2 * stride);
        const u32 room = table->room, sums_at = units > 2 ? 2 : units - 1;
#pragma unroll 1
        for (u32 unit = 0; unit < units; unit++) {
            if (unit > 0) barrier_wait(empty_at(shared, stage.at), stage.parity);
            fetch_weights_grouped(shared, table, unit, stage.at);
            fetch_acts_grouped(shared, table, work.acts, units, unit, stage.at, room);
            barrier_arrive_copied(full_at(shared, stage.at));
            // what was written in the table, too
            if (threadIdx.x == 0) barrier_arrive(full_at(shared, stage.at));
            stage.next();
            if constexpr (C::MINIMA) {
                const auto bring = [&](u32 first) {
                    barrier_wait(sums_empty_at(shared), sums_parity);
                    fetch_sums(shared, table, work.acts, units, first, room);
                    barrier_arrive_copied(sums_full_at(shared));
                    sums_parity ^= 1;
                };
                // by then the tile before has most likely been stored
                if (unit == sums_at) bring(0);
                if (unit + 1 == units)
                    for (u32 first = SUMS_UNITS; first < units; first += SUMS_UNITS) bring(first);
            }
        }
    }
}

// ---- the others

/// A tile, whose first unit is there.
template <class Work, int TILES>
DEVICE void consume_tile(u8* shared, const Work& work, const Placed* placed, Stage& stage, u32& sums_parity) {
    const u32 units = work.k / 256;
    Share<TILES> share;
    clear<TILES>(share.at);
#pragma unroll 1
    for (u32 unit = 0; unit < units; unit++) {
        if (unit > 0) barrier_wait(full_at(shared, stage.at), stage.parity);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        multiply_grouped<C, TILES>(shared, placed, stage.at, unit, share);
        sync_warp();
        if (lane_of() == 0) barrier_arrive(empty_at(shared, stage.at));
        stage.next();
    }
    if constexpr (C::MINIMA) {
        Share<TILES> least;
        clear<TILES>(least.at);
        // minima were kept by other lanes of the warp
        sync_warp();
#pragma unroll 1
        for (u32 first = 0; first < units; first += SUMS_UNITS) {
            barrier_wait(sums_full_at(shared), sums_parity);
            sums_parity ^= 1;
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll 1
            for (u32 at = 0; at < ::least(units - first, SUMS_UNITS); at++) add_least<C, TILES>(shared, placed, first + at, at, least);
            sync_warp();
            if (lane_of() == 0) barrier_arrive(sums_empty_at(shared));
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) share.at[0][j][e] -= least.at[0][j][e];
    }
    work.template store<TILES>(placed, share);
}

template <class Work>
DEVICE void consume(u8* shared, const Work& work, u32 tile, u32 tiles, u32 stride) {
    Stage stage{0, 0};
    u32 sums_parity = 0;
#pragma unroll 1
    for (u32 number = 0; tile < tiles; number++, tile += stride) {
        barrier_wait(full_at(shared, stage.at), stage.parity);
        const Placed* placed = table_of(shared, number);
        u32 room = placed->room;
        if (room == 16) consume_tile<Work, 2>(shared, work, placed, stage, sums_parity);
        else if (room == 32) consume_tile<Work, 4>(shared, work, placed, stage, sums_parity);
        else if (room == 64) consume_tile<Work, 8>(shared, work, placed, stage, sums_parity);
        else if (room == 96) consume_tile<Work, 12>(shared, work, placed, stage, sums_parity);
        else consume_tile<Work, 16>(shared, work, placed, stage, sums_parity);
    }
}

/// All tiles of the block.
template <class Work>
DEVICE void walk_grouped(u8* shared, const Work& work) {
    const u32 tiles = work.count(), stride = gridDim.x * gridDim.y, tile = blockIdx.y * gridDim.x + blockIdx.x;
    if (tile >= tiles) return;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full_at(shared, i), PRODUCERS + 1);
            barrier_init(empty_at(shared, i), WARPS);
        }
        barrier_init(sums_full_at(shared), PRODUCERS);
        barrier_init(sums_empty_at(shared), WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_block();
    if (threadIdx.x < PRODUCERS) {
        fewer_registers<24>();
        produce(shared, work, tile, tiles, stride);
    } else {
        more_registers<240>();
        consume(shared, work, tile, tiles, stride);
    }
}

#endif
