// Products of a few rows of activations with matrices as they lie in the model file: what one warp does.
//
// A warp takes a *batch* of neighbouring outputs. Their bytes are copied to shared memory ahead of time, an *item* (a batch's part of up to 2048
// values) at a time through a ring of SLOTS places, by copies that do not wait; so a warp has several kilobytes under way however few warps there are.
//
// 256-wide types, for one row (for more: matvec_tile.cuh). Lane = (set, block, unit): `32 / B` outputs, B blocks of each at once, four lanes a block. A lane multiplies its unit (64 values) of
// four outputs, u, u ^ 1, u ^ 2, u ^ 3 of the set, so that two exchanges give every lane the exact sum of one block of one output, with which it goes on
// alone: minima (or what codes are above their values) from the sums of the activations, and the factor of the block. Then one lane an output
// adds up the blocks in ascending order.
//
// 32-wide types. Lane = (output, chain): four outputs, eight chains of fused multiply-adds each, block b in chain b mod 8; nothing is exchanged but the
// chains at the end. Float types. Lane = (output, chain): two outputs, sixteen chains each, value i in chain i mod 16.
//
// All in the order of `src/cpu/kernels.rs`, so with its bits. A row's numbers depend on nothing but the row and the matrix.
//
// Macros: TYPES (codec.cuh), TILED (whether matvec_tile.cuh is used), SLOTS (places of a warp's ring), FIXED_K (the length of a product's rows where it is known; `K_OF` of the argument gives it).
#pragma once
#include "codec.cuh"
#include "device.cuh"
#include "quantise.cuh"

#ifndef SLOTS
#define SLOTS 2
#endif

#ifdef FIXED_K
#define K_OF(given) FIXED_K
#else
#define K_OF(given) given
#endif

#define DEVICE_METHOD __device__ __forceinline__

/// Whether matrices of 256-wide types are taken a tile at a time (matvec_tile.cuh): for more rows than one.
#ifndef TILED
#define TILED 0
#endif
#define TILE_OUTPUTS 16

// ---- the bytes of a matrix

/// Bytes of a block, or of a value of float types.
DEVICE u32 block_bytes_of(u32 type) {
    u32 bytes = type == ID_F32 ? 4 : 2;
    WITH_WIDE(type, bytes = C::BYTES)
    WITH_NARROW(type, bytes = C::BYTES)
    return bytes;
}
/// Constant where TYPES has one kind only.
DEVICE bool is_wide(u32 type) { return !(TYPES & ~WIDE_TYPES) || (TYPES & WIDE_TYPES && WIDE_TYPES >> type & 1); }
DEVICE bool is_narrow(u32 type) { return !(TYPES & ~NARROW_TYPES) || (TYPES & NARROW_TYPES && NARROW_TYPES >> type & 1); }

/// The type where `types` has no other.
template <u64 types>
DEVICE u32 known_type(u32 type) {
    if (types == 0 || (types & (types - 1)) != 0) return type;
    u32 only = 0;
#pragma unroll
    for (u32 id = 0; id < 64; id++)
        if (types >> id & 1) only = id;
    return only;
}

/// A matrix as a warp works through it.
struct Job {
    const u8* weights;
    u32 type;
    u32 outputs;
    u32 row_bytes;
    /// log2 of the outputs of a batch.
    u32 batch_bits;
    /// log2 of the blocks of an output that are multiplied at once (256-wide types).
    u32 block_bits;
    /// Items of a batch, and the bytes of an output in each but the last.
    u32 items;
    u32 item_bytes;
    /// Bytes from one output to the next in a place, where an item is a part of its outputs; 0 where it is one run of bytes.
    u32 pitch;
};

#define NARROW_ITEM 32   // blocks
#define FLOAT_ITEM 2048  // bytes
#define FLOAT_OUTPUTS 2

/// From one output of a tile to the next, for blocks of so many bytes that begin anywhere: eight outputs' words of 16 bytes lie in different banks.
__device__ constexpr u32 tile_pitch(u32 bytes) { return ((bytes + 15 + 16 - ((bytes & (0 - bytes)) < 16 ? bytes & (0 - bytes) : 16)) / 16 | 1) * 16; }

