// The stand-in's device: what it says of itself, its context, faults on demand, counters.
//
// Environment: CUDA_HOST_CC compute capability (90); CUDA_HOST_MEMORY_MIB device memory (4096); CUDA_HOST_SMS multiprocessors (132); CUDA_HOST_DEVICES devices (1);
// CUDA_HOST_DRIVER the driver's version (13000); CUDA_HOST_FAIL faults; CUDA_HOST_REPORT=1 says at the end what was left behind.
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace fake {

int64_t setting(const char* name, int64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoll(text, nullptr, 10) : otherwise;
}

static std::mutex lock;
static std::map<std::string, int64_t>& counters() {
    static auto* all = new std::map<std::string, int64_t>;
    return *all;
}
static CUresult poison_code = CUDA_SUCCESS;

void count(const char* name, int64_t by) {
    std::lock_guard<std::mutex> guard(lock);
    counters()[name] += by;
}

void poison(CUresult fault) {
    std::lock_guard<std::mutex> guard(lock);
    if (poison_code == CUDA_SUCCESS) poison_code = fault;
}
CUresult poisoned() {
    std::lock_guard<std::mutex> guard(lock);
    return poison_code;
}

struct Fault {
    std::string kind;
    int64_t nth = 0;
    bool always = false;
    int code = 0;
    int64_t calls = 0;
};

static std::vector<Fault> parse_faults() {
    std::vector<Fault> faults;
    const char* text = getenv("CUDA_HOST_FAIL");
    std::string all = text ? text : "";
    for (size_t at = 0; at < all.size();) {
        size_t end = all.find(',', at);
        if (end == std::string::npos) end = all.size();
        std::string one = all.substr(at, end - at);
        char kind[64], plus = 0;
        long long nth = 0;
        int code = 0;
        Fault fault;
        if (sscanf(one.c_str(), "%63[^:]:%lld%c", kind, &nth, &plus) < 2) {
            fprintf(stderr, "cuda-host: CUDA_HOST_FAIL: `%s` is not KIND:NTH[+][:CODE]\n", one.c_str());
            abort();
        }
        size_t colon = one.find(':', one.find(':') + 1);
        if (colon != std::string::npos) code = atoi(one.c_str() + colon + 1);
        fault.kind = kind, fault.nth = nth, fault.always = plus == '+', fault.code = code;
        faults.push_back(fault);
        at = end + 1;
    }
    return faults;
}

CUresult enter(const char* kind, CUresult fault) {
    std::lock_guard<std::mutex> guard(lock);
    static auto* faults = new std::vector<Fault>(parse_faults());
    if (poison_code != CUDA_SUCCESS) return poison_code;
    for (Fault& f : *faults) {
        if (f.kind != kind) continue;
        f.calls++;
        if (f.calls != f.nth && !(f.always && f.calls > f.nth)) continue;
        CUresult code = f.code ? (CUresult)f.code : fault;
        if (code >= 700 && code < 720) poison_code = code; // nothing works in a context after these
        return code;
    }
    return CUDA_SUCCESS;
}

CUresult wrong(CUresult code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "cuda-host: %s (error %d)\n", text, (int)code);
    return code;
}

struct Report {
    ~Report() {
        if (!setting("CUDA_HOST_REPORT", 0)) return;
        for (auto& [name, value] : counters()) fprintf(stderr, "cuda-host: %s %lld\n", name.c_str(), (long long)value);
    }
};
static Report report;

static bool initialised = false;
static thread_local Handle current = nullptr;
static char primary; // its address is the context

static int capability() { return (int)setting("CUDA_HOST_CC", 90); }

static int shared_optin() {
    switch (capability()) {
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: case 121: return 99 << 10;
    default: return 227 << 10;
    }
}

static CUresult attribute(int* value, int which) {
    int cc = capability();
    switch (which) {
    case 1: *value = 1024; break;                              // threads a block
    case 2: case 3: *value = 1024; break;                      // block x, y
    case 4: *value = 64; break;                                // block z
    case 5: *value = 2147483647; break;                        // grid x
    case 6: case 7: *value = 65535; break;                     // grid y, z
    case 8: *value = 48 << 10; break;                          // shared memory a block
    case 9: *value = 64 << 10; break;                          // constant memory
    case 10: *value = 32; break;                               // warp
    case 12: case 82: *value = 65536; break;                   // registers a block, a multiprocessor
    case 13: *value = 1980000; break;                          // clock, kHz
    case 16: *value = (int)setting("CUDA_HOST_SMS", 132); break;
    case 36: *value = 3201000; break;                          // memory clock, kHz
    case 37: *value = 6144; break;                             // bus, bits
    case 38: *value = 60 << 20; break;                         // L2
    case 39: *value = cc == 75 ? 1024 : cc == 80 || cc == 90 || cc == 100 ? 2048 : 1536; break; // threads a multiprocessor
    case 40: *value = 3; break;                                // copy engines
    case 75: *value = cc / 10; break;
    case 76: *value = cc % 10; break;
    case 81: *value = cc == 75 ? 64 << 10 : shared_optin() + 1024; break; // shared memory a multiprocessor
    case 97: *value = shared_optin(); break;
    case 106: *value = cc == 75 ? 16 : cc == 86 || cc == 89 || cc >= 120 ? 24 : 32; break; // blocks a multiprocessor
    case 111: *value = cc == 75 ? 0 : 1024; break;             // reserved shared memory a block
    case 115: *value = (int)setting("CUDA_HOST_POOLS", 1); break; // memory pools
    case 19: case 31: case 41: case 78: case 90: case 92: case 94: case 95: case 99: *value = 1; break; // what any card of today can do
    default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}

} // namespace fake

