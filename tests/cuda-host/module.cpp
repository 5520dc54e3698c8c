// The stand-in's modules and launches. A module's image is the shared library that the stand-in for NVRTC has made of a .cu file with `host.h`.
//
// Environment: CUDA_HOST_THREADS how many threads run the blocks of a launch (2); CUDA_HOST_SEED permutes the order of blocks and threads;
// CUDA_HOST_KEEP=1 leaves the files of modules for a debugger.
#include "host.h"
// host.h first: it says for which instructions all that follows is compiled
#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

namespace fake {

struct Module;
struct Function {
    const host::Kernel* kernel;
    Module* module;
    size_t shared_max = 48 << 10;
};
struct Module {
    void* library = nullptr;
    std::mutex lock;
    std::map<std::string, std::unique_ptr<Function>> functions;
    ~Module() {
        if (library) dlclose(library);
    }
};
static auto& modules = *new Registry<Module>("modules");

// ---- the threads that run blocks

/// What a thread needs to run blocks. It is many mappings, of which a process may have so many only: threads that end leave it to those that come.
struct Room {
    void* at = nullptr;

    Room() {
        std::lock_guard<std::mutex> guard(lock());
        if (!left().empty()) at = left().back(), left().pop_back();
    }
    ~Room() {
        std::lock_guard<std::mutex> guard(lock());
        if (at) left().push_back(at);
    }

private:
    static std::mutex& lock() { static auto* it = new std::mutex; return *it; }
    static std::vector<void*>& left() { static auto* all = new std::vector<void*>; return *all; }
};
static thread_local Room memory;
static struct sigaction previous;

static void on_fault(int, siginfo_t* info, void* context) {
    host::explain_segv(info, context, (host::Block*)memory.at);
    sigaction(SIGSEGV, &previous, nullptr);
}

/// Gives the calling thread a stack for the report of a fault, and the process the handler.
static void prepare_thread() {
    static thread_local bool ready = false;
    if (ready) return;
    ready = true;
    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &previous);
    });
}

struct Job {
    const host::Kernel* kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void** params;
    u64 next = 0;
    void work() {
        prepare_thread();
        kernel->blocks(grid, block, shared_bytes, params, &next, &memory.at);
    }
};

/// Threads that help with the launch of the moment.
class Crew {
    std::mutex lock;
    std::condition_variable start, end;
    Job* job = nullptr;
    u64 round = 0;
    int busy = 0, hands;

    void help() {
        u64 seen = 0;
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            start.wait(guard, [&] { return round != seen; });
            seen = round;
            Job* mine = job;
            guard.unlock();
            mine->work();
            guard.lock();
            if (--busy == 0) end.notify_all();
        }
    }

public:
    std::mutex use;
    explicit Crew(int hands) : hands(hands) {
        for (int i = 0; i < hands; i++) std::thread([this] { help(); }).detach();
    }
    void run(Job& all) {
        {
            std::lock_guard<std::mutex> guard(lock);
            job = &all, busy = hands, round++;
        }
        start.notify_all();
        all.work();
        std::unique_lock<std::mutex> guard(lock);
        end.wait(guard, [&] { return busy == 0; });
    }
};

static void run(Job& job) {
    static auto* crew = new Crew((int)setting("CUDA_HOST_THREADS", 2) - 1);
    static const bool alone = setting("CUDA_HOST_THREADS", 2) < 2;
    u64 blocks = (u64)job.grid.x * job.grid.y * job.grid.z;
    bool small = blocks < 2 || blocks * job.block.x * job.block.y * job.block.z < 4096; // not worth waking anybody
    std::unique_lock<std::mutex> mine(crew->use, std::defer_lock);
    if (alone || small || !mine.try_lock()) job.work();
    else crew->run(job);
}

