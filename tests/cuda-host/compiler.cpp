// The stand-in for NVRTC: compiles a .cu file with g++ and `host.h` into a shared library, which is what it gives out as a cubin.
//
// Environment: CUDA_HOST_CACHE folder of compiled kernels (cuda-host in the temporary folder); CUDA_HOST_FLAGS options of g++ (-O1 -g1);
// CUDA_HOST_FAIL_COMPILE=NTH makes the NTH compilation fail.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#ifndef HOST_DIR
#error "HOST_DIR is the folder of host.h"
#endif
#define API extern "C" __attribute__((visibility("default")))

enum nvrtcResult : int { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6, INTERNAL_ERROR = 11 };

namespace {

struct Program {
    std::string name, source;
    std::vector<std::pair<std::string, std::string>> headers; // name, text
    std::string log, image;
};

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

/// FNV-1a over two lanes: enough to tell sources of one project apart.
std::string hash(const std::string& text) {
    uint64_t a = 0xcbf29ce484222325, b = 0x9ae16a3b2f90404f;
    for (unsigned char c : text) {
        a = (a ^ c) * 0x100000001b3;
        b = (b + c) * 0x9e3779b97f4a7c15;
        b ^= b >> 29;
    }
    char hex[40];
    snprintf(hex, sizeof hex, "%016lx%016lx", a, b);
    return hex;
}

std::string quoted(const std::string& word) {
    std::string out = "'";
    for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

/// Runs a command; standard output and error into `output`.
int shell(const std::string& command, std::string& output) {
    FILE* pipe = popen((command + " 2>&1").c_str(), "r");
    if (!pipe) return -1;
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, pipe));) output.append(part, n);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The options of g++ that stand for those of NVRTC; false for one that NVRTC would not know.
bool translate(const std::vector<std::string>& options, std::string& out, std::string& bad) {
    static const char* ignored[] = {"--gpu-architecture", "-arch", "--std", "-std", "--fmad", "-fmad", "--ftz", "-ftz", "--prec-div", "-prec-div", "--prec-sqrt",
                                    "-prec-sqrt", "--maxrregcount", "-maxrregcount", "--ptxas-options", "-Xptxas", "--generate-line-info", "-lineinfo",
                                    "--device-as-default-execution-space", "-default-device", "--extra-device-vectorization", "--split-compile", "-split-compile",
                                    "--dopt", "--device-debug", "-G", "--no-source-include", "-w", "--restrict", "-restrict", "--minimal", "-minimal"};
    std::string arch = "900";
    for (size_t i = 0; i < options.size(); i++) {
        std::string option = options[i];
        bool split = (option == "-D" || option == "--define-macro" || option == "-I" || option == "--include-path" || option == "-arch" ||
                      option == "--gpu-architecture" || option == "-Xptxas" || option == "--ptxas-options" || option == "-std" || option == "--std") &&
                     i + 1 < options.size();
        std::string value = split ? options[++i] : "";
        size_t equals = option.find('=');
        std::string word = option.substr(0, equals);
        if (!split && equals != std::string::npos) value = option.substr(equals + 1);
        if (word == "--define-macro" || option == "-D") out += " -D" + quoted(value);
        else if (word == "--include-path" || option == "-I") out += " -I" + quoted(value);
        else if (!option.compare(0, 2, "-D") || !option.compare(0, 2, "-I")) out += " " + quoted(option);
        else {
            bool known = false;
            for (const char* name : ignored) known |= word == name;
            if (!known) {
                bad = option;
                return false;
            }
            if (word == "--gpu-architecture" || word == "-arch") {
                std::string digits;
                for (char c : value)
                    if (c >= '0' && c <= '9') digits += c;
                if (!digits.empty()) arch = digits + "0";
            }
        }
    }
    out += " -D__CUDA_ARCH__=" + arch;
    return true;
}

/// `HOST_LAUNCHER` for each kernel of a preprocessed source (see KERNEL in host.h).
std::string launchers(const std::string& text) {
    std::string out;
    const std::string end = ") <= 1024, \"KERNEL\");";
    for (size_t at = 0; (at = text.find(end, at)) != std::string::npos;) {
        size_t start = text.rfind("static_assert((", at);
        std::string bound = text.substr(start + 15, at - start - 15);
        at += end.size();
        at = text.find("void", at);
        if (at == std::string::npos) break;
        at += 4;
        for (;;) { // blanks and line markers
            while (at < text.size() && strchr(" \t\n", text[at])) at++;
            if (at >= text.size() || text[at] != '#') break;
            at = text.find('\n', at);
        }
        size_t stop = at;
        while (stop < text.size() && (isalnum((unsigned char)text[stop]) || text[stop] == '_')) stop++;
        out += "HOST_LAUNCHER(" + text.substr(at, stop - at) + ", " + bound + ")\n";
        at = stop;
    }
    return out;
}

std::string cache() {
    const char* set = getenv("CUDA_HOST_CACHE");
    const char* temporary = getenv("TMPDIR");
    std::string folder = set && *set ? set : std::string(temporary && *temporary ? temporary : "/tmp") + "/cuda-host";
    mkdir(folder.c_str(), 0777);
    return folder;
}

void remove_folder(const std::string& folder) {
    if (DIR* dir = opendir(folder.c_str())) {
        while (dirent* entry = readdir(dir)) unlink((folder + "/" + entry->d_name).c_str());
        closedir(dir);
    }
    rmdir(folder.c_str());
}

