//! What a sequence's own past does to its logits: bias and penalties.
//!
//! Knows token ids and counts. Keeps no history at all if no penalty needs it.

use std::collections::HashMap;

use crate::engine::request::{Sampling, Token};

/// Adjustments beyond this are the same as this: it decides any comparison, and sums of it stay finite.
const ADJUSTMENT_MAX: f32 = 1e6;

/// The settings that look at the past, and the past as far as they need it.
#[derive(Clone, Debug)]
pub(super) struct History {
    bias: Vec<(Token, f32)>,
    /// 1 is off.
    repetition: f32,
    /// 0 is off.
    presence: f32,
    /// 0 is off.
    frequency: f32,
    /// Tokens of prompt and output, each with its count in the output. Empty if no penalty is on.
    seen: HashMap<Token, u32>,
}

impl History {
    pub(super) fn new(sampling: &Sampling, prompt: &[Token]) -> Self {
        let sane = |x: f32| {
            if x.is_nan() {
                0.0
            } else {
                x.clamp(-ADJUSTMENT_MAX, ADJUSTMENT_MAX)
            }
        };
        let repetition = sampling.repetition_penalty;
        let repetition = if repetition > 0.0 {
            repetition.clamp(1.0 / ADJUSTMENT_MAX, ADJUSTMENT_MAX)
        } else {
            1.0 // nothing can be divided by 0, and NaN is off
        };
        let mut history = Self {
            bias: sampling
                .logit_bias
                .iter()
                .map(|&(token, bias)| (token, sane(bias)))
                .collect(),
            repetition,
            presence: sane(sampling.presence_penalty),
            frequency: sane(sampling.frequency_penalty),
            seen: HashMap::new(),
        };
        if history.repetition != 1.0 {
            // Only the repetition penalty looks at the prompt.
            history.seen.extend(prompt.iter().map(|&token| (token, 0)));
        }
        history
    }

    fn penalises(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Whether `adjust` would change anything, now or after the next token.
    pub(super) fn may_matter(&self) -> bool {
        !self.bias.is_empty() || self.penalises()
    }

    /// Whether `adjust` would change anything.
    pub(super) fn matters(&self) -> bool {
        !self.bias.is_empty() || (self.penalises() && !self.seen.is_empty())
    }

    /// Takes note of an output token.
    pub(super) fn accept(&mut self, token: Token) {
        if self.penalises() {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    /// Biases and penalises a row. Finite logits stay finite.
    pub(super) fn adjust(&self, row: &mut [f32]) {
        for &(token, bias) in &self.bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit += bias;
            }
        }
        // In no particular order: each token is changed on its own.
        for (&token, &count) in &self.seen {
            let Some(logit) = row.get_mut(token as usize) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= self.repetition;
            } else {
                *logit *= self.repetition;
            }
            if count > 0 {
                *logit -= self.presence + self.frequency * count as f32;
            }
        }
    }
}
