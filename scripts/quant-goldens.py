#!/usr/bin/env python3
"""Write fixtures/quants/<TYPE>.bin: random blocks of every block type and the values they stand for.

The bytes are random codes under valid, finite scales; the values come from the `gguf` package, for
Q1_0 and Q2_0 (which it does not know) from the formulas in this file. Seeded, so a second run writes
the same files.
"""
import argparse
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf import quants

# type -> byte offsets of its f16 scales inside a block
F16_SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ4_XS": [0],
    "TQ1_0": [52], "TQ2_0": [64],
    "F16": [0], "BF16": [], "IQ1_M": [], "MXFP4": [], "NVFP4": [],
    "Q1_0": [0], "Q2_0": [0],
}  # fmt: skip
OWN_SIZES = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
# Scales that blocks 0.. get: zero, negative zero, smallest subnormal, largest finite, and ordinary ones.
EDGE_SCALES = np.array([0.0, -0.0, 2.0**-24, 65504.0, -1.0, 2.0**-14, 1.0], dtype="<f2")


def sizes(name: str) -> tuple[int, int]:
    """Values and bytes of one block."""
    return OWN_SIZES[name] if name in OWN_SIZES else GGML_QUANT_SIZES[T[name]]


def random_scales(rng: np.random.Generator, n: int) -> np.ndarray:
    """`n` finite f16 scales: the edge cases first, then both signs over the usual magnitudes."""
    scales = np.exp(rng.uniform(-9.0, 2.0, n)) * rng.choice([-1.0, 1.0], n)
    scales = scales.astype("<f2")
    scales[: len(EDGE_SCALES)] = EDGE_SCALES[:n]
    return scales


def random_blocks(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` blocks of `name` [n, block_bytes] u8. The last three have codes all zero, all one bits, and alternating."""
    _, width = sizes(name)
    raw = rng.integers(0, 256, (n, width), dtype=np.uint8)
    raw[-3], raw[-2], raw[-1] = 0x00, 0xFF, 0xA5
    for offset in F16_SCALES[name]:
        raw[:, offset : offset + 2] = rng.permutation(random_scales(rng, n)).reshape(n, 1).view(np.uint8)
    if name == "BF16":
        values = rng.standard_normal(n).astype("<f4")
        values[:3] = [0.0, -0.0, 3e38]
        raw[:] = (values.view("<u4") >> 16).astype("<u2").reshape(n, 1).view(np.uint8)
    if name == "IQ1_M":  # the f16 scale is spread over the top nibbles of the four scale words
        bits = random_scales(rng, n).view("<u2")
        words = raw[:, 48:56].copy().view("<u2")
        for word in range(4):
            words[:, word] = (words[:, word] & 0x0FFF) | (((bits >> (4 * word)) & 15) << 12)
        raw[:, 48:56] = words.view(np.uint8)
    if name == "MXFP4":  # the exponent byte: everything that stays finite
        raw[:, 0] = rng.integers(100, 150, n)
        raw[:6, 0] = [0, 1, 2, 127, 128, 251]
    if name == "NVFP4":  # four unsigned e4m3 scales, 0x7f is not a number
        raw[:, :4] = rng.integers(0, 0x7F, (n, 4))
        raw[0, :4] = [0, 1, 7, 8]
        raw[1, :4] = [0x7E, 0x38, 0x40, 0x30]
    return raw


def values(name: str, raw: np.ndarray) -> np.ndarray:
    """The f32 values of the blocks."""
    if name in ("Q1_0", "Q2_0"):
        bits = 1 if name == "Q1_0" else 2
        scale = raw[:, :2].copy().view("<f2").astype(np.float32)
        codes = (raw[:, 2:, None] >> (bits * np.arange(8 // bits, dtype=np.uint8))) & ((1 << bits) - 1)
        codes = codes.reshape(len(raw), -1).astype(np.float32)
        return scale * (codes * 2 - 1 if name == "Q1_0" else codes - 1)
    return quants.dequantize(raw.reshape(1, -1), T[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fixtures/quants"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in F16_SCALES:
        width, block_bytes = sizes(name)
        n = 32 if width >= 64 else 64
        rng = np.random.default_rng(list(name.encode()))
        with np.errstate(over="ignore"):
            raw = random_blocks(name, n, rng)
            out = np.ascontiguousarray(values(name, raw), dtype="<f4").ravel()
        assert out.size == n * width and np.isfinite(out).all(), name
        (args.out / f"{name}.bin").write_bytes(raw.tobytes() + out.tobytes())
        print(f"{name:8} blocks {n} x {block_bytes} bytes, {width} values; max {abs(out).max():.4g}")


if __name__ == "__main__":
    main()
