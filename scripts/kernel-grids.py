#!/usr/bin/env python3
"""Write the code-book grids of the IQ block types, as `src/quant/grids.bin` holds them, as tables for the device kernels.

The layout of `grids.bin` and the licence of its numbers are in `src/quant/grids.md`. Entries of 8 magnitudes become two words, entries
of 4 magnitudes one word: one byte an element, element 0 in the lowest byte.
"""
import argparse
import pathlib
import struct

# name, first byte, entries, elements an entry, alphabet
GRIDS = [
    ("IQ2_XXS", 0, 256, 8, [8, 25, 43]),
    ("IQ2_XS", 512, 512, 8, [8, 25, 43]),
    ("IQ2_S", 1536, 1024, 8, [8, 25, 43]),
    ("IQ3_XXS", 3584, 256, 4, [4, 12, 20, 28, 36, 44, 52, 62]),
    ("IQ3_S", 4096, 512, 4, [1, 3, 5, 7, 9, 11, 13, 15]),
]
HEADER = """// The code books of the IQ types: which magnitudes a grid index stands for, one byte an element, element 0 in the lowest byte.
//
// Written by `scripts/kernel-grids.py` from `src/quant/grids.bin`. Licence of the numbers: MIT License, Copyright (c) 2023 Georgi Gerganov; its
// text is in `src/quant/grids.md`.
#pragma once
#include "device.cuh"
"""
COLUMNS = 12


def words(data: bytes, first: int, entries: int, elements: int, alphabet: list[int]) -> list[int]:
    """The entries of a grid as little-endian words."""
    bits = 16 // elements
    out = []
    for (packed,) in struct.iter_unpack("<H", data[first : first + 2 * entries]):
        magnitudes = bytes(alphabet[packed >> (bits * i) & ((1 << bits) - 1)] for i in range(elements))
        out += struct.unpack(f"<{elements // 4}I", magnitudes)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=pathlib.Path, help="src/quant/grids.bin")
    parser.add_argument("out", type=pathlib.Path, help="kernels/grids.cuh")
    args = parser.parse_args()
    data = args.grids.read_bytes()
    text = [HEADER]
    for name, first, entries, elements, alphabet in GRIDS:
        table = words(data, first, entries, elements, alphabet)
        width = elements // 4
        kind = "uint2" if width == 2 else "u32"
        text.append(f"\n/// {name}: {entries} vectors of {elements}.\nTABLE {kind} GRID_{name}[{entries}] = {{\n")
        cells = [f"0x{word:08x}" for word in table]
        if width == 2:
            cells = ["{" + ", ".join(cells[i : i + 2]) + "}" for i in range(0, len(cells), 2)]
        columns = COLUMNS // width
        for i in range(0, len(cells), columns):
            text.append("    " + ", ".join(cells[i : i + columns]) + ",\n")
        text.append("};\n")
    args.out.write_text("".join(text))


if __name__ == "__main__":
    main()
