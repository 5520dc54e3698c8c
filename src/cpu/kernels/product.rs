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
    vectors * rows > 2
}

/// Codes times activations of one group of `F::GROUP` words, starting from `init`.
#[inline(always)]
fn group<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    group: usize,
    starts: &Starts<N>,
) -> [[S::I; M]; N] {
    let mut part = [[s.splat(0); M]; N];
    if !F::MINIMA {
        for n in 0..N {
            part[n] = [s.splat(starts[n][group] as u32); M];
        }
    }
    for word in group * F::GROUP..(group + 1) * F::GROUP {
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

/// `[N, groups] i32`: what groups' sums start from.
type Starts<const N: usize> = [[i32; 16]; N];

/// Takes the bias of the codes out of every group's sum: `-bias * (sum of the group's activations)`.
#[inline(always)]
fn unbias<F: Form, const N: usize>(units: [&Unit; N], bias: i32) -> Starts<N> {
    let mut starts = [[0; 16]; N];
    for n in 0..N {
        let pairs: &[u32] = sums::<F>(units[n]);
        for (start, pair) in starts[n].as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
            *start = [
                -bias * i32::from(*pair as i16),
                -bias * (*pair as i32 >> 16),
            ];
        }
    }
    starts
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
    let starts = unbias::<F, N>(units, bias);
    let mut total = [[s.splat(0); M]; N];
    for g in 0..64 / F::GROUP {
        if asks(M, N) {
            ahead.ask(s, pace);
        }
        let part = group::<S, F, M, N>(s, tiles, units, g, &starts);
        for n in 0..N {
            for m in 0..M {
                total[n][m] = s.add(total[n][m], s.mul_low(part[n][m], tiles[m].scales[g]));
            }
        }
    }
    settle::<S, F, M, N>(s, tiles, units, &total, sums);
}

/// Adds the integer sums of a unit, and its minima, to the chains.
#[inline(always)]
fn settle<S: Simd, F: Form, const M: usize, const N: usize>(
    s: S,
    tiles: &[Tile<S>; M],
    units: [&Unit; N],
    total: &[[S::I; M]; N],
    sums: &mut [S::F],
) {
    for n in 0..N {
        let scale = s.splat_float(units[n].scale);
        for m in 0..M {
            let at = n * F::CHAINS * M + m;
            let factor = s.mul_float(tiles[m].d[0], scale);
            sums[at] = s.fma(factor, s.to_float(total[n][m]), sums[at]);
        }
    }
    if !F::MINIMA {
        return;
    }
    for n in 0..N {
        let scale = s.splat_float(units[n].scale);
        let pairs = self::sums::<F>(units[n]);
        for m in 0..M {
            let mut least = s.splat(0);
            for (pair, sums) in pairs.iter().enumerate() {
                least = s.dot_pairs(least, tiles[m].minima[pair], s.splat(*sums));
            }
            let at = n * F::CHAINS * M + M + m;
            let factor = s.mul_float(tiles[m].m[0], scale);
            sums[at] = s.fma(factor, s.to_float(least), sums[at]);
        }
    }
}

/// Multiplies the codes of a unit with `N` rows as they come: few rows, for which a tile of codes would not pay.
struct Running<'a, S: Simd, F, const N: usize> {
    tile: &'a Tile<S>,
    units: &'a [&'a Unit; N],
    starts: Starts<N>,
    total: [[S::I; 1]; N],
    form: PhantomData<F>,
}

impl<S: Simd, F: Form, const N: usize> Sink<S> for Running<'_, S, F, N> {
    #[inline(always)]
    fn group<const G: usize>(&mut self, s: S, word: usize, codes: [S::I; G]) {
        const { assert!(G == F::GROUP) };
        let group = word / G;
        let mut part = [s.splat(0); N];
        if !F::MINIMA {
            for n in 0..N {
                part[n] = s.splat(self.starts[n][group] as u32);
            }
        }
        for i in 0..G {
            for n in 0..N {
                let acts = s.splat(self.units[n].codes[word + i]);
                part[n] = s.dot(part[n], codes[i], acts);
            }
        }
        for n in 0..N {
            let scaled = s.mul_low(part[n], self.tile.scales[group]);
            self.total[n][0] = s.add(self.total[n][0], scaled);
        }
    }
}

/// Unpacks a unit and adds its products to the chains of `N` rows, without leaving codes in a tile.
///
/// **Shapes**: `sums [N, F::CHAINS] x LANES f32`.
#[inline(always)]
pub(super) fn flow<S: Simd, C: Flow, const N: usize>(
    s: S,
    rows: &Rows<S>,
    tile: &mut [Tile<S>; 1],
    units: [&Unit; N],
    sums: &mut [S::F],
) {
    const { assert!(C::Form::SCALED && !C::Form::WIDE) };
    assert!(sums.len() == N * C::Form::CHAINS);
    C::head(s, rows, &mut tile[0]);
    let mut running = Running::<S, C::Form, N> {
        tile: &tile[0],
        units: &units,
        starts: unbias::<C::Form, N>(units, C::BIAS),
        total: [[s.splat(0); 1]; N],
        form: PhantomData,
    };
    C::codes(s, rows, &mut running);
    let total = running.total;
    settle::<S, C::Form, 1, N>(s, tile, units, &total, sums);
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
    let starts = unbias::<F, N>(units, if F::MINIMA { 1 } else { bias });
    for b in 0..blocks {
        if asks(M, N) {
            ahead.ask(s, pace);
        }
        let part = group::<S, F, M, N>(s, tiles, units, b, &starts);
        for n in 0..N {
            let scale = s.splat_float(units[n].scale32(b));
            for m in 0..M {
                let at = (n * F::CHAINS + b) * M + m;
                let factor = s.mul_float(tiles[m].d[b], scale);
                sums[at] = s.fma(factor, s.to_float(part[n][m]), sums[at]);
                if F::MINIMA {
                    let at = (n * F::CHAINS + 8 + b) * M + m;
                    let factor = s.mul_float(tiles[m].m[b], scale);
                    let least = s.splat_float(-starts[n][b] as f32);
                    sums[at] = s.fma(factor, least, sums[at]);
                }
            }
        }
    }
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
