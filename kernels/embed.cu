// The residual of a window begins as rows of a table, named by the tokens, dequantised.
//
// `embed`: `table [vocab, k]` of the type `type`, tokens [rows] -> residual [rows, copies, k] f32. Exact: the same bits as `dequantise` of
// `src/quant` (a NaN's payload aside).
// Grid: (ceil(k / 256), rows, copies), 32 threads: a warp 256 values. No shared memory. Rows beyond `counts[0]` leave at once.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPES (codec.cuh), the types that tables may have.
#include "codec.cuh"
#include "device.cuh"

/// Four values of four codes, as signed bytes.
DEVICE float4 values_of(u32 codes, float scale, float minimum) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = scale * (float)(i8)(codes >> 8 * i) - minimum;
    return make_float4(x[0], x[1], x[2], x[3]);
}

/// A block of 256: two lanes a piece of 16.
template <class C>
DEVICE void embed_wide(const u8* block, float* to) {
    u32 lane = lane_of(), u = lane >> 3, codes[16];
    Head head;
    C::head(block, head);
    C::codes(block, u, codes);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 first = C::first(u, i), group = first / C::SUB;
        float scale = head.d * (float)(i8)(head.scales[group >> 2] >> 8 * (group & 3));
        float minimum = head.dmin * (float)(head.minima[group >> 2] >> 8 * (group & 3) & 255);
#pragma unroll
        for (u32 w = 0; w < 4; w++)
            // eight lanes unpack the same unit; each stores two of its sixteen words
            if ((4 * i + w) % 8 == (lane & 7)) *(float4*)(to + first + 4 * w) = values_of(unbias<C::BIAS>(codes[4 * i + w]), scale, minimum);
    }
}

/// Up to eight blocks of 32: four lanes a block.
template <class C>
DEVICE void embed_narrow(const u8* blocks, u32 count, float* to) {
    u32 lane = lane_of(), b = lane >> 2, codes[8];
    if (b >= count) return;
    const u8* block = blocks + b * C::BYTES;
    C::codes(block, codes);
    float scale = C::scale(block), minimum = C::MINIMA ? -C::minimum(block) : 0.0f;
#pragma unroll
    for (u32 w = 0; w < 8; w++)
        if (w % 4 == (lane & 3)) *(float4*)(to + 32 * b + 4 * w) = values_of(unbias<C::BIAS>(codes[w]), scale, minimum);
}

DEVICE float float_at(const u8* table, u32 type, u64 at) {
    if (type == ID_F32) return ((const float*)table)[at];
    u16 bits = ((const u16*)table)[at];
    return type == ID_F16 ? half_to_float(bits) : bf16_to_float(bits);
}

KERNEL(32) embed(const u8* table, u32 type, u32 k, u64 row_bytes, float* residual, Rows rows) {
    u32 row = blockIdx.y, first = 256 * blockIdx.x;
    if (row >= rows.counts[0]) return;
    float* to = residual + ((u64)row * gridDim.z + blockIdx.z) * k + first;
    const u8* from = table + rows.tokens[row] * row_bytes;
    u32 count = least(k - first, 256u);
    if (type == ID_F32 || type == ID_F16 || type == ID_BF16) {
        for (u32 i = lane_of(); i < count; i += 32) to[i] = float_at(from, type, first + i);
    }
    WITH_WIDE(type, embed_wide<C>(from + blockIdx.x * C::BYTES, to))
    WITH_NARROW(type, embed_narrow<C>(from + 8 * blockIdx.x * C::BYTES, count / 32, to))
}
