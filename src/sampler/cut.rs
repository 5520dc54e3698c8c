//! Which tokens may be drawn: a line through the vocabulary by (logit, id), so every cut is a comparison a token.
//!
//! Knows one row; that the likeliest token always stays is what the rest relies on.

use super::scan;
use crate::engine::request::Token;

/// Logits looked at together when most of them fall short.
const BLOCK: usize = 32;

/// Histogram buckets: weights of (0, 1], 32 to a factor of two.
const BUCKETS: usize = bucket(1.0) + 1;

const fn bucket(weight: f32) -> usize {
    (weight.to_bits() >> 18) as usize
}

/// A line through the tokens of a row: those above it stay. Equal logits are told apart by id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    /// Lowest logit that stays.
    pub(super) logit: f32,
    /// Last id that stays of those with just that logit.
    pub(super) last: Token,
}

impl Cut {
    /// Everything stays.
    pub(super) const NONE: Self = Self::at(f32::NEG_INFINITY);

    /// Tokens with at least this logit stay.
    pub(super) const fn at(logit: f32) -> Self {
        Self {
            logit,
            last: Token::MAX,
        }
    }

    /// Whether a token stays.
    #[inline(always)]
    pub(super) fn keeps(self, logit: f32, id: Token) -> bool {
        (logit > self.logit) | ((logit == self.logit) & (id <= self.last))
    }

    /// The stricter of two.
    pub(super) fn or(self, other: Self) -> Self {
        if self.keeps(other.logit, other.last) {
            other
        } else {
            self
        }
    }
}

/// Memory for one cut at a time.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Tokens of a selection, as [`key`]s.
    pub(super) keys: Vec<u64>,
    /// Every token's weight: its probability, up to a common factor.
    pub(super) weights: Vec<f32>,
    /// Weight by bucket.
    histogram: Vec<f64>,
    /// Tokens whose weight is near the cut, as [`key`]s.
    near: Vec<u64>,
}

/// Leaves the `k` likeliest of at least `k` tokens. Afterwards `keys` holds just their keys, in no order.
///
/// Keeps a handful of tokens and passes over whatever does not beat the worst of the `k` likeliest so far.
pub(super) fn top(row: &[f32], k: usize, keys: &mut Vec<u64>) -> Cut {
    let room = k.saturating_mul(4).max(1024);
    let mut floor = f32::NEG_INFINITY;
    keys.clear();
    for (block, logits) in row.chunks(BLOCK).enumerate() {
        if !logits.iter().fold(false, |hit, l| hit | (*l > floor)) {
            continue;
        }
        // An equal logit that comes later has the higher id and so loses.
        let better = logits.iter().enumerate().filter(|(_, l)| **l > floor);
        keys.extend(better.map(|(i, l)| key(*l, (block * BLOCK + i) as Token)));
        if keys.len() >= room {
            floor = keep(keys, k).logit;
        }
    }
    keep(keys, k)
}

/// Keeps the `k` largest keys and returns the smallest of them as a cut.
fn keep(keys: &mut Vec<u64>, k: usize) -> Cut {
    let Some(worst) = k.checked_sub(1) else {
        keys.clear();
        return Cut::at(f32::INFINITY);
    };
    let (_, kth, _) = keys.select_nth_unstable_by(worst, |a, b| b.cmp(a));
    let cut = at(*kth);
    keys.truncate(k);
    cut
}

/// Leaves the fewest of the `k` likeliest tokens that have the share `p` of the weight of these `k`.
pub(super) fn mass_of_top(row: &[f32], peak: f32, k: usize, p: f64, scratch: &mut Scratch) -> Cut {
    top(row, k, &mut scratch.keys);
    scratch.keys.sort_unstable_by(|a, b| b.cmp(a));
    mass_of(&scratch.keys, peak, p)
}

