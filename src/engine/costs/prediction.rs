//! What predicting a token takes, by how much of the vocabulary is compared.

/// Measurements that count.
const LAST: f64 = 16.0;
/// Measurements after which a very long one counts as a hiccup.
const KNOWN: f64 = 4.0;

/// Which tokens a prediction is chosen among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The whole vocabulary.
    Whole,
    /// The frequent tokens and a few others.
    Listed,
}

impl Head {
    /// Those there are where so many tokens are frequent.
    pub fn of(frequent: usize) -> &'static [Self] {
        match frequent {
            0 => &[Self::Whole],
            _ => &[Self::Whole, Self::Listed],
        }
    }
}

/// Averages.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictions {
    /// By [`Head`]. **Units**: seconds.
    each: [f64; 2],
    /// Measurements that these rest on.
    counts: [f64; 2],
    /// Which was measured last.
    last: usize,
}

impl Predictions {
    /// A prediction took so long. What it takes with the other head, which is not measured as long as this one is better, changes in proportion.
    pub(super) fn note(&mut self, head: Head, took: f64) {
        let (of, other) = (head as usize, 1 - head as usize);
        if of != self.last {
            self.counts[of] = self.counts[of].min(1.0); // an old belief
            self.last = of;
        }
        let before = self.each[of];
        self.counts[of] = (self.counts[of] + 1.0).min(LAST);
        let hiccup = self.counts[of] > KNOWN && took > 2.0 * before;
        let took = if hiccup { 2.0 * before } else { took };
        self.each[of] = before + (took - before) / self.counts[of];
        if before > 0.0 {
            self.each[other] *= self.each[of] / before;
        }
    }

    /// What one takes on average; 0 before the first.
    pub(super) fn takes(&self, head: Head) -> f64 {
        self.each[head as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(head: Head, times: usize, took: f64, predictions: &mut Predictions) {
        (0..times).for_each(|_| predictions.note(head, took));
    }

    #[test]
    fn what_is_not_measured_changes_in_proportion() {
        let mut predictions = Predictions::default();
        noted(Head::Whole, 3, 8.0, &mut predictions);
        assert_eq!(predictions.takes(Head::Listed), 0.0);
        noted(Head::Listed, 1, 2.0, &mut predictions);
        assert_eq!(predictions.takes(Head::Whole), 8.0);
        noted(Head::Listed, 100, 3.0, &mut predictions);
        let takes = |head| predictions.takes(head);
        assert!((takes(Head::Listed) - 3.0).abs() < 0.01);
        assert!((11.9..12.1).contains(&takes(Head::Whole)));
        predictions.note(Head::Listed, 1000.0); // a hiccup
        assert!(predictions.takes(Head::Listed) < 3.2);
    }
}
