//! The 32-wide types: a scale (and a minimum) for every 32 values.
//!
//! **Source**: layouts as in ggml's `block_q*_0`, `block_q*_1`, `block_iq4_nl`, `block_mxfp4`.

use super::*;
use crate::quant::{E2M1_DOUBLED, IQ4_STEPS};

/// A block of 32 values. Four blocks are a whole number of words, as many as a block has bytes.
pub(in super::super) trait Block32 {
    type Form: Form;
    const BYTES: usize;
    const BIAS: i32;

    /// Unpacks block `b` of a unit, which begins at byte `start` of `words`.
    fn block<S: Simd>(s: S, words: &Words<S>, start: usize, tile: &mut Tile<S>, b: usize);
}

/// Words of four blocks of the longest type (Q8_0).
pub(in super::super) type Words<S> = [<S as Simd>::I; 34];

impl<B: Block32> Codec for B {
    type Form = B::Form;
    const UNIT_BYTES: usize = 8 * B::BYTES;
    const BIAS: i32 = B::BIAS;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        for four in 0..2 {
            let start = four * 4 * B::BYTES;
            if !rows.more_than(start) {
                return;
            }
            let mut words = [s.splat(0); 34];
            for column in 0..B::BYTES / 8 {
                put(
                    s,
                    &mut words,
                    8 * column,
                    rows.wide_words(start + 32 * column),
                );
            }
            if B::BYTES % 8 >= 4 {
                put(
                    s,
                    &mut words,
                    B::BYTES / 8 * 8,
                    rows.words(start + B::BYTES / 8 * 32),
                );
            }
            // what is left overlaps with words that are there already
            if B::BYTES % 4 != 0 {
                put(
                    s,
                    &mut words,
                    B::BYTES - 4,
                    rows.words(start + 4 * B::BYTES - 16),
                );
            }
            for b in 0..4 {
                B::block(s, &words, b * B::BYTES, tile, 4 * four + b);
            }
        }
    }
}

/// Copies words to their place.
#[inline(always)]
fn put<S: Simd, const N: usize>(_s: S, words: &mut Words<S>, at: usize, from: [S::I; N]) {
    words[at..at + N].copy_from_slice(&from);
}

/// The word at a byte offset that need not be a multiple of 4.
#[inline(always)]
fn word<S: Simd>(s: S, words: &Words<S>, byte: usize) -> S::I {
    let at = byte / 4;
    match byte as u32 % 4 {
        0 => words[at],
        rest => s.or(
            s.shr(words[at], 8 * rest),
            s.shl(words[at + 1], 32 - 8 * rest),
        ),
    }
}

/// The half float at an even byte offset.
#[inline(always)]
fn half<S: Simd>(s: S, words: &Words<S>, byte: usize) -> S::F {
    let word = words[byte / 4];
    s.half(if byte.is_multiple_of(4) {
        word
    } else {
        s.shr(word, 16)
    })
}

/// Four low nibbles, then four high nibbles, 16 values apart.
#[inline(always)]
fn nibbles<S: Simd>(s: S, words: &Words<S>, start: usize) -> [S::I; 8] {
    let mut codes = [s.splat(0); 8];
    for i in 0..4 {
        let word = word(s, words, start + 4 * i);
        codes[i] = bits(s, word, 0, 0x0f);
        codes[i + 4] = bits(s, word, 4, 0x0f);
    }
    codes
}

