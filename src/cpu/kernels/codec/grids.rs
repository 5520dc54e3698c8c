//! The IQ2 and IQ3 types: vectors of magnitudes from a code book, with signs, and odd sub-scales.
//!
//! Indices, high index bits and signs are brought into the bytes of a lane first, four vectors at a time; then all types go the
//! same way. **Source**: layouts as in ggml's `block_iq2_*` and `block_iq3_*`.

use super::*;

/// What IQ2 and IQ3_XXS codes are above their values; above the largest magnitude, 62.
const BIAS: u8 = 64;

/// 0x80 for nibbles with an odd number of ones.
const ODD: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = ((i as u32).count_ones() as u8 & 1) << 7;
        i += 1;
    }
    table
};

/// 7-bit sign codes, one a byte, to sign bits: the eighth makes the number of signs even.
#[inline(always)]
fn complete<S: Simd>(s: S, codes: S::I) -> S::I {
    let folded = bits(s, s.xor(codes, s.shr(codes, 4)), 0, 0x0f);
    s.or(codes, s.lookup(&ODD, folded))
}

/// Four 7-bit fields from bit 0 on to four bytes.
#[inline(always)]
fn sevens<S: Simd>(s: S, word: S::I) -> S::I {
    let mut bytes = s.and(word, s.splat(0x7f));
    for i in 1..4 {
        bytes = s.or(bytes, s.and(s.shl(word, i), s.splat(0x7f << (8 * i))));
    }
    bytes
}

/// Puts four vectors of 8 values from vector `at` on. Bytes: `low` and `high` index, `signs`.
#[inline(always)]
fn put_eights<S: Simd, const TABLES: usize>(
    s: S,
    tile: &mut Tile<S>,
    at: usize,
    book: &Book<TABLES>,
    low: S::I,
    high: S::I,
    signs: S::I,
) {
    for half in 0..2 {
        let words = s.entries(book, half, low, high);
        for i in 0..4 {
            let shift = (8 * i + 4 * half) as u32;
            tile.codes[2 * (at + i) + half] = s.with_signs(words[i], signs, shift, BIAS);
        }
    }
}

/// Puts four vectors of 4 values from vector `at` on. Bytes: `low` and `high` index; signs from bit `shift` on.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one flat call per four vectors")]
fn put_fours<S: Simd, const TABLES: usize>(
    s: S,
    tile: &mut Tile<S>,
    at: usize,
    book: &Book<TABLES>,
    low: S::I,
    high: S::I,
    signs: S::I,
    shift: u32,
    bias: u8,
) {
    let words = s.entries(book, 0, low, high);
    for i in 0..4 {
        tile.codes[at + i] = s.with_signs(words[i], signs, shift + 4 * i as u32, bias);
    }
}

/// `2 n + 1` of the nibble at bit `shift`.
#[inline(always)]
fn odd<S: Simd>(s: S, word: S::I, shift: u32) -> S::I {
    let nibble = bits_of(s, word, shift, 15);
    s.add(s.add(nibble, nibble), s.splat(1))
}

/// `d` times a power of two.
#[inline(always)]
fn scale<S: Simd>(s: S, rows: &Rows<S>, factor: f32) -> S::F {
    s.mul_float(s.half(rows.words(0)[0]), s.splat_float(factor))
}

/// IQ2_XXS: for 32 values four indices, four sign codes and a scale.
pub(in super::super) struct Iq2Xxs;

impl Codec for Iq2Xxs {
    type Form = Scaled32;
    const UNIT_BYTES: usize = 66;
    const BIAS: i32 = BIAS as i32;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = scale(s, rows, 0.125);
        let mut scales = [s.splat(0); 8];
        for half in 0..2 {
            let words = rows.wide_words(2 + 32 * half);
            for i in 0..4 {
                let group = 4 * half + i;
                let (low, rest) = (words[2 * i], words[2 * i + 1]);
                scales[group] = odd(s, rest, 28);
                let signs = complete(s, sevens(s, rest));
                put_eights(s, tile, 4 * group, &book::IQ2_XXS, low, s.splat(0), signs);
            }
        }
        tile.put_scales(s, scales);
    }
}

/// IQ2_XS: for 8 values a 9-bit index and a sign code, for 16 a scale.
pub(in super::super) struct Iq2Xs;

