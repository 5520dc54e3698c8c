//! How many guesses pay: expected tokens against what their rows cost. Pure.

use crate::engine::costs::Costs;

use super::DEPTH_MAX;

/// What guessing must promise to be better than not guessing by: estimates are not that exact, and it is when they are too high that they are acted upon.
pub(super) const MARGIN: f64 = 1.06;

/// A row is never free, whatever noise says. Share of what a sequence's own row costs.
const ROW_LEAST: f64 = 0.02;

/// A number of guesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) depth: usize,
    /// Tokens a second, in the unit of no guesses.
    pub(super) worth: f64,
    /// **Units**: seconds. What the sequence's share of the window costs.
    pub(super) takes: f64,
}

impl Choice {
    /// Whether it promises enough.
    pub(super) fn pays(&self) -> bool {
        self.worth > MARGIN
    }
}

/// What rows cost in a window of so many sequences, the same for each of them. **Units**: seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::engine) struct RowCosts {
    /// Sequences in the window.
    sequences: usize,
    /// A sequence's part of a window without guesses.
    pub(super) own: f64,
    /// How much more, with one guess and more.
    more: [f64; DEPTH_MAX],
}

impl RowCosts {
    /// In a window of so many sequences. None if nothing is known yet.
    ///
    /// Whether the others guess too is not asked, because that would make one sequence's guesses depend on another's: rows cost what they cost
    /// at worst, if nobody else guesses or if everybody guesses as many.
    pub(in crate::engine) fn new(costs: &Costs, decoding: usize) -> Option<Self> {
        let n = decoding.max(1);
        let plain = costs.decode(n)?;
        let own = plain / n as f64;
        let mut more = [0.0; DEPTH_MAX];
        let mut before = 0.0f64;
        let reach = costs.decode_reach();
        for (depth, more) in (1..).zip(&mut more) {
            if n + depth > (reach + 1).max(reach * 3 / 2) {
                *more = f64::INFINITY; // too far from what is known: shorter ones will tell
                continue;
            }
            let alone = costs.decode(n + depth)? - plain;
            let all = (costs.decode(n * (1 + depth))? - plain) / n as f64;
            before = alone.max(all).max(before + ROW_LEAST * own);
            *more = before;
        }
        Some(Self {
            sequences: n,
            own,
            more,
        })
    }

    /// **Units**: seconds. A whole window without guesses.
    pub(super) fn window(&self) -> f64 {
        self.own * self.sequences as f64
    }
}

/// What a sequence's share of a window costs, by its guesses. **Units**: seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bill {
    /// Without guesses.
    own: f64,
    /// How much more, with so many and one more.
    more: [f64; DEPTH_MAX],
    /// All of it at most, so that no stream pauses for long because of guesses.
    takes_max: f64,
}

impl Bill {
    /// In a window that may take as long as `window_max`; so many guesses cost what `besides` says on top of what rows do.
    pub(super) fn new(rows: &RowCosts, window_max: f64, besides: impl Fn(usize) -> f64) -> Self {
        let mut more = rows.more;
        for (depth, more) in (1..).zip(&mut more) {
            *more += besides(depth);
        }
        Self {
            own: rows.own,
            more,
            takes_max: window_max / rows.sequences as f64,
        }
    }

    /// The number of guesses that promises most, none not being one of the choices: they are right with these chances, each given that those before it are. None if the
    /// window would take longer than it may with a single one.
    pub(super) fn best(&self, chances: impl Iterator<Item = f64>) -> Option<Choice> {
        let (mut right, mut tokens) = (1.0, 1.0);
        let choices = (1..).zip(chances.zip(self.more));
        let choices = choices.map(|(depth, (chance, more))| {
            right *= chance;
            tokens += right;
            let takes = self.own + more;
            let worth = tokens * self.own / takes;
            Choice {
                depth,
                worth,
                takes,
            }
        });
        choices
            .take_while(|choice| choice.takes <= self.takes_max)
            .reduce(|best, next| if next.worth > best.worth { next } else { best })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::costs::Load;

    /// Windows take `base` and as much again for every row times `row`, both in us; measured for every number of rows.
    fn costs(base: f64, row: f64) -> Costs {
        let mut costs = Costs::default();
        for rows in 1..=64 {
            let us = base + row * rows as f64;
            costs.note_decode(
                Load { rows, attended: 0 },
                Duration::from_nanos((1e3 * us) as u64),
            );
        }
        costs
    }

    fn best(costs: &Costs, decoding: usize, chance: f64, each_us: f64) -> usize {
        let rows = RowCosts::new(costs, decoding).unwrap();
        let bill = Bill::new(&rows, 1.0, |guesses| 1e-6 * each_us * guesses as f64);
        let best = bill.best([chance; DEPTH_MAX].into_iter());
        best.filter(Choice::pays).map_or(0, |choice| choice.depth)
    }

    #[test]
    fn depths_far_from_what_is_known_are_not_chosen() {
        let reach = |measured: &[usize]| {
            let mut costs = Costs::default();
            for rows in measured {
                let load = Load {
                    rows: *rows,
                    attended: 0,
                };
                costs.note_decode(load, Duration::from_millis(10));
            }
            let rows = RowCosts::new(&costs, 1).unwrap();
            let bill = Bill::new(&rows, f64::MAX, |_| 0.0);
            bill.best([1.0; DEPTH_MAX].into_iter()).unwrap().depth
        };
        assert_eq!(reach(&[1]), 1);
        assert_eq!(reach(&[1, 2]), 2);
        assert_eq!(reach(&[1, 4]), 5);
    }

    #[test]
    fn as_many_as_pay() {
        // rows that cost as much as windows are worth nothing, free ones everything
        assert_eq!(best(&costs(0.0, 100.0), 1, 0.99, 0.0), 0);
        assert_eq!(best(&costs(100.0, 0.0), 1, 0.5, 0.0), 4);
        assert_eq!(best(&costs(100.0, 0.0), 1, 1.0, 0.0), DEPTH_MAX);
        // a row in three costs what it saves
        assert_eq!(best(&costs(200.0, 100.0), 1, 0.3, 0.0), 0);
        assert_eq!(best(&costs(200.0, 100.0), 1, 0.95, 0.0), 7);
        assert_eq!(best(&costs(200.0, 100.0), 1, 0.97, 0.0), DEPTH_MAX);
        let few = best(&costs(200.0, 100.0), 1, 0.6, 0.0);
        assert!((1..4).contains(&few), "{few}");
        // what a guess costs besides counts as well
        assert_eq!(best(&costs(200.0, 100.0), 1, 0.6, 100.0), 0);
        // among others, a window is paid together
        assert_eq!(best(&costs(200.0, 100.0), 8, 0.6, 0.0), 0);
    }

    #[test]
    fn nothing_is_guessed_before_anything_is_known() {
        assert_eq!(RowCosts::new(&Costs::default(), 1), None);
    }

    #[test]
    fn no_window_becomes_long_because_of_guesses() {
        let costs = costs(50_000.0, 50_000.0); // 100 ms a window, half as much a row
        let rows = RowCosts::new(&costs, 1).unwrap();
        let depth = |window_max| {
            let bill = Bill::new(&rows, window_max, |_| 0.0);
            let best = bill.best([1.0; DEPTH_MAX].into_iter());
            best.map_or(0, |choice| choice.depth)
        };
        let depths = [0.05, 0.16, 0.21, 0.31, 9.0].map(depth);
        assert_eq!(depths, [0, 1, 2, 4, DEPTH_MAX]);
    }
}
