// The words of `kernels/device.cuh` for g++: kernels run on the processor, without a card.
//
// The threads of a block are fibers that take turns at barriers; blocks run one after another on the thread that launches. Every sum, conversion and
// fragment layout is as on the card (PTX manual); only the order of the sum in `mma_f16` is a choice. What a card leaves undefined is made to show:
// shared memory begins as garbage and has guards, asynchronous copies land when they are waited for, a barrier that not all threads reach ends the program with a report.
//
// Environment: CUDA_HOST_SEED permutes the order in which blocks, warps and threads run; the results of a correct kernel do not change.
//
// A kernel is started by `host_launch_NAME(grid, block, shared bytes, parameters)`, which `launch.py` and the library stand-ins add for each KERNEL.
#pragma once
#define HOST_EMULATION 1
#define __device__
#define __host__
#define __global__
#define __constant__
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE static inline
#define CONSTANT static const
#define TABLE static const
// The assertion is what launch.py and the stand-in of NVRTC look for after the preprocessor.
#define KERNEL(threads) static_assert((threads) <= 1024, "KERNEL"); extern "C" void
#define KERNEL_MIN(threads, blocks) KERNEL(threads)

#ifndef HOST_NAMES_ONLY // which the search for kernels defines

#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

struct dim3 {
    u32 x = 1, y = 1, z = 1;
    constexpr dim3() {}
    constexpr dim3(u32 x, u32 y = 1, u32 z = 1) : x(x), y(y), z(z) {}
};
struct uint3 { u32 x, y, z; };
#define HOST_VECTORS(T, name)                                                              \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                     \
    struct alignas(sizeof(T) == 8 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };         \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                      \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HOST_VECTORS(u32, uint)
HOST_VECTORS(i32, int)
HOST_VECTORS(float, float)
HOST_VECTORS(u16, ushort)
HOST_VECTORS(i16, short)
HOST_VECTORS(u8, uchar)
HOST_VECTORS(i8, char)

#define __forceinline__ inline __attribute__((always_inline))
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif

// ---- fibers

namespace host {

constexpr size_t STACK = 64 << 10;
constexpr u32 THREADS = 1024;
constexpr size_t STATIC_BYTES = 256 << 10;
constexpr size_t DYNAMIC_BYTES = 256 << 10;
constexpr u32 GARBAGE = 0xffc0dead; // a NaN as f32, a large number as i32

enum State : u8 { READY, AT_WARP, AT_BLOCK, DONE };

struct Copy {
    void* to;
    const void* from;
    u32 bytes;
    bool there;
};

struct Warp {
    u32 generation, arrived, live;
    u32 kind;
    u32 members[2];
    alignas(16) u32 slot[2][32][8];
};

struct Block;

/// Lies at the top of its stack, where the stack pointer leads to it.
struct Fiber {
    void* stack;
    Block* block;
    Warp* warp;
    uint3 thread;
    u32 index, lane;
    u32 ticket;
    State state;
    std::vector<Copy>* copies;
    std::vector<u32>* groups; // ends of the closed groups in `copies`
};

struct Block {
    void* stack; // of the thread that runs the block
    uint3 index;
    dim3 grid, size;
    u32 threads, live, generation, arrived;
    u32 count[2];
    u8* stacks;
    u8* static_shared;
    u8* dynamic_end;
    u8* dynamic_shared;
    u32 order[THREADS]; // position in the ring -> fiber
    u32 place[THREADS]; // fiber -> position in the ring
    Warp warps[THREADS / 32];
    void (*call)(void**);
    void** params;
    const char* name;
    u64 random;
    const void* file; // whose shared arrays lie in `static_shared`
    u32 static_high;  // bytes of it that were ever in use
};

extern "C" __attribute__((visibility("hidden"))) void host_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.hidden host_switch
.type host_switch, @function
host_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size host_switch, .-host_switch
)");

static inline Fiber* fiber(Block* block, u32 index) { return (Fiber*)(block->stacks + (size_t)(index + 1) * STACK - sizeof(Fiber)); }
static inline __attribute__((always_inline)) Fiber* self() {
    u64 sp;
    asm("mov %%rsp, %0" : "=r"(sp));
    return (Fiber*)((sp | (STACK - 1)) + 1 - sizeof(Fiber));
}

static inline u32 random_below(Block* block, u32 n) {
    block->random = block->random * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(((block->random >> 33) * n) >> 31);
}

[[noreturn]] static void fail(Fiber* f, const char* what) {
    Block* b = f->block;
    fprintf(stderr, "cuda-host: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s\n", b->name, b->index.x, b->index.y, b->index.z, f->thread.x,
            f->thread.y, f->thread.z, what);
    abort();
}

