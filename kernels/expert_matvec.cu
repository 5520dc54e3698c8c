// The experts of a window of up to 16 rows: two kernels, all chosen experts and the shared one at once.
//
//     expert_gate_up   hidden[place] = activated(gate[expert] x, up[expert] x)    x = Normed[row of the place]
//     expert_down      outputs[place] = down[expert] hidden[place]
//
// With EXPERT_BIAS an expert's biases are added to its gate, up and down projections; the shared expert has none.
//
// A place is `row * used + rank`. Groups are experts with at least one row: `places` [rows * used] sorted by expert, `experts` [groups], `starts`
// [groups + 1], `count` [1]. The shared expert, if there is one, is a group of its own in which place = row.
// Shapes: gate, up [width, k], down [k, width] in any of TYPES, an expert's `stride` bytes behind the one before, 16-byte aligned; hidden [rows * used, width],
// outputs [rows * used, k]; shared hidden [rows, shared width], shared outputs [rows, k]; all f32.
// Exact: products as in `matvec.cu`, silu as in `functions.cuh`, the intermediate quantised as in `quantise.cuh`: the bits of the CPU's `run_experts`.
//
// Grid: (parts, groups at most + 1 for a shared expert), 32 WARPS threads; blocks of groups that are not there leave at once. The warps of a group's
// parts take its batches (matvec.cuh; gate and up have the smaller of their two) or tiles (matvec_tile.cuh) in turn, so parts = ceil(batches / WARPS) gives
// every warp one. Short tiles want several a warp: every block quantises what expert_down reads.
// Row 0 of the grid is the shared expert, if there is one. A group's rows are taken ROWS_MAX at a time.
// Dynamic shared memory: WARPS * (GATE_SLOTS places for GATE_TYPES, for expert_down DOWN_SLOTS for TYPES, + what `matvec.cu` has beside its places) + staged,
// places as in `matvec.cu` with ROWS = ROWS_MAX (of floats: 4192 bytes); staged is ROWS_MAX times the sum, over the forms that TYPES asks for, of n / 256 *
// 304 (with one row 320), n * 19 / 16 (rounded up to 16 after multiplying) and 4 n; n is k for expert_gate_up, which needs 128 * ROWS_MAX * WARPS more (and
// stages nothing if it has one row and TYPES only 256-wide types), and the greater of width and shared width for expert_down.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: TYPES (codec.cuh); ROWS_MAX (1, 2, 4, 8: rows of a group that are multiplied at once. With 1 the window has one row, whose groups are its choices
// in the order of rank: of `Groups` only `ids [used]` u16 is read); WARPS; GATE_TYPES (those of TYPES that gate and up have); GATE_SLOTS, DOWN_SLOTS (SLOTS
// of matvec.cuh); FIXED_K, FIXED_WIDTH, SHARED_WIDTH (k, the width of the experts and that of the shared expert, 0 if there is none, where they are known:
// the arguments are ignored); ACTIVATION (functions.cuh); EXPERT_BIAS.
#include "device.cuh"

#ifndef ROWS_MAX
#define ROWS_MAX 1
#endif
#ifndef WARPS
#define WARPS (ROWS_MAX == 1 ? 2 : 4)
#endif
#if SHARED_KIB < 99 && ROWS_MAX > 1 && !defined(SLOTS)
#define SLOTS 1
#endif
#ifndef GATE_SLOTS
#define GATE_SLOTS (ROWS_MAX == 1 || SHARED_KIB < 160 ? SLOTS : 3)
#endif
#ifndef DOWN_SLOTS
#define DOWN_SLOTS (ROWS_MAX == 1 ? 1 : SHARED_KIB < 160 ? SLOTS : 3)
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS (16 / WARPS)
#endif
#define TILED (ROWS_MAX > 1)
#include "functions.cuh"
#include "matvec.cuh"
#include "matvec_tile.cuh"

