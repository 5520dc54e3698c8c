#!/usr/bin/env python3
"""Run a peer engine on a GGUF file: golden logits and speed, for comparison with this server.

The peer is llama.cpp v0.4.0 as prebuilt CPU libraries (npm `@node-llama-cpp/linux-x64` 3.21.1, one
library for every x86 level, chosen at run time). The package is fetched with `npm pack` into a cache
folder on first use and driven through ctypes; the structures below follow that version's `llama.h`, and
the defaults it returns are checked before anything else.

  peer-llama.py logits MODEL --ids FILE [--out FILE]  every position's best id, margin and, with --out, logits as f32
  peer-llama.py tokenize MODEL --text FILE            ids of a text (UTF-8), special tokens recognised
  peer-llama.py greedy MODEL --ids FILE -n 64         greedy continuation
  peer-llama.py bench  MODEL -p 512 -n 64 -s 1,4,8    prompt and generation speed as JSON

`--peer ik` takes ik_llama.cpp instead (PyPI `ik-llama-cpp-python` 0.1.5, whose own ctypes structures are used).
`quantize` runs the quantiser that comes with that package, for test files of any block type:

  peer-llama.py quantize IN.gguf OUT.gguf Q4_K_M

`--peer cuda --libraries FOLDER` takes the CUDA build of the same release (npm `@node-llama-cpp/linux-x64-cuda` 3.21.1,
its folder `bins/linux-x64-cuda`), with every layer on the device and flash attention; it fails if a layer stays behind.
The libraries of the CUDA runtime and cuBLAS 13 are looked for in Python's packages and where the system has them.

FILE holds token ids as a JSON array, or as text separated by spaces or commas. Settings are the peer's
defaults: memory map, weight repacking (on in llama.cpp, off in ik_llama.cpp), flash attention, micro-batches of 512.

On processors with AMX llama.cpp's next best library is taken: with 512 rows the one with AMX, libggml-cpu-sapphirerapids.so, ends with SIGSEGV (2026-12-01).
"""

import argparse
import ctypes as C
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import numpy as np

PACKAGE = "@node-llama-cpp/linux-x64@3.21.1"
IK_PACKAGE = "ik-llama-cpp-python==0.1.5"
# decode calls that are not measured: buffers are made and graphs recorded
WARM_UP = 8
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tidegate-peers"


class ModelParams(C.Structure):
    _fields_ = [
        ("devices", C.c_void_p), ("tensor_buft_overrides", C.c_void_p),
        ("n_gpu_layers", C.c_int32), ("split_mode", C.c_int), ("load_mode", C.c_int), ("lazy_mode", C.c_int),
        ("main_gpu", C.c_int32), ("tensor_split", C.c_void_p),
        ("progress_callback", C.c_void_p), ("progress_callback_user_data", C.c_void_p), ("kv_overrides", C.c_void_p),
        ("vocab_only", C.c_bool), ("check_tensors", C.c_bool), ("use_extra_bufts", C.c_bool),
        ("no_host", C.c_bool), ("no_alloc", C.c_bool), ("load_mtp", C.c_bool),
    ]  # fmt: skip


class ContextParams(C.Structure):
    _fields_ = [
        ("n_ctx", C.c_uint32), ("n_batch", C.c_uint32), ("n_ubatch", C.c_uint32), ("n_seq_max", C.c_uint32),
        ("n_rs_seq", C.c_uint32), ("n_outputs_max", C.c_uint32), ("n_outputs_max_per_seq", C.c_uint32),
        ("n_threads", C.c_int32), ("n_threads_batch", C.c_int32),
        ("ctx_type", C.c_int), ("rope_scaling_type", C.c_int), ("pooling_type", C.c_int),
        ("attention_type", C.c_int), ("flash_attn_type", C.c_int),
        ("rope_freq_base", C.c_float), ("rope_freq_scale", C.c_float), ("yarn_ext_factor", C.c_float),
        ("yarn_attn_factor", C.c_float), ("yarn_beta_fast", C.c_float), ("yarn_beta_slow", C.c_float),
        ("yarn_orig_ctx", C.c_uint32), ("defrag_thold", C.c_float),
        ("cb_eval", C.c_void_p), ("cb_eval_user_data", C.c_void_p),
        ("type_k", C.c_int), ("type_v", C.c_int),
        ("abort_callback", C.c_void_p), ("abort_callback_data", C.c_void_p),
        ("embeddings", C.c_bool), ("offload_kqv", C.c_bool), ("no_perf", C.c_bool),
        ("op_offload", C.c_bool), ("swa_full", C.c_bool), ("kv_unified", C.c_bool),
        ("samplers", C.c_void_p), ("n_samplers", C.c_size_t), ("ctx_other", C.c_void_p),
    ]  # fmt: skip