[[noreturn]] static void report_deadlock(Fiber* f) {
    Block* b = f->block;
    u32 at_warp = 0, at_block = 0, done = 0;
    Fiber *first_warp = nullptr, *first_block = nullptr;
    for (u32 i = 0; i < b->threads; i++) {
        Fiber* o = fiber(b, i);
        if (o->state == AT_WARP) at_warp++, first_warp = first_warp ? first_warp : o;
        if (o->state == AT_BLOCK) at_block++, first_block = first_block ? first_block : o;
        if (o->state == DONE) done++;
    }
    char text[256];
    snprintf(text, sizeof text, "deadlock: of %u threads %u wait for their warp (first: %d), %u for the block (first: %d), %u have returned", b->threads,
             at_warp, first_warp ? (int)first_warp->index : -1, at_block, first_block ? (int)first_block->index : -1, done);
    fail(f, text);
}

static inline bool runnable(Fiber* f) {
    switch (f->state) {
    case READY: return true;
    case AT_WARP: return f->ticket != f->warp->generation;
    case AT_BLOCK: return f->ticket != f->block->generation;
    default: return false;
    }
}

/// Gives the turn to the next fiber that can run, of the own warp first.
static void give_turn(Fiber* f) {
    Block* b = f->block;
    Fiber* next = nullptr;
    if (b->random) {
        u32 from = random_below(b, b->threads);
        for (u32 i = 0; i < b->threads && !next; i++) {
            u32 at = from + i;
            Fiber* o = fiber(b, b->order[at >= b->threads ? at - b->threads : at]);
            if (runnable(o)) next = o;
        }
    } else {
        u32 first = f->index & ~31u, n = b->threads - first < 32 ? b->threads - first : 32;
        for (u32 i = 1; i <= n && !next; i++) {
            u32 at = f->lane + i;
            Fiber* o = fiber(b, first + (at >= n ? at - n : at));
            if (runnable(o)) next = o;
        }
        for (u32 i = 1; i < b->threads && !next; i++) {
            u32 at = f->index + i;
            Fiber* o = fiber(b, at >= b->threads ? at - b->threads : at);
            if (runnable(o)) next = o;
        }
    }
    if (!next) {
        if (b->live) report_deadlock(f);
        host_switch(&f->stack, b->stack);
    }
    if (next == f) {
        f->state = READY;
        return;
    }
    next->state = READY;
    host_switch(&f->stack, next->stack);
}

static inline void warp_release(Warp* w) {
    if (w->arrived && w->arrived == w->live) w->arrived = 0, w->generation++;
}
static inline void block_release(Block* b) {
    if (b->arrived && b->arrived == b->live) b->arrived = 0, b->generation++, b->count[b->generation & 1] = 0;
}

static void fiber_main() {
    Fiber* f = self();
    Block* b = f->block;
    b->call(b->params);
    if (!f->copies->empty()) fail(f, "returns with copies under way");
    f->state = DONE;
    f->warp->live--;
    b->live--;
    warp_release(f->warp);
    block_release(b);
    give_turn(f);
    __builtin_unreachable();
}

/// Which word of a warp a lane is at: all lanes must be at the same.
enum Kind : u32 { SYNC = 1, SHUFFLE, BALLOT, SUM, MMA_S8, MMA_US8, MMA_F16, MMA_S8_K16, LDMATRIX };

/// The lane's slot for its next word of the warp.
static inline u32* warp_slot(Fiber* f) { return f->warp->slot[f->warp->generation & 1][f->lane]; }

/// Waits for the other lanes; gives the slots `[32][8]` of all, which stay until the word after the next one.
static inline u32 (*warp_meet(Fiber* f, u32 kind, u32* members = nullptr))[8] {
    Warp* w = f->warp;
    u32 g = w->generation, p = g & 1;
    if (w->arrived == 0) w->kind = kind, w->members[p] = 0;
    if (w->kind != kind) fail(f, "the lanes of a warp are at different words");
    w->members[p] |= 1u << f->lane;
    if (++w->arrived == w->live) {
        w->arrived = 0, w->generation++;
    } else {
        f->state = AT_WARP, f->ticket = g;
        give_turn(f);
    }
    if (members) *members = w->members[p];
    return w->slot[p];
}

static inline i32 block_meet(bool x) {
    Fiber* f = self();
    Block* b = f->block;
    u32 g = b->generation;
    b->count[g & 1] += x;
    if (++b->arrived == b->live) {
        b->arrived = 0, b->generation++, b->count[b->generation & 1] = 0;
    } else {
        f->state = AT_BLOCK, f->ticket = g;
        give_turn(f);
    }
    return (i32)b->count[g & 1];
}

// ---- shared memory: each array has a place in the block's memory, with a guard behind it

