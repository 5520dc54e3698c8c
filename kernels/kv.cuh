// The paged cache of keys and values, as attention_prepare.cu writes it and the attention kernels read it.
//
// A page holds 64 positions of one layer: `[KV_HEADS]` times the keys, then the values of a head. Both are laid out as the operand that tensor cores want, so
// that a lane's 16 bytes (8 of q8_0) are what it multiplies, a warp's load is four runs of 128 bytes, and nothing is transposed on the way:
//
//     part          f16                               q8_0                               f32
//     keys          [head_dim / 8, 64, 8] f16         the same i8                        [head_dim / 4, 64, 4] f32
//     key scales                                      [blocks, 64] f16
//     values        [8 units, head_dim, 8] f16        the same i8                        [64, head_dim] f32
//     value scales                                    [blocks, 8 units, 8] f16
//
// A block is 32 channels (the last may be short), `blocks = ceil(head_dim / 32)`. A unit is eight positions of a page: position p has its place in unit
// `4 (p / 32) + (p mod 8) / 2` as number `2 (p mod 32 / 8) + p mod 2`. These are the positions whose weights a lane holds after the scores of a page, which is why
// weights go from one product to the next without changing lanes.
// Bytes of a page: `KV_HEADS * 2 * 64 * (head_dim * 4 | head_dim * 2 | head_dim + 2 blocks)`.
//
// What is stored is finite, whatever was computed: attention multiplies what lies behind a row's position by zero. Memory of new pages must be finite too (zeroed).
//
// Macros: HEAD_DIM (a multiple of 8 up to 256, of 64 up to 512), KV_HEADS, KV_TYPE (KV_F32, KV_F16, KV_Q8_0); WINDOW and RING where rows see a window of positions only.
#pragma once
#include "device.cuh"

#define KV_F32 0
#define KV_F16 1
#define KV_Q8_0 2

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef KV_HEADS
#define KV_HEADS 4
#endif
#ifndef KV_TYPE
#define KV_TYPE KV_F16
#endif

#define KV_BLOCKS ((HEAD_DIM + 31) / 32)
/// Eights of channels.
#define EIGHTS (HEAD_DIM / 8)

#if KV_TYPE == KV_F32
#define KV_CODE_BYTES (PAGE * HEAD_DIM * 4)
#define KV_PART_BYTES KV_CODE_BYTES
#elif KV_TYPE == KV_F16
#define KV_CODE_BYTES (PAGE * HEAD_DIM * 2)
#define KV_PART_BYTES KV_CODE_BYTES
#else
#define KV_CODE_BYTES (PAGE * HEAD_DIM)
#define KV_PART_BYTES (KV_CODE_BYTES + PAGE * KV_BLOCKS * 2)
#endif
/// Keys and values of one head in one page.
#define KV_HEAD_BYTES (2 * KV_PART_BYTES)

/// Positions that a row sees, its own included; 0: all before it.
#ifndef WINDOW
#define WINDOW 0
#endif
/// With a window, pages of a slot's ring.
#ifndef RING
#define RING 1
#endif

/// The first position that the row at `position` sees.
DEVICE u32 visible_from(u32 position) { return WINDOW && position >= WINDOW ? position - WINDOW + 1 : 0; }

/// Which page of the cache is page `index` of a sequence: the one in its list, or, with a window, one of the ring of its slot.
DEVICE u32 page_of(const u32* pages, u32 slot, u32 index) { return WINDOW ? slot * RING + index % RING : pages[index]; }

/// Where a position of a page lies among the values: `8 unit + number`.
DEVICE u32 value_place(u32 position) { return (position / 32 * 4 + position % 8 / 2) * 8 + position % 32 / 8 * 2 + position % 2; }

// ---- pairs of halves

DEVICE u32 pack_halves(float low, float high) {
#if !defined(HOST_EMULATION) && __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return floats_to_halves(low, high);
#endif
}
#ifdef HOST_EMULATION
DEVICE u32 multiply_halves(u32 a, u32 b) {
    return pack_halves(half_to_float((u16)a) * half_to_float((u16)b), half_to_float((u16)(a >> 16)) * half_to_float((u16)(b >> 16)));
}
DEVICE u32 subtract_halves(u32 a, u32 b) {
    return pack_halves(half_to_float((u16)a) - half_to_float((u16)b), half_to_float((u16)(a >> 16)) - half_to_float((u16)(b >> 16)));
}
#else
DEVICE u32 multiply_halves(u32 a, u32 b) {
    u32 pair;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
DEVICE u32 subtract_halves(u32 a, u32 b) {
    u32 pair;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
}
#endif

/// Four i8 as halves, exactly: 1024 + 128 + code is a half whose low byte is the code with its sign turned.
DEVICE void codes_to_halves(u32 codes, u32 pairs[2]) {
    u32 bytes = codes ^ 0x80808080u;
    pairs[0] = subtract_halves(byte_perm(bytes, 0x64646464u, 0x4140u), 0x64806480u);
    pairs[1] = subtract_halves(byte_perm(bytes, 0x64646464u, 0x4342u), 0x64806480u);
}
/// Eight codes of one position times its scale, rounded to halves.
DEVICE uint4 key_halves(uint2 codes, u32 scale) {
    u32 low[2], high[2], pair = scale | scale << 16;
    codes_to_halves(codes.x, low);
    codes_to_halves(codes.y, high);
    return make_uint4(multiply_halves(low[0], pair), multiply_halves(low[1], pair), multiply_halves(high[0], pair), multiply_halves(high[1], pair));
}
/// Codes of one channel at the eight positions of a unit times their scales, rounded to halves.
DEVICE uint4 value_halves(uint2 codes, uint4 scales) {
    u32 low[2], high[2];
    codes_to_halves(codes.x, low);
    codes_to_halves(codes.y, high);
    return make_uint4(multiply_halves(low[0], scales.x), multiply_halves(low[1], scales.y), multiply_halves(high[0], scales.z),
                      multiply_halves(high[1], scales.w));
}