#ifndef GATE_TYPES
#define GATE_TYPES TYPES
#endif
#ifndef EXPERT_BIAS
#define EXPERT_BIAS 0
#endif

struct Groups {
    const u32* places;
    const u32* experts;
    const u32* starts;
    const u32* count;
    const u16* ids; // [rows, used]
    u32 used;
};

/// One matrix of every expert.
struct ExpertMatrix {
    const u8* first;
    const float* bias; // [experts, outputs], read with EXPERT_BIAS
    u32 stride; // from one expert's to the next, in 16 bytes
    u32 type;

    DEVICE_METHOD const u8* of(u32 expert) const { return first + 16 * ((u64)expert * stride); }
};

/// The shared expert's matrices; `gate` is null if there is none.
struct SharedMatrices {
    const u8* gate;
    const u8* up;
    const u8* down;
    u32 gate_type, up_type, down_type;
    u32 width;
    float* hidden;  // [rows, width]
    float* outputs; // [rows, k]
};

/// What a block works on: rows of one expert.
struct Group {
    bool shared;
    u32 expert;
    u32 first, rows;
};

/// The block's group; `rows` is 0 if there is none.
DEVICE Group group_of(const Groups& groups, bool has_shared, const u32* live_rows) {
    u32 y = blockIdx.y, g = y - has_shared;
    bool shared = has_shared && y == 0;
    if (ROWS_MAX == 1) return {shared, shared ? 0u : groups.ids[g], shared ? 0u : g, 1};
    if (shared) return {true, 0, 0, live_rows[0]};
    u32 count = groups.count[0], first = groups.starts[g], end = groups.starts[g + 1], expert = groups.experts[g];
    if (g >= count) return {false, 0, 0, 0};
    return {false, expert, first, end - first};
}

/// The group's r-th place, or its last one.
struct Places {
    const u32* places;
    Group group;
    u32 first, rows;
    /// Of row lane mod ROWS_MAX, asked for ahead of time; not of the shared expert.
    u32 own;
    /// The same place, where the whole warp asks for it.
    DEVICE_METHOD u32 together(u32 r) const {
        if (ROWS_MAX == 1) return group.first;
        return group.shared ? group.first + first + least(r, rows - 1) : shfl(own, r);
    }
    DEVICE_METHOD u32 operator()(u32 r) const {
        if (ROWS_MAX == 1) return group.first;
        u32 at = group.first + first + least(r, rows - 1);
        return group.shared ? at : places[at];
    }
};

#ifdef FIXED_WIDTH
#define WIDTH_OF(given) FIXED_WIDTH
#else
#define WIDTH_OF(given) given
#endif
#ifdef SHARED_WIDTH
#define SHARED_WIDTH_OF(matrices) SHARED_WIDTH
#else
#define SHARED_WIDTH_OF(matrices) (matrices).width
#endif
/// Whether there is a shared expert: not for every launch of a model that has one.
#define HAS_SHARED(matrices) (SHARED_WIDTH_OF(matrices) != 0 && (matrices).gate != nullptr)

/// Rows of a group that are multiplied at once: one, or up to ROWS_MAX. Tiles take as long for one.
#define WITH_ROWS(rows, ...)                                            \
    if (ROWS_MAX == 1 || (TYPES & ~WIDE_TYPES && rows == 1)) {          \
        constexpr u32 R = 1;                                            \
        __VA_ARGS__                                                     \
    } else {                                                            \
        constexpr u32 R = ROWS_MAX;                                     \
        __VA_ARGS__                                                     \
    }

/// Rows of activations in all forms.
struct Acts {
    Acts256 acts256;
    Acts32 acts32;
    const float* floats;
    u64 stride;
};

/// Where a block keeps rows of `k` values, in the form that a type asks for: each form that TYPES has has a place of its own.
DEVICE u8* staged_for(u8* staged, u32 type, u32 k, u32 rows) {
    if (is_wide(type)) return staged;
    if (TYPES & WIDE_TYPES) staged += rows * (k / 256) * (TILED ? TILE_RECORD : RECORD_BYTES);
    if (is_narrow(type)) return staged;
    if (TYPES & NARROW_TYPES) staged += (rows * k * 19 / 16 + 15) / 16 * 16;
    return staged;
}