struct Site { u32 at, bytes; };
static std::vector<Site>& sites() {
    static std::vector<Site> all;
    return all;
}
constexpr u32 GUARD = 64;
static u32 reserve(u32 bytes) {
    static int lock = 0;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    std::vector<Site>& all = sites();
    u32 at = all.empty() ? 0 : (all.back().at + all.back().bytes + GUARD + 15) / 16 * 16;
    if (at + bytes + GUARD > STATIC_BYTES) {
        fprintf(stderr, "cuda-host: more than %zu bytes of shared arrays in one file\n", STATIC_BYTES);
        abort();
    }
    all.reserve(1024);
    all.push_back({at, bytes});
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    return at;
}

static void fill_garbage(u8* from, size_t bytes) {
    for (size_t i = 0; i + 4 <= bytes; i += 4) memcpy(from + i, &GARBAGE, 4);
}

/// What one thread of the operating system needs to run blocks; kept in `*kept` for the next launch, whatever file its kernel is of.
static Block* block_of_thread(void** kept) {
    if (*kept) return (Block*)*kept;
    Block* b = (Block*)calloc(1, sizeof(Block));
    size_t page = 4096, room = THREADS * STACK;
    u8* at = (u8*)mmap(nullptr, room + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) perror("cuda-host: stacks"), abort();
    b->stacks = (u8*)(((uintptr_t)at + STACK - 1) & ~(uintptr_t)(STACK - 1));
    for (u32 i = 0; i < THREADS; i++) mprotect(b->stacks + i * STACK, page, PROT_NONE);
    b->static_shared = (u8*)malloc(STATIC_BYTES);
    b->static_high = STATIC_BYTES;
    u8* dynamic = (u8*)mmap(nullptr, DYNAMIC_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->dynamic_end = dynamic + DYNAMIC_BYTES;
    mprotect(b->dynamic_end, page, PROT_NONE);
    *kept = b;
    return b;
}

static u64 seed() {
    static u64 value = [] {
        const char* text = getenv("CUDA_HOST_SEED");
        return text && *text ? strtoull(text, nullptr, 10) * 2 + 1 : 0;
    }();
    return value;
}

/// Says on which thread of which kernel an access has failed.
static void explain_segv(siginfo_t* info, void* context, Block* b) {
    u64 sp = ((ucontext_t*)context)->uc_mcontext.gregs[REG_RSP];
    Fiber* f = (Fiber*)((sp | (STACK - 1)) + 1 - sizeof(Fiber));
    char text[256];
    int n;
    if (b && (u8*)f >= b->stacks && (u8*)f < b->stacks + THREADS * STACK)
        n = snprintf(text, sizeof text, "cuda-host: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): address %p is out of bounds\n", b->name, b->index.x,
                     b->index.y, b->index.z, f->thread.x, f->thread.y, f->thread.z, info->si_addr);
    else n = snprintf(text, sizeof text, "cuda-host: address %p is out of bounds, outside of a kernel\n", info->si_addr);
    if (write(2, text, n) < 0) {}
}

/// Runs blocks `*next ..` of the launch until there are none.
static void run_blocks(const char* name, dim3 grid, dim3 size, size_t shared_bytes, void (*call)(void**), void** params, u64* next, void** kept) {
    Block* b = block_of_thread(kept);
    b->name = name, b->grid = grid, b->size = size, b->call = call, b->params = params;
    b->threads = size.x * size.y * size.z;
    u32 n = b->threads;
    shared_bytes = (shared_bytes + 15) / 16 * 16;
    if (!n || n > THREADS || shared_bytes > DYNAMIC_BYTES) {
        fprintf(stderr, "cuda-host: kernel %s: %u threads, %zu bytes of dynamic shared memory\n", name, n, shared_bytes);
        abort();
    }
    b->dynamic_shared = b->dynamic_end - shared_bytes;
    if (b->file != &sites()) fill_garbage(b->static_shared, b->static_high), b->static_high = 0, b->file = &sites();
    u64 blocks = (u64)grid.x * grid.y * grid.z;
    for (;;) {
        u64 at = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (at >= blocks) break;
        u64 s = seed();
        if (s) { // another order of blocks: a bijection of the numbers below `blocks`
            b->random = (s + at) * 0x9e3779b97f4a7c15ull | 1;
            u64 shift = s * 0x2545f4914f6cdd1dull % blocks;
            at = (s & 2 ? blocks - 1 - at : at) + shift;
            at = at >= blocks ? at - blocks : at;
        } else b->random = 0;
        b->index = {(u32)(at % grid.x), (u32)(at / grid.x % grid.y), (u32)(at / grid.x / grid.y)};
        b->live = n, b->generation = 0, b->arrived = 0, b->count[0] = b->count[1] = 0;
        for (u32 w = 0; w * 32 < n; w++) {
            Warp& warp = b->warps[w];
            warp.generation = 0, warp.arrived = 0, warp.live = n - w * 32 < 32 ? n - w * 32 : 32;
        }
        for (u32 i = 0; i < n; i++) b->order[i] = i;
        if (s)
            for (u32 i = n - 1; i > 0; i--) std::swap(b->order[i], b->order[random_below(b, i + 1)]);
        for (u32 i = 0; i < n; i++) {
            Fiber* f = fiber(b, i);
            f->block = b, f->warp = &b->warps[i / 32], f->index = i, f->lane = i % 32, f->state = READY;
            f->thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
            if (!f->copies) f->copies = new std::vector<Copy>, f->groups = new std::vector<u32>;
            f->copies->clear(), f->groups->clear();
            // stacks are spread over the cache's sets; at the entry of a function the stack pointer is 8 past a multiple of 16
            u64* top = (u64*)((u8*)f - 256 - (i % 8) * 192 - (uintptr_t)f % 16);
            *--top = 0;
            *--top = (u64)(void*)fiber_main;
            f->stack = top - 6;
        }
        if (shared_bytes) fill_garbage(b->dynamic_shared, shared_bytes);
        size_t known = sites().size();
        for (size_t i = 0; i < known; i++) fill_garbage(b->static_shared + sites()[i].at, sites()[i].bytes + GUARD);
        Fiber* first = fiber(b, b->order[0]);
        host_switch(&b->stack, first->stack);
        if (!sites().empty() && b->static_high < sites().back().at + sites().back().bytes) b->static_high = (sites().back().at + sites().back().bytes + 3) / 4 * 4;
        for (const Site& site : sites())
            for (u32 k = site.bytes; k < site.bytes + GUARD; k++)
                if (b->static_shared[site.at + k] != (u8)(GARBAGE >> 8 * (k % 4))) {
                    fprintf(stderr, "cuda-host: kernel %s, block (%u, %u, %u): write behind the end of a shared array of %u bytes\n", name, b->index.x,
                            b->index.y, b->index.z, site.bytes);
                    abort();
                }
    }
}

template <typename... A, size_t... I>
static inline void unpack(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A>*)params[I]...);
}
template <auto kernel>
struct Caller;
template <typename... A, void (*kernel)(A...)>
struct Caller<kernel> {
    static void call(void** params) { unpack(kernel, params, std::index_sequence_for<A...>()); }
    static constexpr u32 count = sizeof...(A);
    static const u32* sizes() {
        static const u32 all[] = {(u32)sizeof(A)..., 0};
        return all;
    }
};