static CUresult launch(Function* f, dim3 grid, dim3 block, size_t shared_bytes, Handle stream, void** params) {
    const host::Kernel& k = *f->kernel;
    TRY(enter("launch"));
    u64 threads = (u64)block.x * block.y * block.z;
    if (!threads || !grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.z > 64)
        return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: grid (%u, %u, %u), block (%u, %u, %u)", k.name, grid.x, grid.y, grid.z, block.x, block.y, block.z);
    if (threads > k.threads_max) return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: %llu threads, its bound is %u", k.name, threads, k.threads_max);
    if (shared_bytes > f->shared_max)
        return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: %zu bytes of dynamic shared memory, allowed are %zu", k.name, shared_bytes, f->shared_max);
    if (k.params && !params) return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: no parameters", k.name);
    count("launches", 1);
    // the values as they are now
    std::vector<u32> at(k.params);
    u32 bytes = 0;
    for (u32 i = 0; i < k.params; i++) at[i] = bytes, bytes += (k.param_bytes[i] + 15) / 16 * 16;
    auto values = std::make_shared<std::vector<char>>(bytes + 16);
    for (u32 i = 0; i < k.params; i++) {
        if (!params[i]) return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: parameter %u is not given", k.name, i);
        memcpy(values->data() + at[i], params[i], k.param_bytes[i]);
    }
    auto module = modules.get(f->module); // stays loaded while a launch or a graph refers to it
    return enqueue(stream, [=, kernel = f->kernel] {
        (void)module;
        if (enter("kernel", CUDA_ERROR_ILLEGAL_ADDRESS)) return; // a fault shows with the next wait
        std::vector<void*> pointers;
        for (u32 offset : at) pointers.push_back(values->data() + offset);
        Job job = {kernel, grid, block, shared_bytes, pointers.data()};
        run(job);
    });
}

/// The bytes of an ELF file for this processor; 0 for anything else.
static size_t library_bytes(const void* image) {
    auto* elf = (const Elf64_Ehdr*)image;
    if (memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_machine != EM_X86_64 || elf->e_type != ET_DYN) return 0;
    return elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
}

static CUresult load(Handle* out, const void* image) {
    size_t bytes = library_bytes(image);
    if (!bytes) return wrong(CUDA_ERROR_NO_BINARY_FOR_GPU, "a module that is not of the stand-in for NVRTC");
    const char* folder = getenv("TMPDIR");
    std::string path = std::string(folder && *folder ? folder : "/tmp") + "/cuda-host-XXXXXX";
    int file = mkstemp(path.data());
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(file, (const char*)image + done, bytes - done);
        if (n <= 0) return CUDA_ERROR_OUT_OF_MEMORY;
        done += (size_t)n;
    }
    close(file);
    auto module = std::make_shared<Module>();
    module->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!setting("CUDA_HOST_KEEP", 0)) unlink(path.c_str()); // a debugger wants it
    if (!module->library) return wrong(CUDA_ERROR_INVALID_IMAGE, "%s", dlerror());
    *out = modules.add(module);
    return CUDA_SUCCESS;
}

} // namespace fake

using namespace fake;