DEVICE Job job_of(const u8* weights, u32 type, u32 outputs, u32 k) {
    Job job;
    u32 bytes = block_bytes_of(type);
    job.weights = weights, job.type = type, job.outputs = outputs;
    job.block_bits = 0;
    if (TILED && is_wide(type)) {
        job.items = k / 256;
        job.row_bytes = job.items * bytes;
        job.batch_bits = 4;
        job.item_bytes = bytes;
        job.pitch = tile_pitch(bytes);
        return job;
    }
    if (is_wide(type)) {
        u32 blocks = k / 256;
        job.block_bits = blocks > 4 ? 3 : blocks > 2 ? 2 : blocks > 1 ? 1 : 0;
        job.row_bytes = blocks * bytes;
        job.batch_bits = 5 - job.block_bits;
        job.item_bytes = bytes << job.block_bits;
        job.items = job.block_bits == 3 ? ceil_div(blocks, 8) : 1;
    } else if (is_narrow(type)) {
        job.row_bytes = k / 32 * bytes;
        job.batch_bits = 2;
        job.item_bytes = NARROW_ITEM * bytes;
        job.items = ceil_div(k / 32, NARROW_ITEM);
    } else {
        job.row_bytes = k * bytes;
        job.batch_bits = 1;
        job.item_bytes = FLOAT_ITEM;
        job.items = ceil_div(job.row_bytes, FLOAT_ITEM);
    }
    job.pitch = job.items == 1 ? 0 : (job.item_bytes + 15) / 16 * 16 + 32;
    return job;
}
/// The same job where its type is known.
template <u32 TYPE>
DEVICE Job job_as(const Job& job, u32 k) { return job_of(job.weights, TYPE, job.outputs, k); }

constexpr u32 most_of(u32 a, u32 b) { return a > b ? a : b; }
constexpr u32 wide_bytes(u64 types, u32 id, u32 bytes) { return !(types >> id & 1) ? 0 : TILED ? TILE_OUTPUTS * tile_pitch(bytes) : 32 * bytes + 192; }
constexpr u32 narrow_bytes(u64 types, u32 id, u32 bytes) { return types >> id & 1 ? 4 * NARROW_ITEM * bytes + 192 : 0; }
template <class C>
constexpr u32 bytes_of(u64 types) { return C::WIDE ? wide_bytes(types, C::ID, C::BYTES) : narrow_bytes(types, C::ID, C::BYTES); }
/// Bytes of a place for an item of any of `types`: its rows, and what their first and last 16 bytes hold besides.
constexpr u32 place_bytes(u64 types) {
    return most_of(most_of(most_of(most_of(most_of(bytes_of<Q2_K>(types), bytes_of<Q3_K>(types)), most_of(bytes_of<Q4_K>(types), bytes_of<Q5_K>(types))),
                                   most_of(most_of(bytes_of<Q6_K>(types), bytes_of<IQ4_XS>(types)), most_of(bytes_of<IQ3_XXS>(types), bytes_of<IQ3_S>(types)))),
                           most_of(most_of(most_of(bytes_of<IQ2_XXS>(types), bytes_of<IQ2_XS>(types)), most_of(bytes_of<IQ2_S>(types), bytes_of<Q8_0>(types))),
                                   most_of(most_of(bytes_of<Q4_0>(types), bytes_of<Q4_1>(types)), most_of(bytes_of<Q5_0>(types), bytes_of<Q5_1>(types))))),
                   most_of(most_of(bytes_of<IQ4_NL>(types), bytes_of<MXFP4>(types)), types & FLOAT_TYPES ? FLOAT_OUTPUTS * (FLOAT_ITEM + 48) : 0));
}
constexpr u32 SLOT_BYTES = place_bytes(TYPES);
static_assert(SLOT_BYTES % 16 == 0, "places are aligned");

/// Where output `o` of an item lies behind the beginning of its place.
DEVICE u32 offset_of(const Job& job, u32 first, u32 item, u32 o) {
    u32 address = (u32)(u64)job.weights + first * job.row_bytes;
    if (job.pitch == 0) return (address & 15) + o * job.row_bytes;
    return o * job.pitch + ((address + o * job.row_bytes + item * job.item_bytes) & 15);
}