/// Leaves the fewest of these tokens, likeliest first, that have the share `p` of their weight.
pub(super) fn mass_of(keys: &[u64], peak: f32, p: f64) -> Cut {
    let total: f64 = keys.iter().map(|key| weight(*key, peak)).sum();
    let last = reach(p * total, keys, peak);
    last.or(keys.last().map(|key| at(*key)))
        .unwrap_or(Cut::NONE)
}

/// Where these tokens, likeliest first, reach a weight, if they do.
pub(super) fn reach(target: f64, keys: &[u64], peak: f32) -> Option<Cut> {
    reach_from(0.0, target, keys, |key| weight(*key, peak))
}

/// The weight of a key's token.
pub(super) fn weight(key: u64, peak: f32) -> f64 {
    scan::exp(token(key).1 - peak) as f64
}

/// Leaves the fewest of the likeliest tokens that have the share `p` of all weight.
///
/// A histogram finds the bucket of weights in which the share is reached; only that bucket is sorted.
pub(super) fn mass(row: &[f32], peak: f32, p: f64, scratch: &mut Scratch) -> Cut {
    let Scratch {
        weights,
        histogram,
        near,
        ..
    } = scratch;
    let total = scan::exp_all(row, peak, weights);
    // Tokens lighter than this are less than what is cut off, all of them together.
    let lightest = ((1.0 - p) * total / row.len() as f64) as f32;
    histogram.clear();
    histogram.resize(BUCKETS, 0.0);
    for block in heavy(weights, lightest) {
        for weight in block.1 {
            histogram[bucket(*weight).min(BUCKETS - 1)] += *weight as f64;
        }
    }
    let target = p * total;
    let mut above = 0.0;
    let reached = histogram.iter().rposition(|here| {
        let reached = *here > 0.0 && above + here >= target;
        above += if reached { 0.0 } else { *here };
        reached
    });
    let Some(reached) = reached else {
        return Cut::NONE; // rounding: all of them together just miss it
    };
    near.clear();
    for (first, block) in heavy(weights, lightest) {
        let here = block
            .iter()
            .enumerate()
            .filter(|(_, w)| bucket(**w).min(BUCKETS - 1) == reached);
        near.extend(here.map(|(i, _)| key(row[first + i], (first + i) as Token)));
    }
    near.sort_unstable_by(|a, b| b.cmp(a));
    let last = reach_from(above, target, near, |key| {
        weights[token(*key).0 as usize] as f64
    });
    last.or(near.last().map(|key| at(*key)))
        .unwrap_or(Cut::NONE)
}

/// Blocks with a weight of at least `lightest`, each with the id of its first token.
fn heavy(weights: &[f32], lightest: f32) -> impl Iterator<Item = (usize, &[f32])> {
    let blocks = weights
        .chunks(BLOCK)
        .enumerate()
        .map(|(i, block)| (i * BLOCK, block));
    blocks.filter(move |(_, block)| block.iter().fold(false, |hit, w| hit | (*w >= lightest)))
}

/// Goes down `keys`, likeliest first, until `target` is reached; `above` is reached before the first.
fn reach_from(
    mut above: f64,
    target: f64,
    keys: &[u64],
    weight: impl Fn(&u64) -> f64,
) -> Option<Cut> {
    let last = keys.iter().find(|key| {
        above += weight(key);
        above >= target
    });
    last.map(|key| at(*key))
}

/// A number that orders tokens: larger logit first, then lower id.
pub(super) fn key(logit: f32, id: Token) -> u64 {
    let bits = (logit + 0.0).to_bits(); // + 0: there is one zero
    let ordered = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    (ordered as u64) << 32 | !id as u64
}

/// The token and logit of a key.
pub(super) fn token(key: u64) -> (Token, f32) {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    };
    (!(key as u32), f32::from_bits(bits))
}

/// The line just below a key's token.
pub(super) fn at(key: u64) -> Cut {
    let (last, logit) = token(key);
    Cut { logit, last }
}
