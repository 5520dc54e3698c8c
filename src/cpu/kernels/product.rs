//! The inner product of a tile of weights with a few rows of activations: the loop in which prompts spend their time.
//!
//! Outputs sit in lanes and activations are broadcast, so nothing is ever summed across lanes and a row's numbers do not
//! depend on its neighbours. Knows one unit of 256 values; not where it comes from.

use super::acts::Unit;
use super::ahead::Ahead;
use super::codec::{Flow, Form, Rows, Sink, Tile};
use super::job::OutRows;
use super::simd::Simd;
use std::marker::PhantomData;
use std::ops::Range;

/// Most rows of activations in one call: with two vectors of outputs, `2 * ROWS` sums and as many part sums stay in registers.
pub(super) const ROWS: usize = 6;

/// Adds the products of a unit to the chains of `N` rows.
///
/// `bias` is the codec's (see [`super::codec::Codec::BIAS`]), `blocks` how many 32-wide blocks the unit has. `ahead` is
/// asked for on the way.
///
/// **Shapes**: `sums [N, F::CHAINS, M] x LANES f32`.
#[inline(always)]
pub(super) fn multiply<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    bias: i32,
    blocks: usize,
    ahead: Ahead,
    sums: &mut [S::F],
) {
    assert!(sums.len() == N * F::CHAINS * M && blocks <= 8);
    if F::SCALED {
        scaled::<S, F, M, N>(s, tiles, units, bias, ahead, sums);
    } else {
        plain::<S, F, M, N>(s, tiles, units, bias, blocks, ahead, sums);
    }
}

/// Whether there is time to ask for anything; with few products there is not.
const fn asks(vectors: usize, rows: usize) -> bool {
    vectors * rows > 1
}

/// Words whose products one part sum takes.
const fn steps<S: Simd, F: Form>() -> usize {
    if S::SHORT { F::STEPS } else { F::GROUP }
}

/// Codes times activations of the words `first ..`, as many as a part sum takes, starting from `start`.
#[inline(always)]
fn part<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    first: usize,
    start: [S::I; N],
) -> [[S::I; M]; N] {
    let mut part = [[s.splat(0); M]; N];
    for n in 0..N {
        part[n] = [start[n]; M];
    }
    for word in first..first + steps::<S, F>() {
        for n in 0..N {
            let acts = s.splat(units[n].codes[word]);
            for m in 0..M {
                part[n][m] = match F::WIDE {
                    true => s.dot_wide(part[n][m], tiles[m].codes[word], acts),
                    false => s.dot(part[n][m], tiles[m].codes[word], acts),
                };
            }
        }
    }
    part
}

/// `[groups / 2, 2] i16`: the sums of the codes of each group.
#[inline(always)]
fn sums<F: Form>(unit: &Unit) -> &[u32] {
    if F::GROUP == 4 {
        unit.sums16()
    } else {
        &unit.sums32
    }
}

/// 256-wide types: integer sub-scales, then one multiply-add a unit (and one for the minima).
#[inline(always)]
fn scaled<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    bias: i32,
    mut ahead: Ahead,
    sums: &mut [S::F],
) {
    let pace = ahead.pace(64 / F::GROUP);
    let mut total = [[s.splat(0); M]; N];
    for g in 0..64 / F::GROUP {
        if asks(M, N) {
            ahead.ask(s, pace);
        }
        for first in (g * F::GROUP..(g + 1) * F::GROUP).step_by(steps::<S, F>()) {
            let part = part::<S, F, M, N>(s, tiles, units, first, [s.splat(0); N]);
            for n in 0..N {
                for m in 0..M {
                    total[n][m] = s.scaled(total[n][m], part[n][m], tiles[m].scales[g]);
                }
            }
        }
    }
    settle::<S, F, M, N>(s, tiles, units, bias, &total, sums);
}