using namespace fake;

/// The value of a counter: "launches", "device_bytes", "streams", .. (see CUDA_HOST_REPORT=1). For tests.
API int64_t host_counter(const char* name) {
    std::lock_guard<std::mutex> guard(lock);
    return counters()[name];
}

API CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (setting("CUDA_HOST_DEVICES", 1) < 1) return CUDA_ERROR_NO_DEVICE;
    TRY(enter("init", CUDA_ERROR_NO_DEVICE));
    initialised = true;
    return CUDA_SUCCESS;
}
API CUresult cuDriverGetVersion(int* version) {
    *version = (int)setting("CUDA_HOST_DRIVER", 13000);
    return CUDA_SUCCESS;
}

static CUresult check(int device) {
    if (!initialised) return wrong(CUDA_ERROR_NOT_INITIALIZED, "a call before cuInit");
    return device >= 0 && device < setting("CUDA_HOST_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetCount(int* count) {
    TRY(check(0));
    *count = (int)setting("CUDA_HOST_DEVICES", 1);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(int* device, int ordinal) {
    TRY(check(ordinal));
    *device = ordinal;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* name, int bytes, int device) {
    TRY(check(device));
    snprintf(name, bytes, "Host emulation sm_%d", capability());
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(char uuid[16], int device) {
    TRY(check(device));
    memcpy(uuid, "cuda-host-device", 16);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(char uuid[16], int device) { return cuDeviceGetUuid_v2(uuid, device); }
API CUresult cuDeviceGetAttribute(int* value, int which, int device) {
    TRY(check(device));
    return attribute(value, which);
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, int device) {
    TRY(check(device));
    *bytes = (size_t)setting("CUDA_HOST_MEMORY_MIB", 4096) << 20;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceComputeCapability(int* major, int* minor, int device) {
    TRY(check(device));
    *major = capability() / 10, *minor = capability() % 10;
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetPCIBusId(char* text, int bytes, int device) {
    TRY(check(device));
    snprintf(text, bytes, "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(Handle* context, int device) {
    TRY(check(device));
    TRY(enter("context", CUDA_ERROR_OUT_OF_MEMORY));
    count("contexts", 1);
    *context = &primary;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    TRY(check(device));
    count("contexts", -1);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
    *flags = 0, *active = 1;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(Handle context) {
    if (context && context != &primary) return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(Handle* context) {
    *context = current;
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(Handle context) { return cuCtxSetCurrent(context); }
API CUresult cuCtxPopCurrent_v2(Handle* context) {
    if (context) *context = current;
    current = nullptr;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(int* device) {
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetFlags(unsigned) { return CUDA_SUCCESS; }
API CUresult cuCtxGetFlags(unsigned* flags) {
    *flags = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(int, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxGetLimit(size_t* value, int) {
    *value = 1024;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCacheConfig(int) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCacheConfig(int* config) {
    *config = 0;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetApiVersion(Handle, unsigned* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize() {
    TRY(check_no_capture("cuCtxSynchronize"));
    TRY(enter("sync"));
    return finish_all();
}
API CUresult cuProfilerStart() { return CUDA_SUCCESS; }
API CUresult cuProfilerStop() { return CUDA_SUCCESS; }

#define RESULTS(X)                                                                                                                                    \
    X(SUCCESS, 0, "no error") X(ERROR_INVALID_VALUE, 1, "invalid argument") X(ERROR_OUT_OF_MEMORY, 2, "out of memory")                                \
    X(ERROR_NOT_INITIALIZED, 3, "initialization error") X(ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                 \
    X(ERROR_INVALID_DEVICE, 101, "invalid device ordinal") X(ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                              \
    X(ERROR_INVALID_CONTEXT, 201, "invalid device context") X(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
    X(ERROR_FILE_NOT_FOUND, 301, "file not found") X(ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                            \
    X(ERROR_NOT_FOUND, 500, "named symbol not found") X(ERROR_NOT_READY, 600, "device not ready")                                                     \
    X(ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                                                         \
    X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                                                                  \
    X(ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped")                                       \
    X(ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region")                                             \
    X(ERROR_LAUNCH_FAILED, 719, "unspecified launch failure") X(ERROR_NOT_SUPPORTED, 801, "operation not supported")                                  \
    X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                                                      \
    X(ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")                                               \
    X(ERROR_STREAM_CAPTURE_UNMATCHED, 903, "the capture was not initiated in this stream")                                                            \
    X(ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream")                                           \
    X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture sequence from another thread")                             \
    X(ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed because it included changes which violated constraints")

API CUresult cuGetErrorName(CUresult code, const char** text) {
    switch ((int)code) {
#define X(name, number, words) \
    case number: *text = "CUDA_" #name; return CUDA_SUCCESS;
        RESULTS(X)
#undef X
    }
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult code, const char** text) {
    switch ((int)code) {
#define X(name, number, words) \
    case number: *text = words; return CUDA_SUCCESS;
        RESULTS(X)
#undef X
    }
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
    std::string name = symbol;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""})
        if ((*function = dlsym(RTLD_DEFAULT, (name + suffix).c_str()))) {
            if (status) *status = 0;
            return CUDA_SUCCESS;
        }
    if (status) *status = 1;
    return CUDA_ERROR_NOT_FOUND;
}