/// What a launcher of blocks needs to know of a kernel.
struct Kernel {
    const char* name;
    u32 threads_max, params;
    const u32* param_bytes;
    /// Runs blocks from `*next` on; may be called by several threads at once, each with its own `*kept`, null at first.
    void (*blocks)(dim3 grid, dim3 block, size_t shared_bytes, void** params, u64* next, void** kept);
    /// What `*kept` must agree on between files.
    u64 layout;
};
constexpr u64 LAYOUT = sizeof(Block) << 32 | sizeof(Fiber) << 16 | sizeof(Warp);

static thread_local void* kept_by_launch = nullptr;
static struct sigaction previous_segv;
static void on_segv(int, siginfo_t* info, void* context) {
    explain_segv(info, context, (Block*)kept_by_launch);
    sigaction(SIGSEGV, &previous_segv, nullptr);
}

static inline void launch(const Kernel& kernel, dim3 grid, dim3 block, size_t shared_bytes, void** params) {
    struct sigaction action = {};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (block.x * block.y * block.z > kernel.threads_max) {
        fprintf(stderr, "cuda-host: kernel %s: %u threads, its bound is %u\n", kernel.name, block.x * block.y * block.z, kernel.threads_max);
        abort();
    }
    sigaction(SIGSEGV, &action, &previous_segv);
    u64 next = 0;
    kernel.blocks(grid, block, shared_bytes, params, &next, &kept_by_launch);
    sigaction(SIGSEGV, &previous_segv, nullptr);
}

} // namespace host

/// Defines `host_launch_NAME` and `host_kernel_NAME` for a kernel of the file.
#define HOST_LAUNCHER(name, threads)                                                                                                       \
    static void host_blocks_##name(dim3 grid, dim3 block, size_t bytes, void** params, u64* next, void** kept) {                           \
        host::run_blocks(#name, grid, block, bytes, host::Caller<name>::call, params, next, kept);                                         \
    }                                                                                                                                      \
    extern "C" const host::Kernel* host_kernel_##name() {                                                                                  \
        static const host::Kernel kernel = {#name, threads, host::Caller<name>::count, host::Caller<name>::sizes(), host_blocks_##name,    \
                                            host::LAYOUT};                                                                                 \
        return &kernel;                                                                                                                    \
    }                                                                                                                                      \
    extern "C" void host_launch_##name(dim3 grid, dim3 block, size_t bytes, void** params) {                                               \
        host::launch(*host_kernel_##name(), grid, block, bytes, params);                                                                   \
    }