/// Adds the integer sums of a unit to the chains: less what the codes' bias adds to them, or besides the minima.
#[inline(always)]
fn settle<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    bias: i32,
    total: &[[S::I; M]; N],
    sums: &mut [S::F],
) {
    for n in 0..N {
        let scale = s.splat_float(units[n].scale);
        let pairs = self::sums::<F>(units[n]);
        for m in 0..M {
            let mut per_sum = s.splat(0);
            if F::MINIMA || bias != 0 {
                for (pair, sums) in pairs.iter().enumerate() {
                    per_sum = s.dot_pairs(per_sum, tiles[m].per_sum[pair], s.splat(*sums));
                }
            }
            let mut main = total[n][m];
            if F::MINIMA {
                let at = n * F::CHAINS * M + M + m;
                let factor = s.mul_float(tiles[m].m[0], scale);
                sums[at] = s.fma(factor, s.to_float(per_sum), sums[at]);
            } else if bias != 0 {
                main = s.sub(main, s.mul_low(per_sum, s.splat(bias as u32)));
            }
            let at = n * F::CHAINS * M + m;
            let factor = s.mul_float(tiles[m].d[0], scale);
            sums[at] = s.fma(factor, s.to_float(main), sums[at]);
        }
    }
}

/// Multiplies the codes of a unit with `N` rows as they come: few rows, for which a tile of codes would not pay.
struct Running<'a, S: Simd, F, const N: usize> {
    tile: &'a Tile<S>,
    units: &'a [&'a Unit; N],
    total: [[S::I; 1]; N],
    ahead: Ahead,
    form: PhantomData<F>,
}

impl<S: Simd, F: Form, const N: usize> Sink<S> for Running<'_, S, F, N> {
    #[inline(always)]
    fn group<const G: usize>(&mut self, s: S, word: usize, codes: [S::I; G]) {
        const { assert!(G == F::GROUP) };
        let scale = self.tile.scales[word / G];
        for first in (0..G).step_by(steps::<S, F>()) {
            let mut part = [s.splat(0); N];
            for i in first..first + steps::<S, F>() {
                self.ahead.ask_part(s, word + i, 64);
                for n in 0..N {
                    let acts = s.splat(self.units[n].codes[word + i]);
                    part[n] = s.dot(part[n], codes[i], acts);
                }
            }
            for n in 0..N {
                self.total[n][0] = s.scaled(self.total[n][0], part[n], scale);
            }
        }
    }
}

/// Unpacks a unit and adds its products to the chains of `N` rows, without leaving codes in a tile. The bytes at `next`, as many as the unit has, are asked for on
/// the way: for one row while the unit is read, as that is nearly all there is to do, else evenly over the products.
///
/// **Shapes**: `sums [N, F::CHAINS] x LANES f32`.
#[inline(always)]
pub(super) fn flow<S: Simd, C: Flow, const N: usize>(
    s: S,
    rows: Rows<S>,
    next: *const u8,
    tile: &mut [Tile<S>; 1],
    units: [&Unit; N],
    sums: &mut [S::F],
) {
    let (rows, ahead) = match N > 1 {
        false => (rows.asking(next), Ahead::NOTHING),
        true => (rows, Ahead::new(next, C::UNIT_BYTES * S::LANES)),
    };
    const { assert!(C::Form::SCALED && !C::Form::WIDE) };
    assert!(sums.len() == N * C::Form::CHAINS);
    C::head(s, &rows, &mut tile[0]);
    let mut running = Running::<S, C::Form, N> {
        tile: &tile[0],
        units: &units,
        total: [[s.splat(0); 1]; N],
        ahead,
        form: PhantomData,
    };
    C::codes(s, &rows, &mut running);
    let total = running.total;
    settle::<S, C::Form, 1, N>(s, tile, units, C::BIAS, &total, sums);
}

