// Products of a matrix of float weights with many rows: routers, and whatever else a model keeps in floats. Fewer than about 16 rows: matvec.cu.
//
//     out[row, output] = weights[output] . acts[row]     sixteen chains: value i goes to chain i mod 16 by one fmaf; the upper half of the chains is added
//                                                        to the lower, four times (src/cpu/kernels/float.rs): the same bits as any other kernel
//
// A lane is a chain. Half a warp has 8 outputs x 16 rows of the result, a block 32 x 64; both halves of a warp have the same rows, so that activations are
// read once for both. The lanes join their chains by handing half of what they hold to a partner, until lane c is left with row c.
//
// A matrix of at most FEW outputs (the gate of a shared expert) takes another way: four lanes have a row, each four of its chains.
//
// Shapes: weights [outputs, k] of ELEMENT, rows contiguous; acts [rows, k] f32; out [rows, stride] f32 of which the first `outputs` of a row are written.
// Addresses are 16-byte aligned; where k is not a multiple of 8 values come one by one. Values from k to the next multiple of 16 count as zeros.
// Grid: (ceil(outputs / 32), ceil(rows at most / 64)); blocks beyond counts[0] rows leave at once. Block: 256 threads. Shared memory: static, at most 43 KiB.
// Exact. Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: ELEMENT (id of the type in GGUF: 0 F32, 1 F16, 30 BF16).
#include "device.cuh"

#ifndef ELEMENT
#define ELEMENT 0
#endif
static_assert(ELEMENT == 0 || ELEMENT == 1 || ELEMENT == 30, "a float type");

constexpr u32 BYTES = ELEMENT == 0 ? 4 : 2;
constexpr u32 OUTPUTS = 32, ROWS = 64;
/// Values of a stage, and stages.
constexpr u32 STEP = 32, STAGES = 3;
/// Neighbouring slots lie half of the banks apart (f32), and the two halves of a warp read neighbouring slots: of 16 outputs number i has slot
/// 2 (i mod 8) + i / 8.
constexpr u32 WEIGHT_STRIDE = STEP * BYTES + (BYTES == 4 ? 64 : 32);
constexpr u32 WEIGHTS_BYTES = OUTPUTS * WEIGHT_STRIDE;
constexpr u32 STAGE_BYTES = WEIGHTS_BYTES + ROWS * STEP * 4;

DEVICE float element_at(const u8* at) {
    if constexpr (ELEMENT == 0) return *(const float*)at;
    else if constexpr (ELEMENT == 1) return half_to_float(*(const u16*)at);
    else return bf16_to_float(*(const u16*)at);
}

/// Copies `count` values from `first` on of a row of `k`, of `bytes` bytes each, into shared memory; zeros from `k` on. `lane` of `lanes` threads.
template <u32 bytes>
DEVICE void fetch(u8* to, const u8* row, u32 first, u32 k, u32 lane, u32 lanes) {
    if (k % 8 == 0) {
        for (u32 at = lane * 16; at < STEP * bytes; at += lanes * 16) {
            bool there = first + at / bytes < k;
            copy16_async_or_zero(to + at, row + (there ? (u64)first * bytes + at : 0), there);
        }
        return;
    }
    for (u32 i = lane; i < STEP; i += lanes) {
        bool there = first + i < k;
        if constexpr (bytes == 4) ((u32*)to)[i] = there ? ((const u32*)row)[first + i] : 0;
        else ((u16*)to)[i] = there ? ((const u16*)row)[first + i] : 0;
    }
}

/// Adds what two lanes have of `2 half` results: each keeps the half that its bit of `chain` names.
template <u32 half>
DEVICE void hand_over(float sums[128], u32 chain) {
    bool upper = chain & half / 8;
#pragma unroll
    for (u32 i = 0; i < half; i++) {
        float kept = upper ? sums[half + i] : sums[i], given = upper ? sums[i] : sums[half + i];
        sums[i] = kept + shfl_xor(given, half / 8);
    }
}

/// This lane's chain of 8 outputs and 16 rows, of part `part` of a stage.
DEVICE void load_part(float weight[8], float act[16], const u8* w, const float* x, u32 part) {
#pragma unroll
    for (u32 o = 0; o < 8; o++) weight[o] = element_at(w + 2 * o * WEIGHT_STRIDE + part * 16 * BYTES);
#pragma unroll
    for (u32 r = 0; r < 16; r++) act[r] = x[r * STEP + part * 16];
}
DEVICE void add_part(float sums[128], const float weight[8], const float act[16]) {
#pragma unroll
    for (u32 r = 0; r < 16; r++)
#pragma unroll
        for (u32 o = 0; o < 8; o++) sums[8 * r + o] = fmaf(weight[o], act[r], sums[8 * r + o]);
}

/// Outputs that a row's lanes take one after another.
constexpr u32 FEW = 4;

/// Four values of a row of weights.
DEVICE float4 four_at(const u8* row, u32 at) {
    if constexpr (ELEMENT == 0) return *(const float4*)(row + 4 * at);
    uint2 x = load8(row + 2 * at);
    if constexpr (ELEMENT == 1)
        return make_float4(half_to_float((u16)x.x), half_to_float((u16)(x.x >> 16)), half_to_float((u16)x.y), half_to_float((u16)(x.y >> 16)));
    return make_float4(float_of(x.x << 16), float_of(x.x & 0xffff0000u), float_of(x.y << 16), float_of(x.y & 0xffff0000u));
}