#define threadIdx (host::self()->thread)
#define blockIdx (host::self()->block->index)
#define blockDim (host::self()->block->size)
#define gridDim (host::self()->block->grid)

#define SHARED(type, name, count)                                              \
    static const u32 host_place_##name = host::reserve(sizeof(type) * (count)); \
    type(&name)[count] = *(type(*)[count])(host::self()->block->static_shared + host_place_##name)
#define DYNAMIC_SHARED(name) unsigned char* name = host::self()->block->dynamic_shared

// ---- numbers

DEVICE u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float float_of(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE float half_to_float(u16 bits) { return _cvtsh_ss(bits); }
DEVICE u16 float_to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
DEVICE float bf16_to_float(u16 bits) { return float_of((u32)bits << 16); }
DEVICE u32 floats_to_halves(float low, float high) { return (u32)float_to_half(low) | (u32)float_to_half(high) << 16; }
DEVICE float exp2_near(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
DEVICE float inverse_near(float x) { return 1.0f / x; }
DEVICE u32 bytes_to_halves(u32 pair) { return floats_to_halves((float)(u8)pair, (float)(u8)(pair >> 8)); }

DEVICE i32 host_dot(i32 sum, __m128i a, __m128i b) {
    __m128i pairs = _mm_madd_epi16(a, b);
    return (i32)((u32)sum + (u32)_mm_cvtsi128_si32(pairs) + (u32)_mm_extract_epi32(pairs, 1));
}
DEVICE i32 dp4a(i32 sum, u32 a, u32 b) { return host_dot(sum, _mm_cvtepi8_epi16(_mm_cvtsi32_si128((i32)a)), _mm_cvtepi8_epi16(_mm_cvtsi32_si128((i32)b))); }
DEVICE i32 dp4a_us(i32 sum, u32 a, u32 b) { return host_dot(sum, _mm_cvtepu8_epi16(_mm_cvtsi32_si128((i32)a)), _mm_cvtepi8_epi16(_mm_cvtsi32_si128((i32)b))); }
DEVICE u32 byte_perm(u32 low, u32 high, u32 selector) {
    u64 all = (u64)high << 32 | low;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        u32 nibble = selector >> 4 * i & 15;
        u8 byte = (u8)(all >> 8 * (nibble & 7));
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        out |= (u32)byte << 8 * i;
    }
    return out;
}
DEVICE u32 permute(u32 low, u32 high, u32 selector) { return byte_perm(low, high, selector); }
DEVICE i32 dp2a_low(i32 sum, u32 a, u32 b) { return (i32)((u32)sum + (u32)((i16)a * (i8)b + (i16)(a >> 16) * (i8)(b >> 8))); }
DEVICE i32 dp2a_high(i32 sum, u32 a, u32 b) { return dp2a_low(sum, a, b >> 16); }

// The card's own functions that a kernel may use besides.
#define __dp4a(a, b, sum) dp4a((sum), (u32)(a), (u32)(b))
#define __byte_perm byte_perm
#define __float_as_uint bits_of
#define __uint_as_float float_of
#define __float_as_int(x) ((i32)bits_of(x))
#define __int_as_float(x) float_of((u32)(x))
#define __fmaf_rn fmaf
DEVICE float __fadd_rn(float a, float b) { return a + b; }
DEVICE float __fsub_rn(float a, float b) { return a - b; }
DEVICE float __fmul_rn(float a, float b) { return a * b; }
DEVICE float __fdiv_rn(float a, float b) { return a / b; }
DEVICE float __fsqrt_rn(float a) { return sqrtf(a); }
DEVICE float __int2float_rn(i32 x) { return (float)x; }
DEVICE float __uint2float_rn(u32 x) { return (float)x; }
/// To the nearest, ties to even; out of range as on the card.
DEVICE i32 __float2int_rn(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 2147483647;
    if (x < -2147483648.0f) return -2147483647 - 1;
    return (i32)nearbyintf(x);
}
DEVICE i32 __popc(u32 x) { return __builtin_popcount(x); }
DEVICE i32 __popcll(u64 x) { return __builtin_popcountll(x); }
DEVICE i32 __clz(u32 x) { return x ? __builtin_clz(x) : 32; }
DEVICE i32 __clzll(u64 x) { return x ? __builtin_clzll(x) : 64; }
DEVICE i32 __ffs(u32 x) { return __builtin_ffs((i32)x); }
DEVICE u32 __brev(u32 x) {
    u32 y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
DEVICE u32 __umulhi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEVICE u64 __umul64hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
DEVICE u32 __funnelshift_r(u32 low, u32 high, u32 by) { return (u32)(((u64)high << 32 | low) >> (by & 31)); }
DEVICE u32 __funnelshift_l(u32 low, u32 high, u32 by) { return (u32)(((u64)high << 32 | low) << (by & 31) >> 32); }
template <typename F>
static inline u32 host_bytes(u32 a, u32 b, F f) {
    u32 out = 0;
    for (int i = 0; i < 4; i++) out |= (u32)(u8)f((u8)(a >> 8 * i), (u8)(b >> 8 * i)) << 8 * i;
    return out;
}
DEVICE u32 __vadd4(u32 a, u32 b) { return host_bytes(a, b, [](u8 x, u8 y) { return x + y; }); }
DEVICE u32 __vsub4(u32 a, u32 b) { return host_bytes(a, b, [](u8 x, u8 y) { return x - y; }); }
DEVICE u32 __vsubss4(u32 a, u32 b) {
    return host_bytes(a, b, [](u8 x, u8 y) { int d = (i8)x - (i8)y; return d > 127 ? 127 : d < -128 ? -128 : d; });
}
DEVICE u32 __vcmpeq4(u32 a, u32 b) { return host_bytes(a, b, [](u8 x, u8 y) { return x == y ? 0xff : 0; }); }
DEVICE u32 __vcmpne4(u32 a, u32 b) { return host_bytes(a, b, [](u8 x, u8 y) { return x != y ? 0xff : 0; }); }
DEVICE u32 __vabs4(u32 a) { return host_bytes(a, 0, [](u8 x, u8) { return (i8)x < 0 ? -x : x; }); }
DEVICE u32 __vneg4(u32 a) { return host_bytes(a, 0, [](u8 x, u8) { return -x; }); }

template <typename A, typename B>
DEVICE std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return (T)a != (T)a ? (T)b : (T)b < (T)a ? (T)b : (T)a;
    else return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B>
DEVICE std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return (T)a != (T)a ? (T)b : (T)a < (T)b ? (T)b : (T)a;
    else return (T)a < (T)b ? (T)b : (T)a;
}

// ---- memory

DEVICE void host_check_aligned(const void* at, size_t to) {
    if ((uintptr_t)at % to) host::fail(host::self(), "an address is not aligned for the access");
}
template <typename T>
static inline T host_load(const void* from) {
    host_check_aligned(from, sizeof(T));
    T x;
    memcpy(&x, from, sizeof x);
    return x;
}
DEVICE uint4 load16(const void* from) { return host_load<uint4>(from); }
DEVICE uint2 load8(const void* from) { return host_load<uint2>(from); }
DEVICE u32 load4(const void* from) { return host_load<u32>(from); }
DEVICE uint4 stream16(const void* from) { return host_load<uint4>(from); }
DEVICE uint2 stream8(const void* from) { return host_load<uint2>(from); }
DEVICE u32 stream4(const void* from) { return host_load<u32>(from); }
DEVICE u32 load4_halves(const void* from) { return (u32)host_load<u16>(from) | (u32)host_load<u16>((const u16*)from + 1) << 16; }
DEVICE u32 load_fresh(const u32* from) { return __atomic_load_n(from, __ATOMIC_SEQ_CST); }
template <typename T>
DEVICE T __ldg(const T* from) { return host_load<T>(from); }

template <typename T, typename F>
static inline T host_atomic(T* at, F f) {
    host_check_aligned(at, sizeof(T));
    using U = std::conditional_t<sizeof(T) == 4, u32, u64>;
    U old = __atomic_load_n((U*)at, __ATOMIC_SEQ_CST);
    for (;;) {
        T was;
        memcpy(&was, &old, sizeof old);
        T now = f(was);
        U bits;
        memcpy(&bits, &now, sizeof now);
        if (__atomic_compare_exchange_n((U*)at, &old, bits, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return was;
    }
}
#define HOST_ATOMIC(name, cuda, value)                                                         \
    template <typename T>                                                                      \
    DEVICE T name(T* at, std::common_type_t<T> x) {                                            \
        return host_atomic(at, [=](T was) -> T { return value; });                             \
    }                                                                                          \
    template <typename T>                                                                      \
    DEVICE T cuda(T* at, std::common_type_t<T> x) {                                            \
        return host_atomic(at, [=](T was) -> T { return value; });                             \
    }
HOST_ATOMIC(atomic_add, atomicAdd, was + x)
HOST_ATOMIC(host_atomic_sub, atomicSub, was - x)
HOST_ATOMIC(atomic_max, atomicMax, was < x ? x : was)
HOST_ATOMIC(host_atomic_min, atomicMin, x < was ? x : was)
HOST_ATOMIC(atomic_exchange, atomicExch, (void(was), x))
HOST_ATOMIC(atomic_or, atomicOr, was | x)
HOST_ATOMIC(host_atomic_and, atomicAnd, was & x)
DEVICE u32 atomicInc(u32* at, u32 top) { return host_atomic(at, [=](u32 was) { return was >= top ? 0u : was + 1; }); }
template <typename T>
DEVICE T atomicCAS(T* at, std::common_type_t<T> compare, std::common_type_t<T> x) {
    return host_atomic(at, [=](T was) { return was == compare ? x : was; });
}
DEVICE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#define __threadfence fence
#define __threadfence_block fence

// ---- threads

DEVICE void sync_block() { host::block_meet(false); }
DEVICE i32 sync_block_count(bool x) { return host::block_meet(x); }
DEVICE void sync_warp() { host::warp_meet(host::self(), host::SYNC); }
#define __syncthreads sync_block
#define __syncthreads_count sync_block_count
#define __syncwarp sync_warp
DEVICE void wait_for_previous() {}
DEVICE void release_next() {}

template <typename T>
static inline T host_shuffle(T x, u32 (*source)(u32 lane, u32 n), u32 n) {
    static_assert(sizeof(T) <= 8, "a shuffle is of 4 or 8 bytes");
    host::Fiber* f = host::self();
    memcpy(host::warp_slot(f), &x, sizeof x);
    u32 members;
    u32(*slots)[8] = host::warp_meet(f, host::SHUFFLE, &members);
    u32 from = source(f->lane, n);
    if (from > 31) return x;
    T y;
    if (members >> from & 1) memcpy(&y, slots[from], sizeof y);
    else {
        const u32 garbage[2] = {host::GARBAGE, host::GARBAGE};
        memcpy(&y, garbage, sizeof y);
    }
    return y;
}
template <typename T>
DEVICE T shfl(T x, u32 lane) { return host_shuffle(x, [](u32, u32 n) { return n & 31; }, lane); }
template <typename T>
DEVICE T shfl_xor(T x, u32 mask) { return host_shuffle(x, [](u32 lane, u32 n) { return lane ^ n; }, mask); }
template <typename T>
DEVICE T shfl_down(T x, u32 by) { return host_shuffle(x, [](u32 lane, u32 n) { return lane + n; }, by); }
template <typename T>
DEVICE T shfl_up(T x, u32 by) { return host_shuffle(x, [](u32 lane, u32 n) { return lane - n; }, by); }
DEVICE u32 ballot(bool x) {
    host::Fiber* f = host::self();
    *host::warp_slot(f) = x;
    u32 members, bits = 0;
    u32(*slots)[8] = host::warp_meet(f, host::BALLOT, &members);
    for (u32 i = 0; i < 32; i++)
        if (members >> i & 1) bits |= slots[i][0] << i;
    return bits;
}
DEVICE void host_full(u32 mask) {
    if (mask != 0xffffffffu) host::fail(host::self(), "a warp's words are of all lanes here");
}
#define __shfl_sync(mask, x, lane) (host_full(mask), shfl(x, (u32)(lane)))
#define __shfl_xor_sync(mask, x, by) (host_full(mask), shfl_xor(x, (u32)(by)))
#define __shfl_down_sync(mask, x, by) (host_full(mask), shfl_down(x, (u32)(by)))
#define __shfl_up_sync(mask, x, by) (host_full(mask), shfl_up(x, (u32)(by)))
#define __ballot_sync(mask, x) (host_full(mask), ballot(x))
#define __any_sync(mask, x) (host_full(mask), ballot(x) != 0)
#define __all_sync(mask, x) (host_full(mask), ballot(!(x)) == 0)

DEVICE i32 warp_sum_i32(i32 x) {
    host::Fiber* f = host::self();
    *host::warp_slot(f) = (u32)x;
    u32 members, sum = 0;
    u32(*slots)[8] = host::warp_meet(f, host::SUM, &members);
    for (u32 i = 0; i < 32; i++)
        if (members >> i & 1) sum += slots[i][0];
    return (i32)sum;
}
DEVICE u32 warp_max_u32(u32 x) {
    host::Fiber* f = host::self();
    *host::warp_slot(f) = x;
    u32 members, most = 0;
    u32(*slots)[8] = host::warp_meet(f, host::SUM, &members);
    for (u32 i = 0; i < 32; i++)
        if (members >> i & 1) most = most < slots[i][0] ? slots[i][0] : most;
    return most;
}

// ---- tensor cores

DEVICE u32 (*host_mma(u32 kind, const u32* a, u32 na, const u32* b, u32 nb))[8] {
    host::Fiber* f = host::self();
    u32* slot = host::warp_slot(f);
    for (u32 i = 0; i < na; i++) slot[i] = a[i];
    for (u32 i = 0; i < nb; i++) slot[4 + i] = b[i];
    u32 members;
    u32(*slots)[8] = host::warp_meet(f, kind, &members);
    if (members != 0xffffffffu) host::fail(f, "a matrix product without all lanes");
    return slots;
}
DEVICE void mma_s8(i32 d[4], const u32 a[4], const u32 b[2]) {
    u32(*all)[8] = host_mma(host::MMA_S8, a, 4, b, 2);
    u32 lane = host::self()->lane, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 4; k++) {
            const u32 *row = all[4 * g + k], *column = all[4 * (2 * t + i % 2) + k] + 4;
            d[i] = dp4a(d[i], row[i / 2], column[0]);
            d[i] = dp4a(d[i], row[i / 2 + 2], column[1]);
        }
}
DEVICE void mma_us8(i32 d[4], const u32 a[4], const u32 b[2]) {
    u32(*all)[8] = host_mma(host::MMA_US8, a, 4, b, 2);
    u32 lane = host::self()->lane, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 4; k++) {
            const u32 *row = all[4 * g + k], *column = all[4 * (2 * t + i % 2) + k] + 4;
            d[i] = dp4a_us(d[i], row[i / 2], column[0]);
            d[i] = dp4a_us(d[i], row[i / 2 + 2], column[1]);
        }
}
DEVICE void mma_s8_k16(i32 d[4], const u32 a[2], u32 b) {
    u32(*all)[8] = host_mma(host::MMA_S8_K16, a, 2, &b, 1);
    u32 lane = host::self()->lane, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++)
        for (u32 k = 0; k < 4; k++) d[i] = dp4a(d[i], all[4 * g + k][i / 2], all[4 * (2 * t + i % 2) + k][4]);
}
DEVICE void mma_f16(float d[4], const u32 a[4], const u32 b[2]) {
    u32(*all)[8] = host_mma(host::MMA_F16, a, 4, b, 2);
    u32 lane = host::self()->lane, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++) {
        double sum = d[i];
        for (u32 half = 0; half < 2; half++)
            for (u32 k = 0; k < 4; k++) {
                u32 row = all[4 * g + k][i / 2 + 2 * half], column = all[4 * (2 * t + i % 2) + k][4 + half];
                sum += (double)half_to_float((u16)row) * half_to_float((u16)column);
                sum += (double)half_to_float((u16)(row >> 16)) * half_to_float((u16)(column >> 16));
            }
        d[i] = (float)sum;
    }
}

