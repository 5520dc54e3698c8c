// Products of a matrix of quantised weights with many rows, by int8 tensor cores: see mma_tile.cuh. Fewer than about 16 rows: matvec.cu.
//
//     out[row, output] = weights[output] . acts[row]     canonical arithmetic: the same bits as any other kernel
//
// Shapes: weights [outputs, k] as blocks of TYPE, rows contiguous; acts [rows, k] quantised in the form of TYPE, rows = counts[0]; out [rows, stride] f32 of
// which the first `outputs` of a row are written.
// Grid: any; blocks share the tiles. Best is one block a multiprocessor: more find their registers taken. Block: TILE_THREADS.
// Shared memory: TILE_BYTES, dynamic (mma_shape.cuh).
// Exact. Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPE (a codec's name); for experiments TILE_OUTPUTS, TILE_ROWS, ACT_BUFFERS, FOLD (mma_shape.cuh).
#include "mma_tile.cuh"

struct Dense {
    Acts acts;
    u32 k;
    const u8* weights;
    float* out;
    u32 outputs, stride, live;

    __device__ __forceinline__ u32 across() const { return ceil_div(outputs, TILE_OUTPUTS); }
    __device__ __forceinline__ u32 count() const { return across() * ceil_div(live, TILE_ROWS); }
    __device__ __forceinline__ void name(u8*, u32, u32) const {}
    __device__ __forceinline__ void ask(u8*, u32) const {}
    struct Ahead {};
    __device__ __forceinline__ void name_ahead(Ahead&, u32) const {}
    __device__ __forceinline__ void ask_ahead(Ahead&) const {}
    __device__ __forceinline__ void put_ahead(u8*, u32, const Ahead&) const {}
    __device__ __forceinline__ void settle(u8* shared, u32 number, u32 tile) const {
        u32 first = tile / across() * TILE_ROWS, output = tile % across() * TILE_OUTPUTS;
        set_table(shared, number, output, least(live - first, TILE_ROWS));
        u32 i = threadIdx.x, row = least(first + i, live - 1);
        if (i < TILE_OUTPUTS) set_output(shared, number, i, (u64)weights, least(output + i, outputs - 1), k);
        if (i < TILE_ROWS) set_row(shared, number, i, acts, k, row, row);
    }
    template <int TILES>
    __device__ __forceinline__ void store(const Placed* table, const Share<TILES>& share) const {
        store_share<TILES>(table, share, out, outputs, stride);
    }
};

KERNEL_MIN(TILE_THREADS, BLOCKS) matmul_mma(const u8* weights, Acts acts, float* out, u32 outputs, u32 k, u32 stride, const u32* counts) {
    DYNAMIC_SHARED(shared);
    wait_for_previous();
    walk(shared, Dense{acts, k, weights, out, outputs, stride, counts[0]});
}

/// How matmul_mma is launched: outputs and rows of a tile, threads, bytes of shared memory.
KERNEL(1) matmul_launch(u32* to) {
    to[0] = TILE_OUTPUTS;
    to[1] = TILE_ROWS;
    to[2] = TILE_THREADS;
    to[3] = TILE_BYTES;
}