/// Asks for the outputs `first ..` of an item. The lanes share the work.
DEVICE void copy_item(const Job& job, u32 first, u32 item, u8* place) {
    u32 lane = lane_of(), count = least(1u << job.batch_bits, job.outputs - first);
    u64 from = (u64)job.weights + (u64)first * job.row_bytes;
    if (job.pitch == 0) {
        // one run of bytes
        u64 begin = from & ~15ull;
        u32 chunks = (u32)((from + count * job.row_bytes + 15 - begin) >> 4);
        for (u32 i = lane; i < chunks; i += 32) copy16_async(place + 16 * i, (const void*)(begin + 16 * i));
    } else {
        // a run an output, which lanes share
        u32 share = 32 >> job.batch_bits, o = lane >> (5 - job.batch_bits);
        if (o < count) {
            from += (u64)o * job.row_bytes + item * job.item_bytes;
            u64 begin = from & ~15ull;
            u32 bytes = least(job.item_bytes, job.row_bytes - item * job.item_bytes);
            u32 chunks = (u32)((from + bytes + 15 - begin) >> 4);
            u8* to = place + o * job.pitch;
            for (u32 i = lane & (share - 1); i < chunks; i += share) copy16_async(to + 16 * i, (const void*)(begin + 16 * i));
        }
    }
}

/// The same of a tile: a block of C of each output, all of whose 16 bytes lanes take in turn, as they lie.
template <class C>
DEVICE void copy_tile(const Job& job, u32 first, u32 item, u8* place) {
    constexpr u32 LOW = C::BYTES & (0 - C::BYTES), CHUNKS = (C::BYTES + 15 + (LOW < 16 ? 16 - LOW : 0)) / 16, PITCH = tile_pitch(C::BYTES);
    u32 lane = lane_of(), count = least(1u << job.batch_bits, job.outputs - first);
    u64 from = (u64)job.weights + (u64)first * job.row_bytes + item * C::BYTES;
#pragma unroll
    for (u32 i = 0; i < (TILE_OUTPUTS * CHUNKS + 31) / 32; i++) {
        u32 chunk = lane + 32 * i, o = chunk / CHUNKS;
        if (LOW >= 16) {
            // rows are aligned, and follow each other in the place
            static_assert(LOW < 16 || PITCH == 16 * CHUNKS, "no gaps");
            u64 at = from + 16 * lane + o * (job.row_bytes - C::BYTES);
            if (o < count) copy16_async(place + 16 * lane + 512 * i, (const void*)(at + 512 * i));
        } else {
            u32 at = 16 * (chunk % CHUNKS);
            u64 row = from + o * job.row_bytes;
            // the last chunk of a row may hold nothing of it
            if (o < count && (16 * (CHUNKS - 1) < C::BYTES || at < ((u32)row & 15) + C::BYTES))
                copy16_async(place + o * PITCH + at, (const void*)((row & ~15ull) + at));
        }
    }
}

/// A warp's ring of items: of the batches `first`, `first + stride`, .. of its matrices, for each batch the items `part`, `part + parts`, .. of one after the
/// other's. Two matrices have the same outputs and the same batches.
template <u32 MATRICES, u32 PLACES = SLOTS, u32 PLACE_BYTES = SLOT_BYTES>
struct Ring {
    const u8* weights[MATRICES];
    u32 types[MATRICES];
    u32 outputs, k, batch_bits;
    u32 part, parts;
    u8* places;
    u32 stride;
    /// What is asked for next, and where it goes.
    u32 batch, matrix, item, put;
    /// Which place is read next.
    u32 get;