/// Fifth bits, `[32] bits` in value order, as 16 in every byte of 8 words.
#[inline(always)]
fn fifths<S: Simd>(s: S, high: S::I, codes: [S::I; 8]) -> [S::I; 8] {
    let mut out = codes;
    for i in 0..8 {
        let four = bits_of(s, high, 4 * i as u32, 15);
        // bit j of the four goes to bit 4 of byte j
        let spread = s.mul_low(four, s.splat(1 << 4 | 1 << 11 | 1 << 18 | 1 << 25));
        out[i] = s.or(codes[i], s.and(spread, s.splat(0x1010_1010)));
    }
    out
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident: $form:ident, $bytes:literal bytes, bias $bias:literal,
        |$s:ident, $words:ident, $start:ident, $tile:ident, $b:ident| $codes:block;)*) => {
        $($(#[$doc])*
        #[allow(non_camel_case_types)]
        pub(in super::super) struct $name;
        impl Block32 for $name {
            type Form = $form;
            const BYTES: usize = $bytes;
            const BIAS: i32 = $bias;

            #[inline(always)]
            fn block<S: Simd>($s: S, $words: &Words<S>, $start: usize, $tile: &mut Tile<S>, $b: usize) {
                let codes: [S::I; 8] = $codes;
                for i in 0..8 {
                    $tile.codes[8 * $b + i] = if <$form as Form>::WIDE { $s.signed(codes[i]) } else { codes[i] };
                }
            }
        })*
    };
}

blocks! {
    /// 4 bits above -8.
    Q4_0: Plain32, 18 bytes, bias 8, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        nibbles(s, words, start + 2)
    };
    /// 4 bits and a minimum.
    Q4_1: Plain32Minima, 20 bytes, bias 0, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        tile.m[b] = half(s, words, start + 2);
        nibbles(s, words, start + 4)
    };
    /// 5 bits above -16.
    Q5_0: Plain32, 22 bytes, bias 16, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        fifths(s, word(s, words, start + 2), nibbles(s, words, start + 6))
    };
    /// 5 bits and a minimum.
    Q5_1: Plain32Minima, 24 bytes, bias 0, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        tile.m[b] = half(s, words, start + 2);
        fifths(s, words[start / 4 + 1], nibbles(s, words, start + 8))
    };
    /// 8 bits, signed.
    Q8_0: Plain32Wide, 34 bytes, bias 128, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        let mut codes = [s.splat(0); 8];
        for i in 0..8 {
            codes[i] = s.xor(word(s, words, start + 2 + 4 * i), s.splat(0x8080_8080));
        }
        codes
    };
    /// 4 bits, uneven steps.
    IQ4_NL: Plain32Wide, 18 bytes, bias 128, |s, words, start, tile, b| {
        tile.d[b] = half(s, words, start);
        steps(s, &STEPS_ABOVE_128, nibbles(s, words, start + 2))
    };
    /// E2M1 in halves, under a power of two.
    MXFP4: Plain32, 17 bytes, bias 16, |s, words, start, tile, b| {
        tile.d[b] = exponent(s, byte(s, words[start / 4], start as u32 % 4));
        steps(s, &E2M1_ABOVE_16, nibbles(s, words, start + 1))
    };
}

/// Looks all codes up.
#[inline(always)]
fn steps<S: Simd>(s: S, table: &[u8; 16], codes: [S::I; 8]) -> [S::I; 8] {
    let mut out = codes;
    for i in 0..8 {
        out[i] = s.lookup(table, codes[i]);
    }
    out
}

/// `2^(e - 128)`: an e8m0 scale of values counted in halves. For `e` < 2 that is a subnormal number.
#[inline(always)]
fn exponent<S: Simd>(s: S, e: S::I) -> S::F {
    let normal = s.shl(s.sub(e, s.splat(1)), 23);
    let subnormal = s.shl(s.add(e, s.splat(1)), 21);
    let below_two = s.sar(s.sub(e, s.splat(2)), 31);
    s.bits_as_float(s.xor(normal, s.and(s.xor(normal, subnormal), below_two)))
}

/// A table of signed steps, made unsigned.
const fn above(bias: u8, steps: [i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (steps[i] as u8).wrapping_add(bias);
        i += 1;
    }
    table
}

/// The steps of IQ4_NL and IQ4_XS.
pub(super) const STEPS_ABOVE_128: [u8; 16] = above(128, IQ4_STEPS);
/// E2M1 in halves.
const E2M1_ABOVE_16: [u8; 16] = above(16, E2M1_DOUBLED);
