//! Uses that count less the longer they are past.
//!
//! All scores fade alike, so their order changes only when one is used: what is kept is the binary logarithm of a score as it would stand at time 0, which
//! never overflows and need not be touched as time goes by.

use std::cmp::Ordering;

/// The logarithm of a faded number of uses, as of time 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Score(f64);

impl Score {
    /// Nobody has used it.
    pub(super) const NEVER: Self = Self(f64::NEG_INFINITY);

    /// As many uses at time 0. **Units**: powers of two.
    pub(super) fn of(rank: f64) -> Self {
        Self(rank)
    }

    /// What is left of it at time `now`, as a power of two.
    pub(super) fn at(self, now: f64) -> f64 {
        self.0 - now
    }

    /// With `weight` more uses at time `now`. **Units**: half-lives.
    pub(super) fn used(self, weight: f64, now: f64) -> Self {
        let use_now = weight.log2() + now;
        let (low, high) = if self.0 < use_now {
            (self.0, use_now)
        } else {
            (use_now, self.0)
        };
        Self(high + (low - high).exp2().ln_1p() / std::f64::consts::LN_2)
    }

    /// With so many powers of two on it.
    pub(super) fn raised(self, by: f64) -> Self {
        Self(self.0 + by)
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

#[cfg(test)]
mod tests {
    use super::Score;

    #[test]
    fn uses_add_up_and_fade() {
        // two uses at time 0 are worth one at time 1, and four at time 3 more than both together
        let two = Score::NEVER.used(1.0, 0.0).used(1.0, 0.0);
        let one = Score::NEVER.used(1.0, 1.0);
        assert!((two.0 - one.0).abs() < 1e-12, "{two:?} {one:?}");
        assert!(Score::NEVER.used(4.0, 3.0) > two.used(1.0, 1.0));
        assert!(Score::NEVER < Score::NEVER.used(1.0, -1e6));
        let late = Score::NEVER.used(1.0, 1e9);
        assert!(late.used(1.0, 1e9).0.is_finite());
    }
}
