// The stand-in's memory: device memory and pinned host memory, both of the process.
//
// New memory holds garbage (words 0xffc0dead) until written; behind its end, rounded up to 256 bytes, lies a page that cannot be touched; freed memory cannot be
// touched. Device memory has a capacity. Copies check that the device's side lies within one allocation, and follow the driver's rules on when the host's side is read.
#include "driver.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fake {

constexpr size_t PAGE = 4096, CHUNK = 16 << 20, GRAIN = 256;
constexpr uint32_t GARBAGE = 0xffc0dead;

struct Area {
    size_t bytes;         // as asked for
    char* mapped;         // null for memory of the caller that was registered
    size_t mapped_bytes;
    bool device;
};

static std::mutex lock;
static auto& areas = *new std::map<CUdeviceptr, Area>; // by address
static size_t used = 0;

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/// A file of garbage that every allocation maps copy-on-write: untouched memory costs nothing.
static int garbage() {
    static int file = [] {
        int fd = memfd_create("cuda-host-garbage", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, CHUNK)) abort();
        auto* at = (uint32_t*)mmap(nullptr, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        for (size_t i = 0; i < CHUNK / 4; i++) at[i] = GARBAGE;
        munmap(at, CHUNK);
        return fd;
    }();
    return file;
}

static CUresult allocate(CUdeviceptr* out, size_t bytes, bool device) {
    if (!bytes) return wrong(CUDA_ERROR_INVALID_VALUE, "an allocation of no bytes");
    size_t grains = round_up(bytes, GRAIN), pages = round_up(grains, PAGE);
    std::lock_guard<std::mutex> guard(lock);
    if (device && used + grains > (size_t)setting("CUDA_HOST_MEMORY_MIB", 4096) << 20) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* at = (char*)mmap(nullptr, pages + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t done = 0; done < pages; done += CHUNK) {
        size_t part = pages - done < CHUNK ? pages - done : CHUNK;
        if (mmap(at + done, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, garbage(), 0) == MAP_FAILED) {
            munmap(at, pages + PAGE);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    *out = (CUdeviceptr)(at + pages - grains);
    areas[*out] = {bytes, at, pages + PAGE, device};
    if (device) used += grains;
    count(device ? "device_bytes" : "pinned_bytes", (int64_t)bytes);
    count(device ? "device_allocations" : "pinned_allocations", 1);
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr at, bool device) {
    std::lock_guard<std::mutex> guard(lock);
    auto area = areas.find(at);
    if (area == areas.end() || area->second.device != device || !area->second.mapped)
        return wrong(CUDA_ERROR_INVALID_VALUE, "memory at %p is freed that was not allocated", (void*)at);
    munmap(area->second.mapped, area->second.mapped_bytes);
    if (device) used -= round_up(area->second.bytes, GRAIN);
    count(device ? "device_bytes" : "pinned_bytes", -(int64_t)area->second.bytes);
    count(device ? "device_allocations" : "pinned_allocations", -1);
    areas.erase(area);
    return CUDA_SUCCESS;
}

/// The area that holds all of the bytes.
static const Area* holder(CUdeviceptr at, size_t bytes, CUdeviceptr* base = nullptr) {
    auto area = areas.upper_bound(at);
    if (area == areas.begin()) return nullptr;
    --area;
    if (at - area->first + bytes > area->second.bytes) return nullptr;
    if (base) *base = area->first;
    return &area->second;
}

CUresult check_device(CUdeviceptr at, size_t bytes, const char* what) {
    std::lock_guard<std::mutex> guard(lock);
    if (bytes && !holder(at, bytes)) return wrong(CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes at %p are not of one allocation", what, bytes, (void*)at);
    return CUDA_SUCCESS;
}

/// Memory that the driver knows may be read later; all other is read, or has been written, when the call returns.
static bool pinned(const void* at, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    return holder((CUdeviceptr)at, bytes) != nullptr;
}

static CUresult wait_for(Handle stream) {
    auto s = stream_of(stream);
    return s ? finish(s) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult to_device(CUdeviceptr to, const void* from, size_t bytes, Handle stream) {
    TRY(enter("h2d"));
    TRY(check_device(to, bytes, "copy to the device"));
    count("h2d_bytes", (int64_t)bytes);
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture || pinned(from, bytes)) return enqueue(stream, [=] { memcpy((void*)to, from, bytes); });
    auto staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
    return enqueue(stream, [=] { memcpy((void*)to, staged->data(), bytes); });
}

// From here on a copy to the host counts as large too: more than what a window tells of a row, less than a row of logits.
constexpr size_t large_copy = 4096;

static CUresult to_host(void* to, CUdeviceptr from, size_t bytes, Handle stream) {
    TRY(enter("d2h"));
    if (bytes >= large_copy) TRY(enter("d2hlarge"));
    TRY(check_device(from, bytes, "copy from the device"));
    count("d2h_bytes", (int64_t)bytes);
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enqueue(stream, [=] { memcpy(to, (void*)from, bytes); }));
    return s->capture || pinned(to, bytes) ? CUDA_SUCCESS : finish(s);
}

static CUresult within_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) {
    TRY(enter("d2d"));
    TRY(check_device(to, bytes, "copy within the device, to"));
    TRY(check_device(from, bytes, "copy within the device, from"));
    return enqueue(stream, [=] { memmove((void*)to, (void*)from, bytes); });
}

template <typename T>
static CUresult fill(CUdeviceptr at, T value, size_t count, Handle stream) {
    TRY(enter("memset"));
    TRY(check_device(at, count * sizeof(T), "memset"));
    if (at % sizeof(T)) return wrong(CUDA_ERROR_INVALID_VALUE, "memset at %p is not aligned", (void*)at);
    return enqueue(stream, [=] {
        for (size_t i = 0; i < count; i++) ((T*)at)[i] = value;
    });
}

/// The device's memory or the host's, as the address says.
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) {
    bool to_is, from_is;
    {
        std::lock_guard<std::mutex> guard(lock);
        const Area *a = holder(to, bytes), *b = holder(from, bytes);
        to_is = a && a->device, from_is = b && b->device;
    }
    if (to_is && from_is) return within_device(to, from, bytes, stream);
    if (to_is) return to_device(to, (const void*)from, bytes, stream);
    if (from_is) return to_host((void*)to, from, bytes, stream);
    return enqueue(stream, [=] { memmove((void*)to, (void*)from, bytes); });
}

} // namespace fake