    DEVICE_METHOD Job job(u32 i) const {
        bool last = MATRICES > 1 && i != 0;
        Job job = job_of(last ? weights[MATRICES - 1] : weights[0], last ? types[MATRICES - 1] : types[0], outputs, k);
        if (MATRICES > 1) job.batch_bits = batch_bits;
        return job;
    }
    DEVICE_METHOD void ask() {
        Job now = job(matrix);
        u32 first = batch << now.batch_bits;
        if (first < outputs && item < now.items) {
            u8* place = places + put * PLACE_BYTES;
            if (TILED && is_wide(now.type)) {
                WITH_WIDE(now.type, copy_tile<C>(now, first, item, place))
            } else {
                copy_item(now, first, item, place);
            }
            put = put + 1 == PLACES ? 0 : put + 1;
            item += parts;
            if (item >= now.items) {
                item = part, matrix++;
                if (matrix == MATRICES) matrix = 0, batch += stride;
            }
        }
        copy_commit();
    }
    /// Asks for the first items. Matrices, outputs and k are there.
    DEVICE_METHOD void begin(u8* at, u32 first, u32 step, u32 own_part = 0, u32 all_parts = 1) {
        part = own_part, parts = all_parts;
        batch_bits = 5;
#pragma unroll
        for (u32 i = 0; i < MATRICES; i++) batch_bits = least(batch_bits, job_of(weights[i], types[i], outputs, k).batch_bits);
        places = at, stride = step, batch = first;
        item = part;
        matrix = put = get = 0;
#pragma unroll 1
        for (u32 i = 0; i < PLACES; i++) ask();
    }
    /// Waits for the oldest item.
    DEVICE_METHOD const u8* next() {
        copy_wait<PLACES - 1>();
        sync_warp();
        return places + get * PLACE_BYTES;
    }
    /// The oldest item has been read by this lane.
    DEVICE_METHOD void done() {
        get = get + 1 == PLACES ? 0 : get + 1;
        sync_warp();
        ask();
    }
};

// ---- activations, as they lie in global memory or in a block's shared memory

DEVICE uint4 words_of(const void* at) { return *(const uint4*)at; }

/// A row of `Acts256` in global memory.
struct WideRow {
    const i8* codes;
    const float* scales;
    const i16* sums;
    DEVICE_METHOD WideRow(const Acts256& of, u32 row, u32 k)
        : codes(of.codes + (u64)row * k), scales(of.scales + ((u64)row * k >> 8)), sums(of.sums + ((u64)row * k >> 4)) {}
    DEVICE_METHOD uint4 piece(u32, u32 block, u32 p) const { return words_of(codes + block * 256 + 16 * p); }
    DEVICE_METHOD uint4 sum_words(u32, u32 block, u32 half) const { return words_of(sums + block * 16 + 8 * half); }
    DEVICE_METHOD float scale(u32, u32 block) const { return scales[block]; }
};

/// A block of 256 in shared memory: codes, sums, scale.
#define RECORD_BYTES 320
/// Where in a record piece `p` lies: the lanes of a quarter warp, whatever unit they unpack, find theirs in different banks.
DEVICE u32 piece_at(u32 p) { return (p & 1) << 7 | (p & 2) << 5 | ((p >> 2 ^ p) & 1) << 5 | (p >> 3 & 1) << 4; }

/// Rows of records in shared memory.
struct WideShared {
    const u8* records;
    u32 blocks;
    DEVICE_METHOD const u8* record(u32 r, u32 block) const { return records + (r * blocks + block) * RECORD_BYTES; }
    DEVICE_METHOD uint4 piece(u32 r, u32 block, u32 p) const { return words_of(record(r, block) + piece_at(p)); }
    DEVICE_METHOD uint4 sum_words(u32 r, u32 block, u32 half) const { return words_of(record(r, block) + 256 + 16 * half); }
    DEVICE_METHOD float scale(u32 r, u32 block) const { return *(const float*)(record(r, block) + 288); }
};

/// Rows of `Acts32` in shared memory, one after the other.
struct NarrowShared {
    const i8* codes;
    const float* scales;
    const i16* sums;
    u32 k;
    DEVICE_METHOD uint4 piece(u32 r, u32 block, u32 half) const { return words_of(codes + r * k + block * 32 + 16 * half); }
    DEVICE_METHOD i32 sum(u32 r, u32 block) const { return sums[(r * k >> 5) + block]; }
    DEVICE_METHOD float scale(u32 r, u32 block) const { return scales[(r * k >> 5) + block]; }
};

