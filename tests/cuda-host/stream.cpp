// The stand-in's streams, events, captures and graphs.
//
// Environment: CUDA_HOST_MODE. `async` (the default): each stream has a thread that works through it, so a missing wait may show. `lazy`: nothing is done before
// somebody waits or asks, so a missing wait does show. `sync`: everything is done in the call.
//
// The default stream is a stream like the others; it does not wait for them, as it would on a card for those made without CU_STREAM_NON_BLOCKING.
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <chrono>

namespace fake {

// never destroyed: workers outlive static objects
static auto& streams = *new Registry<Stream>("streams");
static auto& lock = *new std::mutex;
static auto& work = *new std::condition_variable; // for workers: there is some, or somebody waits
static auto& done = *new std::condition_variable; // for those who wait
static int waiting = 0;
static auto& captures = *new std::vector<std::shared_ptr<Capture>>;
static auto& events = *new Registry<Event>("events");
static auto& graphs = *new Registry<Graph>("graphs");
static auto& executables = *new Registry<Graph>("graph_executables");

enum Mode { ASYNC, LAZY, SYNC };
static Mode mode() {
    static Mode m = [] {
        const char* text = getenv("CUDA_HOST_MODE");
        if (!text || !*text || !strcmp(text, "async")) return ASYNC;
        if (!strcmp(text, "lazy")) return LAZY;
        if (!strcmp(text, "sync")) return SYNC;
        wrong(CUDA_ERROR_INVALID_VALUE, "CUDA_HOST_MODE is async, lazy or sync");
        abort();
    }();
    return m;
}

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Returns when `ready` holds, which is asked under the lock.
template <typename F>
static void wait_until(F ready) {
    std::unique_lock<std::mutex> guard(lock);
    waiting++;
    work.notify_all();
    done.wait(guard, ready);
    waiting--;
}

static void run(const std::shared_ptr<Stream>& s) {
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
        work.wait(guard, [&] { return s->stopped || (!s->queue.empty() && (mode() != LAZY || waiting || s->allowed)); });
        if (s->queue.empty()) return;
        Work next = std::move(s->queue.front());
        s->queue.pop_front();
        if (s->allowed) s->allowed--;
        guard.unlock();
        if (poisoned() == CUDA_SUCCESS) next();
        next = nullptr;
        guard.lock();
        s->finished++;
        done.notify_all();
    }
}

static std::shared_ptr<Stream> make_stream() {
    auto s = std::make_shared<Stream>();
    s->worker = std::thread([s] { run(s); });
    s->worker.detach();
    return s;
}

std::shared_ptr<Stream> stream_of(Handle handle) {
    if ((uintptr_t)handle <= 2) {
        static auto* standard = new std::shared_ptr<Stream>(make_stream());
        return *standard;
    }
    return streams.get(handle);
}

static CUresult append(const std::shared_ptr<Stream>& s, Work item) {
    TRY(poisoned());
    {
        std::lock_guard<std::mutex> guard(lock);
        s->queue.push_back(std::move(item));
        s->enqueued++;
    }
    work.notify_all();
    return mode() == SYNC ? finish(s) : CUDA_SUCCESS;
}

CUresult enqueue(Handle handle, Work item) {
    auto s = stream_of(handle);
    if (!s) return wrong(CUDA_ERROR_INVALID_HANDLE, "no such stream");
    if (s->capture) {
        if (s->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        s->capture->work.push_back(std::move(item));
        return CUDA_SUCCESS;
    }
    return append(s, std::move(item));
}

CUresult finish(const std::shared_ptr<Stream>& s) {
    uint64_t upto;
    {
        std::lock_guard<std::mutex> guard(lock);
        upto = s->enqueued;
    }
    wait_until([&] { return s->finished >= upto; });
    return poisoned();
}

CUresult finish_all() {
    finish(stream_of(nullptr));
    for (auto& s : streams.list()) finish(s);
    return poisoned();
}

CUresult check_no_capture(const char* what) {
    std::lock_guard<std::mutex> guard(lock);
    for (auto& capture : captures)
        if (capture->mode == 0 || (capture->mode == 1 && capture->thread == std::this_thread::get_id())) {
            capture->invalid = true;
            return wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s during a capture", what);
        }
    return CUDA_SUCCESS;
}

/// A call on the stream itself that a capture does not allow.
static CUresult refuse_captured(const std::shared_ptr<Stream>& s, const char* what) {
    if (!s->capture) return CUDA_SUCCESS;
    s->capture->invalid = true;
    return wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s on a stream that is captured", what);
}

static void complete(const std::shared_ptr<Event>& e, uint64_t number) {
    std::lock_guard<std::mutex> guard(lock);
    e->completed = number;
    e->seconds = now();
    done.notify_all();
}

} // namespace fake

using namespace fake;

// ---- streams

