// Products of up to 16 rows of activations with up to four matrices of floats that read them: routers, and whatever else a model keeps in floats.
//
//     to[r, o] = sum over i of matrix[o, i] * from[r, i]     sixteen chains: value i goes to chain i mod 16 by one fmaf; the upper half of the chains is added
//                                                            to the lower, four times (src/cpu/kernels/float.rs): the same bits as any other kernel
//
// `float_matvec`: rows r < live[0] of `from` [rows, k] f32, a row every `stride` values; matrix m: `weights [outputs, k]` of the type `type` ->
// `to [rows, outputs] f32`, a row every `to_stride` values. Blocks `first_block ..` of the grid, `blocks` of them, share its outputs evenly, at most OUTPUTS
// at a time (matrices.cuh). One row of a small matrix wants a block an output: what a block waits for then is one trip to memory. With more rows a
// multiprocessor should not read them twice: all of its outputs in one block, and of two rows, since two rows and four outputs are read sooner than eight rows and one.
//
// Weights and activations come to shared memory in pieces of PIECE values, STAGES of them under way: with 2048 values all there are, where shared memory
// allows it. Four lanes have an output of a row, four chains each.
//
// Addresses are 16-byte aligned; where k is not a multiple of 8, or `stride` not of 4, values come one by one.
// Grid: (sum of the matrices' `blocks`, ceil(rows / ROWS)), 128 threads. Dynamic shared memory: STAGES * (OUTPUTS + ROWS) * (4 PIECE + 64).
// Exact. Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPES (codec.cuh; only float types count); ROWS (1, 2: rows of a block); STAGES.
#include "codec.cuh"
#include "device.cuh"
#include "matrices.cuh"

#ifndef ROWS
#define ROWS 1
#endif
#ifndef STAGES
#define STAGES (SHARED_KIB < 99 ? 2 : SHARED_KIB < 160 ? 3 : 4)
#endif
#define THREADS 128
/// Outputs of a block at a time.
#define OUTPUTS 8
/// Values of a piece.
#define PIECE 512
/// Bytes of a row of a piece: of two neighbouring rows, four lanes each, all words lie in different banks.
#define PITCH (4 * PIECE + 64)
#define STAGE_BYTES ((OUTPUTS + ROWS) * PITCH)
static_assert(4 * ROWS * OUTPUTS <= THREADS, "four threads a row of an output");

/// Values `first ..` of `rows` rows of `bytes` bytes a value, `pitch` bytes apart, to shared memory; zeros from `k` to the next multiple of 16.
template <u32 bytes, u32 most>
DEVICE void fetch(u8* to, const u8* from, u64 pitch, u32 rows, u32 first, u32 k, bool whole) {
    if (first >= k) return;
    u32 end = least((k - first + 15) / 16 * 16, (u32)PIECE);
    if (whole) {
        constexpr u32 CHUNKS = PIECE * bytes / 16, AT_ONCE_ROWS = THREADS / CHUNKS;
        const u32 own = threadIdx.x / CHUNKS, at = threadIdx.x % CHUNKS * (16 / bytes);
        const bool there = first + at < k;
        if (at >= end) return;
        to += own * PITCH + at * bytes;
        from += own * pitch + (there ? first + at : 0) * bytes;
#pragma unroll
        for (u32 i = 0; i < (most + AT_ONCE_ROWS - 1) / AT_ONCE_ROWS; i++) {
            if (own + i * AT_ONCE_ROWS < rows) copy16_async_or_zero(to + i * AT_ONCE_ROWS * PITCH, from, there);
            from += AT_ONCE_ROWS * pitch;
        }
    } else {
        for (u32 i = threadIdx.x; i < rows * PIECE; i += THREADS) {
            u32 row = i / PIECE, at = i % PIECE;
            bool there = first + at < k;
            const u8* value = from + row * pitch + (there ? first + at : 0) * bytes;
            u8* place = to + row * PITCH + at * bytes;
            if (at >= end) continue;
            if constexpr (bytes == 4) *(u32*)place = there ? *(const u32*)value : 0;
            else *(u16*)place = there ? *(const u16*)value : (u16)0;
        }
    }
}

/// Four weights.
template <u32 TYPE>
DEVICE float4 four_at(const u8* at) {
    if constexpr (TYPE == ID_F32) return *(const float4*)at;
    uint2 x = *(const uint2*)at;
    if constexpr (TYPE == ID_F16)
        return make_float4(half_to_float((u16)x.x), half_to_float((u16)(x.x >> 16)), half_to_float((u16)x.y), half_to_float((u16)(x.y >> 16)));
    return make_float4(float_of(x.x << 16), float_of(x.x & 0xffff0000u), float_of(x.y << 16), float_of(x.y & 0xffff0000u));
}

