//! The K types and IQ4_XS: 256 values, integer sub-scales.
//!
//! **Source**: layouts as in ggml's `block_q*_K` and `block_iq4_xs`.

use super::blocks32::STEPS_ABOVE_128;
use super::*;

/// Q2_K: 2 bits, sub-scales and minima of 4 bits.
pub(in super::super) struct Q2K;

impl Codec for Q2K {
    type Form = Scaled16Minima;
    const UNIT_BYTES: usize = 84;
    const BIAS: i32 = 0;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        let d = rows.words(68)[3];
        tile.d[0] = s.half(d);
        tile.m[0] = s.half(s.shr(d, 16));
        let fields = rows.words(0);
        for word in 0..4 {
            let (scales, minima) = (
                bits(s, fields[word], 0, 0x0f),
                bits(s, fields[word], 4, 0x0f),
            );
            for i in 0..4 {
                tile.scales[4 * word + i] = s.factor(byte(s, scales, i as u32));
            }
            for i in 0..2 {
                tile.per_sum[2 * word + i] = byte_pair(s, minima, i as u32);
            }
        }
        for half in 0..2 {
            let words = rows.wide_words(16 + 32 * half);
            for i in 0..8 {
                for run in 0..4 {
                    tile.codes[32 * half + 8 * run + i] = bits(s, words[i], 2 * run as u32, 3);
                }
            }
        }
    }
}

/// Q3_K: 3 bits above -4, sub-scales of 6 bits above -32.
pub(in super::super) struct Q3K;

impl Codec for Q3K {
    type Form = Scaled16Six;
    const UNIT_BYTES: usize = 110;
    const BIAS: i32 = 4;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = s.half(s.shr(rows.words(94)[3], 16));
        // bytes 94 .. 110 end with the 12 bytes of sub-scales, `d` behind them; these are the words from byte 92 on
        let [_, low, high, rest] = rows.words(92);
        let mut scales = [s.splat(0); 16];
        for group in 0..4 {
            let nibbles = bits(
                s,
                if group % 2 == 0 { low } else { high },
                4 * (group / 2) as u32,
                0x0f,
            );
            let six = s.or(nibbles, s.shl(bits(s, rest, 2 * group as u32, 3), 4));
            for i in 0..4 {
                scales[4 * group + i] = s.sub(byte(s, six, i as u32), s.splat(32));
            }
        }
        tile.put_scales(s, scales);
        let top = rows.wide_words(0);
        for half in 0..2 {
            let words = rows.wide_words(32 + 32 * half);
            for i in 0..8 {
                for run in 0..4 {
                    let third = moved(s, top[i], 2 - (4 * half + run) as i32, 4);
                    tile.codes[32 * half + 8 * run + i] =
                        s.or(bits(s, words[i], 2 * run as u32, 3), third);
                }
            }
        }
    }
}

/// Q4_K: 4 bits, sub-scales and minima of 6 bits.
pub(in super::super) struct Q4K;

/// The header that Q4_K and Q5_K share: `d`, `dmin` and 8 six-bit pairs of scale and minimum.
#[inline(always)]
fn header<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
    let [d, low, high, rest] = rows.words(0);
    tile.d[0] = s.half(d);
    tile.m[0] = s.half(s.shr(d, 16));
    let scales = [
        bits(s, low, 0, 0x3f),
        s.or(bits(s, rest, 0, 0x0f), bits(s, low, 2, 0x30)),
    ];
    let minima = [
        bits(s, high, 0, 0x3f),
        s.or(bits(s, rest, 4, 0x0f), bits(s, high, 2, 0x30)),
    ];
    for half in 0..2 {
        for i in 0..4 {
            tile.scales[4 * half + i] = s.factor(byte(s, scales[half], i as u32));
        }
        for i in 0..2 {
            tile.per_sum[2 * half + i] = byte_pair(s, minima[half], i as u32);
        }
    }
}

impl Codec for Q4K {
    type Form = Scaled32Minima;
    const UNIT_BYTES: usize = 144;
    const BIAS: i32 = 0;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        Self::head(s, rows, tile);
        Self::codes(s, rows, tile);
    }
}

impl Flow for Q4K {
    const SEVERAL: bool = false;

    #[inline(always)]
    fn head<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        header(s, rows, tile);
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, rows: &Rows<S>, sink: &mut impl Sink<S>) {
        for run in 0..4 {
            let words = rows.wide_words(16 + 32 * run);
            let mut codes = [words; 2];
            for i in 0..8 {
                codes[0][i] = bits(s, words[i], 0, 0x0f);
                codes[1][i] = bits(s, words[i], 4, 0x0f);
            }
            sink.group(s, 16 * run, codes[0]);
            sink.group(s, 16 * run + 8, codes[1]);
        }
    }
}