/// `host.h`, compiled once for these options, which takes as long as a small kernel; where that fails, as it is.
std::string words(const std::string& folder, const std::string& base, const std::string& header) {
    std::string as_it_is = HOST_DIR "/host.h", made = folder + "/host.h-" + hash(base + '\0' + header);
    if (access((made + "/host.h.gch").c_str(), R_OK) == 0) return made + "/host.h";
    std::string room = made + ".XXXXXX", log;
    if (!mkdtemp(room.data())) return as_it_is;
    write(room + "/host.h", header);
    std::string path = quoted(room + "/host.h");
    // the first of several that make it wins
    if (shell("g++ " + base + " -w -x c++-header " + path + " -o " + quoted(room + "/host.h.gch"), log) || rename(room.c_str(), made.c_str())) remove_folder(room);
    return access((made + "/host.h.gch").c_str(), R_OK) == 0 ? made + "/host.h" : as_it_is;
}

nvrtcResult compile(Program& p, const std::vector<std::string>& options) {
    static std::atomic<int> compilations{0};
    const char* fail = getenv("CUDA_HOST_FAIL_COMPILE");
    if (++compilations == (fail ? atoi(fail) : 0)) {
        p.log = "cuda-host: told to fail";
        return COMPILATION;
    }
    std::string flags, bad;
    if (!translate(options, flags, bad)) {
        p.log = "nvrtc: error: invalid value for option " + bad;
        return INVALID_OPTION;
    }
    const char* set = getenv("CUDA_HOST_FLAGS");
    std::string base = std::string(set ? set : "-O1 -g1") + " -std=c++17 -ffp-contract=off -mavx2 -mfma -mf16c -fPIC -Wno-unknown-pragmas";
    std::string header = read(HOST_DIR "/host.h");
    std::string everything = base + flags + '\0' + header + '\0' + p.name + '\0' + p.source;
    for (auto& [name, text] : p.headers) everything += '\0' + name + '\0' + text;
    std::string stem = p.name.substr(p.name.rfind('/') + 1);
    std::string folder = cache(), made = folder + "/" + stem + "-" + hash(everything) + ".so";
    p.image = read(made);
    if (!p.image.empty()) return SUCCESS;

    std::string room = made + ".XXXXXX";
    if (!mkdtemp(room.data())) {
        p.log = "cuda-host: cannot write to " + folder;
        return INTERNAL_ERROR;
    }
    // the names are those of the program: no folders below, as none of ours has any
    write(room + "/" + stem, p.source);
    for (auto& [name, text] : p.headers) write(room + "/" + name, text);
    std::string command = "g++ " + base + flags + " -I" + quoted(room) + " -include ";
    std::string listed;
    int failed = shell(command + HOST_DIR "/host.h -DHOST_NAMES_ONLY -E -x c++ " + quoted(room + "/" + stem), listed);
    if (failed) p.log = listed;
    else {
        write(room + "/whole.cpp", "#include \"" + stem + "\"\n" + launchers(listed));
        failed = shell(command + quoted(words(folder, base, header)) + " -shared -Wl,-Bsymbolic -x c++ " + quoted(room + "/whole.cpp") + " -o " + quoted(room + "/whole.so"), p.log);
    }
    if (!failed) {
        p.image = read(room + "/whole.so");
        rename((room + "/whole.so").c_str(), made.c_str());
    }
    for (size_t at; (at = p.log.find(room + "/")) != std::string::npos;) p.log.erase(at, room.size() + 1);
    remove_folder(room);
    return failed ? COMPILATION : SUCCESS;
}

} // namespace

API nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 13, *minor = 0;
    return SUCCESS;
}
API nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = 7;
    return SUCCESS;
}
API nvrtcResult nvrtcGetSupportedArchs(int* archs) {
    const int all[] = {75, 80, 86, 89, 90, 100, 120};
    memcpy(archs, all, sizeof all);
    return SUCCESS;
}
API const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}
API nvrtcResult nvrtcCreateProgram(Program** program, const char* source, const char* name, int count, const char* const* headers, const char* const* names) {
    if (!program || !source || count < 0) return INVALID_INPUT;
    auto* p = new Program;
    p->source = source;
    p->name = name && *name ? name : "default_program";
    for (int i = 0; i < count; i++) p->headers.emplace_back(names[i], headers[i]);
    *program = p;
    return SUCCESS;
}
API nvrtcResult nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    return SUCCESS;
}
API nvrtcResult nvrtcCompileProgram(Program* p, int count, const char* const* options) {
    if (!p) return INVALID_PROGRAM;
    p->log.clear();
    return compile(*p, std::vector<std::string>(options, options + count));
}
API nvrtcResult nvrtcGetCUBINSize(Program* p, size_t* bytes) {
    if (!p || p->image.empty()) return INVALID_PROGRAM;
    *bytes = p->image.size();
    return SUCCESS;
}
API nvrtcResult nvrtcGetCUBIN(Program* p, char* out) {
    if (!p || p->image.empty()) return INVALID_PROGRAM;
    memcpy(out, p->image.data(), p->image.size());
    return SUCCESS;
}
API nvrtcResult nvrtcGetPTXSize(Program* p, size_t* bytes) { return nvrtcGetCUBINSize(p, bytes); }
API nvrtcResult nvrtcGetPTX(Program* p, char* out) { return nvrtcGetCUBIN(p, out); }
API nvrtcResult nvrtcGetProgramLogSize(Program* p, size_t* bytes) {
    if (!p) return INVALID_PROGRAM;
    *bytes = p->log.size() + 1;
    return SUCCESS;
}
API nvrtcResult nvrtcGetProgramLog(Program* p, char* out) {
    if (!p) return INVALID_PROGRAM;
    memcpy(out, p->log.c_str(), p->log.size() + 1);
    return SUCCESS;
}
API nvrtcResult nvrtcAddNameExpression(Program*, const char*) { return SUCCESS; }
API nvrtcResult nvrtcGetLoweredName(Program*, const char* name, const char** lowered) {
    *lowered = name; // kernels are extern "C"
    return SUCCESS;
}
