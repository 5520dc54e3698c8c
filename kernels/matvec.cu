// Products of up to 16 rows of activations with up to four matrices of quantised weights that read them. Those of floats: float_matvec.cu.
//
//     to[r, o] = sum over i of matrix[o, i] * from[r, i]
//
// `matvec`: rows r < live[0] of `from` [rows, k], in the form that a matrix's type asks for (Acts256 or Acts32); matrix m: `weights [outputs, k]` of the
// type `type` -> `to [rows, outputs] f32`, a row every `to_stride` values. Blocks `first_block ..` of the grid, `blocks` of them, work on it (matrices.cuh).
// Exact: the canonical arithmetic of `src/cpu/kernels.rs`, so the same bits as the CPU (a NaN's payload aside), whatever the grid and the macros.
//
// Grid: (sum of the matrices' `blocks`, ceil(rows / ROWS)), 32 WARPS threads. A matrix has batches, which its warps take in turn: of 32-wide types 4 outputs; of
// 256-wide types, for one row, 32 / B outputs, B the power of two from k / 256 up, at most 8. With more rows a block of threads takes a tile of 16 outputs
// of 256-wide types, its warps every WARPS-th block of it (matvec_tile.cuh). With one row as many warps as batches; with more rows no more blocks than the
// card holds at once, so that activations are brought in once a block.
// Dynamic shared memory: WARPS * own + told + staged.
//     own         SLOTS * SLOT_BYTES and, if TYPES has a 256-wide type, for one row 1024, for more what is unpacked (UNPACKED_BYTES)
//     SLOT_BYTES  the most over TYPES of 32 * block bytes + 192 (256-wide, one row), 16 * tile_pitch (256-wide, more), 128 * block bytes + 192 (32-wide)
//     told        for more rows than one, if TYPES has a 256-wide type: 2 WARPS * told_bytes
//     staged      ROWS * the most over the forms that TYPES asks for of k / 256 * 304 (Acts256; nothing for one row, which comes straight to registers)
//                 and k * 19 / 16 (Acts32); rounded up to 16
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPES (codec.cuh; float types do not count); ROWS (1, 2, 4, 8, 16: rows of a block); WARPS; SLOTS (matvec.cuh); FIXED_K (k, if it is known: the
// argument is ignored).
#include "device.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef WARPS
#define WARPS (ROWS == 1 ? 2 : SHARED_KIB < 160 ? 4 : 8)
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS (16 / WARPS)
#endif
#define TILED (ROWS > 1)
#if SHARED_KIB < 99 && ROWS > 1 && !defined(SLOTS)
#define SLOTS 1
#endif
#include "matrices.cuh"
#include "matvec.cuh"
#include "matvec_tile.cuh"

#define OWN_BYTES (SLOTS * SLOT_BYTES + (TILED ? UNPACKED_BYTES : EXCHANGE_BYTES))
#define TOLD_BYTES (TILED && TYPES & WIDE_TYPES ? 2 * WARPS * told_bytes(ROWS) : 0)

/// Row `r` of a block, or its last row.
struct Row {
    u32 first, live;
    DEVICE_METHOD u32 operator()(u32 r) const { return first + least(r, live - 1); }
};

KERNEL_MIN(32 * WARPS, MIN_BLOCKS)
matvec(const __grid_constant__ Matrices matrices, u32 count, u32 k_given, Acts256 acts256, Acts32 acts32, const u32* live_rows) {
    DYNAMIC_SHARED(shared);
    const u32 k = K_OF(k_given);
    const Matrix& matrix = matrix_of(matrices, count);
    const u32 type = known_type<TYPES>(matrix.type);
    u8* own = shared + warp_of() * OWN_BYTES;
    u8* aside = own + SLOTS * SLOT_BYTES;
    u8* told = shared + WARPS * OWN_BYTES;
    u8* staged = told + TOLD_BYTES;
    // whose warps share batches
    const bool tiled = TILED && is_wide(type);
    const u32 own_block = blockIdx.x - matrix.first_block;
    const u32 first_batch = tiled ? own_block : own_block * WARPS + warp_of(), step = tiled ? matrix.blocks : matrix.blocks * WARPS;

    Ring<1> ring;
    ring.weights[0] = matrix.weights, ring.types[0] = type, ring.outputs = matrix.outputs, ring.k = k;
    const Job job = ring.job(0);
    ring.begin(own, first_batch, step, tiled ? warp_of() : 0, tiled ? WARPS : 1);
    // the window's tables are older than the kernel that this one waits for
    u32 live = live_rows[0];
    wait_for_previous();
    release_next();
    // one row is there for every block of the grid: its activations do not wait for the count
    const bool there = live > blockIdx.y * ROWS;
    if (ROWS > 1 && !there) {
        copy_wait<0>();
        return;
    }
    const Row row = {blockIdx.y * ROWS, ROWS == 1 ? 1 : least(live - blockIdx.y * ROWS, (u32)ROWS)};

    // the same for all matrices; `product` is of a batch
    auto each = [&](auto product) {
        for (u32 first = first_batch << job.batch_bits; first < job.outputs; first += step << job.batch_bits) {
            float* to = matrix.to + (u64)row.first * matrix.to_stride + first;
            product(first, [&](u32 o, u32 r, float x) {
                if (there && first + o < job.outputs) to[(u64)r * matrix.to_stride + o] = x;
            });
        }
    };
    if (is_wide(type)) {
        if constexpr (TILED) {
            u32 turn = 0;
            stage_tile<ROWS>(staged, acts256, k, row.live, row);
            sync_block();
            WITH_WIDE(type, each([&](u32 first, auto emit) { shared_tile<C, ROWS, WARPS>(job, k / 256, first, row.live, staged, ring, aside, told, turn, emit); }))
        } else {
            const WideRow acts(acts256, blockIdx.y, k);
            WITH_WIDE(type, each([&](u32 first, auto emit) { wide_batch<C>(job, k / 256, first, acts, ring, aside, emit); }))
        }
    } else if (is_narrow(type)) {
        const Acts32 to = narrow_at(staged, k, ROWS);
        stage_narrow(to, acts32, k, row.live, row);
        sync_block();
        const NarrowShared acts = narrow_shared(to, k);
        WITH_NARROW(type, each([&](u32 first, auto emit) { narrow_batch<C, ROWS>(job, k / 32, first, row.live, acts, ring, emit); }))
    }
    copy_wait<0>();
}

/// How matvec is launched: threads, bytes of shared memory beside staged rows, blocks that a multiprocessor holds.
KERNEL(1) matvec_launch(u32* to) {
    to[0] = 32 * WARPS;
    to[1] = WARPS * OWN_BYTES + TOLD_BYTES;
    to[2] = MIN_BLOCKS;
}