/// Rows of floats in shared memory.
struct FloatsShared {
    const float* values;
    u32 k;
    DEVICE_METHOD float value(u32 r, u32 at) const { return values[r * k + at]; }
};

// ---- products

/// Adds the products of four words.
DEVICE i32 dot4(i32 sum, const u32 codes[4], uint4 acts) {
    sum = dp4a(sum, codes[0], acts.x);
    sum = dp4a(sum, codes[1], acts.y);
    sum = dp4a(sum, codes[2], acts.z);
    return dp4a(sum, codes[3], acts.w);
}

/// Byte `i` of a word, signed.
DEVICE i32 signed_byte(u32 word, u32 i) { return (i32)permute(word, 0, i | (8 | i) * 0x1110u); }

/// Groups' sums of activations times a byte a group: `scales` bytes for groups of `SUB` values, `sums` of 16 values.
template <u32 SUB>
DEVICE i32 weighted_sums(const u32 bytes[4], const u32 sums[8]) {
    i32 total = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        // a word of `sums` is two sums of 16: two groups, or the halves of one
        u32 two = SUB == 16 ? bytes[i] : byte_perm(bytes[i / 2], 0, i % 2 ? 0x3322 : 0x1100);
        total = dp2a_low(total, sums[2 * i], two);
        total = dp2a_high(total, sums[2 * i + 1], two);
    }
    return total;
}

/// What lanes tell each other about a warp's batch of one row: sub-scales `[32 lanes] uint4`, then factors and sums `[32]` with a minimum's or without.
constexpr u32 EXCHANGE_BYTES = TYPES & WIDE_TYPES ? 1024 : 0;

/// The activations of a lane's unit.
template <class C, class A>
DEVICE void load_unit(uint4 x[4], const A& acts, u32 r, u32 block, u32 u) {
#pragma unroll
    for (u32 p = 0; p < 4; p++) x[p] = acts.piece(r, block, C::first(u, p) / 16);
}

/// What the end of a block's product needs of a row: the sums of its codes, if the type asks for them, and its scale.
struct Rest {
    uint4 low, high;
    float scale;
};

template <class C, class A>
DEVICE Rest load_rest(const A& acts, u32 r, u32 block) {
    uint4 none = make_uint4(0, 0, 0, 0);
    bool sums = C::MINIMA || C::BIAS != 0;
    return {sums ? acts.sum_words(r, block, 0) : none, sums ? acts.sum_words(r, block, 1) : none, acts.scale(r, block)};
}

/// A unit's codes times its activations, under its sub-scales.
template <class C>
DEVICE i32 multiply_unit(const u32 codes[16], const i32 scales[64 / C::SUB], const uint4 x[4]) {
    if (C::SUB == 16) {
        i32 total = 0;
#pragma unroll
        for (u32 p = 0; p < 4; p++) total += dot4(0, codes + 4 * p, x[p]) * scales[p % (64 / C::SUB)];
        return total;
    }
    i32 low = dot4(dot4(0, codes, x[0]), codes + 4, x[1]), high = dot4(dot4(0, codes + 8, x[2]), codes + 12, x[3]);
    return low * scales[0] + high * scales[1];
}

/// Adds a chain's blocks: entries `pitch` bytes apart.
template <bool MINIMA>
DEVICE void add_blocks(const u8* at, u32 pitch, u32 blocks, float& main, float& minima) {
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
        if (n >= blocks) break;
        if (MINIMA) {
            float4 entry = *(const float4*)(at + n * pitch);
            main = fmaf(entry.x, entry.y, main);
            minima = fmaf(entry.z, entry.w, minima);
        } else {
            float2 entry = *(const float2*)(at + n * pitch);
            main = fmaf(entry.x, entry.y, main);
        }
    }
}

