//! The router: which experts a row goes to and how much each counts, rows grouped by expert, and the experts' results put together.
//!
//! Knows logits, expert numbers and ranks; knows no weights and not where an expert is computed. A row's choice and sum do not depend on
//! the other rows; the sum goes in the order of the choice, the shared expert last.

mod combine;
mod groups;

pub use combine::{Combine, ExpertBias, SharedExpert};
pub use groups::Groups;

pub use crate::backend::shape::Gating;

use super::{
    isa::Isa,
    math::{
        add_body, exp_of,
        lanes::{LANES, Lanes, per_isa},
        sigmoid_of, softmax_body, softplus_of,
    },
    pool::{Disjoint, Pool},
};

/// How a layer routes.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// Experts of the layer, at most 65,536.
    pub experts: usize,
    /// Experts a row goes to, between 1 and `experts`.
    pub top_k: usize,
    /// What makes a probability of a logit.
    pub gating: Gating,
    /// `[experts] f32`, added to the logits.
    pub bias: Option<&'a [f32]>,
    /// `[experts] f32`, added for the choice only, not for the weight.
    pub choice_bias: Option<&'a [f32]>,
    /// `[experts] f32`, factor on the weight of a chosen expert.
    pub expert_scale: Option<&'a [f32]>,
    /// Whether a row's weights are made to add up to one.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// The least sum that weights are divided by.
///
/// **Source**: the smallest normal half-precision number, as in the GGUF reference implementation.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// Rows that one task routes.
const TASK_ROWS: usize = 16;

impl Router<'_> {
    /// Chooses each row's experts: greatest probability first, of equal ones the lower number first. A NaN counts as the least, so the choice is
    /// always `top_k` different experts.
    ///
    /// **Shapes**: `logits [rows, experts] f32`, which become probabilities; `ids [rows, top_k] u16`, `weights [rows, top_k] f32`, by rank.
    ///
    /// **Panics** if a slice does not fit the others.
    pub fn run(
        &self,
        pool: &Pool,
        isa: Isa,
        logits: &mut [f32],
        ids: &mut [u16],
        weights: &mut [f32],
    ) {
        let (experts, top_k) = (self.experts, self.top_k);
        let rows = logits.len() / experts;
        assert!(
            (1..=experts).contains(&top_k) && experts <= 1 << 16,
            "{top_k} of {experts} experts"
        );
        assert!(
            [self.bias, self.choice_bias, self.expert_scale]
                .iter()
                .all(|vector| vector.is_none_or(|vector| vector.len() == experts)),
            "vectors of experts"
        );
        assert_eq!(
            (ids.len(), weights.len()),
            (rows * top_k, rows * top_k),
            "choices of {rows} rows"
        );
        let (logits, ids, weights) = (
            Disjoint::new(logits),
            Disjoint::new(ids),
            Disjoint::new(weights),
        );
        pool.run(rows.div_ceil(TASK_ROWS), |task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                // SAFETY: each row belongs to one task.
                let (logits, ids, weights) = unsafe {
                    (
                        logits.nth(row, experts),
                        ids.nth(row, top_k),
                        weights.nth(row, top_k),
                    )
                };
                route_row(isa, self, logits, ids, weights);
            }
        });
    }

    /// What the choice goes by.
    #[inline(always)]
    fn score(&self, probabilities: &[f32], expert: usize) -> f32 {
        let score = probabilities[expert] + self.choice_bias.map_or(0.0, |bias| bias[expert]);
        if score.is_nan() {
            f32::NEG_INFINITY
        } else {
            score
        }
    }

    /// The `top_k` best experts into `ids`; `scores [top_k]` is working memory.
    fn choose(&self, probabilities: &[f32], ids: &mut [u16], scores: &mut [f32]) {
        for expert in 0..self.experts {
            let score = self.score(probabilities, expert);
            let filled = expert.min(self.top_k);
            if filled == self.top_k && score <= scores[filled - 1] {
                continue;
            }
            // behind everything that is as good, so that the lower number stays first
            let mut at = filled.min(self.top_k - 1);
            while at > 0 && scores[at - 1] < score {
                (scores[at], ids[at]) = (scores[at - 1], ids[at - 1]);
                at -= 1;
            }
            (scores[at], ids[at]) = (score, expert as u16);
        }
    }
}

per_isa! {
    fn route_row(router: &Router<'_>, logits: &mut [f32], ids: &mut [u16], weights: &mut [f32]) = route_row_body;
}

#[inline(always)]
fn route_row_body<L: Lanes>(
    router: &Router<'_>,
    logits: &mut [f32],
    ids: &mut [u16],
    weights: &mut [f32],
) {
    if let Some(bias) = router.bias {
        add_body::<L>(bias, logits);
    }
    match router.gating {
        Gating::Softmax => softmax_body::<L>(logits),
        Gating::Sigmoid => {
            for part in logits.chunks_mut(LANES) {
                sigmoid_of(L::load_part(part)).store_part(part);
            }
        }
        Gating::SoftmaxOfChosen => {}
        Gating::SqrtSoftplus => {
            for part in logits.chunks_mut(LANES) {
                softplus_of(L::load_part(part)).store_part(part);
                part.iter_mut().for_each(|x| *x = x.sqrt());
            }
        }
    }
    router.choose(logits, ids, weights);
    for (weight, id) in weights.iter_mut().zip(&*ids) {
        *weight = logits[usize::from(*id)];
    }
    if router.gating == Gating::SoftmaxOfChosen {
        let greatest = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for weight in &mut *weights {
            *weight = exp_of(*weight - greatest);
        }
    }
    if router.renormalise || router.gating == Gating::SoftmaxOfChosen {
        let mut sum = 0.0;
        for weight in &*weights {
            sum += weight;
        }
        let sum = sum.max(LEAST_SUM);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights
        .iter_mut()
        .for_each(|weight| *weight *= router.scale);
    if let Some(scale) = router.expert_scale {
        for (weight, id) in weights.iter_mut().zip(&*ids) {
            *weight *= scale[usize::from(*id)];
        }
    }
}

#[cfg(test)]
mod tests;
