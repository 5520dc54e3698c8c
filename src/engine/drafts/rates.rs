//! How often guesses turn out right, by what is known of them before.

use super::{DEPTH_MAX, lookup::LENGTH_MAX};

/// Observations that an estimate remembers: guesses are right by the passage, not by the answer.
const MEMORY: f32 = 24.0;
/// Observations that an assumption counts for.
const ASSUMED: f32 = 4.0;
/// Observations of ended sequences that are remembered, and how many of one: sequences differ, and what is asked for changes.
const LEARNT: f32 = 32.0;
const LEARNT_OF_ONE: f32 = 16.0;

/// A share of guesses that were right.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    right: f32,
    /// Observations that it rests on; 0 if nothing is assumed.
    weight: f32,
    /// All observations of the sequence, and those that were right.
    seen: [f32; 2],
}

impl Rate {
    const UNKNOWN: Self = Self {
        right: 0.0,
        weight: 0.0,
        seen: [0.0; 2],
    };

    const fn assumed(right: f32) -> Self {
        Self {
            right,
            weight: ASSUMED,
            seen: [0.0; 2],
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
        self.seen[0] += 1.0;
        self.seen[1] += f32::from(right);
    }

    /// Learns from a sequence that has ended: what it has seen, not what it began with.
    fn learn(&mut self, [all, right]: [f32; 2]) {
        if all > 0.0 {
            let counts = all.min(LEARNT_OF_ONE);
            self.right += (right / all - self.right) * counts / (self.weight + counts);
            self.weight = (self.weight + counts).min(LEARNT);
        }
    }
}

/// Lengths of agreement that are told apart.
const CLASSES: usize = 7;

/// What is assumed of them before anything is known.
const LOOKUPS: [f32; CLASSES] = [0.3, 0.35, 0.45, 0.6, 0.7, 0.8, 0.9];

fn class(length: usize) -> usize {
    match length.min(LENGTH_MAX) {
        0..3 => 0,
        3 => 1,
        4 => 2,
        5..7 => 3,
        7..10 => 4,
        10..16 => 5,
        _ => 6,
    }
}

/// How often the guesses of one sequence, or of one kind of sequences, were right.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Rates {
    /// By length of agreement.
    lookup: [Rate; CLASSES],
    /// By place in the window, given that the guesses before were right; where nothing is known, as likely as the one before.
    prediction: [Rate; DEPTH_MAX],
    /// Of the tokens that were chosen, those that a prediction from the shortlist could have named.
    listed: Rate,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            lookup: LOOKUPS.map(Rate::assumed),
            prediction: std::array::from_fn(|nth| match nth {
                0 => Rate::assumed(0.7),
                _ => Rate::UNKNOWN,
            }),
            listed: Rate::assumed(0.95),
        }
    }
}

impl Rates {
    /// What a sequence assumes that begins when this is known.
    pub(super) fn begin(&self) -> Self {
        let mut rates = self.clone();
        rates
            .all()
            .filter(|rate| rate.weight > 0.0)
            .for_each(|rate| *rate = Rate::assumed(rate.right));
        rates
    }

    /// The chance of what followed the last time that so many tokens stood together.
    pub(super) fn lookup(&self, length: usize) -> f64 {
        self.lookup[class(length)].counted_on()
    }

    /// The chance of the `nth` prediction, if those before it are right.
    pub(super) fn prediction(&self, nth: usize) -> f64 {
        self.nth(nth).map_or(0.0, |rate| rate.counted_on())
    }

    fn nth(&self, nth: usize) -> Option<Rate> {
        let known = self.prediction.get(..=nth)?;
        known.iter().rfind(|rate| rate.weight > 0.0).copied()
    }

    /// Before anything is known of the `nth` prediction: it is as likely right as the one before.
    fn assume(&mut self, nth: usize) {
        let before = self.nth(nth).map(|rate| rate.right);
        if let (Some(rate), Some(right)) = (self.prediction.get_mut(nth), before)
            && rate.weight == 0.0
        {
            *rate = Rate::assumed(right);
        }
    }

    pub(super) fn note_lookup(&mut self, length: usize, right: bool) {
        self.lookup[class(length)].note(right);
    }

    pub(super) fn note_prediction(&mut self, nth: usize, right: bool) {
        self.assume(nth);
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
        let seen = |rate: &Rate| rate.seen[0] > 0.0;
        for (nth, _) in (0..).zip(&shown.prediction).filter(|(_, rate)| seen(rate)) {
            known.assume(nth);
        }
        for (known, shown) in known.all().zip(shown.all()) {
            known.learn(shown.seen);
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
        assert!(after < 0.5 * before, "{after}");
        let (lookup, assumed) = (experience.of(true).lookup(3), Rates::default().lookup(3));
        assert_eq!(lookup, assumed);
        // one deeper is as likely, until it is known
        assert_eq!(experience.of(true).prediction(1), after);
        let mut deeper = Rates::default();
        deeper.note_prediction(1, false);
        let mut of_one = Experience::default();
        of_one.note(false, &deeper);
        assert!(of_one.of(false).prediction(1) > 0.3, "it was but once");
        // what a sequence began with teaches nothing, and whatever it shows, it is one
        let mut other = experience.of(true).begin();
        experience.note(true, &other);
        assert_eq!(experience.of(true).prediction(0), after);
        (0..20).for_each(|_| other.note_prediction(0, true));
        assert!(other.prediction(0) > 0.7);
        (0..1000).for_each(|_| experience.note(true, &shown));
        experience.note(true, &other);
        assert!((0.2..0.4).contains(&experience.of(true).prediction(0)));
    }
}