/// 32-wide types: a multiply-add a block, block `b` into chain `b`.
#[inline(always)]
fn plain<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    bias: i32,
    blocks: usize,
    mut ahead: Ahead,
    sums: &mut [S::F],
) {
    let pace = ahead.pace(blocks);
    for b in 0..blocks {
        if asks(M, N) {
            ahead.ask(s, pace);
        }
        let (mut acts, mut start) = ([0; N], [s.splat(0); N]);
        for n in 0..N {
            acts[n] = sum_of_block(units[n], b);
            start[n] = s.splat((-bias * acts[n]) as u32);
        }
        let total = block::<S, F, M, N>(s, tiles, units, b, start);
        for n in 0..N {
            let scale = s.splat_float(units[n].scale32(b));
            for m in 0..M {
                let at = (n * F::CHAINS + b) * M + m;
                let factor = s.mul_float(tiles[m].d[b], scale);
                sums[at] = s.fma(factor, s.to_float(total[n][m]), sums[at]);
                if F::MINIMA {
                    let at = (n * F::CHAINS + 8 + b) * M + m;
                    let factor = s.mul_float(tiles[m].m[b], scale);
                    let least = s.splat_float(acts[n] as f32);
                    sums[at] = s.fma(factor, least, sums[at]);
                }
            }
        }
    }
}

/// The sum of the codes `32 block ..`.
#[inline(always)]
fn sum_of_block(unit: &Unit, block: usize) -> i32 {
    let pair = unit.sums32[block / 2];
    i32::from(
        (if block.is_multiple_of(2) {
            pair
        } else {
            pair >> 16
        }) as i16,
    )
}

/// Codes times activations of a block, starting from `start`.
#[inline(always)]
fn block<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    block: usize,
    start: [S::I; N],
) -> [[S::I; M]; N] {
    if !S::SHORT {
        return part::<S, F, M, N>(s, tiles, units, block * F::GROUP, start);
    }
    let one = s.factor(s.splat(1));
    let mut total = [[s.splat(0); M]; N];
    for n in 0..N {
        total[n] = [start[n]; M];
    }
    for first in (block * F::GROUP..(block + 1) * F::GROUP).step_by(steps::<S, F>()) {
        let part = part::<S, F, M, N>(s, tiles, units, first, [s.splat(0); N]);
        for n in 0..N {
            for m in 0..M {
                total[n][m] = s.scaled(total[n][m], part[n][m], one);
            }
        }
    }
    total
}

/// Joins the chains of rows and writes the results: rows `row ..` of `out`, outputs `outputs`, at most `M * LANES`.
///
/// **Shapes**: `sums [rows, F::CHAINS, M] x LANES f32`.
#[inline(always)]
pub(super) fn finish<S: Simd, F: Form, const M: usize>(
    s: S,
    sums: &[S::F],
    out: &OutRows<'_>,
    row: usize,
    outputs: Range<usize>,
) {
    for (i, sums) in sums.chunks_exact(F::CHAINS * M).enumerate() {
        for m in 0..M {
            let first = outputs.start + m * S::LANES;
            if first < outputs.end {
                let lanes = s.floats(join::<S, F, M>(s, sums, m));
                out.write(
                    row + i,
                    first,
                    &lanes.as_ref()[..S::LANES.min(outputs.end - first)],
                );
            }
        }
    }
}

/// Joins the chains of one row: `sums [F::CHAINS, M] x LANES f32` to vector `m` of outputs.
#[inline(always)]
fn join<S: Simd, F: Form, const M: usize>(s: S, sums: &[S::F], m: usize) -> S::F {
    if F::SCALED {
        return if F::MINIMA {
            s.sub_float(sums[m], sums[M + m])
        } else {
            sums[m]
        };
    }
    let main = join_eight::<S, M>(s, &sums[..8 * M], m);
    if F::MINIMA {
        s.add_float(main, join_eight::<S, M>(s, &sums[8 * M..], m))
    } else {
        main
    }
}

/// Joins eight chains, `[8, M] x LANES f32`.
#[inline(always)]
fn join_eight<S: Simd, const M: usize>(s: S, sums: &[S::F], m: usize) -> S::F {
    let mut four = [s.splat_float(0.0); 4];
    for c in 0..4 {
        four[c] = s.add_float(sums[c * M + m], sums[(c + 4) * M + m]);
    }
    s.add_float(s.add_float(four[0], four[2]), s.add_float(four[1], four[3]))
}