impl Codec for Iq2Xs {
    type Form = Scaled16;
    const UNIT_BYTES: usize = 74;
    const BIAS: i32 = BIAS as i32;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = scale(s, rows, 0.125);
        let [.., a, b] = rows.words(58);
        nibble_scales(s, [a, b], tile);
        for half in 0..2 {
            let words = rows.wide_words(2 + 32 * half);
            for i in 0..4 {
                let (a, b) = (words[2 * i], words[2 * i + 1]);
                let low = s.or(even_bytes(s, a), s.shl(even_bytes(s, b), 16));
                let rest = s.or(
                    even_bytes(s, s.shr(a, 8)),
                    s.shl(even_bytes(s, s.shr(b, 8)), 16),
                );
                let signs = complete(s, bits(s, rest, 1, 0x7f));
                put_eights(
                    s,
                    tile,
                    16 * half + 4 * i,
                    &book::IQ2_XS,
                    low,
                    bits(s, rest, 0, 1),
                    signs,
                );
            }
        }
    }
}

/// Bytes 0 and 2 as bytes 0 and 1, the others 0.
#[inline(always)]
fn even_bytes<S: Simd>(s: S, word: S::I) -> S::I {
    s.or(bits_of(s, word, 0, 0xff), bits_of(s, word, 8, 0xff00))
}

/// IQ2_S: for 8 values a 10-bit index in two places and 8 signs, for 16 a scale.
pub(in super::super) struct Iq2S;

impl Codec for Iq2S {
    type Form = Scaled16;
    const UNIT_BYTES: usize = 82;
    const BIAS: i32 = BIAS as i32;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = scale(s, rows, 0.125);
        let [first, second, a, b] = rows.words(66);
        nibble_scales(s, [a, b], tile);
        let (low, signs) = (rows.wide_words(2), rows.wide_words(34));
        for i in 0..8 {
            let top = s.shr(if i < 4 { first } else { second }, 8 * (i as u32 % 4));
            // bits 2 j and 2 j + 1 of the lowest byte go to byte j
            let mut high = s.and(top, s.splat(3));
            for j in 1..4 {
                high = s.or(high, s.and(s.shl(top, 6 * j), s.splat(3 << (8 * j))));
            }
            put_eights(s, tile, 4 * i, &book::IQ2_S, low[i], high, signs[i]);
        }
    }
}

/// 16 odd sub-scales, a nibble each.
#[inline(always)]
fn nibble_scales<S: Simd>(s: S, words: [S::I; 2], tile: &mut Tile<S>) {
    let mut scales = [s.splat(0); 16];
    for group in 0..16 {
        scales[group] = odd(s, words[group / 8], 4 * (group % 8) as u32);
    }
    tile.put_scales(s, scales);
}

/// IQ3_XXS: for 4 values an index, for 32 four sign codes and a scale.
pub(in super::super) struct Iq3Xxs;

impl Codec for Iq3Xxs {
    type Form = Scaled32;
    const UNIT_BYTES: usize = 98;
    const BIAS: i32 = BIAS as i32;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = scale(s, rows, 0.25);
        let rest = rows.wide_words(66);
        let mut scales = [s.splat(0); 8];
        for half in 0..2 {
            let low = rows.wide_words(2 + 32 * half);
            for i in 0..4 {
                let group = 4 * half + i;
                scales[group] = odd(s, rest[group], 28);
                let signs = complete(s, sevens(s, rest[group]));
                for part in 0..2 {
                    let (low, shift) = (low[2 * i + part], 16 * part as u32);
                    put_fours(
                        s,
                        tile,
                        8 * group + 4 * part,
                        &book::IQ3_XXS,
                        low,
                        s.splat(0),
                        signs,
                        shift,
                        BIAS,
                    );
                }
            }
        }
        tile.put_scales(s, scales);
    }
}

/// IQ3_S: for 4 values a 9-bit index in two places and 4 signs, for 32 a scale.
pub(in super::super) struct Iq3S;

impl Codec for Iq3S {
    type Form = Scaled32Five;
    const UNIT_BYTES: usize = 110;
    const BIAS: i32 = 16;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = scale(s, rows, 1.0);
        let [first, second, ..] = rows.words(66);
        let [.., scales] = rows.words(94);
        let mut odds = [s.splat(0); 8];
        for group in 0..8 {
            odds[group] = odd(s, scales, 4 * group as u32);
        }
        tile.put_scales(s, odds);
        let signs = rows.wide_words(74);
        for half in 0..2 {
            let low = rows.wide_words(2 + 32 * half);
            for i in 0..8 {
                let four = bits_of(s, if half == 0 { first } else { second }, 4 * i as u32, 15);
                // bit j of the four goes to byte j
                let high = s.and(
                    s.mul_low(four, s.splat(1 | 1 << 7 | 1 << 14 | 1 << 21)),
                    s.splat(0x0101_0101),
                );
                let (signs, shift) = (signs[4 * half + i / 2], 16 * (i as u32 % 2));
                put_fours(
                    s,
                    tile,
                    32 * half + 4 * i,
                    &book::IQ3_S,
                    low[i],
                    high,
                    signs,
                    shift,
                    16,
                );
            }
        }
    }
}
