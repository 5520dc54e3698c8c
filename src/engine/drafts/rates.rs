//! How often guesses turn out right, by what is known of them before.

use super::{DEPTH_MAX, lookup::LENGTH_MAX};

/// Observations that an estimate remembers: guesses are right by the passage, not by the answer.
const MEMORY: f32 = 24.0;
/// Observations that an assumption counts for.
const ASSUMED: f32 = 4.0;
/// Observations of one ended sequence that count as much as all before it.
const CONVINCING: f32 = 64.0;

/// A share of guesses that were right.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    right: f32,
    /// Observations that it rests on.
    weight: f32,
}

impl Rate {
    const fn assumed(right: f32) -> Self {
        Self {
            right,
            weight: ASSUMED,
        }
    }

    /// What may be counted on: a third of a standard deviation below the estimate, since guesses are made while it is too high.
    fn counted_on(&self) -> f64 {
        let (right, weight) = (f64::from(self.right), f64::from(self.weight));
        (right - (right * (1.0 - right) / weight).sqrt() / 3.0).max(0.0)
    }

    fn note(&mut self, right: bool) {
        self.weight = (self.weight + 1.0).min(MEMORY);
        self.right += (f32::from(right) - self.right) / self.weight;
    }
}

/// Lengths of agreement that are told apart.
const CLASSES: usize = 6;

/// What is assumed of them before anything is known.
const LOOKUPS: [f32; CLASSES] = [0.35, 0.45, 0.6, 0.7, 0.8, 0.9];

fn class(length: usize) -> usize {
    match length.min(LENGTH_MAX) {
        0..4 => 0,
        4 => 1,
        5..7 => 2,
        7..10 => 3,
        10..16 => 4,
        _ => 5,
    }
}

/// How often the guesses of one sequence, or of one kind of sequences, were right.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Rates {
    /// By length of agreement.
    lookup: [Rate; CLASSES],
    /// By place in the window, given that the guesses before were right.
    prediction: [Rate; DEPTH_MAX],
    /// Of the tokens that were chosen, those that a prediction from the shortlist could have named.
    listed: Rate,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            lookup: LOOKUPS.map(Rate::assumed),
            prediction: [Rate::assumed(0.7); DEPTH_MAX],
            listed: Rate::assumed(0.95),
        }
    }
}

impl Rates {
    /// The chance of what followed the last time that so many tokens stood together.
    pub(super) fn lookup(&self, length: usize) -> f64 {
        self.lookup[class(length)].counted_on()
    }

    /// The chance of the `nth` prediction, if those before it are right.
    pub(super) fn prediction(&self, nth: usize) -> f64 {
        self.prediction.get(nth).map_or(0.0, Rate::counted_on)
    }

    pub(super) fn note_lookup(&mut self, length: usize, right: bool) {
        self.lookup[class(length)].note(right);
    }

    pub(super) fn note_prediction(&mut self, nth: usize, right: bool) {
        if let Some(rate) = self.prediction.get_mut(nth) {
            rate.note(right);
        }
    }

    /// The chance that the next token is in the shortlist.
    pub(super) fn listed(&self) -> f64 {
        f64::from(self.listed.right)
    }

    pub(super) fn note_listed(&mut self, listed: bool) {
        self.listed.note(listed);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Rate> {
        let both = self.lookup.iter_mut().chain(&mut self.prediction);
        both.chain([&mut self.listed])
    }
}

/// What ended sequences have shown, greedy and sampled ones apart. Sequences that run are not affected by it.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct Experience([Rates; 2]);

impl Experience {
    /// Of sequences like this one.
    pub(in crate::engine) fn of(&self, sampled: bool) -> &Rates {
        &self.0[usize::from(sampled)]
    }

    /// A sequence has ended that showed this.
    pub(in crate::engine) fn note(&mut self, sampled: bool, shown: &Rates) {
        let mut shown = shown.clone();
        let known = &mut self.0[usize::from(sampled)];
        for (known, shown) in known.all().zip(shown.all()) {
            let observations = shown.weight - ASSUMED;
            known.right += (shown.right - known.right) * observations / (observations + CONVINCING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_what_happens() {
        let mut rates = Rates::default();
        (0..100).for_each(|_| rates.note_lookup(3, true));
        assert!(rates.lookup(3) > 0.95 && rates.lookup(4) < 0.5);
        (0..100).for_each(|_| rates.note_lookup(3, false));
        assert!(rates.lookup(3) < 0.05);
        rates.note_prediction(DEPTH_MAX, true); // deeper than anybody guesses
        assert_eq!(rates.prediction(DEPTH_MAX), 0.0);
    }

    #[test]
    fn experience_is_told_apart_and_grows_slowly() {
        let (mut experience, mut shown) = (Experience::default(), Rates::default());
        (0..20).for_each(|_| shown.note_prediction(0, false));
        experience.note(true, &shown);
        let before = Rates::default().prediction(0);
        assert_eq!(experience.of(false), &Rates::default());
        let after = experience.of(true).prediction(0);
        assert!(after < before && after > 0.5 * before, "{after}");
        assert_eq!(experience.of(true).prediction(1), before);
        (0..100).for_each(|_| experience.note(true, &shown));
        assert!(experience.of(true).prediction(0) < 0.2);
    }
}
