#!/usr/bin/env python3
"""Extract the six code-book grids of the IQ block types from the `gguf` package into one data file.

The grids (IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S; IQ1_M shares the last one) are facts of the
GGUF format that no formula generates. The `gguf` package (MIT, "Copyright (c) 2023 Georgi Gerganov")
is their source. Every entry is packed into one little-endian u16: element 0 in the lowest bits, two
bits an element for the 8-wide grids and four bits an element for the 4-wide grids, each field an index
into the grid's alphabet. The six tables follow each other in the order above: 4608 entries, 9216 bytes.
"""
import argparse
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

# name, entries, elements an entry, bits an element, alphabet
GRIDS = [
    ("IQ2_XXS", 256, 8, 2, [8, 25, 43]),
    ("IQ2_XS", 512, 8, 2, [8, 25, 43]),
    ("IQ2_S", 1024, 8, 2, [8, 25, 43]),
    ("IQ3_XXS", 256, 4, 4, [4, 12, 20, 28, 36, 44, 52, 62]),
    ("IQ3_S", 512, 4, 4, [1, 3, 5, 7, 9, 11, 13, 15]),
    ("IQ1_S", 2048, 8, 2, [-1, 0, 1]),
]


def pack(name: str, entries: int, width: int, bits: int, alphabet: list[int]) -> np.ndarray:
    """The grid `name` as `entries` packed u16."""
    traits = quants._type_traits[T[name]]
    traits.init_grid()
    grid = traits.grid.reshape(entries, width).astype(np.int64)
    index = np.searchsorted(alphabet, grid)
    assert (np.array(alphabet)[index] == grid).all(), name
    packed = (index << (bits * np.arange(width))).sum(axis=1)
    assert packed.max() < 1 << 16, name
    return packed.astype("<u2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="file to write, e.g. src/quant/grids.bin")
    args = parser.parse_args()
    tables = [pack(*grid) for grid in GRIDS]
    offset = 0
    for (name, entries, width, bits, alphabet), table in zip(GRIDS, tables):
        ascending = bool((np.diff(table.astype(np.int64)) > 0).all())
        print(f"{name:8} offset {offset:5} entries {entries:4} x {width} bits {bits} {alphabet} ascending {ascending}")
        offset += entries * 2
    args.out.write_bytes(b"".join(table.tobytes() for table in tables))


if __name__ == "__main__":
    main()