DEVICE void host_ldmatrix(u32* r, u32 n, const void* row, bool transposed) {
    host::Fiber* f = host::self();
    if (f->lane < 8 * n) host_check_aligned(row, 16);
    memcpy(host::warp_slot(f), &row, 8);
    u32 members;
    u32(*all)[8] = host::warp_meet(f, host::LDMATRIX + n + 16 * transposed, &members);
    if (members != 0xffffffffu) host::fail(f, "ldmatrix without all lanes");
    u32 g = f->lane / 4, t = f->lane % 4;
    const u16* rows[32];
    for (u32 i = 0; i < 8 * n; i++) memcpy(&rows[i], all[i], 8);
    for (u32 i = 0; i < n; i++) {
        const u16** m = rows + 8 * i;
        u16 low = transposed ? m[2 * t][g] : m[g][2 * t], high = transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];
        r[i] = (u32)low | (u32)high << 16;
    }
    // nobody goes on and overwrites what another lane has yet to read
    host::warp_meet(f, host::SYNC);
}
DEVICE void ldmatrix4(u32 r[4], const void* row) { host_ldmatrix(r, 4, row, false); }
DEVICE void ldmatrix4_t(u32 r[4], const void* row) { host_ldmatrix(r, 4, row, true); }
DEVICE void ldmatrix2(u32 r[2], const void* row) { host_ldmatrix(r, 2, row, false); }
DEVICE void ldmatrix2_t(u32 r[2], const void* row) { host_ldmatrix(r, 2, row, true); }

