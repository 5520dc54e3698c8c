// What the parts of the stand-in for the CUDA driver share: result codes, faults on demand, objects behind handles, streams.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum CUresult : int {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

typedef uint64_t CUdeviceptr;
typedef void* Handle;

namespace fake {

/// The value of an environment variable, or what to take without one.
int64_t setting(const char* name, int64_t otherwise);

/// Begins a call that may be told to fail (CUDA_HOST_FAIL=KIND:NTH[+][:CODE],..): its own fault, or the one that an earlier call left for good.
CUresult enter(const char* kind, CUresult fault = CUDA_ERROR_LAUNCH_FAILED);
/// A fault that all later calls report, as after a kernel has gone wrong.
void poison(CUresult fault);
CUresult poisoned();
/// Says on standard error what a call did wrong, and gives the code.
CUresult wrong(CUresult code, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// Things counted for `host_counter`, and for the report at the end.
void count(const char* name, int64_t by);

/// Objects behind handles: a handle is the object's address, and good while the object is here.
template <typename T>
class Registry {
    std::mutex lock;
    std::map<Handle, std::shared_ptr<T>> all;
    const char* name;

public:
    explicit Registry(const char* name) : name(name) {}
    Handle add(std::shared_ptr<T> object) {
        std::lock_guard<std::mutex> guard(lock);
        count(name, 1);
        Handle handle = object.get();
        all[handle] = std::move(object);
        return handle;
    }
    std::shared_ptr<T> get(Handle handle) {
        std::lock_guard<std::mutex> guard(lock);
        auto at = all.find(handle);
        return at == all.end() ? nullptr : at->second;
    }
    std::shared_ptr<T> take(Handle handle) {
        std::lock_guard<std::mutex> guard(lock);
        auto at = all.find(handle);
        if (at == all.end()) return nullptr;
        auto object = std::move(at->second);
        all.erase(at);
        count(name, -1);
        return object;
    }
    std::vector<std::shared_ptr<T>> list() {
        std::lock_guard<std::mutex> guard(lock);
        std::vector<std::shared_ptr<T>> objects;
        for (auto& [handle, object] : all) objects.push_back(object);
        return objects;
    }
};

using Work = std::function<void()>;

struct Graph {
    std::shared_ptr<std::vector<Work>> work = std::make_shared<std::vector<Work>>();
};

struct Capture {
    std::vector<Work> work;
    int mode;
    std::thread::id thread;
    Handle origin;
    bool invalid = false;
};

/// Work in order, done by a thread of its own; or at once (CUDA_HOST_MODE=sync), or only when somebody waits (lazy).
struct Stream {
    std::deque<Work> queue;
    uint64_t enqueued = 0, finished = 0, allowed = 0;
    bool stopped = false;
    bool blocking = true;
    int priority = 0;
    std::shared_ptr<Capture> capture;
    std::thread worker;
};

struct Event {
    uint64_t recorded = 0, completed = 0;
    double seconds = 0;
    bool timed = true;
    std::shared_ptr<Capture> capture;
};

/// The stream of a handle; null, 1 and 2 are the default stream.
std::shared_ptr<Stream> stream_of(Handle handle);
/// Puts work at the end of the stream, or into the graph that it captures.
CUresult enqueue(Handle stream, Work work);
/// Returns when everything that the stream has got so far is done.
CUresult finish(const std::shared_ptr<Stream>& stream);
CUresult finish_all();
/// A call that no thread may make during a capture that forbids it.
CUresult check_no_capture(const char* what);

/// Whether the bytes lie within one allocation of the device; says so where they do not.
CUresult check_device(CUdeviceptr at, size_t bytes, const char* what);

} // namespace fake

#define TRY(call)                                  \
    do {                                           \
        CUresult result_ = (call);                 \
        if (result_ != CUDA_SUCCESS) return result_; \
    } while (0)