/// Products of one row with the batch that begins with output `first`: `emit(o, 0, x)`, once for every output of the batch.
template <class C, class A, class RingOf, class Emit>
DEVICE void wide_batch(const Job& given, u32 blocks, u32 first, const A& acts, RingOf& ring, u8* exchange, Emit emit) {
    const Job job = job_as<C::ID>(given, 256 * blocks);
    constexpr u32 ENTRY = C::MINIMA ? 16 : 8;
    u32 lane = lane_of(), bits = job.block_bits, outputs = 32u >> bits;
    u32 u = lane & 3, b = lane >> 2 & ((1u << bits) - 1), set = lane >> (2 + bits);
    u8* entries = exchange + 512;
    float main = 0.0f, minima = 0.0f;
    // they are asked for before the weights have come
    uint4 x[4], later[4];
    load_unit<C>(x, acts, 0, least(b, blocks - 1), u);

    for (u32 item = 0; item < job.items; item++) {
        u32 here = least(blocks - (item << bits), 1u << bits), mine = least(b, here - 1), block = (item << bits) + mine;
        Rest rest = load_rest<C>(acts, 0, block);
        const u8* place = ring.next();
        if (item + 1 < job.items) load_unit<C>(later, acts, 0, least((item + 1 << bits) + b, blocks - 1), u);
        u32 of_own[4];
        float d, dmin;
        {
            Head head;
            C::head(place + offset_of(job, first, item, 4 * set + u) + mine * C::BYTES, head);
            d = head.d, dmin = head.dmin;
            u32 by_unit[4];
            C::sub_scales(head, by_unit);
            if (C::SUB == 16) *(uint4*)(exchange + 16 * lane) = make_uint4(by_unit[0], by_unit[1], by_unit[2], by_unit[3]);
            else *(uint2*)(exchange + 8 * lane) = make_uint2(by_unit[0], by_unit[1]);
#pragma unroll
            for (u32 i = 0; i < 4; i++) of_own[i] = C::MINIMA ? head.minima[i] : head.scales[i];
        }
        sync_warp();
        // t[j] is of this lane's unit of output u ^ j
        i32 t[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 codes[16];
            i32 scales[64 / C::SUB];
            C::codes(place + offset_of(job, first, item, 4 * set + (u ^ j)) + mine * C::BYTES, u, codes);
            const u8* scale = exchange + (256 / C::SUB) * (lane ^ j) + u * (64 / C::SUB);
            u32 word = C::SUB == 16 ? *(const u32*)scale : *(const u16*)scale;
#pragma unroll
            for (u32 i = 0; i < 64 / C::SUB; i++) scales[i] = signed_byte(word, i);
            t[j] = multiply_unit<C>(codes, scales, x);
        }
        // after two exchanges t[0] is the whole of output u
        t[0] += shfl_xor(t[1], 1);
        t[2] += shfl_xor(t[3], 1);
        t[0] += shfl_xor(t[2], 2);
        i32 aside = 0;
        if (C::MINIMA || C::BIAS != 0) {
            u32 sums[8] = {rest.low.x, rest.low.y, rest.low.z, rest.low.w, rest.high.x, rest.high.y, rest.high.z, rest.high.w};
            aside = weighted_sums<C::SUB>(of_own, sums);
        }
        if (!C::MINIMA) t[0] -= (i32)C::BIAS * aside;
        u8* entry = entries + ((b << (5 - bits)) + 4 * set + u) * ENTRY;
        if (C::MINIMA) *(float4*)entry = make_float4(d * rest.scale, (float)t[0], dmin * rest.scale, (float)aside);
        else *(float2*)entry = make_float2(d * rest.scale, (float)t[0]);
        sync_warp();
        if (lane < outputs) {
            // chains go on with the next item
            add_blocks<C::MINIMA>(entries + lane * ENTRY, outputs * ENTRY, here, main, minima);
            if (item + 1 == job.items) emit(lane, 0, C::MINIMA ? main - minima : main);
        }
        ring.done();
#pragma unroll
        for (u32 p = 0; p < 4; p++) x[p] = later[p];
    }
}

/// Joins the eight chains of neighbouring lanes, ((0+4)+(2+6))+((1+5)+(3+7)); all eight get it.
DEVICE float join_eight(float chain) {
    chain += shfl_xor(chain, 4);
    chain += shfl_xor(chain, 2);
    return chain + shfl_xor(chain, 1);
}