/// Brings rows `row(r)`, r < rows <= R, to shared memory.
template <u32 R, class Row>
DEVICE void stage(u8* staged, u32 type, const Acts& from, u32 k, u32 rows, Row row) {
    u8* to = staged_for(staged, type, k, R);
    if (TILED && is_wide(type)) stage_tile<R>(to, from.acts256, k, rows, row);
    else if (is_wide(type)) stage_wide(to, from.acts256, k, rows, row);
    else if (is_narrow(type)) stage_narrow(narrow_at(to, k, R), from.acts32, k, rows, row);
    else if (TYPES & FLOAT_TYPES) stage_floats((float*)to, from.floats, from.stride, k, rows, row);
}

/// A batch of a matrix whose activations are in shared memory.
template <u32 R, class RingOf, class Emit>
DEVICE void staged_batch(const Job& job, u32 k, u32 first, u32 rows, u8* staged, RingOf& ring, u8* exchange, Emit emit) {
    u8* from = staged_for(staged, job.type, k, R);
    if (is_wide(job.type)) {
        if constexpr (TILED) {
            WITH_WIDE(job.type, wide_tile<C, R>(job, k / 256, first, rows, from, ring, exchange, emit))
        } else {
            WideShared acts = {from, k / 256};
            WITH_WIDE(job.type, wide_batch<C>(job, k / 256, first, acts, ring, exchange, emit))
        }
    } else if (is_narrow(job.type)) {
        NarrowShared acts = narrow_shared(narrow_at(from, k, R), k);
        WITH_NARROW(job.type, narrow_batch<C, R>(job, k / 32, first, rows, acts, ring, emit))
    } else if (TYPES & FLOAT_TYPES) {
        FloatsShared acts = {(const float*)from, k};
        WITH_FLOAT(job.type, float_batch<ID, R>(job, k, first, rows, acts, ring, emit))
    }
}

/// Bytes of a warp's own: its ring, what its lanes exchange, and what gates came to.
#define ASIDE_BYTES (TILED ? UNPACKED_BYTES : EXCHANGE_BYTES)
constexpr u32 GATE_PLACE = place_bytes(GATE_TYPES);
#define OWN_BYTES (GATE_SLOTS * GATE_PLACE + ASIDE_BYTES)
#define DOWN_OWN_BYTES (DOWN_SLOTS * SLOT_BYTES + ASIDE_BYTES)
#define GATES_BYTES (128 * ROWS_MAX)

/// The rows of a group, ROWS_MAX at a time: `begun()` is called after the first items of the first of them have been asked for, then `multiply(place)` for
/// each.
template <class RingOf, class Begun, class Multiply>
DEVICE void over_rows(RingOf& ring, u8* own, const Groups& groups, const Group& group, Begun begun, Multiply multiply) {
    for (u32 first = 0; first < group.rows; first += ROWS_MAX) {
        if (first) {
            // the block is done with the rows before
            copy_wait<0>();
            sync_block();
        }
        u32 place = 0;
        if (ROWS_MAX > 1 && !group.shared) place = groups.places[group.first + least(first + lane_of() % ROWS_MAX, group.rows - 1)];
        ring.begin(own, blockIdx.x * WARPS + warp_of(), gridDim.x * WARPS);
        if (first == 0) begun();
        multiply(Places{groups.places, group, first, least(group.rows - first, (u32)ROWS_MAX), place});
    }
    copy_wait<0>();
}

typedef Ring<2, GATE_SLOTS, GATE_PLACE> GateRing;

