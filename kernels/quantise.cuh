// Activations quantised as the products of integer types read them.
//
// A block of 256 values (K and IQ types) or 32 (the 32-wide types) has one scale:
//     d = amax / 127,  code = round_half_even(x * (127 / amax)),  IEEE f32.
// Where 127 / amax is not a normal number the codes are 0; a NaN or an infinity makes d NaN or infinite. Bit-equal to
// `quantise` in src/cpu/kernels/acts.rs.
//
// Everything here is done by whole warps: lane l holds the 8 values 8 l .. 8 l + 7 of a run of 256. Runs of 32 are four
// lanes. A row of K values whose last run is not whole (32-wide types only) has its last lanes hold anything: they take
// part in the shuffles and are told not to write.
#pragma once
#include "device.cuh"

// The forms in which rows of activations are kept, as bits of a mask.
#define FORM_256 1u
#define FORM_32 2u
#define FORM_FLOAT 4u

// The greatest magnitude of 8 values, as bits: of non-negative floats the bits order like the values, NaN above all.
DEVICE u32 top_of(const float x[8]) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        top = greatest(top, bits_of(x[i]) & 0x7fffffffu);
    }
    return top;
}

// A block's scale from the greatest magnitude in it, and what values are multiplied with: 0 if all codes are 0.
DEVICE float scale_of(u32 top, float* inverse) {
    float amax = float_of(top), factor = 127.0f / amax;
    u32 exponent = bits_of(factor) & 0x7f800000u;
    *inverse = exponent == 0 || exponent == 0x7f800000u ? 0.0f : factor;
    return amax / 127.0f;
}

// Codes of 8 values, four a word, and their sum.
DEVICE i32 codes_of(const float x[8], float inverse, u32 codes[2]) {
    codes[0] = codes[1] = 0;
    // Not `x * 0`: x may be a NaN.
    if (inverse != 0.0f) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // |x * inverse| <= 127.00002: adding 1.5 * 2^23 rounds half to even and leaves the code in the low byte.
            u32 code = bits_of(x[i] * inverse + 12582912.0f) & 0xffu;
            codes[i / 4] |= code << (8 * (i % 4));
        }
    }
    return dp4a(dp4a(0, codes[0], 0x01010101u), codes[1], 0x01010101u);
}

// A run of 256 with one scale, which is returned. `sum16` is the sum of the 16 codes that lanes 2 j and 2 j + 1 share.
DEVICE float quantise256(const float x[8], u32 codes[2], i32* sum16) {
    u32 top = warp_max_u32(top_of(x));
    float inverse, d = scale_of(top, &inverse);
    i32 sum = codes_of(x, inverse, codes);
    *sum16 = sum + shfl_xor(sum, 1);
    return d;
}

// Runs of 32 with a scale each: the scale and the sum of the codes of the run that this lane is in.
DEVICE float quantise32(const float x[8], u32 codes[2], i32* sum32) {
    u32 top = top_of(x);
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
        top = greatest(top, shfl_xor(top, lanes));
    }
    float inverse, d = scale_of(top, &inverse);
    i32 sum = codes_of(x, inverse, codes);
    sum += shfl_xor(sum, 1);
    *sum32 = sum + shfl_xor(sum, 2);
    return d;
}

// Quantises and stores the run of 256 that begins at value `first` of a row of `k`; `x` as above. All 32 lanes call.
DEVICE void store256(Acts256 to, u32 row, u32 k, u32 first, const float x[8]) {
    u32 lane = lane_of(), codes[2];
    i32 sum;
    float d = quantise256(x, codes, &sum);
    u64 at = (u64)row * k + first;
    *(uint2*)(to.codes + at + 8 * lane) = make_uint2(codes[0], codes[1]);
    if (lane % 2 == 0) {
        u32 j = lane / 2;
        to.sums[at / 16 + j] = (i16)sum;
        to.halves[at / 16 + j / 2 + j % 2 * 8] = float_to_half((float)sum);
    }
    if (lane == 0) {
        to.scales[at / 256] = d;
    }
}

// The same in runs of 32; values from `k` on are not stored.
DEVICE void store32(Acts32 to, u32 row, u32 k, u32 first, const float x[8]) {
    u32 lane = lane_of(), codes[2];
    i32 sum;
    float d = quantise32(x, codes, &sum);
    if (first + 8 * lane >= k) {
        return;
    }
    u64 at = (u64)row * k + first;
    *(uint2*)(to.codes + at + 8 * lane) = make_uint2(codes[0], codes[1]);
    if (lane % 4 == 0) {
        to.sums[at / 32 + lane / 4] = (i16)sum;
        to.scales[at / 32 + lane / 4] = d;
    }
}

// A lane's 8 values of the run that begins at `first`; zeros from `k` on. `from` is 16-byte aligned, in any memory.
DEVICE void read_run(const float* from, u32 k, u32 first, float x[8]) {
    u32 at = first + 8 * lane_of();
    if (at < k) {
        float4 a = *(const float4*)(from + at), b = *(const float4*)(from + at + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = 0.0f;
        }
    }
}

// Quantises the row `from [k] f32` (in shared or global memory, 16-byte aligned) as row `row` of the forms in `forms`: warp
// `warp` of `warps` does its share. The values must be visible to the warp already; nothing is waited for.
DEVICE void quantise_row(const float* from, u32 k, u32 row, u32 forms, Acts256 to256, Acts32 to32, u32 warp, u32 warps) {
    for (u32 first = 256 * warp; first < k; first += 256 * warps) {
        float x[8];
        read_run(from, k, first, x);
        if (forms & FORM_256) {
            store256(to256, row, k, first, x);
        }
        if (forms & FORM_32) {
            store32(to32, row, k, first, x);
        }
    }
}
