// What a block of attention_prompt.cu works on.
#pragma once
#include "attention.cuh"

/// A tile of a span.
struct Tile {
    u32 position; // of its first row, a multiple of the tile's rows
    u32 row;      // of the window for that position, perhaps before the span's first (then the number has wrapped)
    u32 first, end; // positions of the span's rows in it
    u32 pages;    // where the sequence's pages are listed
    u32 slot;
    bool there;
};

/// Tile `number` from span `span0` on, the last of a span first.
template <u32 tile_rows>
DEVICE Tile find_tile(const Rows& rows, u32 span0, u32 number) {
    u32 spans = rows.counts[1];
    for (u32 span = span0; span < spans; span++) {
        uint4 of = ((const uint4*)rows.spans)[span];
        u32 first = of.z / tile_rows, last = (of.z + of.y - 1) / tile_rows;
        if (number > last - first) {
            number -= last - first + 1;
            continue;
        }
        u32 position = (last - number) * tile_rows;
        return {position, of.x + (position - of.z), greatest(position, of.z), least(position + tile_rows, of.z + of.y), rows.row_pages[of.x], of.w, true};
    }
    return {0, 0, 0, 0, 0, 0, false};
}

#define POWER_OF_TWO_BELOW(n) ((n) >= 64 ? 64 : (n) >= 32 ? 32 : (n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