API CUresult cuStreamCreateWithPriority(Handle* stream, unsigned flags, int priority) {
    TRY(enter("stream", CUDA_ERROR_OUT_OF_MEMORY));
    auto s = make_stream();
    s->blocking = !(flags & 1), s->priority = priority;
    *stream = streams.add(s);
    return CUDA_SUCCESS;
}
API CUresult cuStreamCreate(Handle* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
API CUresult cuStreamDestroy_v2(Handle stream) {
    auto s = streams.take(stream);
    if (!s) return wrong(CUDA_ERROR_INVALID_HANDLE, "a stream is destroyed that does not exist");
    finish(s);
    {
        std::lock_guard<std::mutex> guard(lock);
        s->stopped = true;
    }
    work.notify_all();
    return poisoned();
}
API CUresult cuStreamSynchronize(Handle stream) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_captured(s, "cuStreamSynchronize"));
    TRY(enter("sync"));
    return finish(s);
}
API CUresult cuStreamQuery(Handle stream) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_captured(s, "cuStreamQuery"));
    TRY(enter("query"));
    std::lock_guard<std::mutex> guard(lock);
    if (s->finished == s->enqueued) return CUDA_SUCCESS;
    s->allowed++;
    work.notify_all();
    return CUDA_ERROR_NOT_READY;
}
API CUresult cuStreamGetPriority(Handle stream, int* priority) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetFlags(Handle stream, unsigned* flags) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *flags = !s->blocking;
    return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc(Handle stream, void (*function)(void*), void* data) {
    TRY(enter("hostfunc"));
    return enqueue(stream, [=] { function(data); });
}

static bool holds(uint32_t got, uint32_t value, unsigned flags) {
    switch (flags & 3) {
    case 0: return (int32_t)(got - value) >= 0;
    case 1: return got == value;
    case 2: return (got & value) != 0;
    default: return ~(got | value) != 0;
    }
}
API CUresult cuStreamWaitValue32_v2(Handle stream, CUdeviceptr at, uint32_t value, unsigned flags) {
    TRY(enter("waitvalue"));
    TRY(check_device(at, 4, "cuStreamWaitValue32"));
    return enqueue(stream, [=] {
        {
            std::lock_guard<std::mutex> guard(lock);
            waiting++;
        }
        work.notify_all();
        while (!holds(__atomic_load_n((uint32_t*)at, __ATOMIC_SEQ_CST), value, flags)) usleep(10);
        std::lock_guard<std::mutex> guard(lock);
        waiting--;
    });
}
API CUresult cuStreamWriteValue32_v2(Handle stream, CUdeviceptr at, uint32_t value, unsigned) {
    TRY(enter("writevalue"));
    TRY(check_device(at, 4, "cuStreamWriteValue32"));
    return enqueue(stream, [=] { __atomic_store_n((uint32_t*)at, value, __ATOMIC_SEQ_CST); });
}

// ---- events

