//! Codecs: what the bytes of each integer-dot block type mean, for as many weight rows at once as a vector has lanes.
//!
//! A codec reads the words of one unit (256 values: one wide block, or eight 32-wide ones) of `LANES` rows, already turned so
//! that a vector holds the same word of every row, and leaves codes, sub-scales, minima and scales in a [`Tile`]. It is
//! written once; the vector type decides the instruction set. Knows no activations and no loop over a matrix.

mod blocks32;
mod book;
mod grids;
mod k_quants;

pub(super) use blocks32::{IQ4_NL, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use book::Book;
pub(super) use grids::{Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(super) use k_quants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};

use super::ahead::LINE;
use super::simd::Simd;
use std::cell::Cell;

/// How the integer sum of a unit is put together: which of [`Tile`]'s fields count.
pub(super) trait Form {
    /// Words (of 4 codes) that share a sub-scale: 4 or 8. Of 32-wide types: 8, a block.
    const GROUP: usize;
    /// One scale a unit and integer sub-scales (256-wide types), or a scale per group (32-wide types).
    const SCALED: bool;
    /// Whether there are minima.
    const MINIMA: bool;
    /// Whether codes need all 8 bits ([`Simd::dot_wide`]).
    const WIDE: bool;
    /// Words whose products' sum fits 16 bits, whatever the activations: a power of two. Codes may be `32767 / (2 * 127 * STEPS)` at most.
    const STEPS: usize;
    /// Chains of fused multiply-adds that a sum ends in, minima included.
    const CHAINS: usize = (if Self::SCALED { 1 } else { 8 }) * (if Self::MINIMA { 2 } else { 1 });
}

macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: $group:literal, $scaled:literal, $minima:literal, $wide:literal, $steps:literal;)*) => {
        $($(#[$doc])* pub(super) struct $name;
        impl Form for $name {
            const GROUP: usize = $group;
            const SCALED: bool = $scaled;
            const MINIMA: bool = $minima;
            const WIDE: bool = $wide;
            const STEPS: usize = $steps;
        })*
    };
}

forms! {
    /// Sub-scales per 16 values.
    Scaled16: 4, true, false, false, 1;
    /// Sub-scales per 16 values, codes of 6 bits.
    Scaled16Six: 4, true, false, false, 2;
    /// Sub-scales and minima per 16 values, codes of 2 bits.
    Scaled16Minima: 4, true, true, false, 4;
    /// Sub-scales per 32 values.
    Scaled32: 8, true, false, false, 1;
    /// Sub-scales per 32 values, codes of 5 bits.
    Scaled32Five: 8, true, false, false, 4;
    /// Sub-scales per 32 values, codes of 8 bits.
    Scaled32Wide: 8, true, false, true, 1;
    /// Sub-scales and minima per 32 values, codes of 4 bits.
    Scaled32Minima: 8, true, true, false, 8;
    /// Sub-scales and minima per 32 values, codes of 5 bits.
    Scaled32MinimaFive: 8, true, true, false, 4;
    /// A scale per 32 values, codes of 5 bits.
    Plain32: 8, false, false, false, 4;
    /// A scale per 32 values, codes of 8 bits.
    Plain32Wide: 8, false, false, true, 1;
    /// A scale and a minimum per 32 values, codes of 5 bits.
    Plain32Minima: 8, false, true, false, 4;
}

/// A unit of `LANES` weight rows, ready to be multiplied.
#[repr(C, align(64))]
pub(super) struct Tile<S: Simd> {
    /// `[64 words] x LANES`: four codes a word, biased to be unsigned (see [`Codec::BIAS`]).
    pub(super) codes: [S::I; 64],
    /// `[16] x LANES`: sub-scales out of [`Simd::factor`].
    pub(super) scales: [S::I; 16],
    /// `[8] x LANES x [2] i16`: what the sums of activations of two neighbouring groups are multiplied with: minima or, in forms without
    /// them, the sub-scales.
    pub(super) per_sum: [S::I; 8],
    /// `[8] x LANES f32`: the scale, or one a block.
    pub(super) d: [S::F; 8],
    /// `[8] x LANES f32`: the scale of the minima, or the minimum of each block.
    pub(super) m: [S::F; 8],
}

impl<S: Simd> Tile<S> {
    /// Puts the signed 16-bit sub-scales of a form without minima.
    #[inline(always)]
    fn put_scales<const N: usize>(&mut self, s: S, scales: [S::I; N]) {
        for i in 0..N / 2 {
            let (low, high) = (s.factor(scales[2 * i]), s.factor(scales[2 * i + 1]));
            (self.scales[2 * i], self.scales[2 * i + 1]) = (low, high);
            self.per_sum[i] = s.factor_pair(low, high);
        }
    }
}

/// A unit's bytes of `LANES` rows of weights.
pub(super) struct Rows<S> {
    s: S,
    base: *const u8,
    stride: usize,
    bytes: usize,
    next: Option<Cell<*const u8>>,
}

impl<S: Simd> Rows<S> {
    /// `bytes` bytes at `base` and at every `stride` after it: a unit's, or the first half's.
    ///
    /// # Safety
    /// They can be read, for every row `r < LANES`, as long as this lives.
    #[inline(always)]
    pub(super) unsafe fn new(s: S, base: *const u8, stride: usize, bytes: usize) -> Self {
        Self {
            s,
            base,
            stride,
            bytes,
            next: None,
        }
    }