class Batch(C.Structure):
    _fields_ = [
        ("n_tokens", C.c_int32), ("token", C.POINTER(C.c_int32)), ("embd", C.c_void_p), ("pos", C.POINTER(C.c_int32)),
        ("n_seq_id", C.POINTER(C.c_int32)), ("seq_id", C.POINTER(C.POINTER(C.c_int32))), ("logits", C.POINTER(C.c_int8)),
    ]  # fmt: skip


LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)


def package_folder(package: str) -> pathlib.Path:
    return CACHE / re.sub(r"[^a-z0-9.]+", "-", package.lower()).strip("-")


def libraries() -> pathlib.Path:
    """The folder with llama.cpp's libraries, fetched on first use."""
    folder = package_folder(PACKAGE)
    found = folder / "package" / "bins" / "linux-x64"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True, text=True)
        with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
            archive.extractall(folder, filter="data")
    return found


def ik_package() -> pathlib.Path:
    """The folder `ik_llama_cpp` was installed into, fetched on first use."""
    folder = package_folder(IK_PACKAGE)
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), IK_PACKAGE], check=True)
    return folder


class Peer:
    """One model loaded in llama.cpp, with one context."""

    NAME = "llama.cpp v0.4.0"

    def __init__(
        self, model: str, *, threads: int, n_ctx: int, n_batch: int, n_ubatch: int = 512, sequences: int = 1,
        quiet: bool = True, repack: bool | None = None, exact_kv: bool = False, loaded: int | None = None,
    ):  # fmt: skip
        """`loaded` is the `model` of another peer: its weights are used, the file is not read again."""
        self.lib, model_params, context_params = self.load_library()
        lib = self.lib
        self.said = ""
        self.quiet = quiet
        self.log = LOG(self.listen)
        lib.llama_log_set.argtypes = [LOG, C.c_void_p]
        lib.llama_log_set(self.log, None)
        if not loaded:
            self.load_backends()
        lib.llama_model_default_params.restype = model_params
        lib.llama_context_default_params.restype = context_params
        lib.llama_model_load_from_file.restype = C.c_void_p
        lib.llama_model_load_from_file.argtypes = [C.c_char_p, model_params]
        lib.llama_init_from_model.restype = C.c_void_p
        lib.llama_init_from_model.argtypes = [C.c_void_p, context_params]
        lib.llama_model_get_vocab.restype, lib.llama_model_get_vocab.argtypes = C.c_void_p, [C.c_void_p]
        lib.llama_vocab_n_tokens.argtypes = [C.c_void_p]
        lib.llama_batch_init.restype, lib.llama_batch_init.argtypes = self.BATCH, [C.c_int32, C.c_int32, C.c_int32]
        lib.llama_decode.restype, lib.llama_decode.argtypes = C.c_int32, [C.c_void_p, self.BATCH]
        lib.llama_get_logits_ith.restype = C.POINTER(C.c_float)
        lib.llama_get_logits_ith.argtypes = [C.c_void_p, C.c_int32]
        lib.llama_get_logits.restype, lib.llama_get_logits.argtypes = C.POINTER(C.c_float), [C.c_void_p]
        lib.llama_backend_init()

        params = lib.llama_model_default_params()
        self.check_model(params)
        self.prepare_model(params)
        if repack is not None:
            setattr(params, self.REPACK, repack)
        self.model = loaded or lib.llama_model_load_from_file(str(model).encode(), params)
        if not self.model:
            raise SystemExit(f"{self.NAME} cannot load {model}; run with --verbose to see why")
        if not loaded:
            self.check_loaded()
        context = lib.llama_context_default_params()
        self.check_context(context)
        self.prepare(context, sequences)
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, n_batch, min(n_ubatch, n_batch)
        context.n_seq_max = sequences
        context.n_threads = context.n_threads_batch = threads
        if exact_kv:  # keys and values in f32 instead of f16, and no f16 inside the attention
            self.make_exact(context)
        self.context = lib.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit(f"{self.NAME} cannot make a context for {model}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.n_batch = n_batch
        self.runs = {}
        self.batch = lib.llama_batch_init(n_batch, 0, 1)

    BATCH = Batch
    REPACK = "use_extra_bufts"

    def listen(self, _, text: bytes, __) -> None:
        line = text.decode(errors="replace")
        self.said += line
        if not self.quiet:
            print(line, end="", file=sys.stderr)

    def load_library(self):
        """The library and its two parameter structures."""
        folder = libraries()
        C.CDLL(str(folder / "libggml-base.so"), mode=C.RTLD_GLOBAL)
        self.ggml = C.CDLL(str(folder / "libggml.v0.4.0.so"), mode=C.RTLD_GLOBAL)
        return C.CDLL(str(folder / "libllama.v0.4.0.so"), mode=C.RTLD_GLOBAL), ModelParams, ContextParams

    def load_backends(self) -> None:
        with tempfile.TemporaryDirectory() as chosen:
            for file in libraries().iterdir():
                if file.name != "libggml-cpu-sapphirerapids.so":
                    (pathlib.Path(chosen) / file.name).symlink_to(file)
            self.ggml.ggml_backend_load_all_from_path(chosen.encode())

    def check_model(self, params) -> None:
        assert params.use_extra_bufts and not params.vocab_only and not params.check_tensors, "llama.h does not match"

    def check_context(self, context) -> None:
        known = (context.n_ubatch, context.n_seq_max, context.flash_attn_type, context.type_k, context.offload_kqv, context.samplers)
        assert known == (512, 1, -1, 1, True, None), f"llama.h does not match: {known}"

    def prepare_model(self, params) -> None:
        """Settings of the model other than the defaults that this peer needs."""

    def check_loaded(self) -> None:
        """Whether the model lies where it should."""

    def prepare(self, context, sequences: int) -> None:
        """Settings of the context other than the defaults that this peer needs."""

    def make_exact(self, context) -> None:
        context.type_k = context.type_v = context.flash_attn_type = 0

    def free_context(self) -> None:
        """Gives the caches back; the weights stay."""
        self.lib.llama_free.argtypes = [C.c_void_p]
        self.lib.llama_free(self.context)

    def clear(self) -> None:
        """Forget every sequence."""
        lib = self.lib
        lib.llama_get_memory.restype, lib.llama_get_memory.argtypes = C.c_void_p, [C.c_void_p]
        lib.llama_memory_clear.argtypes = [C.c_void_p, C.c_bool]
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text, with special tokens recognised and added as the file says."""
        raw = text.encode()
        self.lib.llama_tokenize.argtypes = [C.c_void_p, C.c_char_p, C.c_int32, C.POINTER(C.c_int32), C.c_int32, C.c_bool, C.c_bool]
        out = (C.c_int32 * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.lib.llama_model_get_vocab(self.model), raw, len(raw), out, len(out), True, True)
        return list(out[:n])

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """One call with rows of (token id, position, sequence, wants logits)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        status = self.lib.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"the peer's decode returned {status}")

    def decode_run(self, ids: list[int], first: int, sequence: int, every: bool, last: bool) -> None:
        """One call with consecutive rows of one sequence, filled without a loop: thousands of rows would take milliseconds."""
        batch, count = self.batch, len(ids)
        batch.n_tokens = count
        fill = lambda pointer, values: np.ctypeslib.as_array(pointer, (count,)).__setitem__(slice(None), values)
        fill(batch.token, ids)
        fill(batch.pos, np.arange(first, first + count))
        fill(batch.n_seq_id, 1)
        fill(batch.logits, every)
        if last:
            batch.logits[count - 1] = True
        if sequence not in self.runs:
            number = C.pointer(C.c_int32(sequence))
            self.runs[sequence] = (C.POINTER(C.c_int32) * self.n_batch)(*[number] * self.n_batch)
        own, batch.seq_id = batch.seq_id, C.cast(self.runs[sequence], C.POINTER(C.POINTER(C.c_int32)))
        status = self.lib.llama_decode(self.context, batch)
        batch.seq_id = own
        if status:
            raise SystemExit(f"the peer's decode returned {status}")

    def logits(self, row: int) -> np.ndarray:
        """A copy of the logits of batch row `row`."""
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, row), (self.vocab,)).copy()

    def prefill(self, ids: list[int], sequence: int = 0, every: bool = True) -> np.ndarray:
        """Feed a prompt; logits [positions, vocab] of every position, or [1, vocab] of the last."""
        out = []
        for start in range(0, len(ids), self.n_batch):
            part = ids[start : start + self.n_batch]
            last = start + len(part) == len(ids)
            self.decode_run(part, start, sequence, every, last)
            out += [self.logits(i) for i in range(len(part))] if every else [self.logits(len(part) - 1)] if last else []
        return np.stack(out)

    def greedy(self, ids: list[int], n: int, stop: set[int]) -> tuple[list[int], list[float]]:
        """Greedy ids after a prompt, each with its lead over the second best logit."""
        logits, out, margins = self.prefill(ids, every=False)[-1], [], []
        while len(out) < n:
            second, first = np.partition(logits, -2)[-2:]
            out.append(int(logits.argmax()))
            margins.append(float(first - second))
            if out[-1] in stop:
                break
            self.decode([(out[-1], len(ids) + len(out) - 1, 0, True)])
            logits = self.logits(0)
        return out, margins