API CUresult cuEventCreate(Handle* event, unsigned flags) {
    TRY(enter("event", CUDA_ERROR_OUT_OF_MEMORY));
    auto e = std::make_shared<Event>();
    e->timed = !(flags & 2);
    *event = events.add(e);
    return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(Handle event) {
    return events.take(event) ? poisoned() : wrong(CUDA_ERROR_INVALID_HANDLE, "an event is destroyed that does not exist");
}
API CUresult cuEventRecord(Handle event, Handle stream) {
    auto e = events.get(event);
    auto s = stream_of(stream);
    if (!e || !s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("record"));
    e->capture = s->capture;
    if (s->capture) return CUDA_SUCCESS;
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock);
        number = ++e->recorded;
    }
    return append(s, [=] { complete(e, number); });
}
API CUresult cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    auto e = events.get(event);
    auto s = stream_of(stream);
    if (!e || !s) return CUDA_ERROR_INVALID_HANDLE;
    if (!(flags & 1) || !s->capture) return cuEventRecord(event, stream);
    // external: a node of the graph that records anew with each launch
    return enqueue(stream, [=] {
        uint64_t number;
        {
            std::lock_guard<std::mutex> guard(lock);
            number = ++e->recorded;
        }
        complete(e, number);
    });
}
API CUresult cuEventQuery(Handle event) {
    auto e = events.get(event);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (e->capture) return wrong(CUDA_ERROR_CAPTURED_EVENT, "cuEventQuery of an event that was recorded in a capture");
    TRY(enter("query"));
    std::vector<std::shared_ptr<Stream>> all = streams.list();
    all.push_back(stream_of(nullptr));
    std::lock_guard<std::mutex> guard(lock);
    if (e->completed == e->recorded) return CUDA_SUCCESS;
    for (auto& s : all)
        if (!s->queue.empty()) s->allowed++;
    work.notify_all();
    return CUDA_ERROR_NOT_READY;
}
API CUresult cuEventSynchronize(Handle event) {
    auto e = events.get(event);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (e->capture) return wrong(CUDA_ERROR_CAPTURED_EVENT, "cuEventSynchronize of an event that was recorded in a capture");
    TRY(enter("sync"));
    uint64_t number = e->recorded;
    wait_until([&] { return e->completed >= number || poisoned(); });
    return poisoned();
}
API CUresult cuEventElapsedTime_v2(float* ms, Handle from, Handle to) {
    auto a = events.get(from), b = events.get(to);
    if (!a || !b || !a->timed || !b->timed || !a->recorded || !b->recorded) return CUDA_ERROR_INVALID_HANDLE;
    TRY(poisoned());
    std::lock_guard<std::mutex> guard(lock);
    if (a->completed != a->recorded || b->completed != b->recorded) return CUDA_ERROR_NOT_READY;
    *ms = (float)((b->seconds - a->seconds) * 1e3);
    return CUDA_SUCCESS;
}
API CUresult cuEventElapsedTime(float* ms, Handle from, Handle to) { return cuEventElapsedTime_v2(ms, from, to); }
API CUresult cuStreamWaitEvent(Handle stream, Handle event, unsigned) {
    auto e = events.get(event);
    auto s = stream_of(stream);
    if (!e || !s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("wait"));
    if (e->capture) { // the stream joins the capture; the graph runs in the order of the calls
        if (s->capture && s->capture != e->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        s->capture = e->capture;
        return CUDA_SUCCESS;
    }
    if (s->capture) {
        s->capture->invalid = true;
        return wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a captured stream waits for an event from outside");
    }
    uint64_t number = e->recorded;
    return append(s, [=] { wait_until([&] { return e->completed >= number || poisoned(); }); });
}

// ---- captures and graphs

API CUresult cuStreamBeginCapture_v2(Handle stream, int mode) {
    if ((uintptr_t)stream <= 1) return wrong(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a capture of the default stream");
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("capture"));
    if (s->capture) return wrong(CUDA_ERROR_INVALID_VALUE, "a second capture of one stream");
    auto capture = std::make_shared<Capture>();
    capture->mode = mode, capture->thread = std::this_thread::get_id(), capture->origin = stream;
    std::lock_guard<std::mutex> guard(lock);
    captures.push_back(capture);
    s->capture = capture;
    return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(Handle stream, Handle* graph) {
    auto s = stream_of(stream);
    *graph = nullptr;
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    auto capture = s->capture;
    if (!capture) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (auto& other : streams.list())
        if (other->capture == capture) other->capture = nullptr;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (size_t i = 0; i < captures.size(); i++)
            if (captures[i] == capture) captures.erase(captures.begin() + i--);
    }
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    TRY(enter("endcapture"));
    auto g = std::make_shared<Graph>();
    *g->work = std::move(capture->work);
    *graph = graphs.add(g);
    return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(Handle stream, int* status) {
    auto s = stream_of(stream);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(int*) { return CUDA_SUCCESS; }

API CUresult cuGraphInstantiateWithFlags(Handle* executable, Handle graph, unsigned long long) {
    auto g = graphs.get(graph);
    if (!g) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("instantiate", CUDA_ERROR_OUT_OF_MEMORY));
    *executable = executables.add(std::make_shared<Graph>(*g));
    return CUDA_SUCCESS;
}
API CUresult cuGraphExecUpdate_v2(Handle executable, Handle graph, void*) {
    auto e = executables.get(executable), g = graphs.get(graph);
    if (!e || !g) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("update"));
    if (e->work->size() != g->work->size()) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    e->work = g->work;
    return CUDA_SUCCESS;
}
API CUresult cuGraphUpload(Handle executable, Handle) { return executables.get(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
API CUresult cuGraphLaunch(Handle executable, Handle stream) {
    auto e = executables.get(executable);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    TRY(enter("graph"));
    count("graph_launches", 1);
    auto work = e->work; // as it is now: an update does not reach launches before it
    return enqueue(stream, [=] {
        for (auto& item : *work)
            if (poisoned() == CUDA_SUCCESS) item();
    });
}
API CUresult cuGraphGetNodes(Handle graph, Handle*, size_t* nodes) {
    auto g = graphs.get(graph);
    if (!g) return CUDA_ERROR_INVALID_HANDLE;
    *nodes = g->work->size();
    return CUDA_SUCCESS;
}
API CUresult cuGraphExecDestroy(Handle executable) {
    return executables.take(executable) ? poisoned() : wrong(CUDA_ERROR_INVALID_HANDLE, "a graph is destroyed that does not exist");
}
API CUresult cuGraphDestroy(Handle graph) {
    return graphs.take(graph) ? poisoned() : wrong(CUDA_ERROR_INVALID_HANDLE, "a graph is destroyed that does not exist");
}