/// Q5_K: as Q4_K with a fifth bit.
pub(in super::super) struct Q5K;

impl Codec for Q5K {
    type Form = Scaled32MinimaFive;
    const UNIT_BYTES: usize = 176;
    const BIAS: i32 = 0;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        header(s, rows, tile);
        let top = rows.wide_words(16);
        for run in 0..4 {
            let words = rows.wide_words(48 + 32 * run);
            for i in 0..8 {
                let (low, high) = (4 - 2 * run as i32, 3 - 2 * run as i32);
                tile.codes[16 * run + i] =
                    s.or(bits(s, words[i], 0, 0x0f), moved(s, top[i], low, 0x10));
                tile.codes[16 * run + 8 + i] =
                    s.or(bits(s, words[i], 4, 0x0f), moved(s, top[i], high, 0x10));
            }
        }
    }
}

/// Q6_K: 6 bits above -32, sub-scales of 8 bits.
pub(in super::super) struct Q6K;

impl Codec for Q6K {
    type Form = Scaled16Six;
    const UNIT_BYTES: usize = 210;
    const BIAS: i32 = 32;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        Self::head(s, rows, tile);
        Self::codes(s, rows, tile);
    }
}

impl Flow for Q6K {
    const SEVERAL: bool = true;

    #[inline(always)]
    fn head<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        tile.d[0] = s.half(s.shr(rows.words(194)[3], 16));
        let words = rows.words(192);
        let mut scales = [s.splat(0); 16];
        for i in 0..16 {
            scales[i] = signed_byte(s, words[i / 4], i as u32 % 4);
        }
        tile.put_scales(s, scales);
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, rows: &Rows<S>, sink: &mut impl Sink<S>) {
        for half in 0..2 {
            let top = halves(rows.wide_words(128 + 32 * half));
            let word = 32 * half;
            let words = halves(rows.wide_words(64 * half));
            group(s, words[0], 0, top[0], 4, word, sink);
            group(s, words[1], 0, top[1], 4, word + 4, sink);
            group(s, words[0], 4, top[0], 0, word + 16, sink);
            group(s, words[1], 4, top[1], 0, word + 20, sink);
            let words = halves(rows.wide_words(64 * half + 32));
            group(s, words[0], 0, top[0], 2, word + 8, sink);
            group(s, words[1], 0, top[1], 2, word + 12, sink);
            group(s, words[0], 4, top[0], -2, word + 24, sink);
            group(s, words[1], 4, top[1], -2, word + 28, sink);
        }
    }
}

/// The first four and the last four.
#[inline(always)]
fn halves<T>([a, b, c, d, e, f, g, h]: [T; 8]) -> [[T; 4]; 2] {
    [[a, b, c, d], [e, f, g, h]]
}

/// A group of Q6_K: four bits from `shift` of each byte on, and above them two bits that lie `by` places lower.
#[inline(always)]
fn group<S: Simd>(
    s: S,
    words: [S::I; 4],
    shift: u32,
    top: [S::I; 4],
    by: i32,
    word: usize,
    sink: &mut impl Sink<S>,
) {
    let mut codes = words;
    for i in 0..4 {
        let high = moved(s, top[i], by, 0x30);
        codes[i] = s.or(bits(s, words[i], shift, 0x0f), high);
    }
    sink.group(s, word, codes);
}

/// IQ4_XS: 4 bits, uneven steps, sub-scales of 6 bits above -32.
pub(in super::super) struct Iq4Xs;

impl Codec for Iq4Xs {
    type Form = Scaled32Wide;
    const UNIT_BYTES: usize = 136;
    const BIAS: i32 = 128;

    #[inline(always)]
    fn unpack<S: Simd>(s: S, rows: &Rows<S>, tile: &mut Tile<S>) {
        let [head, low, ..] = rows.words(0);
        tile.d[0] = s.half(head);
        let mut scales = [s.splat(0); 8];
        for group in 0..8 {
            let top = bits_of(s, head, 16 + 2 * group as u32, 3);
            let six = s.or(bits_of(s, low, 4 * group as u32, 15), s.shl(top, 4));
            scales[group] = s.sub(six, s.splat(32));
        }
        tile.put_scales(s, scales);
        for pair in 0..4 {
            let words = rows.wide_words(8 + 32 * pair);
            for i in 0..8 {
                for half in 0..2 {
                    let code = s.lookup(&STEPS_ABOVE_128, bits(s, words[i], 4 * half as u32, 0x0f));
                    tile.codes[16 * pair + 8 * (i / 4) + 4 * half + i % 4] = s.signed(code);
                }
            }
        }
    }
}
