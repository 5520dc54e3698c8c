//! Passes over a whole row of logits, written so that compilers turn them into vector instructions.
//!
//! Sums run in [`LANES`] fixed lanes of f32 within a block and in f64 over blocks, and `exp` is plain multiplications and
//! additions, so results do not depend on the vector width that a compiler or a machine picks.

use super::cut::{self, Cut};
use crate::engine::request::Token;

/// Values that go through a loop body side by side.
const LANES: usize = 16;

/// Values summed in f32 before f64 takes over. A multiple of [`LANES`].
const BLOCK: usize = 256;

/// The largest logit, or none if one of them is not finite (or there are none).
///
/// **Shapes** `row [vocab] f32`.
pub(super) fn peak(row: &[f32]) -> Option<f32> {
    let mut peaks = [f32::NEG_INFINITY; LANES];
    let mut poison = [0.0f32; LANES]; // 0 x finite is 0; 0 x anything else is NaN, and stays
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            peaks[i] = if chunk[i] > peaks[i] {
                chunk[i]
            } else {
                peaks[i]
            };
            poison[i] += chunk[i] * 0.0;
        }
    }
    let finite = poison.iter().all(|p| *p == 0.0) && rest.iter().all(|l| l.is_finite());
    let peak = peaks
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max);
    (finite && !row.is_empty()).then_some(peak)
}

/// The first token whose logit is `peak`.
pub(super) fn first(row: &[f32], peak: f32) -> Token {
    let mut first = 0;
    for chunk in row.chunks(LANES * 4) {
        // The whole chunk, without leaving early: that is what vectorises.
        if chunk.iter().fold(false, |hit, l| hit | (*l == peak)) {
            first += chunk.iter().position(|l| *l == peak).unwrap_or(0);
            break;
        }
        first += chunk.len();
    }
    first as Token
}

/// `weights = exp(row - peak)`; returns their sum.
///
/// **Shapes** `row [vocab] f32 -> weights [vocab] f32`.
pub(super) fn exp_all(row: &[f32], peak: f32, weights: &mut Vec<f32>) -> f64 {
    weights.resize(row.len(), 0.0);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the line above found the feature on this machine.
        return unsafe { exp_all_avx2(row, peak, weights) };
    }
    exp_all_lanes(row, peak, weights)
}

/// The same code in registers twice as wide, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exp_all_avx2(row: &[f32], peak: f32, weights: &mut [f32]) -> f64 {
    exp_all_lanes(row, peak, weights)
}

#[inline(always)] // and loops rather than iterators that call back: so it takes on its caller's instruction set
fn exp_all_lanes(row: &[f32], peak: f32, weights: &mut [f32]) -> f64 {
    let mut total = 0.0;
    for (logits, weights) in row.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)) {
        for (weight, logit) in weights.iter_mut().zip(logits) {
            *weight = exp(logit - peak);
        }
        total += block_sum(weights, |_, weight| weight);
    }
    total
}

/// The distribution that is drawn from: weights `exp((row - peak) * sharpness)` of the tokens that the cut keeps.
pub(super) struct Tempered<'a> {
    /// `[vocab] f32`.
    pub(super) row: &'a [f32],
    pub(super) peak: f32,
    /// Keeps the likeliest at least.
    pub(super) cut: Cut,
    /// 1 / temperature.
    pub(super) sharpness: f32,
}

impl Tempered<'_> {
    /// The token at this share (`0..1`) of the sum of all weights, counted along the ids.
    pub(super) fn at(&self, share: f64, sums: &mut Vec<f64>) -> Token {
        sums.clear();
        self.sum(sums);
        let blocks = sums.iter().enumerate().map(|(i, sum)| (i * BLOCK, *sum));
        at_share(share, blocks, |first| {
            let block = self.row.iter().enumerate().skip(first).take(BLOCK);
            block.map(|(id, logit)| (id, self.weight(id, *logit)))
        })
    }

    fn sum(&self, sums: &mut Vec<f64>) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the line above found the feature on this machine.
            return unsafe { self.sum_avx2(sums) };
        }
        self.sum_lanes(sums);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn sum_avx2(&self, sums: &mut Vec<f64>) {
        self.sum_lanes(sums);
    }

    #[inline(always)]
    fn sum_lanes(&self, sums: &mut Vec<f64>) {
        for (i, logits) in self.row.chunks(BLOCK).enumerate() {
            sums.push(self.block(i * BLOCK, logits));
        }
    }

    /// Weight of a block whose first token is `first`.
    #[inline(always)]
    fn block(&self, first: usize, logits: &[f32]) -> f64 {
        let mut low = true;
        for logit in logits {
            low &= *logit < self.cut.logit;
        }
        if low {
            return 0.0;
        }
        block_sum(
            logits,
            #[inline(always)]
            |i, logit| self.weight(first + i, logit),
        )
    }

    #[inline(always)]
    fn weight(&self, id: usize, logit: f32) -> f32 {
        let weight = exp((logit - self.peak) * self.sharpness);
        if self.cut.keeps(logit, id as Token) {
            weight
        } else {
            0.0
        }
    }
}

