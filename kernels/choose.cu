// What a token is chosen from: the greatest logit of a row and, for rows that are sampled, the CANDIDATES greatest with the weight of the whole row.
//
//     token      = the greatest logit, ties to the lower id (-0 and 0 tie)
//     finite     = whether all logits are
//     candidates = (id, logit) of the CANDIDATES greatest, descending, ties to the lower id
//     sum        = sum over the row of exp(logit - peak)
//
// Shapes: logits [rows, VOCAB] f32; want [rows] u32: 0 nothing, 1 the token, 2 the candidates as well; choices [rows]; ids [rows, CANDIDATES] u32; values
// [rows, CANDIDATES] f32. Scratch: segments [rows, SEGMENTS] u32, parts [rows, PARTS]; done [rows] u32 is 0 before and after.
// `rows` are those that need logits, `rows.counts[2]` of them; all is indexed by their number. Results may lie in mapped host memory: each is written once.
// Exact: token, finite and candidates. `sum` has a fixed order (f32 within PART logits, f64 over parts), a relative error below 1e-6, and means nothing where
// the row is not finite.
//
// Every block looks at PART logits and leaves the greatest of each SEGMENT. The last block of a row takes a line that at least CANDIDATES segments reach,
// so no logit below it counts, reads only the segments that reach it, and sorts what it finds there by counting. Where that is too much (many equal
// logits) it finds the exact line digit by digit over the whole row, which is slow and equally right.
//
// Grid: (PARTS, rows), CHOOSE_THREADS threads. Static shared memory: 17 KiB + 2 SEGMENTS bytes.
// Architectures: sm_75, 80, 86, 89, 90, 100, 120.
//
// Macros: VOCAB, CANDIDATES (at most 1024).
#include "choice.cuh"
#include "device.cuh"
#include "functions.cuh"

#ifndef VOCAB
#define VOCAB 151936
#endif
#ifndef CANDIDATES
#define CANDIDATES 256
#endif

#define CHOOSE_THREADS 512
#define CHOOSE_WARPS (CHOOSE_THREADS / 32)
/// Logits of a block: four a thread.
#define PART (4 * CHOOSE_THREADS)
#define PARTS ((VOCAB + PART - 1) / PART)
/// Neighbouring logits of which the greatest stands for all: few enough to read again, and some thousand segments a row.
#define SEGMENT (VOCAB >= 131072 ? 64 : VOCAB >= 65536 ? 32 : VOCAB >= 32768 ? 16 : VOCAB >= 16384 ? 8 : 4)
#define SEGMENTS ((VOCAB + SEGMENT - 1) / SEGMENT)
/// Segments of a thread.
#define SHARE ((SEGMENTS + CHOOSE_THREADS - 1) / CHOOSE_THREADS)
/// Candidates that are sorted.
#define ROOM 1024
#define BINS (4 * CHOOSE_THREADS)
static_assert(CANDIDATES >= 1 && CANDIDATES <= ROOM && SEGMENTS <= 65536, "candidates");

/// What a block leaves of its part.
struct Part {
    u64 top;    // key of the greatest logit
    float sum;  // of exp(logit - greatest)
    u32 finite; // whether all are
};