/// Gate and up of the places `place(r)`, r < place.rows <= R.
template <u32 R>
DEVICE void gate_up(GateRing& ring, u8* own, u8* staged, u32 k, u32 width, const Acts& from, u32 used, const Places& place, const float* gate_bias,
                    const float* up_bias, float* hidden) {
    u8* exchange = own + GATE_SLOTS * GATE_PLACE;
    float* gates = (float*)(own + OWN_BYTES);
    auto row = [&](u32 r) { return place.group.shared ? place.together(r) : place.together(r) / used; };
    // of one row, activations come straight to registers
    constexpr bool STAGED = TILED || TYPES & ~WIDE_TYPES;
    const WideRow straight(from.acts256, STAGED ? 0 : row(0), k);
    if constexpr (STAGED) {
        u32 gate = ring.types[0], up = ring.types[1];
        stage<R>(staged, gate, from, k, place.rows, row);
        if (staged_for(staged, gate, k, R) != staged_for(staged, up, k, R)) stage<R>(staged, up, from, k, place.rows, row);
        sync_block();
    }
    u32 bits = ring.batch_bits, step = gridDim.x * WARPS << bits;
    for (u32 first = (blockIdx.x * WARPS + warp_of()) << bits; first < width; first += step) {
#pragma unroll 1
        for (u32 up = 0; up < 2; up++) {
            const Job job = ring.job(up);
            auto emit = [&](u32 o, u32 r, float x) {
                if (EXPERT_BIAS && gate_bias && first + o < width) x += (up ? up_bias : gate_bias)[first + o];
                if (!up) gates[(r << 5) + o] = x;
                else if (o >> bits == 0 && first + o < width) hidden[(u64)place(r) * width + first + o] = activated(gates[(r << 5) + o], x);
            };
            if constexpr (STAGED) {
                staged_batch<R>(job, k, first, place.rows, staged, ring, exchange, emit);
            } else {
                WITH_WIDE(job.type, wide_batch<C>(job, k / 256, first, straight, ring, exchange, emit))
            }
            // where the types of gate and up differ, so do the lanes that have an output
            sync_warp();
        }
    }
}

KERNEL_MIN(32 * WARPS, MIN_BLOCKS)
expert_gate_up(Groups groups, ExpertMatrix gate, ExpertMatrix up, u32 k_given, u32 width_given, Acts from, float* hidden, SharedMatrices shared, const u32* live_rows) {
    DYNAMIC_SHARED(memory);
    const u32 k = K_OF(k_given);
    u8* own = memory + warp_of() * (OWN_BYTES + GATES_BYTES);
    u8* staged = memory + WARPS * (OWN_BYTES + GATES_BYTES);
    const bool has_shared = HAS_SHARED(shared), is_shared = has_shared && blockIdx.y == 0;
    const u32 width = is_shared ? SHARED_WIDTH_OF(shared) : WIDTH_OF(width_given);
    GateRing ring;
    ring.outputs = width, ring.k = k;
    ring.types[0] = known_type<GATE_TYPES>(is_shared ? shared.gate_type : gate.type);
    ring.types[1] = known_type<GATE_TYPES>(is_shared ? shared.up_type : up.type);
    if (is_shared) {
        ring.weights[0] = shared.gate, ring.weights[1] = shared.up;
    } else {
        wait_for_previous();
        release_next();
    }
    Group group = {true, 0, 0, 1};
    if (!is_shared) {
        group = group_of(groups, has_shared, live_rows);
        if (group.rows == 0) return;
        ring.weights[0] = gate.of(group.expert), ring.weights[1] = up.of(group.expert);
    }
    auto begun = [&] {
        // the shared expert's weights do not depend on what this waits for
        if (!is_shared) return;
        wait_for_previous();
        release_next();
        group = group_of(groups, true, live_rows);
    };
    over_rows(ring, own, groups, group, begun, [&](const Places& place) {
        const u64 of = (u64)group.expert * width;
        const float* gate_bias = EXPERT_BIAS && !is_shared ? gate.bias + of : nullptr;
        const float* up_bias = EXPERT_BIAS && !is_shared ? up.bias + of : nullptr;
        WITH_ROWS(place.rows, gate_up<R>(ring, own, staged, k, width, from, groups.used, place, gate_bias, up_bias, is_shared ? shared.hidden : hidden);)
    });
}

