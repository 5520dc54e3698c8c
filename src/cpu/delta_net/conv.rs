//! The causal convolution, and its memory of past inputs.

use super::{DeltaShape, TAPS, state::RING_ROWS};
use crate::cpu::math::{
    lanes::{LANES, Lanes},
    silu_of,
};

/// A key head's share of a row's channels: a run of the row, and where it stands in the head's own memory of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Where it starts in a row of all channels.
    pub(super) channel: usize,
    /// Where it starts in a row of the ring.
    pub(super) place: usize,
    /// Channels.
    pub(super) len: usize,
}

impl Part {
    /// The head's query, key, and value heads in order.
    pub(super) fn all(shape: &DeltaShape, key_head: usize) -> impl Iterator<Item = Self> {
        let DeltaShape {
            key_heads,
            key_dim,
            value_dim,
            ..
        } = *shape;
        let shape = *shape;
        let query = Self {
            channel: key_head * key_dim,
            place: 0,
            len: key_dim,
        };
        let key = Self {
            channel: (key_heads + key_head) * key_dim,
            place: key_dim,
            len: key_dim,
        };
        let values = (0..shape.group()).map(move |nth| Self {
            channel: 2 * key_heads * key_dim + shape.value_head(key_head, nth) * value_dim,
            place: 2 * key_dim + nth * value_dim,
            len: value_dim,
        });
        [query, key].into_iter().chain(values)
    }

    fn of<'a>(&self, row: &'a [f32]) -> &'a [f32] {
        &row[self.channel..][..self.len]
    }
}

/// The inputs that a span's rows see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    /// The span's rows `[rows, channels]`.
    pub(super) rows: &'a [f32],
    pub(super) channels: usize,
    /// Position of the span's first row.
    pub(super) first: usize,
    /// Past inputs `[RING_ROWS, ring_width]`.
    pub(super) ring: &'a [f32],
    pub(super) ring_width: usize,
    /// As many zeros as a part has channels: the inputs before position 0.
    pub(super) zeros: &'a [f32],
}

impl<'a> Inputs<'a> {
    /// The inputs of one part that row `row` of the span sees, oldest first.
    #[inline(always)]
    fn seen(&self, part: &Part, row: usize) -> [&'a [f32]; TAPS] {
        let mut seen = [self.zeros; TAPS];
        for (tap, seen) in seen.iter_mut().enumerate() {
            let back = TAPS - 1 - tap;
            *seen = if back <= row {
                part.of(&self.rows[(row - back) * self.channels..])
            } else if back <= self.first + row {
                let place = (self.first + row - back) % RING_ROWS * self.ring_width + part.place;
                &self.ring[place..][..part.len]
            } else {
                &self.zeros[..part.len]
            };
        }
        seen
    }

    /// Asks for a part of the row `ahead` rows after `row`: a row's parts are too short for the machine to foresee.
    #[inline(always)]
    pub(super) fn prefetch<L: Lanes>(&self, part: &Part, row: usize, ahead: usize) {
        if let Some(row) = self
            .rows
            .get((row + ahead) * self.channels..)
            .filter(|rest| !rest.is_empty())
        {
            L::prefetch(part.of(row));
        }
    }

    /// `out = silu(sum over taps of tap * input)`, oldest first, for one part of one row.
    ///
    /// **Shapes**: `taps [4, channels]`, `out [part.len]`.
    #[inline(always)]
    pub(super) fn convolve<L: Lanes>(
        &self,
        taps: &[f32],
        part: &Part,
        row: usize,
        out: &mut [f32],
    ) {
        let seen = self.seen(part, row);
        let taps: [&[f32]; TAPS] = std::array::from_fn(|tap| part.of(&taps[tap * self.channels..]));
        let (vectors, tail) = out[..part.len].as_chunks_mut::<LANES>();
        let whole = vectors.len();
        let inputs = seen.map(|row| &row.as_chunks::<LANES>().0[..whole]);
        let weights = taps.map(|row| &row.as_chunks::<LANES>().0[..whole]);
        for (at, out) in vectors.iter_mut().enumerate() {
            let mut sum = L::splat(0.0);
            for tap in 0..TAPS {
                sum = L::load(&weights[tap][at]).mul_add(L::load(&inputs[tap][at]), sum);
            }
            silu_of(sum).store(out);
        }
        if !tail.is_empty() {
            let mut sum = L::splat(0.0);
            for tap in 0..TAPS {
                let at = whole * LANES;
                sum = L::load_part(&taps[tap][at..]).mul_add(L::load_part(&seen[tap][at..]), sum);
            }
            silu_of(sum).store_part(tail);
        }
    }
}

/// Keeps the last inputs of a span for the rows to come.
pub(super) fn remember(
    shape: &DeltaShape,
    key_head: usize,
    rows: &[f32],
    first: usize,
    ring: &mut [f32],
) {
    let (channels, width) = (shape.channels(), ring.len() / RING_ROWS);
    let count = rows.len() / channels;
    for row in count.saturating_sub(RING_ROWS)..count {
        let to = &mut ring[(first + row) % RING_ROWS * width..][..width];
        for part in Part::all(shape, key_head) {
            to[part.place..][..part.len].copy_from_slice(part.of(&rows[row * channels..]));
        }
    }
}