/// A number that orders like the logit, above 0 for all but NaNs; one zero.
DEVICE u32 rank_of(float logit) {
    u32 bits = bits_of(logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float logit_of(u32 rank) { return float_of(rank >> 31 ? rank & 0x7fffffffu : ~rank); }

/// Orders tokens: larger logit first, then lower id.
DEVICE u64 key_of(u32 rank, u32 id) { return (u64)rank << 32 | (u32)~id; }

/// Four logits from `at` on; what lies behind the row's end is minus infinity.
DEVICE void load_four(const float* row, u32 at, float x[4]) {
    if (VOCAB % 4 == 0 && at < VOCAB) {
        float4 four = *(const float4*)(row + at);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[i] = at + i < VOCAB ? row[at + i] : float_of(0xff800000u);
}

DEVICE u64 warp_max_key(u64 key) {
    u32 high = warp_max_u32((u32)(key >> 32));
    u32 low = warp_max_u32((u32)(key >> 32) == high ? (u32)key : 0);
    return (u64)high << 32 | low;
}

/// A line that at least `CANDIDATES` of the segments reach, and few more where logits differ. `bins` and `found` are shared.
DEVICE u32 draw_line(const u32 held[SHARE], u32 low, u32 high, u32* bins, u32* found) {
    u32 thread = threadIdx.x, lane = lane_of(), warp = warp_of(), need = CANDIDATES;
    for (;;) {
        u32 shift = 0;
        while ((high - low) >> shift >= BINS) shift++;
        *(uint4*)(bins + 4 * thread) = make_uint4(0, 0, 0, 0);
        sync_block();
#pragma unroll
        for (u32 i = 0; i < SHARE; i++)
            if (held[i] >= low && held[i] <= high) atomic_add(bins + ((held[i] - low) >> shift), 1u);
        sync_block();
        // thread t has the bins that are t-th from the top
        u32 at = BINS - 4 - 4 * thread, own[4] = {bins[at + 3], bins[at + 2], bins[at + 1], bins[at]};
        u32 self = own[0] + own[1] + own[2] + own[3], sum = self;
#pragma unroll
        for (u32 by = 1; by < 32; by <<= 1) {
            u32 other = shfl_up(sum, by);
            if (lane >= by) sum += other;
        }
        if (lane == 31) found[4 + warp] = sum;
        sync_block();
        for (u32 i = 0; i < warp; i++) sum += found[4 + i];
        u32 above = sum - self;
        if (above < need && sum >= need) {
            u32 i = 0;
            while (above + own[i] < need) above += own[i++];
            found[0] = at + 3 - i;
            found[1] = above;
            found[2] = above + own[i];
        }
        sync_block();
        low += found[0] << shift;
        high = least(high, low + ((1u << shift) - 1));
        if (shift == 0 || found[2] <= need + CANDIDATES / 4) return low;
        need -= found[1];
        sync_block();
    }
}

/// The `CANDIDATES`-th key of the row, digit by digit. `bins [256]` is shared.
DEVICE u64 exact_line(const float* row, u32* bins, u32* found) {
    u32 thread = threadIdx.x, lane = lane_of(), need = CANDIDATES;
    u64 line = 0;
    for (u32 shift = 64; shift > 0;) {
        shift -= 8;
        sync_block();
        if (thread < 256) bins[thread] = 0;
        sync_block();
        for (u32 base = 0; base < VOCAB; base += PART) {
            float x[4];
            load_four(row, base + 4 * thread, x);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 id = base + 4 * thread + i, digit = 256;
                u64 key = key_of(rank_of(x[i]), id);
                if (id < VOCAB && (shift == 56 || key >> (shift + 8) == line)) digit = (u32)(key >> shift) & 255;
                // most often a warp's digits are all the same
                if (ballot(digit == shfl(digit, 0)) == ~0u) {
                    if (lane == 0 && digit < 256) atomic_add(bins + digit, 32u);
                } else if (digit < 256) {
                    atomic_add(bins + digit, 1u);
                }
            }
        }
        sync_block();
        if (thread == 0) {
            u32 digit = 256, above = 0;
            while (above + bins[--digit] < need) above += bins[digit];
            found[0] = digit, found[1] = above;
        }
        sync_block();
        line = line << 8 | found[0];
        need -= found[1];
    }
    return line;
}

/// Takes the logits from `at` on that reach the line.
DEVICE void take_four(const float* row, u32 at, u64 line, u64* keys, u32* count) {
    float x[4];
    load_four(row, at, x);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u64 key = key_of(rank_of(x[i]), at + i);
        if (at + i < VOCAB && key >= line) {
            u32 place = atomic_add(count, 1u);
            if (place < ROOM) keys[place] = key;
        }
    }
}

KERNEL_MIN(CHOOSE_THREADS, 1) choose(const float* logits, const u32* want, u32* segments, Part* parts, u32* done, Choice* choices, u32* ids, float* values,
                                     Rows rows) {
    SHARED(u64, keys, ROOM); // at first, the warps' greatest
    SHARED(u32, bins, BINS);
    SHARED(u16, list, SEGMENTS);
    SHARED(float, sums, CHOOSE_WARPS);
    SHARED(u32, found, 4 + CHOOSE_WARPS);
    SHARED(u32, counts, 4); // segments in the list, keys, whether this is the last block, least segment
    wait_for_previous();
    release_next();
    u32 number = blockIdx.y, part = blockIdx.x, thread = threadIdx.x, lane = lane_of(), warp = warp_of();
    // all are on their way together: there are arrays for every row of the grid
    u32 live = rows.counts[2], wanted = want[number];
    const float* row = logits + (u64)number * VOCAB;
    u32 at = part * PART + 4 * thread;
    float x[4];
    load_four(row, at, x);
    if (number >= live || !wanted) return;

    bool finite = true;
    u64 top = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (at + i >= VOCAB) continue;
        finite = finite && (bits_of(x[i]) & 0x7f800000u) != 0x7f800000u;
        top = greatest(top, key_of(rank_of(x[i]), at + i));
    }
    if (wanted > 1) {
        u32 rank = (u32)(top >> 32);
#pragma unroll
        for (u32 by = 1; by < SEGMENT / 4; by <<= 1) rank = greatest(rank, shfl_xor(rank, by));
        if (thread % (SEGMENT / 4) == 0 && at < VOCAB) segments[(u64)number * SEGMENTS + at / SEGMENT] = rank;
    }
    top = warp_max_key(top);
    if (lane == 0) keys[warp] = top;
    bool all_finite = sync_block_count(!finite) == 0;
    for (u32 i = 0; i < CHOOSE_WARPS; i++) top = greatest(top, keys[i]);
    float sum = 0.0f;
    if (wanted > 1) {
        float peak = logit_of((u32)(top >> 32));
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum += at + i < VOCAB ? exp_of(x[i] - peak) : 0.0f;
        sum = warp_sum_f32(sum);
        if (lane == 0) sums[warp] = sum;
        // the segments' writers are behind this barrier, so that thread 0 speaks for them
        sync_block();
        sum = 0.0f;
        for (u32 i = 0; i < CHOOSE_WARPS; i++) sum += sums[i];
    }
    if (thread == 0) {
        parts[(u64)number * PARTS + part] = {top, sum, all_finite};
        fence();
        counts[0] = counts[1] = 0;
        counts[2] = atomic_add(done + number, 1u) == PARTS - 1;
        counts[3] = ~0u;
        fence();
    }
    sync_block();
    if (!counts[2]) return;

    // the last block of the row; what others wrote is read past the first-level cache
    const volatile Part* all = parts + (u64)number * PARTS;
    u32 held[SHARE], low = ~0u;
    if (wanted > 1) {
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            u32 segment = i * CHOOSE_THREADS + thread;
            held[i] = segment < SEGMENTS ? load_fresh(segments + (u64)number * SEGMENTS + segment) : 0;
            if (segment < SEGMENTS) low = least(low, held[i]);
        }
        low = ~warp_max_u32(~low);
        if (lane == 0) bins[warp] = low;
    }
    top = 0, finite = true;
    for (u32 i = thread; i < PARTS; i += CHOOSE_THREADS) {
        top = greatest(top, (u64)all[i].top);
        finite = finite && all[i].finite;
    }
    top = warp_max_key(top);
    if (lane == 0) keys[warp] = top;
    finite = sync_block_count(!finite) == 0;
    for (u32 i = 0; i < CHOOSE_WARPS; i++) {
        top = greatest(top, keys[i]);
        if (wanted > 1) low = least(low, bins[i]);
    }
    float peak = logit_of((u32)(top >> 32));
    if (warp == 0) {
        double whole = 0.0;
        if (wanted > 1) {
            for (u32 i = lane; i < PARTS; i += 32) whole += (double)all[i].sum * (double)exp_of(logit_of((u32)(all[i].top >> 32)) - peak);
#pragma unroll
            for (u32 by = 16; by > 0; by >>= 1) whole += shfl_xor(whole, by);
        }
        if (lane == 0) {
            choices[number] = {~(u32)top, finite, peak, wanted > 1 ? least((u32)CANDIDATES, (u32)VOCAB) : 0, whole};
            done[number] = 0;
        }
    }
    if (wanted < 2) return;

    sync_block(); // `bins` and `keys` have been read
    u32 line = SEGMENTS > CANDIDATES ? draw_line(held, low, (u32)(top >> 32), bins, found) : 0;