template <class C, u32 R, class A, class RingOf, class Emit>
DEVICE void narrow_batch(const Job& given, u32 blocks, u32 first, u32 rows, const A& acts, RingOf& ring, Emit emit) {
    const Job job = job_as<C::ID>(given, 32 * blocks);
    u32 lane = lane_of(), o = lane >> 3, c = lane & 7;
    float main[R], minima[R];
#pragma unroll
    for (u32 r = 0; r < R; r++) main[r] = minima[r] = 0.0f;
    for (u32 item = 0; item < job.items; item++) {
        const u8* row = ring.next() + offset_of(job, first, item, o);
        u32 here = least(blocks - item * NARROW_ITEM, (u32)NARROW_ITEM);
#pragma unroll(R <= 2 ? 4 : 1)
        for (u32 at = c; at < here; at += 8) {
            const u8* from = row + at * C::BYTES;
            u32 block = item * NARROW_ITEM + at, codes[8];
            C::codes(from, codes);
            float d = C::scale(from), m = C::minimum(from);
#pragma unroll
            for (u32 r = 0; r < R; r++) {
                if (r >= rows) break;
                i32 sum = C::MINIMA || C::BIAS != 0 ? acts.sum(r, block) : 0;
                float scale = acts.scale(r, block);
                i32 dot = dot4(dot4(-(i32)C::BIAS * sum, codes, acts.piece(r, block, 0)), codes + 4, acts.piece(r, block, 1));
                main[r] = fmaf(d * scale, (float)dot, main[r]);
                if (C::MINIMA) minima[r] = fmaf(m * scale, (float)sum, minima[r]);
            }
        }
        ring.done();
    }
#pragma unroll
    for (u32 r = 0; r < R; r++) {
        float x = join_eight(main[r]);
        if (C::MINIMA) x += join_eight(minima[r]);
        if (r < rows && c == r % 8) emit(o, r, x);
    }
}

/// A weight of a float type.
DEVICE float weight_at(const u8* row, u32 type, u32 at) {
    if (HAS_TYPE(ID_F32) && type == ID_F32) return *(const float*)(row + 4 * at);
    u16 bits = *(const u16*)(row + 2 * at);
    return HAS_TYPE(ID_F16) && type == ID_F16 ? half_to_float(bits) : bf16_to_float(bits);
}

template <u32 TYPE, u32 R, class A, class RingOf, class Emit>
DEVICE void float_batch(const Job& given, u32 k, u32 first, u32 rows, const A& acts, RingOf& ring, Emit emit) {
    const Job job = job_as<TYPE>(given, k);
    constexpr u32 VALUES = FLOAT_ITEM / (TYPE == ID_F32 ? 4 : 2);
    u32 lane = lane_of(), o = lane >> 4, c = lane & 15;
    float main[R];
#pragma unroll
    for (u32 r = 0; r < R; r++) main[r] = 0.0f;
    for (u32 item = 0; item < job.items; item++) {
        const u8* row = ring.next() + offset_of(job, first, item, o);
        u32 from = item * VALUES, here = least(k - from, VALUES), at = c;
#pragma unroll(R <= 4 ? 8 : 2)
        for (u32 i = 0; i < here / 16; i++, at += 16) {
            float w = weight_at(row, TYPE, at);
#pragma unroll
            for (u32 r = 0; r < R; r++)
                if (r < rows) main[r] = fmaf(w, acts.value(r, from + at), main[r]);
        }
        // the last values, fewer than 16; what is missing counts as zeros
        if (here % 16 != 0) {
            bool there = at < here;
            float w = there ? weight_at(row, TYPE, at) : 0.0f;
#pragma unroll
            for (u32 r = 0; r < R; r++)
                if (r < rows) main[r] = fmaf(w, there ? acts.value(r, from + at) : 0.0f, main[r]);
        }
        ring.done();
    }
#pragma unroll
    for (u32 r = 0; r < R; r++) {
        float x = main[r];
#pragma unroll
        for (u32 half = 8; half > 0; half /= 2) x += shfl_xor(x, half);
        if (r < rows && c == r % 16) emit(o, r, x);
    }
}

// ---- activations brought to shared memory by a block, a warp a row; `sync_block` follows

