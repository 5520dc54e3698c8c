//! Chooses tokens: from a row of logits, a sequence's history and a seed to one token id.
//!
//! Knows a row and what came before in its own sequence; knows no other sequence, no window and no clock, so a choice is the
//! same alone or among others. The steps are llama.cpp's default order:
//!
//! 1. `logit_bias` is added,
//! 2. repetition, frequency and presence penalties change the logits of tokens that are already there,
//! 3. with temperature 0 the likeliest token is taken, and that is all,
//! 4. top-k, then top-p (of what top-k left), then min-p cut the candidates, on probabilities without temperature,
//! 5. temperature sharpens or flattens what is left, and one draw decides.
//!
//! Equal logits count in the order of their ids. A draw is a function of (seed, position) alone. Probabilities come from
//! plain IEEE operations in a fixed order, so machines agree on them.
//!
//! Most choices need the likeliest few tokens only; a device that tells these spares the transfer of the row. They are chosen from
//! where they prove the choice, so it is the same either way.

mod among;
mod cut;
mod draw;
mod history;
mod logprobs;
mod scan;

pub use self::logprobs::logprobs;
use self::{cut::Cut, history::History};
use crate::engine::request::{Sampling, Token};

/// Below this, a temperature is 0.
const TEMPERATURE_MIN: f32 = 1e-5;

/// A NaN or an infinity among the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a logit is not finite")]
pub struct NotFinite;

/// Memory for one choice at a time, used again and again. Grows to the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The row after bias and penalties.
    adjusted: Vec<f32>,
    cut: cut::Scratch,
    /// Weights of the row's blocks, for the draw.
    sums: Vec<f64>,
}

/// The numbers by which a token is chosen, for who chooses elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odds {
    /// 1 / temperature; 0 is greedy.
    pub sharpness: f32,
    /// 0 keeps all.
    pub top_k: usize,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
}

/// How one sequence's tokens are chosen, and what of its history that needs.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0 is greedy.
    temperature: f32,
    /// 0 keeps all.
    top_k: usize,
    /// 1 keeps all.
    top_p: f32,
    /// 0 keeps all.
    min_p: f32,
    seed: u64,
    history: History,
}

impl Sampler {
    /// A sampler at the end of `prompt`. Settings outside their range count as the nearest that makes sense, NaN as off.
    pub fn new(sampling: &Sampling, prompt: &[Token]) -> Self {
        let share = |value: f32, off: f32| match value.is_nan() {
            true => off,
            false => value.clamp(0.0, 1.0),
        };
        let temperature = match sampling.temperature {
            warm if warm >= TEMPERATURE_MIN => warm,
            _ => 0.0,
        };
        Self {
            temperature,
            top_k: sampling.top_k,
            top_p: share(sampling.top_p, 1.0),
            min_p: share(sampling.min_p, 0.0),
            seed: sampling.seed,
            history: History::new(sampling, prompt),
        }
    }

    /// The token at `position`, the one after the row's own.
    ///
    /// **Shapes** `row [vocab] f32`.
    /// **Errors** A logit that is not finite.
    pub fn choose(
        &self,
        row: &[f32],
        position: u64,
        scratch: &mut Scratch,
    ) -> Result<Token, NotFinite> {
        let mut peak = scan::peak(row).ok_or(NotFinite)?;
        let mut row = row;
        if self.history.matters() {
            scratch.adjusted.clear();
            scratch.adjusted.extend_from_slice(row);
            self.history.adjust(&mut scratch.adjusted);
            row = &scratch.adjusted;
            peak = scan::peak(row).ok_or(NotFinite)?;
        }
        if self.temperature == 0.0 {
            return Ok(scan::first(row, peak));
        }
        let cut = self.cut(row, peak, &mut scratch.cut);
        let weights = scan::Tempered {
            row,
            peak,
            cut,
            sharpness: 1.0 / self.temperature,
        };
        Ok(weights.at(self.share(position), &mut scratch.sums))
    }

    /// By which numbers it chooses, bias and penalties apart.
    pub fn odds(&self) -> Odds {
        Odds {
            sharpness: match self.is_sampled() {
                true => 1.0 / self.temperature,
                false => 0.0,
            },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
        }
    }

    /// Whether chance decides.
    pub fn is_sampled(&self) -> bool {
        self.temperature > 0.0
    }

    /// Takes note of the token that was chosen.
    pub fn accept(&mut self, token: Token) {
        self.history.accept(token);
    }

    /// Where in the distribution, from 0 up to 1 along the ids, the token at `position` is drawn.
    pub fn share(&self, position: u64) -> f64 {
        draw::uniform(self.seed, position)
    }

    /// Which tokens may be drawn.
    fn cut(&self, row: &[f32], peak: f32, scratch: &mut cut::Scratch) -> Cut {
        let p = self.top_p as f64;
        let by_rank = match ((1..row.len()).contains(&self.top_k), self.top_p < 1.0) {
            (true, true) => cut::mass_of_top(row, peak, self.top_k, p, scratch),
            (true, false) => cut::top(row, self.top_k, &mut scratch.keys),
            (false, true) => cut::mass(row, peak, p, scratch),
            (false, false) => Cut::NONE,
        };
        by_rank.or(self.min_cut(peak))
    }

    fn min_cut(&self, peak: f32) -> Cut {
        // In f64, whose logarithm is the same everywhere once it is rounded to f32.
        let below_peak = (self.min_p as f64).ln();
        Cut::at((peak as f64 + below_peak) as f32)
    }
}

#[cfg(test)]
mod tests;
