//! Choosing from the likeliest tokens alone, wherever these prove what the whole row would give.
//!
//! Knows the candidates, and of all other tokens that none of them is likelier and what all of them weigh together, almost exactly. So a
//! cut is made twice, as loose and as strict as that leaves it: where both give the same line, and no token beyond
//! the candidates could be above it, it is the line of the whole row.

use super::{
    Sampler, Scratch,
    cut::{self, Cut},
    scan,
};
use crate::engine::{
    executor::{Ask, Candidates, MASS_TOLERANCE},
    request::Token,
};

/// **Units**: relative. How far the candidates' mass may be from what [`Sampler::choose`] adds up: that rounds too, by less.
const SLACK: f64 = 2.0 * MASS_TOLERANCE;

impl Sampler {
    /// What has to be known of the next rows, from an executor that tells so many candidates.
    pub fn ask(&self, candidates: usize) -> Ask {
        let cuts = self.top_p < 1.0 || self.min_p > 0.0 || (1..=candidates).contains(&self.top_k);
        if self.history.may_matter() {
            Ask::Logits
        } else if self.temperature == 0.0 {
            Ask::Greedy
        } else if cuts && candidates > 0 {
            Ask::Candidates
        } else {
            Ask::Logits
        }
    }

    /// What has to be known of a row, by whoever has all of it, to draw by [`odds`](Self::odds).
    pub fn ask_to_draw(&self, candidates: usize) -> Ask {
        let cuts = self.top_p < 1.0 || (1..=candidates).contains(&self.top_k);
        if cuts && self.is_sampled() {
            Ask::Candidates
        } else {
            Ask::Greedy
        }
    }

    /// The token that [`choose`](Self::choose) gives for the whole row, or none if that cannot be told from these candidates.
    pub fn choose_among(
        &self,
        of: &Candidates<'_>,
        position: u64,
        scratch: &mut Scratch,
    ) -> Option<Token> {
        let (&likeliest, &peak) = of.ids.first().zip(of.logits.first())?;
        if self.history.matters() {
            return None;
        }
        if self.temperature == 0.0 {
            return Some(likeliest);
        }
        let Scratch {
            cut: cut::Scratch { keys, .. },
            sums,
            ..
        } = scratch;
        keys.clear();
        keys.extend(
            of.ids
                .iter()
                .zip(of.logits)
                .map(|(id, l)| cut::key(*l, *id)),
        );
        debug_assert!(keys.is_sorted_by(|a, b| a > b), "likeliest first");
        let cut = self.proven_cut(of, peak, keys)?;
        keys.retain(|key| {
            let (id, logit) = cut::token(*key);
            cut.keeps(logit, id)
        });
        keys.sort_unstable_by_key(|key| cut::token(*key).0);
        let weights = scan::TemperedFew {
            keys,
            vocab: of.vocab,
            peak,
            sharpness: 1.0 / self.temperature,
        };
        Some(weights.at(self.share(position), sums))
    }

    /// The cut of the whole row. `keys` are the candidates, likeliest first.
    fn proven_cut(&self, of: &Candidates<'_>, peak: f32, keys: &[u64]) -> Option<Cut> {
        let all = keys.len() >= of.vocab;
        let beyond = if all {
            Cut::NONE
        } else {
            cut::at(*keys.last()?)
        };
        let p = self.top_p as f64;
        let tops = (1..of.vocab).contains(&self.top_k).then_some(self.top_k);
        let [loose, strict] = match (tops, self.top_p < 1.0) {
            (Some(k), true) if k <= keys.len() => [cut::mass_of(&keys[..k], peak, p); 2],
            (Some(k), false) if k <= keys.len() => [cut::at(keys[k - 1]); 2],
            (Some(_), false) => [Cut::NONE, beyond],
            (None, false) => [Cut::NONE; 2],
            (top, true) => {
                let known: f64 = keys.iter().map(|key| cut::weight(*key, peak)).sum();
                let least = if top.is_some() { known } else { of.mass };
                let reach = |mass: f64| cut::reach(p * mass, keys, peak).unwrap_or(Cut::NONE);
                [reach(of.mass * (1.0 + SLACK)), reach(least * (1.0 - SLACK))]
            }
        };
        let min = self.min_cut(peak);
        let (loose, strict) = (loose.or(min), strict.or(min));
        // A line below the last candidate might have others above it.
        (loose == strict && loose.or(beyond) == loose).then_some(loose)
    }
}
