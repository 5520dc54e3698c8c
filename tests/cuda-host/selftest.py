#!/usr/bin/env python3
"""Checks the emulation itself: the words of device.cuh against numpy, with several orders of threads; and that mistakes are found."""

import ctypes
import os
import subprocess
import sys

import numpy as np

from launch import HERE, Module

u32 = np.uint32


class Pair(ctypes.Structure):
    _fields_ = [("n", ctypes.c_uint), ("scale", ctypes.c_float)]


def same(name: str, got, want) -> None:
    if not np.array_equal(np.asarray(got), np.asarray(want)):
        sys.exit(f"{name}: got {got}, want {want}")


def right(module: Module) -> None:
    rng = np.random.default_rng(1)
    x, out = rng.integers(-8, 8, (5, 1000)).astype(np.float32), np.zeros(5, np.float32)
    module.launch("sums", 5, 256, 0, x, out, Pair(1000, 0.5))
    same("sums", out, x.sum(1) / 2)

    a, b = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (8, 32)).astype(np.int8)
    c, wrong = np.zeros((2, 16, 8), np.int32), np.zeros(1, u32)
    module.launch("product_s8", 1, 32, 0, a, b, c, wrong)
    same("product_s8", c, [a.astype(int) @ b.T.astype(int)] * 2)
    same("ldmatrix4", wrong, [0])

    a, b = rng.integers(-9, 9, (16, 16)).astype(np.float16), rng.integers(-9, 9, (16, 8)).astype(np.float16)
    c = np.zeros((16, 8), np.float32)
    module.launch("product_f16", 1, 32, 0, a.view(np.uint16), b.view(np.uint16), c)
    same("product_f16", c, a.astype(np.float32) @ b.astype(np.float32))

    for steps in (0, 1, 2, 7):
        x, out = rng.integers(0, 1000, (max(steps, 1), 8, 4)).astype(u32), np.zeros(8, u32)
        module.launch("pipeline", 1, 8, 0, x, out, u32(steps))
        same("pipeline", out, np.roll(x[:steps, :, 1].sum(0), -1))

    out, total = np.zeros((3, 2, 96, 8), u32), np.zeros(1, u32)
    module.launch("words", (2, 3), 96, 0, out, total)
    i = np.arange(96)
    lane, first = i % 32, i - i % 32
    want = np.zeros((96, 8), np.int64)
    want[:, 0] = first + lane // 2
    want[:, 1] = np.where(lane + 3 < 32, i + 3, i)
    want[:, 2] = np.where(lane >= 3, i - 3, i)
    want[:, 3] = sum(1 << k for k in range(0, 32, 3))
    want[:, 4] = 32 * (first - 40) + 496
    want[:, 5] = ((0x33221100 + i) & 255) | ((0x33221100 + i) >> 24) << 8 | 0x66 << 16  # the sign of byte 1, which is positive
    want[:, 6] = 1 + 128 * 128 + 1 + 127 + 127
    want[:, 7] = 50
    same("words", out, np.broadcast_to(want.astype(np.uint32), out.shape))
    same("atomic_add", total, [6 * i.sum()])

    x = np.zeros(64, u32)
    module.launch("leave", 1, 64, 0, x)
    same("leave", x, [0xFFFFFFFF] * 32 + [0xFF] * 8 + [0] * 24)
    x = np.zeros(32, u32)
    module.launch("places", 1, 32, 0, x)
    same("places", x, [31] * 32)


MISTAKES = {
    "dead": "deadlock",
    "past_shared": "behind the end of a shared array",
    "past_dynamic": "out of bounds",
    "past_global": "out of bounds",
    "unaligned": "not aligned",
}


def main() -> None:
    module = Module(HERE / "selftest.cu")
    if len(sys.argv) > 1:
        x = np.zeros(64, u32)
        if sys.argv[1] == "right":
            right(module)
        else:
            module.launch(sys.argv[1], 1, 64, 256, x)
        print(*x)
        return
    for seed in ("", "1", "2", "3"):
        subprocess.run([sys.executable, __file__, "right"], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "CUDA_HOST_SEED": seed})
        for name, says in MISTAKES.items():
            done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, env={**os.environ, "CUDA_HOST_SEED": seed})
            if done.returncode >= 0 or says not in done.stderr:
                sys.exit(f"{name}: not found: {done.stderr}")
        for name in ("unwaited", "unsynced"):
            done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True, env={**os.environ, "CUDA_HOST_SEED": seed})
            if str(0xFFC0DEAD) not in done.stdout.split():
                sys.exit(f"{name}: does not show")
    print("the emulation is right")


if __name__ == "__main__":
    main()