/// Quantises rows `from(r)`, r < rows <= R, of `width` values to where a block keeps them.
template <u32 R, class From>
DEVICE void quantise(u8* staged, u32 type, u32 width, u32 rows, From from) {
    u8* to = staged_for(staged, type, width, R);
    if (TILED && is_wide(type)) quantise_tile<R>(to, width, rows, from);
    else if (is_wide(type)) quantise_wide(to, width, rows, from);
    else if (is_narrow(type)) quantise_narrow(narrow_at(to, width, R), width, rows, from);
}

/// Down of the places `place(r)`, r < place.rows <= R.
template <u32 R>
DEVICE void down(Ring<1, DOWN_SLOTS>& ring, u8* own, u8* staged, u32 k, u32 width, const Places& place, const float* bias, const float* hidden,
                 float* outputs) {
    const Job job = ring.job(0);
    auto row = [&](u32 r) { return place.together(r); };
    auto from = [&](u32 r) { return hidden + (u64)row(r) * width; };
    if (is_wide(job.type) || is_narrow(job.type)) quantise<R>(staged, job.type, width, place.rows, from);
    else if (TYPES & FLOAT_TYPES) stage_floats((float*)staged_for(staged, job.type, width, R), hidden, width, width, place.rows, row);
    sync_block();
    u32 bits = job.batch_bits, step = gridDim.x * WARPS << bits;
    for (u32 first = (blockIdx.x * WARPS + warp_of()) << bits; first < k; first += step) {
        auto emit = [&](u32 o, u32 r, float x) {
            if (first + o >= k) return;
            if (EXPERT_BIAS && bias) x += bias[first + o];
            outputs[(u64)place(r) * k + first + o] = x;
        };
        staged_batch<R>(job, width, first, place.rows, staged, ring, own + DOWN_SLOTS * SLOT_BYTES, emit);
    }
}

KERNEL_MIN(32 * WARPS, MIN_BLOCKS)
expert_down(Groups groups, ExpertMatrix matrix, u32 k_given, u32 width_given, const float* hidden, float* outputs, SharedMatrices shared, const u32* live_rows) {
    DYNAMIC_SHARED(memory);
    const u32 k = K_OF(k_given);
    u8* own = memory + warp_of() * DOWN_OWN_BYTES;
    u8* staged = memory + WARPS * DOWN_OWN_BYTES;
    const bool has_shared = HAS_SHARED(shared), is_shared = has_shared && blockIdx.y == 0;
    const u32 width = is_shared ? SHARED_WIDTH_OF(shared) : WIDTH_OF(width_given);
    // the groups were there before the kernel that this one waits for began
    const Group group = group_of(groups, has_shared, live_rows);
    Ring<1, DOWN_SLOTS> ring;
    ring.outputs = k, ring.k = width;
    ring.types[0] = known_type<TYPES>(is_shared ? shared.down_type : matrix.type);
    if (group.rows) ring.weights[0] = is_shared ? shared.down : matrix.of(group.expert);
    auto begun = [&] {
        wait_for_previous();
        release_next();
    };
    over_rows(ring, own, groups, group, begun, [&](const Places& place) {
        const float* bias = EXPERT_BIAS && !is_shared ? matrix.bias + (u64)group.expert * k : nullptr;
        WITH_ROWS(place.rows, down<R>(ring, own, staged, k, width, place, bias, is_shared ? shared.hidden : hidden, is_shared ? shared.outputs : outputs);)
    });
}

/// How these kernels are launched: threads, bytes of shared memory beside staged rows of each.
KERNEL(1) expert_matvec_launch(u32* to) {
    to[0] = 32 * WARPS;
    to[1] = WARPS * (OWN_BYTES + GATES_BYTES);
    to[2] = WARPS * DOWN_OWN_BYTES;
}