/// What a block does with its matrix.
struct Work {
    const Matrix& matrix;
    u8* shared;
    u32 k;
    const float* from; // the block's first row
    u64 stride;
    u32 first, step; // outputs
    bool whole;

    template <u32 TYPE>
    __device__ __forceinline__ void run(const u32* live_rows) const {
        constexpr u32 BYTES = TYPE == ID_F32 ? 4 : 2;
        const u32 pieces = ceil_div(k, PIECE), quad = threadIdx.x % 4, pair = threadIdx.x / 4, row = pair % ROWS, output = pair / ROWS;
        u32 rows = 0;
        for (u32 at = first; at < matrix.outputs; at += step) {
            const u32 count = least(matrix.outputs - at, least(step, (u32)OUTPUTS));
            const u8* weights = matrix.weights + (u64)at * k * BYTES;
            auto ask = [&](u32 piece) { fetch<BYTES, OUTPUTS>(shared + piece % STAGES * STAGE_BYTES, weights, (u64)k * BYTES, count, piece * PIECE, k, whole); };
            auto ask_rows = [&](u32 piece) {
                fetch<4, ROWS>(shared + piece % STAGES * STAGE_BYTES + OUTPUTS * PITCH, (const u8*)from, 4 * stride, rows, piece * PIECE, k, whole);
            };
            if (rows != 0) sync_block(); // the pieces of the outputs before have been read
            for (u32 piece = 0; piece < STAGES; piece++) ask(piece);
            if (rows == 0) {
                // the window's tables are older than the kernel that this one waits for
                const u32 live = live_rows[0], before = blockIdx.y * ROWS;
                wait_for_previous();
                release_next();
                if (live <= before) {
                    copy_commit();
                    copy_wait<0>();
                    return;
                }
                rows = least(live - before, (u32)ROWS);
            }
            for (u32 piece = 0; piece < STAGES; piece++) {
                ask_rows(piece);
                copy_commit();
            }
            float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (u32 piece = 0; piece < pieces; piece++) {
                copy_wait<STAGES - 1>();
                sync_block();
                const u32 steps = least(ceil_div(k - piece * PIECE, 16), (u32)PIECE / 16);
                const u8* stage = shared + piece % STAGES * STAGE_BYTES;
                const u8 *values = stage + (OUTPUTS + row) * PITCH + 16 * quad, *w = stage + output * PITCH + 4 * BYTES * quad;
                if (row < rows && output < count) {
#pragma unroll 8
                    for (u32 i = 0; i < steps; i++) {
                        float4 value = *(const float4*)(values + 64 * i), weight = four_at<TYPE>(w + 16 * BYTES * i);
                        x[0] = fmaf(weight.x, value.x, x[0]);
                        x[1] = fmaf(weight.y, value.y, x[1]);
                        x[2] = fmaf(weight.z, value.z, x[2]);
                        x[3] = fmaf(weight.w, value.w, x[3]);
                    }
                }
                if (piece + STAGES < pieces) {
                    sync_block();
                    ask(piece + STAGES);
                    ask_rows(piece + STAGES);
                }
                copy_commit();
            }
            copy_wait<0>();
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] += shfl_xor(x[i], 2);
#pragma unroll
            for (u32 i = 0; i < 4; i++) x[i] += shfl_xor(x[i], 1);
            float sum = (x[0] + x[2]) + (x[1] + x[3]);
            if (quad == 0 && row < rows && output < count) matrix.to[(u64)(blockIdx.y * ROWS + row) * matrix.to_stride + at + output] = sum;
        }
    }
};

KERNEL_MIN(THREADS, 2) float_matvec(const __grid_constant__ Matrices matrices, u32 count, u32 k, const float* from, u64 stride, const u32* live_rows) {
    DYNAMIC_SHARED(shared);
    const Matrix& matrix = matrix_of(matrices, count);
    u32 each = least(ceil_div(matrix.outputs, matrix.blocks), (u32)OUTPUTS);
    const Work work = {matrix, shared, k, from + blockIdx.y * ROWS * stride, stride, (blockIdx.x - matrix.first_block) * each, matrix.blocks * each, k % 8 == 0 && stride % 4 == 0};
    WITH_FLOAT(matrix.type, work.run<ID>(live_rows))
}

/// How float_matvec is launched: threads, bytes of shared memory, outputs of a block at most, rows of a block.
KERNEL(1) float_matvec_launch(u32* to) {
    to[0] = THREADS;
    to[1] = STAGES * STAGE_BYTES;
    to[2] = OUTPUTS;
    to[3] = ROWS;
}
