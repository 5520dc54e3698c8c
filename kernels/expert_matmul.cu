// Products of experts with many rows, by int8 tensor cores: see mma_tile.cuh. The rows that chose an expert are multiplied together.
//
//     hidden[place, i] = activated(gate_e[i] . acts[place / used], up_e[i] . acts[place / used])     e = the expert of the place
//     out[place, o] = down_e[o] . acts[place / div]
//
// canonical arithmetic: the same bits as any other kernel, however many rows share an expert.
//
// `expert_tiles`: the list of tiles, at most TILE_ROWS places of one expert each: tiles [tile_count] x (expert, where in `places` it begins, places, 0).
// tile_count [2]: tiles, places (the latter for a launch that quantises `hidden`). One block of 256 threads; once for all products of a layer that have the
// same TILE_ROWS.
// `expert_gate_up_mma`: half of a block's outputs are gate's, half up's, side by side in one lane. TYPE is both matrices'. Where they differ:
// `expert_mma` twice and the activation apart, as where experts have biases.
// `expert_mma`: any matrix; down with div 1, others with div = used.
//
// Shapes: gate_at, up_at, weights_at [experts] addresses of matrices [width, k] as blocks of TYPE, rows contiguous; acts [rows, k] (gate, up) or
// [places, k] (down) in the form of TYPE; places [places] u32; hidden [places, width] f32; out [places, outputs] f32.
// There are at most places / TILE_ROWS + min(experts, places) tiles.
// Grid: any; blocks share the tiles. Best is one block a multiprocessor: more find their registers taken. Block: TILE_THREADS.
// Shared memory: TILE_BYTES, dynamic (mma_shape.cuh).
// Exact. Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPE (a codec's name), ACTIVATION (functions.cuh); for experiments TILE_OUTPUTS, TILE_ROWS, ACT_BUFFERS, FOLD (mma_shape.cuh).
#include "functions.cuh"
#include "mma_tile.cuh"

KERNEL(256) expert_tiles(const u32* group_expert, const u32* group_start, const u32* group_count, u32 tile_rows, uint4* tiles, u32* tile_count) {
    SHARED(u32, sums, 8);
    SHARED(u32, total, 1);
    wait_for_previous();
    u32 groups = group_count[0];
    if (threadIdx.x == 0) total[0] = 0;
    sync_block();
    for (u32 base = 0; base < groups; base += 256) {
        u32 group = base + threadIdx.x;
        u32 start = group < groups ? group_start[group] : 0, end = group < groups ? group_start[group + 1] : 0;
        u32 mine = ceil_div(end - start, tile_rows), before = mine;
#pragma unroll
        for (u32 by = 1; by < 32; by *= 2) {
            u32 x = shfl_up(before, by);
            if (lane_of() >= by) before += x;
        }
        if (lane_of() == 31) sums[warp_of()] = before;
        sync_block();
        u32 at = total[0] + before - mine;
        for (u32 warp = 0; warp < warp_of(); warp++) at += sums[warp];
        for (u32 i = 0; i < mine; i++) {
            u32 first = start + i * tile_rows;
            tiles[at + i] = make_uint4(group_expert[group], first, least(end - first, tile_rows), 0);
        }
        sync_block();
        if (threadIdx.x == 255) total[0] = at + mine;
        sync_block();
    }
    if (threadIdx.x == 0) {
        tile_count[0] = total[0];
        tile_count[1] = groups ? group_start[groups] : 0;
    }
}

/// Products of gathered rows with matrices of experts.
struct Gathered {
    Acts acts;
    u32 k;
    const u64 *first, *second; // [experts] addresses of matrices; the second may be missing
    const u32* places;
    const uint4* tiles;
    float* out;
    u32 outputs, div, across, lists;

    __device__ __forceinline__ u32 count() const { return across * lists; }
    __device__ __forceinline__ void name(u8* shared, u32 number, u32 tile) const {
        if (threadIdx.x == 0) copy16_async(shared + NAMES_AT + number % 2 * 16, tiles + tile / across);
    }
    __device__ __forceinline__ void ask(u8* shared, u32 number) const {
        uint4 name = *(const uint4*)(shared + NAMES_AT + number % 2 * 16);
        u32 i = threadIdx.x;
        if (i < TILE_ROWS) copy4_async(shared + PLACES_AT + 4 * i, places + name.y + least(i, name.z - 1));
        // the last threads take the addresses, half a one each
        u32 half = TILE_THREADS - 1 - i;
        if (half < (second ? 4 : 2)) copy4_async(shared + ADDRESSES_AT + 4 * half, (const u32*)((half < 2 ? first : second) + name.x) + half % 2);
    }
    struct Ahead {
        uint4 name;
        u32 place;
        u64 first, second;
    };
    __device__ __forceinline__ void name_ahead(Ahead& ahead, u32 tile) const { ahead.name = tiles[tile / across]; }
    __device__ __forceinline__ void ask_ahead(Ahead& ahead) const {
        ahead.place = places[ahead.name.y + least(threadIdx.x, ahead.name.z - 1)];
        ahead.first = first[ahead.name.x];
        if (second) ahead.second = second[ahead.name.x];
    }
    __device__ __forceinline__ void put_ahead(u8* shared, u32 number, const Ahead& ahead) const {
        ((u32*)(shared + PLACES_AT))[threadIdx.x] = ahead.place;
        if (threadIdx.x > 0) return;
        *(uint4*)(shared + NAMES_AT + number % 2 * 16) = ahead.name;
        ((u64*)(shared + ADDRESSES_AT))[0] = ahead.first;
        ((u64*)(shared + ADDRESSES_AT))[1] = ahead.second;
    }
    __device__ __forceinline__ void settle_rows(u8* shared, u32 number, u32 output) const {
        u32 rows = ((const uint4*)(shared + NAMES_AT + number % 2 * 16))->z;
        set_table(shared, number, output, rows);
        if (threadIdx.x < TILE_ROWS) {
            u32 place = ((const u32*)(shared + PLACES_AT))[threadIdx.x];
            set_row(shared, number, threadIdx.x, acts, k, place / div, place);
        }
    }
};

