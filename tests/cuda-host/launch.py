"""Runs kernels on the processor: compiles a .cu file with `host.h`, keeps the result, launches with numpy arrays.

    import sys; sys.path.insert(0, "tests/cuda-host")
    from launch import Module
    import numpy as np, ctypes

    module = Module("kernels/norm.cu", {"WIDTH": 64})
    out = np.zeros(64, np.float32)
    module.launch("norm", 1, 256, 0, x, out, np.uint32(64))        # grid, block (a number or up to three), bytes of dynamic shared memory

Parameters: a numpy array is passed as a pointer, None as a null pointer, a numpy scalar or ctypes value as itself, a ctypes.Structure by value. A pointer inside of a structure
is `address(array)`. Arrays made by `guarded` lie in memory that ends with a page that cannot be touched; arrays given to `launch` directly are copied there and back
(only back where they are writable), so an access behind an array's end (rounded up to 256 bytes) stops the program with the kernel's and the thread's name.

Environment: CUDA_HOST_SEED permutes the order of blocks and threads; CUDA_HOST_CACHE is the folder for compiled files.
"""

import ctypes
import hashlib
import mmap
import os
import pathlib
import re
import subprocess
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = HERE.parent.parent / "kernels"
CACHE = pathlib.Path(os.environ.get("CUDA_HOST_CACHE") or pathlib.Path(tempfile.gettempdir()) / "cuda-host")
FLAGS = ["-std=c++17", "-ffp-contract=off", "-mavx2", "-mfma", "-mf16c", "-fPIC", "-g1", "-Wno-unknown-pragmas", "-Wl,-Bsymbolic"]
KERNEL = re.compile(r'static_assert\(\(([^;{}"]*)\) <= 1024, "KERNEL"\);\s*extern "C" void\s+(?:#[^\n]*\n\s*)*(\w+)\s*\(')


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    @classmethod
    def of(cls, size) -> "Dim3":
        size = (size,) if isinstance(size, int | np.integer) else tuple(size)
        return cls(*(int(n) for n in size), *(1 for _ in range(3 - len(size))))


def compile(source, defines: dict | None = None, include=(), flags=("-O1",), arch: int = 90) -> pathlib.Path:
    """The shared library of a .cu file, with a launcher for each kernel; compiled when the file, what it includes or the macros have changed."""
    source = pathlib.Path(source)
    command = ["g++", *FLAGS, *flags, "-include", str(HERE / "host.h"), "-I", str(KERNELS)]
    command += [f"-D__CUDA_ARCH__={arch}0", *(f"-I{folder}" for folder in include)]
    command += [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in (defines or {}).items()]
    done = subprocess.run([*command, "-DHOST_NAMES_ONLY", "-E", "-x", "c++", str(source)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{source}: preprocessor failed")
    launchers = "".join(f"HOST_LAUNCHER({name}, {threads})\n" for threads, name in KERNEL.findall(done.stdout))
    CACHE.mkdir(parents=True, exist_ok=True)
    out = CACHE / f"{source.stem}-{hashlib.sha256((' '.join(command) + done.stdout + (HERE / 'host.h').read_text()).encode()).hexdigest()[:16]}.so"
    if not out.exists():
        whole = out.with_suffix(f".{os.getpid()}.cpp")
        whole.write_text(f'#include "{source.resolve()}"\n{launchers}')
        made = whole.with_suffix(".part")
        done = subprocess.run(["nice", *command, "-shared", str(whole), "-o", str(made)])
        if done.returncode:
            raise RuntimeError(f"{source}: compiler failed")
        whole.unlink()
        made.rename(out)
    return out


def guarded(like, dtype=None) -> np.ndarray:
    """An array of a shape, or a copy of an array, in memory that ends (rounded up to 256 bytes) with a page that cannot be touched.
    Of a shape it begins as garbage (bytes 0xa5)."""
    copy = like if isinstance(like, np.ndarray) else None
    shape, dtype = (copy.shape, copy.dtype) if copy is not None else (like, np.dtype(dtype or np.float32))
    count = int(np.prod(shape, dtype=np.int64))
    size = max((count * dtype.itemsize + 255) // 256 * 256, 256)
    whole = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
    base = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base.ctypes.data + whole), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    base[whole - size : whole] = 0xA5
    array = np.frombuffer(memory, dtype, count, whole - size).reshape(shape)
    if copy is not None:
        array[...] = copy
    return array


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


class Module:
    """A compiled file. `arch` is what `__CUDA_ARCH__` stands for: 90 for sm_90."""

    def __init__(self, source, defines: dict | None = None, include=(), flags=("-O1",), arch: int = 90):
        self.path = compile(source, defines, include, flags, arch)
        self.library = ctypes.CDLL(str(self.path))

    def launch(self, name: str, grid, block, shared_bytes: int, *params, guard: bool = True) -> None:
        function = getattr(self.library, f"host_launch_{name}")
        function.argtypes = [Dim3, Dim3, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        function.restype = None
        kept, back = [], []
        for param in params:
            if isinstance(param, np.ndarray) and param.ndim:
                if not param.flags.c_contiguous:
                    raise ValueError("an array is not contiguous")
                used = guarded(param) if guard else param
                if guard and param.flags.writeable:
                    back.append((param, used))
                kept.append((ctypes.c_void_p(used.ctypes.data), used))
            elif param is None:
                kept.append((ctypes.c_void_p(0), None))
            elif isinstance(param, np.generic):
                kept.append((ctypes.create_string_buffer(param.tobytes(), param.nbytes), None))
            elif isinstance(param, int | float):
                raise TypeError(f"{name}: say of which type {param} is: np.uint32({param}), ...")
            else:
                kept.append((param, None))
        sizes = self.param_bytes(name)
        given = [ctypes.sizeof(value) for value, _ in kept]
        if sizes != given:
            raise TypeError(f"{name}: parameters of {sizes} bytes, given {given}")
        pointers = (ctypes.c_void_p * max(len(kept), 1))(*(ctypes.addressof(value) for value, _ in kept))
        function(Dim3.of(grid), Dim3.of(block), shared_bytes, pointers)
        for param, used in back:
            param[...] = used

    def param_bytes(self, name: str) -> list[int]:
        class Kernel(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char_p), ("threads_max", ctypes.c_uint), ("params", ctypes.c_uint), ("param_bytes", ctypes.POINTER(ctypes.c_uint))]  # and more

        function = getattr(self.library, f"host_kernel_{name}")
        function.restype = ctypes.POINTER(Kernel)
        kernel = function().contents
        return [kernel.param_bytes[i] for i in range(kernel.params)]
