// Kernels for selftest.py: every word of device.cuh where its meaning is not plain, and mistakes that the emulation must show.
#include "device.cuh"
#include "functions.cuh"

struct Pair {
    u32 n;
    float scale;
};

KERNEL(256) sums(const float* x, float* out, Pair p) {
    SHARED(float, parts, 8);
    float s = 0;
    for (u32 i = threadIdx.x; i < p.n; i += blockDim.x) s += x[blockIdx.x * p.n + i];
    s = warp_sum_f32(s);
    if (lane_of() == 0) parts[warp_of()] = s;
    sync_block();
    if (threadIdx.x == 0) {
        float t = 0;
        for (u32 i = 0; i < 8; i++) t += parts[i];
        out[blockIdx.x] = t * p.scale;
    }
}

// a [16, 32] i8, b [8, 32] i8, c [16, 8] i32: c[0] by mma_s8, c[1] by two mma_s8_k16
KERNEL(32) product_s8(const i8* a, const i8* b, i32* c, u32* wrong) {
    SHARED(u8, tile, 512);
    u32 lane = lane_of(), g = lane / 4, t = lane % 4;
    copy16_async(tile + 16 * lane, a + 16 * lane);
    copy_commit();
    copy_wait<0>();
    sync_warp();
    u32 m[4], f[4], w[2];
    ldmatrix4(m, tile + (lane / 8 % 2 * 8 + lane % 8) * 32 + lane / 16 * 16);
    for (u32 k = 0; k < 4; k++) f[k] = *(const u32*)(a + (g + 8 * (k & 1)) * 32 + 4 * t + 16 * (k >> 1));
    for (u32 k = 0; k < 4; k++)
        if (f[k] != m[k]) atomic_add(wrong, 1u);
    for (u32 k = 0; k < 2; k++) w[k] = *(const u32*)(b + g * 32 + 4 * t + 16 * k);
    i32 d[4] = {}, e[4] = {};
    mma_s8(d, f, w);
    mma_s8_k16(e, f, w[0]);
    mma_s8_k16(e, f + 2, w[1]);
    for (u32 k = 0; k < 4; k++) c[(g + 8 * (k / 2)) * 8 + 2 * t + k % 2] = d[k], c[128 + (g + 8 * (k / 2)) * 8 + 2 * t + k % 2] = e[k];
}

// a [16, 16] f16 row-major, b [16, 8] f16 row-major (k, column), c [16, 8] f32
KERNEL(32) product_f16(const u16* a, const u16* b, float* c) {
    SHARED(u16, left, 256);
    SHARED(u16, right, 128);
    u32 lane = lane_of(), g = lane / 4, t = lane % 4;
    for (u32 i = lane; i < 256; i += 32) left[i] = a[i];
    for (u32 i = lane; i < 128; i += 32) right[i] = b[i];
    sync_warp();
    u32 f[4], w[2];
    ldmatrix4(f, left + (lane % 16) * 16 + lane / 16 * 8);
    ldmatrix2_t(w, right + lane % 16 * 8);
    float d[4] = {};
    mma_f16(d, f, w);
    for (u32 k = 0; k < 4; k++) c[(g + 8 * (k / 2)) * 8 + 2 * t + k % 2] = d[k];
}

// out [8]: what a pipeline of copies two deep sums to, by eight threads
KERNEL(8) pipeline(const u32* in, u32* out, u32 steps) {
    SHARED(u32, ring, 3 * 8 * 4);
    u32 i = threadIdx.x, sum = 0;
    for (u32 s = 0; s < 2; s++) {
        copy16_async_or_zero(ring + (s * 8 + i) * 4, in + (s * 8 + i) * 4, s < steps);
        copy_commit();
    }
    for (u32 s = 0; s < steps; s++) {
        copy_wait<1>();
        sync_block();
        sum += ring[(s % 3 * 8 + (i + 1) % 8) * 4 + 1];
        copy16_async_or_zero(ring + ((s + 2) % 3 * 8 + i) * 4, in + (s + 2 < steps ? ((s + 2) * 8 + i) * 4 : 0), s + 2 < steps);
        copy_commit();
    }
    copy_wait<0>();
    out[i] = sum;
}

KERNEL(96) words(u32* out, u32* total) {
    u32 i = threadIdx.x, lane = i & 31;
    out += (blockIdx.y * gridDim.x + blockIdx.x) * 96 * 8;
    out[i * 8 + 0] = shfl(i, lane / 2);
    out[i * 8 + 1] = shfl_down(i, 3);
    out[i * 8 + 2] = shfl_up(i, 3);
    out[i * 8 + 3] = ballot(lane % 3 == 0);
    out[i * 8 + 4] = (u32)warp_sum_i32((i32)i - 40);
    out[i * 8 + 5] = byte_perm(0x33221100u + i, 0x77665544u, 0x9630u);
    out[i * 8 + 6] = (u32)dp4a(1, 0x80ff017fu, 0x80ff7f01u);
    out[i * 8 + 7] = (u32)sync_block_count(i < 50);
    atomic_add(total, i);
}

template <u32 N>
DEVICE u32 last_of(u32 x) {
    SHARED(u32, all, N);
    all[threadIdx.x] = x;
    sync_block();
    return all[N - 1];
}
KERNEL(64) places(u32* out) {
    out[threadIdx.x] = last_of<32>(threadIdx.x < 32 ? threadIdx.x : 0);
}

KERNEL(64) leave(u32* x) {
    if (threadIdx.x >= 40) return;
    sync_block();
    x[threadIdx.x] = ballot(true);
}

// ---- mistakes
KERNEL(64) dead(u32* x) {
    if (threadIdx.x < 33) sync_block();
    else sync_warp();
    x[threadIdx.x] = 1;
}
KERNEL(64) past_shared(u32* x) {
    SHARED(u32, t, 64);
    t[threadIdx.x + 1] = 1;
    sync_block();
    x[threadIdx.x] = t[threadIdx.x];
}
KERNEL(64) past_dynamic(u32* x) {
    DYNAMIC_SHARED(d);
    ((u32*)d)[threadIdx.x + 1] = 1;
    sync_block();
    x[threadIdx.x] = d[0];
}
KERNEL(64) past_global(u32* x) { x[threadIdx.x + 1] = 1; }
KERNEL(64) unaligned(u32* x) { x[threadIdx.x] = load16(x + threadIdx.x % 2).x; }
KERNEL(64) unwaited(u32* x) {
    SHARED(u32, t, 256);
    copy16_async(t + 4 * threadIdx.x, x);
    copy_commit();
    sync_block();
    x[threadIdx.x] = t[4 * threadIdx.x];
    copy_wait<0>();
}
KERNEL(64) unsynced(u32* x) {
    SHARED(u32, t, 64);
    t[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = t[threadIdx.x ^ 33];
}