/// The same distribution, given only the tokens that the cut keeps.
pub(super) struct TemperedFew<'a> {
    /// [`cut::key`]s in the order of their ids.
    pub(super) keys: &'a [u64],
    /// Tokens in the row.
    pub(super) vocab: usize,
    pub(super) peak: f32,
    /// 1 / temperature.
    pub(super) sharpness: f32,
}

impl TemperedFew<'_> {
    /// The same token as [`Tempered::at`] gives, bit for bit: tokens that are cut off weigh 0 there, and adding that changes no sum.
    pub(super) fn at(&self, share: f64, sums: &mut Vec<f64>) -> Token {
        sums.clear();
        sums.extend(self.blocks().map(|keys| self.block(keys)));
        let blocks = self.blocks().map(Self::first).zip(sums.iter().copied());
        at_share(share, blocks, |first| {
            let block = self.blocks().find(move |keys| Self::first(keys) == first);
            block.into_iter().flatten().map(|key| self.weight(*key))
        })
    }

    /// Keys of one block each.
    fn blocks(&self) -> impl Iterator<Item = &[u64]> + Clone {
        self.keys
            .chunk_by(|a, b| Self::first(&[*a]) == Self::first(&[*b]))
    }

    /// The block's first token.
    fn first(keys: &[u64]) -> usize {
        cut::token(keys[0]).0 as usize / BLOCK * BLOCK
    }

    fn block(&self, keys: &[u64]) -> f64 {
        let first = Self::first(keys);
        let mut weights = [0.0; BLOCK];
        for (id, weight) in keys.iter().map(|key| self.weight(*key)) {
            weights[id - first] = weight;
        }
        let tokens = BLOCK.min(self.vocab - first);
        block_sum(&weights[..tokens], |_, weight| weight)
    }

    fn weight(&self, key: u64) -> (usize, f32) {
        let (id, logit) = cut::token(key);
        (id as usize, exp((logit - self.peak) * self.sharpness))
    }
}

/// The token at this share (`0..1`) of the sum of all weights, counted along the ids.
///
/// `blocks` are first ids and weights of blocks, `tokens(first)` are ids and weights of the tokens in one.
fn at_share<I: Iterator<Item = (usize, f32)>>(
    share: f64,
    blocks: impl Iterator<Item = (usize, f64)> + Clone,
    tokens: impl FnOnce(usize) -> I,
) -> Token {
    let mut left = share * blocks.clone().map(|(_, sum)| sum).sum::<f64>();
    // Rounding may leave a little over at the end: it is the last block's, and there the last token's, of any weight.
    let mut first = 0;
    for (block, sum) in blocks.filter(|(_, sum)| *sum > 0.0) {
        first = block;
        if left < sum {
            break;
        }
        left -= sum;
    }
    let mut token = first;
    for (id, weight) in tokens(first).filter(|(_, weight)| *weight > 0.0) {
        token = id;
        left -= weight as f64;
        if left < 0.0 {
            break;
        }
    }
    token as Token
}

/// The sum of `f(index, value)` over a block, in lanes.
#[inline(always)]
fn block_sum(block: &[f32], f: impl Fn(usize, f32) -> f32) -> f64 {
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for (i, chunk) in chunks.iter().enumerate() {
        for lane in 0..LANES {
            sums[lane] += f(i * LANES + lane, chunk[lane]);
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += sum as f64;
    }
    let first = chunks.len() * LANES;
    for (i, value) in rest.iter().enumerate() {
        total += f(first + i, *value) as f64;
    }
    total
}

/// e^x for x <= 0, within 2 units in the last place; 0 below -87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let underflow = x < -87.0;
    let x = if underflow { -87.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    // ln 2 in two parts, the first with zeros at the end so that its product is exact.
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    // e^r on [-ln 2 / 2, ln 2 / 2]: 1 + r + r^2 p(r), p of degree 5 fitted for the largest relative error (Cephes' expf).
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let e = p * (r * r) + r + 1.0;
    let exponent = (rounded.to_bits() as i32 - ROUND.to_bits() as i32 + 127) << 23;
    let e = e * f32::from_bits(exponent as u32);
    if underflow { 0.0 } else { e }
}