class Cuda(Peer):
    """The same release built for CUDA, everything on the device."""

    NAME = "llama.cpp v0.4.0, CUDA"
    FOLDER: pathlib.Path | None = None

    def load_library(self):
        if self.FOLDER is None:
            raise SystemExit("--peer cuda needs --libraries")
        for name in ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13"):
            preload(name)
        C.CDLL(str(self.FOLDER / "libggml-base.so"), mode=C.RTLD_GLOBAL)
        self.ggml = C.CDLL(str(self.FOLDER / "libggml.cuda.v0.4.0.so"), mode=C.RTLD_GLOBAL)
        return C.CDLL(str(self.FOLDER / "libllama.cuda.v0.4.0.so"), mode=C.RTLD_GLOBAL), ModelParams, ContextParams

    def load_backends(self) -> None:
        self.ggml.ggml_backend_load_all_from_path(str(self.FOLDER).encode())

    def prepare_model(self, params) -> None:
        params.n_gpu_layers = 999

    def check_loaded(self) -> None:
        found = re.search(r"offloaded (\d+)/(\d+) layers", self.said)
        if not found or found[1] != found[2]:
            raise SystemExit(f"{self.said[-1500:]}\nnot every layer is on the device: {found[0] if found else 'none is'}")

    def prepare(self, context, sequences: int) -> None:
        context.flash_attn_type = 1


