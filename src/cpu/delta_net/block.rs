//! The products of a block: rows with the state, rows with the rows before them, and the block's end.

use super::{BLOCK_ROWS, DeltaShape, head::Place};
use crate::cpu::{
    math::{
        exp_of,
        lanes::{LANES, Lanes},
    },
    tile::{self, F32Panel, Product},
};

/// Rows that are taken together: what they read of earlier rows is one product, what they read of each other goes row by row.
const TILE_ROWS: usize = 8;

/// Puts the rows' keys into their lanes of the pending keys `[groups, key_dim, 16]`.
pub(super) fn append_keys(place: &Place, key_dim: usize, lines: &[f32], keys: &mut [f32]) {
    for row in 0..place.rows {
        let pending = place.at + place.from + row;
        let group = &mut keys[pending / LANES * key_dim * LANES..][..key_dim * LANES];
        for (lanes, key) in group
            .chunks_exact_mut(LANES)
            .zip(&lines[2 * row * key_dim..])
        {
            lanes[pending % LANES] = *key;
        }
    }
}

/// Inner products of the rows' lines with the block's keys up to their own.
///
/// **Shapes**: `lines [2 rows, key_dim]`, `out [2 rows, 64]`; columns behind a row's own hold anything.
#[inline(always)]
pub(super) fn products<L: Lanes>(
    place: &Place,
    key_dim: usize,
    lines: &[f32],
    keys: &[f32],
    out: &mut [f32],
) {
    let keys = &keys[place.at * key_dim..];
    for first in (0..place.rows).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(place.rows - first);
        let product = Product {
            a: &lines[2 * first * key_dim..],
            a_stride: key_dim,
            lines: 2 * rows,
            panel: F32Panel {
                data: keys,
                step: LANES,
                vector: LANES * key_dim,
            },
            steps: 0..key_dim,
            vectors: (place.from + first + rows).div_ceil(LANES),
        };
        tile::replace(
            L::ISA,
            &product,
            &mut out[2 * first * BLOCK_ROWS..],
            BLOCK_ROWS,
        );
    }
}

/// Decays the products for one value head: `weights[line, j] = e^{G_i - G_j} products[line, j]`, for `j` up to the line's row `i`.
#[inline(always)]
pub(super) fn weigh<L: Lanes>(place: &Place, g: &[f32], products: &[f32], weights: &mut [f32]) {
    let g = &g[place.at..];
    let mut padded = [0.0; BLOCK_ROWS];
    let len = (place.from + place.rows).min(BLOCK_ROWS);
    padded[..len].copy_from_slice(&g[..len]);
    for row in 0..place.rows {
        let own = L::splat(g[place.from + row]);
        let vectors = (place.from + row) / LANES + 1;
        let lines = 2 * row * BLOCK_ROWS..2 * (row + 1) * BLOCK_ROWS;
        let (keys, queries) = products[lines.clone()].split_at(BLOCK_ROWS);
        let (to_keys, to_queries) = weights[lines].split_at_mut(BLOCK_ROWS);
        for vector in 0..vectors {
            let at = vector * LANES..(vector + 1) * LANES;
            let decay = exp_of(own - L::load_part(&padded[at.clone()]));
            (decay * L::load_part(&keys[at.clone()])).store_part(&mut to_keys[at.clone()]);
            (decay * L::load_part(&queries[at.clone()])).store_part(&mut to_queries[at]);
        }
    }
}

/// What rows read of the state.
pub(super) struct Reads<'a> {
    /// `[key_dim, width]`.
    pub(super) s: &'a [f32],
    /// `[2 rows, key_dim]`.
    pub(super) lines: &'a [f32],
    pub(super) key_dim: usize,
    pub(super) width: usize,
}

impl Reads<'_> {
    /// `out[line] = e^{G_i} S^T line`, or zero if the state is.
    #[inline(always)]
    pub(super) fn compute<L: Lanes>(&self, place: &Place, g: &[f32], out: &mut [f32]) {
        let out = &mut out[..2 * place.rows * self.width];
        if place.blank {
            out.fill(0.0);
            return;
        }
        let product = Product {
            a: self.lines,
            a_stride: self.key_dim,
            lines: 2 * place.rows,
            panel: F32Panel {
                data: self.s,
                step: self.width,
                vector: LANES,
            },
            steps: 0..self.key_dim,
            vectors: self.width / LANES,
        };
        tile::replace(L::ISA, &product, out, self.width);
        for row in 0..place.rows {
            let decay = L::splat(exp_of(g[place.at + place.from + row]));
            for vector in out[2 * row * self.width..2 * (row + 1) * self.width]
                .as_chunks_mut::<LANES>()
                .0
            {
                (L::load(vector) * decay).store(vector);
            }
        }
    }
}

