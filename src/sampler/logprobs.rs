//! Log-probabilities as clients see them: of the raw logits, before temperature, penalties and cuts.

use super::{Scratch, cut, scan};
use crate::engine::request::{Logprobs, Token};

/// The log-probability of `chosen` and of the `top` likeliest tokens, likeliest first.
///
/// **Shapes** `row [vocab] f32`, finite; `chosen` is in the vocabulary.
pub fn logprobs(row: &[f32], chosen: Token, top: usize, scratch: &mut Scratch) -> Logprobs {
    let peak = scan::peak(row).unwrap_or(0.0);
    let log_sum = scan::exp_all(row, peak, &mut scratch.cut.weights).ln() + peak as f64;
    let logprob = |logit: f32| (logit as f64 - log_sum) as f32;
    let keys = &mut scratch.cut.keys;
    cut::top(row, top.min(row.len()), keys);
    keys.sort_unstable_by(|a, b| b.cmp(a));
    let tokens = keys.iter().map(|key| cut::token(*key));
    Logprobs {
        chosen: logprob(row[chosen as usize]),
        top: tokens
            .map(|(token, logit)| (token, logprob(logit)))
            .collect(),
    }
}