def preload(name: str) -> None:
    """Loads a library of CUDA from Python's packages, if one has it; else the loader's own places count."""
    for place in sys.path:
        for path in sorted(pathlib.Path(place).glob(f"nvidia/*/lib/{name}")):
            C.CDLL(str(path), mode=C.RTLD_GLOBAL)
            return


class Ik(Peer):
    """The same in ik_llama.cpp.

    What this version was seen to lack: a multi-token-prediction block in qwen35moe files (convert without
    it), right results for experts in `llama` files (a Mixtral layout), and flash attention over several sequences.
    """

    NAME = "ik_llama.cpp (ik-llama-cpp-python 0.1.5)"
    REPACK = "repack_tensors"

    def load_library(self):
        sys.path.insert(0, str(ik_package()))
        import ik_llama_cpp._ctypes_api as api

        self.BATCH = api.llama_batch
        return api._lib, api.llama_model_params, api.llama_context_params

    def load_backends(self) -> None:
        pass

    def check_model(self, params) -> None:
        assert params.use_mmap and params.flash_attn and not params.vocab_only, "llama.h does not match"

    def check_context(self, context) -> None:
        known = (context.n_ubatch, context.n_seq_max, context.type_k, context.flash_attn, context.fused_moe_up_gate)
        assert known == (512, 1, 1, True, True), f"llama.h does not match: {known}"

    def prepare(self, context, sequences: int) -> None:
        context.flash_attn = sequences == 1  # with several sequences in a batch its flash attention aborts

    def make_exact(self, context) -> None:
        raise SystemExit("ik_llama.cpp makes no context with f32 keys and values")

    def clear(self) -> None:
        self.lib.llama_kv_cache_clear(self.context)