/// Rows `row(r)`, r < rows, of `Acts256` as records.
template <class Row>
DEVICE void stage_wide(u8* to, const Acts256& from, u32 k, u32 rows, Row row) {
    u32 lane = lane_of(), blocks = k / 256;
    for (u32 r = warp_of(); r < rows; r += blockDim.x / 32) {
        u64 at = (u64)row(r) * k;
        u8* records = to + r * blocks * RECORD_BYTES;
#pragma unroll 4
        for (u32 i = lane; i < 16 * blocks; i += 32) *(uint4*)(records + (i >> 4) * RECORD_BYTES + piece_at(i & 15)) = words_of(from.codes + at + 16 * i);
        for (u32 i = lane; i < 2 * blocks; i += 32) *(uint4*)(records + (i >> 1) * RECORD_BYTES + 256 + 16 * (i & 1)) = words_of(from.sums + (at >> 4) + 8 * i);
        for (u32 i = lane; i < blocks; i += 32) *(float*)(records + i * RECORD_BYTES + 288) = from.scales[(at >> 8) + i];
    }
}

/// Where rows of `Acts32` lie: codes, then scales, then sums.
DEVICE Acts32 narrow_at(u8* at, u32 k, u32 rows_max) { return {(i8*)at, (float*)(at + rows_max * k), (i16*)(at + rows_max * k + rows_max * k / 8)}; }
DEVICE NarrowShared narrow_shared(const Acts32& acts, u32 k) { return {acts.codes, acts.scales, acts.sums, k}; }

/// The same of `Acts32`.
template <class Row>
DEVICE void stage_narrow(const Acts32& to, const Acts32& from, u32 k, u32 rows, Row row) {
    u32 lane = lane_of();
    for (u32 r = warp_of(); r < rows; r += blockDim.x / 32) {
        u64 at = (u64)row(r) * k;
#pragma unroll 4
        for (u32 i = lane; i < k / 16; i += 32) *(uint4*)(to.codes + r * k + 16 * i) = words_of(from.codes + at + 16 * i);
#pragma unroll 2
        for (u32 i = lane; i < k / 32; i += 32) {
            to.scales[r * (k / 32) + i] = from.scales[(at >> 5) + i];
            to.sums[r * (k / 32) + i] = from.sums[(at >> 5) + i];
        }
    }
}

template <class Row>
DEVICE void stage_floats(float* to, const float* from, u64 stride, u32 k, u32 rows, Row row) {
    u32 lane = lane_of();
    bool fours = k % 4 == 0 && stride % 4 == 0;
    for (u32 r = warp_of(); r < rows; r += blockDim.x / 32) {
        const float* at = from + row(r) * stride;
        float* own = to + r * k;
        if (fours) {
#pragma unroll 8
            for (u32 i = 4 * lane; i < k; i += 128) *(float4*)(own + i) = *(const float4*)(at + i);
        } else {
            for (u32 i = lane; i < k; i += 32) own[i] = at[i];
        }
    }
}

/// Quantises rows `from(r) [k] f32` to records. The warps of the block share the work.
template <class From>
DEVICE void quantise_wide(u8* to, u32 k, u32 rows, From from) {
    u32 lane = lane_of(), blocks = k / 256;
    for (u32 i = warp_of(); i < rows * blocks; i += blockDim.x / 32) {
        float x[8];
        read_run(from(i / blocks), k, 256 * (i % blocks), x);
        u32 codes[2];
        i32 sum;
        float d = quantise256(x, codes, &sum);
        u8* record = to + i * RECORD_BYTES;
        *(uint2*)(record + piece_at(lane / 2) + 8 * (lane & 1)) = make_uint2(codes[0], codes[1]);
        if (lane % 2 == 0) *(i16*)(record + 256 + lane) = (i16)sum;
        if (lane == 0) *(float*)(record + 288) = d;
    }
}

template <class From>
DEVICE void quantise_narrow(const Acts32& to, u32 k, u32 rows, From from) {
    u32 runs = ceil_div(k, 256);
    for (u32 i = warp_of(); i < rows * runs; i += blockDim.x / 32) {
        float x[8];
        read_run(from(i / runs), k, 256 * (i % runs), x);
        store32(to, i / runs, k, 256 * (i % runs), x);
    }
}