API CUresult cuModuleLoadData(Handle* module, const void* image) {
    TRY(enter("module", CUDA_ERROR_OUT_OF_MEMORY));
    return load(module, image);
}
API CUresult cuModuleLoadDataEx(Handle* module, const void* image, unsigned, void*, void*) { return cuModuleLoadData(module, image); }
API CUresult cuModuleLoad(Handle* module, const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::vector<char> image;
    char part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, file));) image.insert(image.end(), part, part + n);
    fclose(file);
    image.resize(image.size() + 64);
    return cuModuleLoadData(module, image.data());
}
API CUresult cuModuleUnload(Handle module) {
    if (!modules.get(module)) return wrong(CUDA_ERROR_INVALID_HANDLE, "a module is unloaded that does not exist");
    finish_all();
    modules.take(module);
    return poisoned();
}
API CUresult cuModuleGetFunction(Function** function, Handle handle, const char* name) {
    auto module = modules.get(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard<std::mutex> guard(module->lock);
    auto& known = module->functions[name];
    if (!known) {
        auto get = (const host::Kernel* (*)())dlsym(module->library, (std::string("host_kernel_") + name).c_str());
        if (!get) return CUDA_ERROR_NOT_FOUND;
        const host::Kernel* kernel = get();
        if (kernel->layout != host::LAYOUT) return wrong(CUDA_ERROR_NO_BINARY_FOR_GPU, "kernel %s was compiled with another host.h: empty the cache of kernels", name);
        known = std::make_unique<Function>(Function{kernel, module.get()});
    }
    *function = known.get();
    return CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* at, size_t* bytes, Handle handle, const char* name) {
    auto module = modules.get(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    void* symbol = dlsym(module->library, name);
    Dl_info info;
    const Elf64_Sym* entry = nullptr;
    if (!symbol || !dladdr1(symbol, &info, (void**)&entry, RTLD_DL_SYMENT) || !entry) return CUDA_ERROR_NOT_FOUND;
    if (at) *at = (CUdeviceptr)symbol;
    if (bytes) *bytes = entry->st_size;
    return CUDA_SUCCESS;
}
API CUresult cuLibraryLoadData(Handle* library, const void* image, void*, void*, unsigned, void*, void*, unsigned) { return cuModuleLoadData(library, image); }
API CUresult cuLibraryUnload(Handle library) { return cuModuleUnload(library); }
API CUresult cuLibraryGetModule(Handle* module, Handle library) {
    *module = library;
    return CUDA_SUCCESS;
}
API CUresult cuLibraryGetKernel(Function** kernel, Handle library, const char* name) { return cuModuleGetFunction(kernel, library, name); }
API CUresult cuKernelGetFunction(Function** function, Function* kernel) {
    *function = kernel;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int* value, int which, int device);
API CUresult cuFuncSetAttribute(Function* f, int which, int value) {
    if (which != 8) return CUDA_SUCCESS;
    int most = 0;
    TRY(cuDeviceGetAttribute(&most, 97, 0));
    if (value < 0 || value > most) return wrong(CUDA_ERROR_INVALID_VALUE, "kernel %s: %d bytes of shared memory, the card has %d", f->kernel->name, value, most);
    f->shared_max = (size_t)value;
    return CUDA_SUCCESS;
}
API CUresult cuFuncGetAttribute(int* value, int which, Function* f) {
    switch (which) {
    case 0: *value = (int)f->kernel->threads_max; break;
    case 4: *value = 32; break; // registers
    case 5: case 6: *value = (int)setting("CUDA_HOST_CC", 90); break;
    case 8: *value = (int)f->shared_max; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetCacheConfig(Function*, int) { return CUDA_SUCCESS; }

API CUresult cuLaunchKernel(Function* f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared_bytes, Handle stream, void** params, void** extra) {
    if (extra) return wrong(CUDA_ERROR_NOT_SUPPORTED, "parameters of a launch in one buffer");
    return launch(f, {gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, params);
}
struct LaunchConfig {
    u32 gx, gy, gz, bx, by, bz, shared_bytes;
    Handle stream;
    void* attributes;
    u32 attributes_count;
};
API CUresult cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** params, void** extra) {
    return cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared_bytes, c->stream, params, extra);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* f, int threads, size_t shared_bytes) {
    if (threads <= 0 || threads > (int)f->kernel->threads_max) *blocks = 0;
    else {
        int by_threads = 1536 / threads, by_memory = shared_bytes ? (int)((100 << 10) / (shared_bytes + 1024)) : 32;
        int least = by_threads < by_memory ? by_threads : by_memory;
        *blocks = least > 32 ? 32 : least < 1 && shared_bytes <= f->shared_max ? 1 : least;
    }
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function* f, int threads, size_t shared_bytes, unsigned) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared_bytes);
}