PEERS = {"llama": Peer, "cuda": Cuda, "ik": Ik}


def read_ids(path: str) -> list[int]:
    text = pathlib.Path(path).read_text()
    return [int(x) for x in re.findall(r"-?\d+", text)]


def logits(args) -> dict:
    ids = read_ids(args.ids)
    peer = PEERS[args.peer](args.model, threads=args.threads, n_ctx=len(ids) + 8, n_batch=min(len(ids), 2048), quiet=not args.verbose, exact_kv=args.exact_kv)
    table = peer.prefill(ids)
    second, first = np.partition(table, -2, axis=1)[:, -2:].T
    if args.out:
        table.astype("<f4").tofile(args.out)
    return {"positions": len(ids), "vocab": peer.vocab, "top1": table.argmax(axis=1).tolist(), "top1_margin": np.round(first - second, 4).tolist()}


def tokenize(args) -> dict:
    peer = PEERS[args.peer](args.model, threads=1, n_ctx=64, n_batch=64, quiet=not args.verbose)
    return {"ids": peer.tokenize(pathlib.Path(args.text).read_text())}


def greedy(args) -> dict:
    ids = read_ids(args.ids)
    peer = PEERS[args.peer](args.model, threads=args.threads, n_ctx=len(ids) + args.n + 8, n_batch=512, quiet=not args.verbose, exact_kv=args.exact_kv)
    out, margins = peer.greedy(ids, args.n, set(args.stop))
    return {"ids": out, "margins": [round(m, 4) for m in margins]}