#pragma unroll
    for (u32 i = 0; i < SHARE; i++)
        if (i * CHOOSE_THREADS + thread < SEGMENTS && held[i] >= line) list[atomic_add(&counts[0], 1u)] = (u16)(i * CHOOSE_THREADS + thread);
    sync_block();
    u32 listed = counts[0];
    if (listed <= ROOM) {
#pragma unroll 8
        for (u32 i = thread; i < listed * (SEGMENT / 4); i += CHOOSE_THREADS)
            take_four(row, list[i / (SEGMENT / 4)] * SEGMENT + i % (SEGMENT / 4) * 4, (u64)line << 32, keys, &counts[1]);
    }
    sync_block();
    u32 count = counts[1];
    if (listed > ROOM || count > ROOM) {
        u64 exact = exact_line(row, bins, found);
        if (thread == 0) counts[1] = 0;
        sync_block();
        for (u32 base = 0; base < VOCAB; base += PART) take_four(row, base + 4 * thread, exact, keys, &counts[1]);
        sync_block();
        count = counts[1];
    }
    for (u32 i = thread; i < count; i += CHOOSE_THREADS) {
        u64 key = keys[i];
        u32 rank = 0;
#pragma unroll 4
        for (u32 other = 0; other < count; other++) rank += keys[other] > key;
        if (rank < CANDIDATES) {
            ids[(u64)number * CANDIDATES + rank] = ~(u32)key;
            values[(u64)number * CANDIDATES + rank] = logit_of((u32)(key >> 32));
        }
    }
}