// ---- asynchronous copies: done as late as the waits allow

DEVICE void host_copy(void* to, const void* from, u32 bytes, bool there) {
    host_check_aligned(to, bytes);
    host_check_aligned(from, bytes);
    host::self()->copies->push_back({to, from, bytes, there});
}
DEVICE void copy16_async(void* shared, const void* global) { host_copy(shared, global, 16, true); }
DEVICE void copy16_async_or_zero(void* shared, const void* global, bool there) { host_copy(shared, global, 16, there); }
DEVICE void copy4_async(void* shared, const void* global) { host_copy(shared, global, 4, true); }
DEVICE void copy_commit() {
    host::Fiber* f = host::self();
    f->groups->push_back((u32)f->copies->size());
}
template <int left>
DEVICE void copy_wait() {
    host::Fiber* f = host::self();
    size_t groups = f->groups->size();
    if (groups <= left) return;
    u32 end = (*f->groups)[groups - left - 1];
    for (u32 i = 0; i < end; i++) {
        const host::Copy& c = (*f->copies)[i];
        if (c.there) memcpy(c.to, c.from, c.bytes);
        else memset(c.to, 0, c.bytes);
    }
    f->copies->erase(f->copies->begin(), f->copies->begin() + end);
    f->groups->erase(f->groups->begin(), f->groups->end() - left);
    for (u32& g : *f->groups) g -= end;
}

#endif // HOST_NAMES_ONLY
