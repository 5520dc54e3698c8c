//! Rotary position embedding from a vector of frequencies.
//!
//! Every variant (plain, scaled, YaRN, sections) is a frequency vector by the time it comes here.

use super::lanes::{Lanes, per_isa};
use crate::backend::shape::RopePairs;

/// A rotation of the first `n` channels of a head, `n` twice the number of frequencies.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians per position, `[n / 2] f32`.
    frequencies: Vec<f32>,
    pairing: RopePairs,
    /// Factor on cosine and sine.
    magnitude: f32,
}

/// Cosines and sines for the rows of a window, shared by all layers.
#[derive(Clone, Debug, Default)]
pub struct RopeRows {
    /// `[rows, 2, n / 2] f32`: cosines, then sines, of a row.
    table: Vec<f32>,
}

impl Rope {
    /// **Shapes**: `frequencies [n / 2] f32`, radians per position. `magnitude` is 1 but for YaRN.
    pub fn new(frequencies: Vec<f32>, pairing: RopePairs, magnitude: f32) -> Self {
        Self {
            frequencies,
            pairing,
            magnitude,
        }
    }

    /// `base^(-2i/n)`, computed in f64.
    pub fn plain_frequencies(channels: usize, base: f64) -> Vec<f32> {
        let exponent = |pair: usize| -2.0 * pair as f64 / channels as f64;
        (0..channels / 2)
            .map(|pair| base.powf(exponent(pair)) as f32)
            .collect()
    }

    /// Channels that turn.
    pub fn channels(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Replaces `rows` by the table for `positions`, one row each. Angles, cosines and sines are computed in f64.
    pub fn fill(&self, positions: impl IntoIterator<Item = u32>, rows: &mut RopeRows) {
        rows.table.clear();
        for position in positions {
            let angle = |frequency: &f32| f64::from(position) * f64::from(*frequency);
            let scaled = |x: f64| x as f32 * self.magnitude;
            rows.table.extend(
                self.frequencies
                    .iter()
                    .map(|frequency| scaled(angle(frequency).cos())),
            );
            rows.table.extend(
                self.frequencies
                    .iter()
                    .map(|frequency| scaled(angle(frequency).sin())),
            );
        }
    }

    /// Turns one head by the angles of row `row`.
    ///
    /// **Shapes**: `head [head_dim] f32`, `head_dim >= n`; channels from `n` on stay.
    ///
    /// **Panics** if `rows` was filled for another rotation or fewer rows, or the head is too short.
    pub fn turn(&self, isa: super::super::isa::Isa, rows: &RopeRows, row: usize, head: &mut [f32]) {
        let channels = self.channels();
        let (cos, sin) = rows.table[row * channels..(row + 1) * channels].split_at(channels / 2);
        match self.pairing {
            RopePairs::Halves => turn_half(isa, cos, sin, &mut head[..channels]),
            RopePairs::Adjacent => turn_adjacent(isa, cos, sin, &mut head[..channels]),
        }
    }
}

per_isa! {
    fn turn_half(cos: &[f32], sin: &[f32], head: &mut [f32]) = turn_half_body;
    fn turn_adjacent(cos: &[f32], sin: &[f32], head: &mut [f32]) = turn_adjacent_body;
}

#[inline(always)]
fn turned(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos))
}

/// Element-wise in f32: the compiler picks the vectors, `L` only names the version.
#[inline(always)]
fn turn_half_body<L: Lanes>(cos: &[f32], sin: &[f32], head: &mut [f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*a, *b) = turned(*a, *b, *cos, *sin);
    }
}

/// As [`turn_half_body`].
#[inline(always)]
fn turn_adjacent_body<L: Lanes>(cos: &[f32], sin: &[f32], head: &mut [f32]) {
    for ([a, b], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(cos.iter().zip(sin)) {
        (*a, *b) = turned(*a, *b, *cos, *sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// Turns a head by complex multiplication in f64 and compares.
    fn check(pairing: RopePairs, channels: usize, width: usize, position: u32, magnitude: f32) {
        let rope = Rope::new(Rope::plain_frequencies(channels, 1e6), pairing, magnitude);
        let mut rows = RopeRows::default();
        rope.fill([7, position], &mut rows);
        let head: Vec<f32> = (0..width)
            .map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0)
            .collect();
        let mut want: Vec<f64> = head.iter().map(|x| f64::from(*x)).collect();
        for pair in 0..channels / 2 {
            let (a, b) = match pairing {
                RopePairs::Halves => (pair, pair + channels / 2),
                RopePairs::Adjacent => (2 * pair, 2 * pair + 1),
            };
            let angle = f64::from(position)
                * f64::from((1e6f64).powf(-2.0 * pair as f64 / channels as f64) as f32);
            let (x, y, m) = (want[a], want[b], f64::from(magnitude));
            want[a] = m * (x * angle.cos() - y * angle.sin());
            want[b] = m * (x * angle.sin() + y * angle.cos());
        }
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let mut got = head.clone();
            rope.turn(isa, &rows, 1, &mut got);
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (f64::from(*got) - want).abs() < 1e-6,
                    "{pairing:?} {channels} at {position}: {got} for {want}"
                );
            }
            assert_eq!(*first.get_or_insert_with(|| got.clone()), got, "{isa:?}");
        }
    }

    #[test]
    fn turns_like_complex_numbers() {
        for pairing in [RopePairs::Halves, RopePairs::Adjacent] {
            for (channels, width) in [(2, 2), (16, 64), (64, 256), (128, 128), (80, 80)] {
                for position in [0, 1, 63, 4097, 262_143] {
                    check(pairing, channels, width, position, 1.0);
                }
                check(pairing, channels, width, 100, 1.3466);
            }
        }
    }
}