def bench(args) -> dict:
    """Median speed: of prompts over the repetitions, after one unmeasured; of decode calls, which `streams` share, over all calls but a few first ones. Ids are random."""
    numbers = [[int(part) for part in text.split(",")] for text in (args.p, args.depth, args.streams)]
    prompts, depths, streams = numbers
    rng = np.random.default_rng(0)
    peer_of = PEERS[args.peer]
    common = {"threads": args.threads, "n_batch": 2048, "n_ubatch": args.ubatch, "quiet": not args.verbose, "repack": args.repack}
    rows = []

    def note(row: dict, count: int, times: list[float]) -> None:
        """Tokens a second; of many times the slowest and the fastest tenth are left out of the ends."""
        rates, tenth = sorted(count / time for time in times), len(times) // 10
        rows.append(row | {"tok_s": round(statistics.median(rates), 2), "tok_s_low": round(rates[tenth], 2), "tok_s_high": round(rates[-1 - tenth], 2)})

    # A context a measurement: the peer divides its memory by the number of sequences. Weights are loaded once.
    model = None
    for count in prompts if prompts != [0] else []:
        peer = peer_of(args.model, n_ctx=count + 8, loaded=model, **common)
        model = peer.model
        times = []
        for _ in range(args.repetitions + 1):
            ids = rng.integers(3, peer.vocab, count).tolist()
            peer.clear()
            start = time.perf_counter()
            peer.prefill(ids, every=False)
            times.append(time.perf_counter() - start)
        note({"test": "prefill", "tokens": count}, count, times[1:])
        peer.free_context()
    for depth in depths if args.n else []:
        for count in streams:
            length = depth + WARM_UP + args.n
            peer = peer_of(args.model, n_ctx=(length + 8) * count, sequences=count, loaded=model, **common)
            model = peer.model
            times = []
            for _ in range(args.repetitions):
                peer.clear()
                ids = rng.integers(3, peer.vocab, (length, count)).tolist()
                for sequence in range(count if depth else 0):
                    peer.prefill([ids[i][sequence] for i in range(depth)], sequence, every=False)
                for i in range(depth, length):
                    start = time.perf_counter()
                    peer.decode([(ids[i][sequence], i, sequence, True) for sequence in range(count)])
                    peer.lib.llama_get_logits(peer.context)
                    if i >= depth + WARM_UP:
                        times.append(time.perf_counter() - start)
            note({"test": "decode", "streams": count, "depth": depth, "tokens": args.n}, count, times)
            peer.free_context()
    return {"peer": peer_of.NAME, "model": pathlib.Path(args.model).name, "threads": args.threads, "ubatch": args.ubatch, "repetitions": args.repetitions, "machine": platform.processor() or platform.machine(), "results": rows}


def quantize(args) -> dict:
    """Run ik_llama.cpp's llama-quantize; the options are its own."""
    tool = ik_package() / "ik_llama_cpp" / "bin" / "llama-quantize"
    tool.chmod(0o755)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tool.parent.parent / "lib")}
    subprocess.run([str(tool), *args.arguments], env=environment, check=True, stdout=sys.stderr)
    return {"made": args.arguments}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (logits, tokenize, greedy, bench):
        command = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        command.add_argument("model")
        command.add_argument("--peer", choices=PEERS, default="llama")
        command.add_argument("--libraries", type=pathlib.Path, help="folder of the CUDA build, for --peer cuda")
        command.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
        command.add_argument("-v", "--verbose", action="store_true", help="let the peer log to stderr")
        if run is bench:
            command.add_argument("-p", default="512", help="numbers of prompt tokens, e.g. 512,4096; 0 to skip")
            command.add_argument("-n", type=int, default=64, help="generated tokens a stream, 0 to skip")
            command.add_argument("-d", "--depth", default="0", help="numbers of tokens in each stream before generation")
            command.add_argument("-s", "--streams", default="1", help="numbers of parallel streams, e.g. 1,4,8")
            command.add_argument("-r", "--repetitions", type=int, default=3)
            command.add_argument("-u", "--ubatch", type=int, default=512, help="rows of a micro-batch")
            command.add_argument("--repack", action=argparse.BooleanOptionalAction, help="weight repacking, instead of the peer's default")
        elif run is tokenize:
            command.add_argument("--text", required=True, help="file with the text")
        else:
            command.add_argument("--ids", required=True, help="file with the token ids")
            command.add_argument("--exact-kv", action="store_true", help="keep keys and values in f32 instead of the default f16")
        if run is logits:
            command.add_argument("--out", help="write the logits here, f32 [positions, vocab]")
        if run is greedy:
            command.add_argument("-n", type=int, default=64)
            command.add_argument("--stop", type=int, nargs="*", default=[], help="token ids that end the run")
    command = commands.add_parser("quantize")
    command.set_defaults(run=quantize)
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of llama-quantize")
    args = parser.parse_args()
    Cuda.FOLDER = getattr(args, "libraries", None)
    print(json.dumps(args.run(args)))


if __name__ == "__main__":
    main()