/// One output of the row that four lanes share; chains 4 t .. of lane t. `k` is a multiple of 4.
DEVICE float output_of(const u8* weights, const float* acts, u32 k) {
    constexpr u32 AHEAD = 8;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    u32 four = lane_of() % 4 * 4;
    for (u32 first = 0; first < k; first += 16 * AHEAD) {
        float4 w[AHEAD], x[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 at = first + 16 * i + four;
            x[i] = at < k ? *(const float4*)(acts + at) : make_float4(0, 0, 0, 0);
            w[i] = at < k ? four_at(weights, at) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (first + 16 * i >= k) break;
            sum[0] = fmaf(w[i].x, x[i].x, sum[0]);
            sum[1] = fmaf(w[i].y, x[i].y, sum[1]);
            sum[2] = fmaf(w[i].z, x[i].z, sum[2]);
            sum[3] = fmaf(w[i].w, x[i].w, sum[3]);
        }
    }
#pragma unroll
    for (u32 by = 2; by > 0; by /= 2)
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum[i] = sum[i] + shfl_xor(sum[i], by);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

KERNEL_MIN(256, 1) float_matmul(const u8* weights, const float* acts, float* out, u32 outputs, u32 k, u32 stride, const u32* counts) {
    SHARED(u8, shared, STAGES * STAGE_BYTES);
    wait_for_previous();
    u32 first_row = blockIdx.y * ROWS, live = counts[0], first_output = blockIdx.x * OUTPUTS;
    if (first_row >= live) return;
    if (outputs <= FEW && k % 8 == 0) {
        u32 row = first_row + threadIdx.x / 4;
        const float* own = acts + (u64)least(row, live - 1) * k;
        for (u32 output = 0; output < outputs; output++) {
            float x = output_of(weights + (u64)output * k * BYTES, own, k);
            if (row < live && lane_of() % 4 == 0) out[(u64)row * stride + output] = x;
        }
        return;
    }

    // eight threads a row of weights, four a row of activations
    u32 slot = threadIdx.x / 8;
    const u8* weight_row = weights + (u64)least(first_output + slot / 16 * 16 + slot % 2 * 8 + slot % 16 / 2, outputs - 1) * k * BYTES;
    const u8* act_row = (const u8*)(acts + (u64)least(first_row + threadIdx.x / 4, live - 1) * k);
    u8* weight_to = shared + slot * WEIGHT_STRIDE;
    u8* act_to = shared + WEIGHTS_BYTES + threadIdx.x / 4 * (STEP * 4);
    u32 steps = ceil_div(k, STEP);
#pragma unroll
    for (u32 step = 0; step < STAGES - 1; step++) {
        if (step < steps) {
            fetch<BYTES>(weight_to + step * STAGE_BYTES, weight_row, step * STEP, k, threadIdx.x % 8, 8);
            fetch<4>(act_to + step * STAGE_BYTES, act_row, step * STEP, k, threadIdx.x % 4, 4);
        }
        copy_commit();
    }

    u32 chain = lane_of() % 16, my_output = warp_of() / 4 * 16 + lane_of() / 16 * 8, my_row = warp_of() % 4 * 16;
    // [row, output]
    float sums[16 * 8];
#pragma unroll
    for (u32 i = 0; i < 128; i++) sums[i] = 0.0f;
#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block();
        u32 next = step + STAGES - 1;
        if (next < steps) {
            fetch<BYTES>(weight_to + next % STAGES * STAGE_BYTES, weight_row, next * STEP, k, threadIdx.x % 8, 8);
            fetch<4>(act_to + next % STAGES * STAGE_BYTES, act_row, next * STEP, k, threadIdx.x % 4, 4);
        }
        copy_commit();
        const u8* stage = shared + step % STAGES * STAGE_BYTES;
        const u8* w = stage + (warp_of() / 4 * 16 + lane_of() / 16) * WEIGHT_STRIDE + chain * BYTES;
        const float* x = (const float*)(stage + WEIGHTS_BYTES) + my_row * STEP + chain;
        float weight[STEP / 16][8], act[STEP / 16][16];
        if (step * STEP + STEP <= k) {
            // the second part is on its way while the first is multiplied
#pragma unroll
            for (u32 part = 0; part < STEP / 16; part++) load_part(weight[part], act[part], w, x, part);
#pragma unroll
            for (u32 part = 0; part < STEP / 16; part++) add_part(sums, weight[part], act[part]);
        } else {
#pragma unroll 1
            for (u32 part = 0; step * STEP + part * 16 < k; part++) {
                load_part(weight[0], act[0], w, x, part);
                add_part(sums, weight[0], act[0]);
            }
        }
    }
    copy_wait<0>();

    // chain c and chain c + 8, then c + 4, ...
    hand_over<64>(sums, chain);
    hand_over<32>(sums, chain);
    hand_over<16>(sums, chain);
    hand_over<8>(sums, chain);
    u32 row = first_row + my_row + chain, output = first_output + my_output;
    if (row >= live) return;
    float* at = out + (u64)row * stride + output;
#pragma unroll
    for (u32 o = 0; o < 8; o++)
        if (output + o < outputs) at[o] = sums[o];
}

/// How float_matmul is launched: outputs and rows of a tile, threads, bytes of dynamic shared memory.
KERNEL(1) float_matmul_launch(u32* to) {
    to[0] = OUTPUTS;
    to[1] = ROWS;
    to[2] = 256;
    to[3] = 0;
}