using namespace fake;

API CUresult cuMemGetInfo_v2(size_t* left, size_t* total) {
    TRY(enter("meminfo"));
    std::lock_guard<std::mutex> guard(lock);
    *total = (size_t)setting("CUDA_HOST_MEMORY_MIB", 4096) << 20;
    *left = *total - used;
    return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes) {
    TRY(check_no_capture("cuMemAlloc"));
    TRY(enter("memalloc", CUDA_ERROR_OUT_OF_MEMORY));
    return allocate(at, bytes, true);
}
API CUresult cuMemAllocManaged(CUdeviceptr* at, size_t bytes, unsigned) { return cuMemAlloc_v2(at, bytes); }
API CUresult cuMemFree_v2(CUdeviceptr at) {
    if (!at) return CUDA_SUCCESS;
    TRY(check_no_capture("cuMemFree"));
    finish_all();
    CUresult result = release(at, true);
    return poisoned() ? poisoned() : result;
}
API CUresult cuMemAllocAsync(CUdeviceptr* at, size_t bytes, Handle stream) {
    TRY(enter("memalloc", CUDA_ERROR_OUT_OF_MEMORY));
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) return wrong(CUDA_ERROR_NOT_SUPPORTED, "an allocation in a captured stream");
    return allocate(at, bytes, true);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* at, size_t bytes, Handle, Handle stream) { return cuMemAllocAsync(at, bytes, stream); }