/// One matrix.
struct Single : Gathered {
    __device__ __forceinline__ void settle(u8* shared, u32 number, u32 tile) const {
        u32 output = tile % across * TILE_OUTPUTS;
        settle_rows(shared, number, output);
        u64 matrix = *(const u64*)(shared + ADDRESSES_AT);
        if (threadIdx.x < TILE_OUTPUTS) set_output(shared, number, threadIdx.x, matrix, least(output + threadIdx.x, outputs - 1), k);
    }
    template <int TILES>
    __device__ __forceinline__ void store(const Placed* table, const Share<TILES>& share) const {
        store_share<TILES>(table, share, out, outputs, outputs);
    }
};

/// Gate and up: of the outputs of a warp the first half are gate's, the others up's, so that a lane has both.
struct Pair : Gathered {
    static constexpr u32 HALF = 8 * OUTPUT_TILES;
    __device__ __forceinline__ void settle(u8* shared, u32 number, u32 tile) const {
        u32 output = tile % across * (TILE_OUTPUTS / 2);
        settle_rows(shared, number, output);
        u32 i = threadIdx.x;
        u64 matrix = ((const u64*)(shared + ADDRESSES_AT))[i / HALF % 2];
        if (i < TILE_OUTPUTS) set_output(shared, number, i, matrix, least(output + i / (2 * HALF) * HALF + i % HALF, outputs - 1), k);
    }
    template <int TILES>
    __device__ __forceinline__ void store(const Placed* table, const Share<TILES>& share) const {
        const u32 output = table->output + lane_output() / (2 * HALF) * HALF + lane_of() / 4, end = outputs;
        // by value: what a lambda reads through `this` has spilled registers
        each_row<TILES>(table, out + output, outputs, [&share, output, end](float* at, int j, int e, bool on) {
#pragma unroll
            for (int h = 0; h < OUTPUT_TILES; h++) {
                float gate = share.at[0][j][e + 2 * h], up = OUTPUT_TILES == 2 ? share.at[OUTPUT_TILES - 1][j][e + 2 * h] : share.at[0][j][e + 2];
                // for all, so that no branch parts it from the others; without GROUPED registers are short
                float x = GROUPED ? activated_evenly(gate, up) : 0.0f;
                if (on && output + 8 * h < end) at[8 * h] = GROUPED ? x : activated(gate, up);
            }
        });
    }
};

KERNEL_MIN(TILE_THREADS, BLOCKS)
expert_gate_up_mma(const u64* gate_at, const u64* up_at, Acts acts, const u32* places, const uint4* tiles, const u32* tile_count, float* hidden, u32 width,
                   u32 k, u32 used) {
    DYNAMIC_SHARED(shared);
    wait_for_previous();
    walk(shared, Pair{{acts, k, gate_at, up_at, places, tiles, hidden, width, used, ceil_div(width, TILE_OUTPUTS / 2), tile_count[0]}});
}

KERNEL_MIN(TILE_THREADS, BLOCKS)
expert_mma(const u64* weights_at, Acts acts, const u32* places, const uint4* tiles, const u32* tile_count, float* out, u32 outputs, u32 k, u32 div) {
    DYNAMIC_SHARED(shared);
    wait_for_previous();
    walk(shared, Single{{acts, k, weights_at, 0, places, tiles, out, outputs, div, ceil_div(outputs, TILE_OUTPUTS), tile_count[0]}});
}

/// How expert_mma and expert_gate_up_mma are launched: outputs and rows of a tile, threads, bytes of shared memory.
KERNEL(1) expert_matmul_launch(u32* to) {
    to[0] = TILE_OUTPUTS;
    to[1] = TILE_ROWS;
    to[2] = TILE_THREADS;
    to[3] = TILE_BYTES;
}
