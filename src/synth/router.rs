//! Routers whose experts are not equally popular: the expert of rank r is used by a share of the tokens that falls as r^-1.2.
//!
//! A router is a matrix without bias, so popularity needs something that all inputs share. All token embeddings begin with the same values;
//! through the residual they reach every router, scaled by the norm before it. A router row is a constant along that direction, the
//! expert's popularity, and noise of spread 1 on all other channels, which differs from token to token. An expert is used where its score
//! passes a threshold, so the constant is the normal quantile of its share.

use super::blocks::BlockWriter;
use super::plan::PlannedTensor;
use super::random::Random;
use crate::quant::{LengthMismatch, dequantise};

/// Exponent of the popularity.
const SKEW: f32 = 1.2;
/// Values shared at the start of every embedding are one in this many.
const SHARED_PART: usize = 8;
/// The widest block, of which shared values are a multiple.
const WIDEST_BLOCK: usize = 256;

/// What all embeddings begin with.
#[derive(Clone, Debug)]
pub(super) struct CommonStart {
    /// As stored.
    pub(super) bytes: Vec<u8>,
    /// As numbers.
    pub(super) values: Vec<f32>,
}

impl CommonStart {
    /// Draws it for a table of embeddings.
    pub(super) fn new(
        embeddings: &PlannedTensor,
        writer: &BlockWriter,
        random: &mut Random,
    ) -> Result<Self, LengthMismatch> {
        let width = (embeddings.dims[0] / SHARED_PART)
            .next_multiple_of(WIDEST_BLOCK)
            .min(embeddings.dims[0]);
        let mut bytes = vec![0; width / embeddings.ty.block_values() * embeddings.ty.block_bytes()];
        let mut values = vec![0.0; width];
        writer.fill(random, 1.0, &mut bytes);
        dequantise(embeddings.ty, &bytes, &mut values)?;
        Ok(Self { bytes, values })
    }

    /// A router `[experts, width] f32` for hidden states of unit mean square, of which `used` experts are chosen.
    pub(super) fn router(
        &self,
        width: usize,
        experts: usize,
        used: usize,
        random: &mut Random,
    ) -> Vec<f32> {
        let energy: f32 = self.values.iter().map(|x| x * x).sum();
        let noise = ((width - self.values.len()) as f32).sqrt().recip();
        let mut shares = shares(experts, used);
        for last in (1..experts).rev() {
            shares.swap(last, random.below(last + 1));
        }
        let mut rows = Vec::with_capacity(width * experts);
        for share in shares {
            let along = normal_quantile(share) / energy;
            rows.extend(self.values.iter().map(|x| along * x));
            rows.extend((self.values.len()..width).map(|_| random.centred(noise)));
        }
        rows
    }
}

/// The share of tokens that use the expert of each rank: `1 - exp(-c r^-1.2)`, a power law that cannot pass 1, with the sum `used`.
pub(super) fn shares(experts: usize, used: usize) -> Vec<f32> {
    let at = |c: f32| (1..=experts).map(move |rank| -(-c * (rank as f32).powf(-SKEW)).exp_m1());
    // The sum rises with c; halving finds it. With all experts used every share is 1, less a hair that keeps quantiles finite.
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if at(middle).sum::<f32>() < used as f32 {
            low = middle
        } else {
            high = middle
        }
    }
    at(low).map(|share| share.clamp(1e-6, 1.0 - 1e-6)).collect()
}

/// The number that a standard normal variable stays below with probability `p`, to two digits.
///
/// **Source**: Winitzki, A handy approximation for the error function and its inverse, 2008.
fn normal_quantile(p: f32) -> f32 {
    const A: f32 = 0.147;
    let x = 2.0 * p - 1.0;
    let log = (1.0 - x * x).ln();
    let half = 2.0 / (std::f32::consts::PI * A) + log / 2.0;
    (2.0 * ((half * half - log / A).sqrt() - half))
        .sqrt()
        .copysign(x)
}