API CUresult cuMemFreeAsync(CUdeviceptr at, Handle stream) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) return wrong(CUDA_ERROR_NOT_SUPPORTED, "a free in a captured stream");
    TRY(check_device(at, 1, "cuMemFreeAsync"));
    if (poisoned()) { // work is not done any more, memory is still given back
        release(at, true);
        return poisoned();
    }
    return enqueue(stream, [=] { release(at, true); });
}
API CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    TRY(check_no_capture("cuMemHostAlloc"));
    TRY(enter("hostalloc", CUDA_ERROR_OUT_OF_MEMORY));
    return allocate((CUdeviceptr*)at, bytes, false);
}
API CUresult cuMemAllocHost_v2(void** at, size_t bytes) { return cuMemHostAlloc(at, bytes, 0); }
API CUresult cuMemFreeHost(void* at) {
    TRY(check_no_capture("cuMemFreeHost"));
    finish_all();
    CUresult result = release((CUdeviceptr)at, false);
    return poisoned() ? poisoned() : result;
}
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
    std::lock_guard<std::mutex> guard(lock);
    if (!holder((CUdeviceptr)host, 1)) return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)host;
    return CUDA_SUCCESS;
}
API CUresult cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
    TRY(enter("hostregister", CUDA_ERROR_OUT_OF_MEMORY));
    std::lock_guard<std::mutex> guard(lock);
    if (holder((CUdeviceptr)at, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    areas[(CUdeviceptr)at] = {bytes, nullptr, 0, false};
    count("registered_bytes", (int64_t)bytes);
    return CUDA_SUCCESS;
}
API CUresult cuMemHostUnregister(void* at) {
    finish_all();
    std::lock_guard<std::mutex> guard(lock);
    auto area = areas.find((CUdeviceptr)at);
    if (area == areas.end() || area->second.mapped || area->second.device) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    count("registered_bytes", -(int64_t)area->second.bytes);
    areas.erase(area);
    return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
    std::lock_guard<std::mutex> guard(lock);
    const Area* area = holder(at, 1, base);
    if (!area) return CUDA_ERROR_NOT_FOUND;
    *bytes = area->bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, Handle stream) { return to_device(to, from, bytes, stream); }
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, Handle stream) { return to_host(to, from, bytes, stream); }
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) { return within_device(to, from, bytes, stream); }
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) { return copy(to, from, bytes, stream); }
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, Handle, CUdeviceptr from, Handle, size_t bytes, Handle stream) { return within_device(to, from, bytes, stream); }
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    TRY(check_no_capture("cuMemcpyHtoD"));
    TRY(to_device(to, from, bytes, nullptr));
    return wait_for(nullptr);
}
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    TRY(check_no_capture("cuMemcpyDtoH"));
    TRY(to_host(to, from, bytes, nullptr));
    return wait_for(nullptr);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    TRY(check_no_capture("cuMemcpyDtoD"));
    return within_device(to, from, bytes, nullptr);
}
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    TRY(check_no_capture("cuMemcpy"));
    TRY(copy(to, from, bytes, nullptr));
    return wait_for(nullptr);
}

API CUresult cuMemsetD8Async(CUdeviceptr at, uint8_t value, size_t count, Handle stream) { return fill(at, value, count, stream); }
API CUresult cuMemsetD16Async(CUdeviceptr at, uint16_t value, size_t count, Handle stream) { return fill(at, value, count, stream); }
API CUresult cuMemsetD32Async(CUdeviceptr at, uint32_t value, size_t count, Handle stream) { return fill(at, value, count, stream); }
API CUresult cuMemsetD8_v2(CUdeviceptr at, uint8_t value, size_t count) { return fill(at, value, count, nullptr); }
API CUresult cuMemsetD16_v2(CUdeviceptr at, uint16_t value, size_t count) { return fill(at, value, count, nullptr); }
API CUresult cuMemsetD32_v2(CUdeviceptr at, uint32_t value, size_t count) { return fill(at, value, count, nullptr); }

// Pools: one, which is the device's memory.
static char pool;
API CUresult cuDeviceGetDefaultMemPool(Handle* out, int) {
    *out = &pool;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetMemPool(Handle* out, int) {
    *out = &pool;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceSetMemPool(int, Handle) { return CUDA_SUCCESS; }
API CUresult cuMemPoolSetAttribute(Handle, int, void*) { return CUDA_SUCCESS; }
API CUresult cuMemPoolTrimTo(Handle, size_t) { return CUDA_SUCCESS; }