/// What rows read of the rows before them, and the `u` that follow.
pub(super) struct Update<'a> {
    /// `[2 rows, 64]`.
    pub(super) weights: &'a [f32],
    /// `[rows]`.
    pub(super) strengths: &'a [f32],
    /// `[rows, width]`.
    pub(super) values: &'a [f32],
    pub(super) width: usize,
}

impl Update<'_> {
    /// Finishes `reads [2 rows, width]`, whose query lines become the rows' outputs, and appends to `u`.
    #[inline(always)]
    pub(super) fn compute<L: Lanes>(&self, place: &Place, reads: &mut [f32], u: &mut [f32]) {
        let u = &mut u[place.at * self.width..];
        for first in (0..place.rows).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(place.rows - first);
            let earlier = place.from + first;
            self.add::<L>(2 * first, 2 * rows, 0..earlier, u, reads);
            for row in first..first + rows {
                let own = place.from + row;
                self.add::<L>(2 * row, 1, earlier..own, u, reads);
                let read = &reads[2 * row * self.width..][..self.width];
                let value = &self.values[row * self.width..][..self.width];
                let strength = L::splat(self.strengths[row]);
                let to = u[own * self.width..][..self.width]
                    .as_chunks_mut::<LANES>()
                    .0;
                for ((to, value), read) in to
                    .iter_mut()
                    .zip(value.as_chunks().0)
                    .zip(read.as_chunks().0)
                {
                    (strength * (L::load(value) - L::load(read))).store(to);
                }
                self.add::<L>(2 * row + 1, 1, earlier..own + 1, u, reads);
            }
        }
    }

    /// Adds `u` of rows `from`, weighted, to `lines` lines of `reads` from `line` on.
    #[inline(always)]
    fn add<L: Lanes>(
        &self,
        line: usize,
        lines: usize,
        from: std::ops::Range<usize>,
        u: &[f32],
        reads: &mut [f32],
    ) {
        let product = Product {
            a: &self.weights[line * BLOCK_ROWS..],
            a_stride: BLOCK_ROWS,
            lines,
            panel: F32Panel {
                data: u,
                step: self.width,
                vector: LANES,
            },
            steps: from,
            vectors: self.width / LANES,
        };
        tile::add(
            L::ISA,
            &product,
            &mut reads[line * self.width..],
            self.width,
        );
    }
}

/// `decayed[c, j] = e^{G_C - G_j} k_j[c]` of a whole block, `[key_dim, 64]`.
#[inline(always)]
pub(super) fn decay_keys<L: Lanes>(keys: &[f32], g: &[f32], decayed: &mut [f32]) {
    let last = L::splat(g[BLOCK_ROWS - 1]);
    let key_dim = decayed.len() / BLOCK_ROWS;
    for (vector, g) in g[..BLOCK_ROWS].as_chunks::<LANES>().0.iter().enumerate() {
        let decay = exp_of(last - L::load(g));
        for channel in 0..key_dim {
            let key = &keys[(vector * key_dim + channel) * LANES..][..LANES];
            let to = &mut decayed[channel * BLOCK_ROWS + vector * LANES..][..LANES];
            (decay * L::load_part(key)).store_part(to);
        }
    }
}

/// `S <- e^{G_C} S + sum over the block of decayed k u^T`; a state that does not `count` is zero.
///
/// **Shapes**: `decayed [key_dim, 64]`, `g [64..]`, `u [64.., width]`, `s [key_dim, width]`.
#[inline(always)]
pub(super) fn fold<L: Lanes>(
    shape: &DeltaShape,
    decayed: &[f32],
    g: &[f32],
    u: &[f32],
    counts: bool,
    s: &mut [f32],
) {
    if counts {
        let decay = L::splat(exp_of(g[BLOCK_ROWS - 1]));
        for vector in s.as_chunks_mut::<LANES>().0 {
            (L::load(vector) * decay).store(vector);
        }
    } else {
        s.fill(0.0);
    }
    let product = Product {
        a: decayed,
        a_stride: BLOCK_ROWS,
        lines: shape.key_dim,
        panel: F32Panel {
            data: u,
            step: shape.width(),
            vector: LANES,
        },
        steps: 0..BLOCK_ROWS,
        vectors: shape.width() / LANES,
    };
    tile::add(L::ISA, &product, s, shape.width());
}