    /// The same; while they are read, as many bytes as they are, at `next`, are asked for. These need not exist.
    #[inline(always)]
    pub(super) fn asking(self, next: *const u8) -> Self {
        Self {
            next: Some(Cell::new(next)),
            ..self
        }
    }

    /// Whether there is more of the unit than its first `bytes` bytes.
    #[inline(always)]
    fn more_than(&self, bytes: usize) -> bool {
        self.bytes > bytes
    }

    /// The four words from byte `at` on, a vector a word.
    #[inline(always)]
    fn words(&self, at: usize) -> [S::I; 4] {
        assert!(at + 16 <= self.bytes);
        let base = self.base.wrapping_add(at);
        // SAFETY: the 16 bytes lie in every row.
        unsafe {
            self.s
                .columns(base, self.stride, |i| self.ask_ahead::<16, 4>(i))
        }
    }

    /// The eight words from byte `at` on.
    #[inline(always)]
    fn wide_words(&self, at: usize) -> [S::I; 8] {
        assert!(at + 32 <= self.bytes);
        let base = self.base.wrapping_add(at);
        // SAFETY: the 32 bytes lie in every row.
        unsafe {
            self.s
                .wide_columns(base, self.stride, |i| self.ask_ahead::<32, 8>(i))
        }
    }

    /// Part `i` of `PARTS` of asking for the bytes that come next, as many as `BYTES` of every row, if any are to be.
    #[inline(always)]
    fn ask_ahead<const BYTES: usize, const PARTS: usize>(&self, i: usize) {
        let Some(next) = &self.next else {
            return;
        };
        let lines = BYTES * S::LANES / LINE;
        for line in lines * i / PARTS..lines * (i + 1) / PARTS {
            self.s.prefetch(next.get().wrapping_add(LINE * line));
        }
        if i == PARTS - 1 {
            next.set(next.get().wrapping_add(BYTES * S::LANES));
        }
    }
}

/// A block type whose products are integer sums.
pub(super) trait Codec {
    /// Which fields of the tile are filled.
    type Form: Form;
    /// Bytes of a full unit.
    const UNIT_BYTES: usize;
    /// What codes are above the values they stand for; taken out with the sums of the activations.
    const BIAS: i32;

    /// Fills a tile; with the first half of a 32-wide type's unit where `rows` has no more.
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>);
}

/// A block type that can hand over its codes a group after the other, so that few rows are multiplied while codes are still
/// in registers.
pub(super) trait Flow: Codec {
    /// Whether this pays for two to five rows too, whose sums all stay in registers beside the words that codes are made of, where vectors have 16 lanes.
    const SEVERAL: bool;

    /// Fills a tile except for its codes.
    fn head<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>);

    /// Hands over all codes, a group at a time in any order.
    fn codes<S: Simd>(s: S, rows: &Rows<S>, sink: &mut impl Sink<S>);
}

/// Takes the codes of a unit, see [`Flow::codes`].
pub(super) trait Sink<S: Simd> {
    /// The `G = F::GROUP` words of codes of a group, `word` being the first, as in [`Tile::codes`].
    fn group<const G: usize>(&mut self, s: S, word: usize, codes: [S::I; G]);
}

impl<S: Simd> Sink<S> for Tile<S> {
    #[inline(always)]
    fn group<const G: usize>(&mut self, _s: S, word: usize, codes: [S::I; G]) {
        self.codes[word..word + G].copy_from_slice(&codes);
    }
}

/// Bits of every byte: `(word >> shift) & mask`, the mask repeated.
#[inline(always)]
fn bits<S: Simd>(s: S, word: S::I, shift: u32, mask: u8) -> S::I {
    bits_of(s, word, shift, u32::from_le_bytes([mask; 4]))
}

/// `(word >> shift) & mask`.
#[inline(always)]
fn bits_of<S: Simd>(s: S, word: S::I, shift: u32, mask: u32) -> S::I {
    let word = if shift == 0 { word } else { s.shr(word, shift) };
    // what remains of the word may fit the mask already
    if mask == u32::MAX >> shift {
        word
    } else {
        s.and(word, s.splat(mask))
    }
}

/// Bits of every byte moved by `by` places, up or (negative) down, to where the mask, repeated, wants them.
#[inline(always)]
fn moved<S: Simd>(s: S, word: S::I, by: i32, mask: u8) -> S::I {
    let word = match by {
        0 => word,
        1.. => s.shl(word, by as u32),
        _ => s.shr(word, -by as u32),
    };
    s.and(word, s.splat(u32::from_le_bytes([mask; 4])))
}

/// Byte `i` of the word, unsigned.
#[inline(always)]
fn byte<S: Simd>(s: S, word: S::I, i: u32) -> S::I {
    bits_of(s, word, 8 * i, 0xff)
}

/// Byte `i` of the word, signed.
#[inline(always)]
fn signed_byte<S: Simd>(s: S, word: S::I, i: u32) -> S::I {
    s.sar(
        if i == 3 {
            word
        } else {
            s.shl(word, 24 - 8 * i)
        },
        24,
    )
}

/// Bytes 2 `i` and 2 `i` + 1 of the word as a pair of 16-bit halves.
#[inline(always)]
fn byte_pair<S: Simd>(s: S, word: S::I, i: u32) -> S::I {
    let (low, high) = if i == 0 {
        (word, s.shl(word, 8))
    } else {
        (s.shr(word, 16), s.shr(word, 8))
    };
    s.or(s.and(low, s.splat(0xff)), s.and(high, s.splat(0x00ff_0000)))
}
