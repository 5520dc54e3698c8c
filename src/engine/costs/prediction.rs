//! What predicting takes, by how much of the vocabulary is compared and how many predict together.

use super::decode::Decode;

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

/// Times of steps, each of which predicts a token of every sequence that predicts.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictions {
    /// By [`Head`] and the number of sequences.
    steps: [Decode; 2],
    /// **Units**: seconds. What a sequence adds that has to read first what it has not read for want of predictions.
    late: Average,
}

/// Of the last few.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    of: f64,
    count: f64,
}

impl Average {
    const LAST: f64 = 16.0;

    fn note(&mut self, value: f64) {
        self.count = Self::LAST.min(self.count + 1.0);
        self.of += (value - self.of) / self.count;
    }
}

impl Predictions {
    /// So many steps of so many tokens in all took so long; so many of the sequences had to read first.
    pub(super) fn note(&mut self, head: Head, tokens: usize, steps: usize, late: usize, took: f64) {
        let steps = steps.max(1);
        let together = ((tokens + steps / 2) / steps).max(1);
        let step = took / steps as f64;
        let known = self.steps[head as usize].expect(together);
        match known.filter(|_| late > 0) {
            Some(known) => self
                .late
                .note((step - known).max(0.0) * steps as f64 / late as f64),
            None => self.steps[head as usize].note(together, step),
        }
    }

    /// What a token takes where so many sequences predict one; 0 before the first.
    pub(super) fn takes(&self, head: Head, together: usize) -> f64 {
        let together = together.max(1);
        let step = self.steps[head as usize].expect(together);
        step.map_or(0.0, |step| step / together as f64)
    }

    /// What reading first takes, on average.
    pub(super) fn late(&self) -> f64 {
        self.late.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_predicted_together_costs_less() {
        let mut predictions = Predictions::default();
        assert_eq!(predictions.takes(Head::Listed, 3), 0.0);
        predictions.note(Head::Listed, 3, 3, 0, 6.0);
        assert_eq!(predictions.takes(Head::Listed, 1), 2.0);
        assert_eq!(predictions.takes(Head::Listed, 4), 5.0 / 4.0, "assumed");
        predictions.note(Head::Listed, 8, 2, 0, 6.0);
        assert_eq!(predictions.takes(Head::Listed, 4), 3.0 / 4.0);
        assert_eq!(predictions.takes(Head::Whole, 1), 0.0);
    }

    #[test]
    fn reading_first_is_told_apart() {
        let mut predictions = Predictions::default();
        predictions.note(Head::Whole, 1, 1, 0, 2.0);
        predictions.note(Head::Whole, 2, 2, 1, 9.0);
        assert_eq!(
            (predictions.takes(Head::Whole, 1), predictions.late()),
            (2.0, 5.0)
        );
    }
}
