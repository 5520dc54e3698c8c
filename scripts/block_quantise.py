"""Quantise float32 rows to GGUF blocks: Q8_0, Q4_0, Q5_0, Q4_1, Q5_1, IQ4_NL, Q4_K, Q5_K, Q6_K.

Every type but Q8_0 searches its scale: several candidates a group, each refined by least squares, the
smallest squared error wins. Numpy only and slower than a C quantiser, but small models convert in
seconds.
"""

import numpy as np

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
TINY = np.float32(1e-30)


def half(x: np.ndarray) -> np.ndarray:
    """`x` rounded to f16 and back."""
    return x.astype(np.float16).astype(np.float32)


def half_bytes(x: np.ndarray) -> np.ndarray:
    return x.astype("<f2").reshape(-1, 1).view(np.uint8)


def symmetric(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """Scale [n] minimising sum (x - scale*q)^2 over q in low..=high, for groups x [n, k]."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    best, best_gain = np.zeros(len(x), np.float32), np.full(len(x), -1.0, np.float32)
    for step in np.arange(-9, 10) * 0.1:
        scale = extreme / np.float32(low + step)
        inverse = np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale))
        q = np.clip(np.rint(x * inverse[:, None]), low, high)
        xq, qq = (x * q).sum(axis=1), (q * q).sum(axis=1)
        gain = np.where(qq > 0, xq * xq / np.maximum(qq, TINY), 0)  # error = sum x^2 - gain
        better = gain > best_gain
        best = np.where(better, xq / np.maximum(qq, TINY), best)
        best_gain = np.where(better, gain, best_gain)
    return best


def affine(x: np.ndarray, high: int, positive_min: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scale and offset [n] with x ~ scale*q + offset, q in 0..=high; `positive_min` keeps the offset <= 0."""
    low, top = x.min(axis=1), x.max(axis=1)
    if positive_min:
        low = np.minimum(low, 0)
    count, sx = np.float32(x.shape[1]), x.sum(axis=1)
    best_error = np.full(len(x), np.inf, np.float32)
    best_scale, best_offset = np.zeros_like(low), low
    for step in np.arange(-6, 10) * 0.1:
        scale = np.maximum(top - low, TINY) / np.float32(high + step)
        offset = low
        for _ in range(2):
            q = np.clip(np.rint((x - offset[:, None]) / scale[:, None]), 0, high)
            sq, sqq, sqx = q.sum(axis=1), (q * q).sum(axis=1), (q * x).sum(axis=1)
            det = count * sqq - sq * sq
            fine = det > 0
            new_scale = np.where(fine, (count * sqx - sq * sx) / np.where(fine, det, 1), scale)
            new_offset = np.where(fine, (sqq * sx - sq * sqx) / np.where(fine, det, 1), offset)
            if positive_min:
                above = new_offset > 0
                new_offset = np.where(above, 0, new_offset)
                new_scale = np.where(above, sqx / np.maximum(sqq, TINY), new_scale)
            scale, offset = np.maximum(new_scale, TINY), new_offset
            error = ((scale[:, None] * q + offset[:, None] - x) ** 2).sum(axis=1)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best_scale = np.where(better, scale, best_scale)
            best_offset = np.where(better, offset, best_offset)
    return best_scale, best_offset


def reciprocal(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, 0, 1 / np.where(x == 0, 1, x)).astype(np.float32)


def nibbles(q: np.ndarray) -> np.ndarray:
    """Codes [n, 32] to [n, 16] bytes: low nibble element j, high nibble element j+16."""
    return (q[:, :16] & 15) | ((q[:, 16:] & 15) << 4)


def fifth_bits(q: np.ndarray) -> np.ndarray:
    return np.packbits(q >> 4 & 1, axis=1, bitorder="little")


def q8_0(x: np.ndarray) -> np.ndarray:
    d = half(np.abs(x).max(axis=1) / 127)
    q = np.clip(np.rint(x * reciprocal(d)[:, None]), -127, 127).astype(np.int8)
    return np.concatenate([half_bytes(d), q.view(np.uint8)], axis=1)


def q45_0(x: np.ndarray, bits: int) -> np.ndarray:
    low = 1 << (bits - 1)
    d = half(symmetric(x, -low, low - 1))
    q = (np.clip(np.rint(x * reciprocal(d)[:, None]), -low, low - 1) + low).astype(np.uint8)
    return np.concatenate([half_bytes(d)] + ([fifth_bits(q)] if bits == 5 else []) + [nibbles(q)], axis=1)


def q45_1(x: np.ndarray, bits: int) -> np.ndarray:
    d, m = map(half, affine(x, (1 << bits) - 1, False))
    q = np.clip(np.rint((x - m[:, None]) * reciprocal(d)[:, None]), 0, (1 << bits) - 1).astype(np.uint8)
    return np.concatenate([half_bytes(d), half_bytes(m)] + ([fifth_bits(q)] if bits == 5 else []) + [nibbles(q)], axis=1)


def iq4_nl(x: np.ndarray) -> np.ndarray:
    edges = (IQ4_NL_VALUES[1:] + IQ4_NL_VALUES[:-1]) / 2
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    best, best_gain = np.zeros(len(x), np.float32), np.full(len(x), -1.0, np.float32)
    for level in [*range(-140, -100, 4), *range(92, 128, 4)]:
        values = IQ4_NL_VALUES[np.searchsorted(edges, x * reciprocal(extreme / level)[:, None])]
        xq, qq = (x * values).sum(axis=1), (values * values).sum(axis=1)
        gain = xq * xq / np.maximum(qq, TINY)
        better = gain > best_gain
        best, best_gain = np.where(better, xq / np.maximum(qq, TINY), best), np.where(better, gain, best_gain)
    d = half(best)
    q = np.searchsorted(edges, x * reciprocal(d)[:, None]).astype(np.uint8)
    return np.concatenate([half_bytes(d), nibbles(q)], axis=1)


def q45_k(x: np.ndarray, bits: int) -> np.ndarray:
    """Super-blocks of eight groups of 32; group scales and minima are 6-bit multiples of d and dmin."""
    n, high = len(x), (1 << bits) - 1
    x = x.reshape(n, 8, 32)
    scale, offset = affine(x.reshape(-1, 32), high, True)
    scale, minimum = scale.reshape(n, 8), -offset.reshape(n, 8)
    d, dmin = half(scale.max(axis=1) / 63), half(minimum.max(axis=1) / 63)
    sc = np.clip(np.rint(scale * reciprocal(d)[:, None]), 0, 63)
    mn = np.clip(np.rint(minimum * reciprocal(dmin)[:, None]), 0, 63)
    for _ in range(3):  # codes for the rounded scales, then d and dmin for the codes
        step = (d[:, None] * sc)[:, :, None]
        q = np.clip(np.rint((x + (dmin[:, None] * mn)[:, :, None]) * reciprocal(step)), 0, high)
        a, b = sc[:, :, None] * q, np.broadcast_to(-mn[:, :, None], q.shape)
        aa, ab, bb = ((u * v).sum(axis=(1, 2)) for u, v in ((a, a), (a, b), (b, b)))
        ax, bx = (a * x).sum(axis=(1, 2)), (b * x).sum(axis=(1, 2))
        det = aa * bb - ab * ab
        fine = det > 1e-6 * aa * bb
        safe = np.where(fine, det, 1)
        d = half(np.where(fine, (bb * ax - ab * bx) / safe, d))
        dmin = half(np.where(fine, np.maximum((aa * bx - ab * ax) / safe, 0), dmin))
    step = (d[:, None] * sc)[:, :, None]
    q = np.clip(np.rint((x + (dmin[:, None] * mn)[:, :, None]) * reciprocal(step)), 0, high).astype(np.uint8)
    sc, mn = sc.astype(np.uint8), mn.astype(np.uint8)
    packed = np.concatenate(
        [sc[:, :4] | (sc[:, 4:] >> 4 << 6), mn[:, :4] | (mn[:, 4:] >> 4 << 6), (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4)],
        axis=1,
    )
    pairs = q.reshape(n, 4, 2, 32)
    low = ((pairs[:, :, 0] & 15) | ((pairs[:, :, 1] & 15) << 4)).reshape(n, 128)
    parts = [half_bytes(d), half_bytes(dmin), packed]
    if bits == 5:
        parts.append(((q >> 4 & 1) << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8))
    return np.concatenate([*parts, low], axis=1)


def q6_k(x: np.ndarray) -> np.ndarray:
    """Super-blocks of sixteen groups of 16 with signed 8-bit group scales."""
    n = len(x)
    x = x.reshape(n, 16, 16)
    scale = symmetric(x.reshape(-1, 16), -32, 31).reshape(n, 16)
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = half(extreme / -128)
    sc = np.clip(np.rint(scale * reciprocal(d)[:, None]), -128, 127)
    q = (np.clip(np.rint(x * reciprocal((d[:, None] * sc)[:, :, None])), -32, 31) + 32).astype(np.uint8)
    q = q.reshape(n, 2, 4, 32)  # halves, runs of 32
    low = (q[:, :, :2] & 15) | ((q[:, :, 2:] & 15) << 4)
    high = ((q >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=2, dtype=np.uint8)
    return np.concatenate([low.reshape(n, 128), high.reshape(n, 64), sc.astype(np.int8).view(np.uint8), half_bytes(d)], axis=1)


# name -> block width, quantiser
TYPES = {
    "Q8_0": (32, q8_0),
    "Q4_0": (32, lambda x: q45_0(x, 4)),
    "Q5_0": (32, lambda x: q45_0(x, 5)),
    "Q4_1": (32, lambda x: q45_1(x, 4)),
    "Q5_1": (32, lambda x: q45_1(x, 5)),
    "IQ4_NL": (32, iq4_nl),
    "Q4_K": (256, lambda x: q45_k(x, 4)),
    "Q5_K": (256, lambda x: q45_k(x, 5)),
    "Q6_K": (256, q6_k),
}


def quantise(value: np.ndarray, kind: str) -> np.ndarray:
    """Raw blocks u8 [.., row bytes] of `value` f32 [.., row]."""
    width, function = TYPES[kind]
    blocks = np.ascontiguousarray(value, np.float32).reshape(-1, width)
    chunk = (1 << 20) // width
    raw = [function(blocks[i : i + chunk]) for i in range(0, len(blocks), chunk)]
    return np.concatenate(raw).reshape(*value.shape[:-1], -1)
