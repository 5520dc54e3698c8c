//! What slices and windows take on this machine, by how many rows they have and how far these look back.
//!
//! Knows rows and durations; knows neither clocks nor sequences. What counts is the second longest of the last few: a stream's pause is as
//! long as the slowest kind of layer makes it, but a single hiccup says nothing. Layers are told apart no further than that, their parts are; the experts that
//! rows touch are part of what so many rows take.

mod attention;
mod curve;
mod decode;
mod prediction;

use std::time::Duration;

pub use self::prediction::Head;
use self::{attention::Attention, curve::Curve, decode::Decode, prediction::Predictions};
use super::executor::SLICE_KINDS;

/// What is to be computed, as far as it decides how long that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Rows.
    pub rows: usize,
    /// Positions that they attend to, of all rows together.
    pub attended: u64,
}

impl Load {
    /// `rows` rows of one sequence, the first at position `first`.
    pub fn of(rows: usize, first: usize) -> Self {
        let (rows_long, first) = (rows as u64, first as u64);
        Self {
            rows,
            attended: rows_long.saturating_mul(first.saturating_add(rows_long / 2)),
        }
    }

    /// Both together.
    pub fn with(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            attended: self.attended.saturating_add(other.attended),
        }
    }
}

/// Slices are many, and a chunk that is smaller than it could be costs a prompt time: so what was once too slow is soon tried again.
const SLICE_MEMORY: u32 = 64;
/// Windows of many rows are rare beside those of running streams.
const WINDOW_MEMORY: u32 = 4096;

/// What has been measured so far.
#[derive(Clone, Debug)]
pub struct Costs {
    /// By kind.
    slices: [Curve; SLICE_KINDS],
    /// Without attention.
    windows: Curve,
    attention: Attention,
    /// Without attention.
    decode: Decode,
    predictions: Predictions,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            slices: std::array::from_fn(|_| Curve::new(SLICE_MEMORY)),
            windows: Curve::new(WINDOW_MEMORY),
            attention: Attention::default(),
            decode: Decode::default(),
            predictions: Predictions::default(),
        }
    }
}

impl Costs {
    /// A slice of a pass of the prompt lane took so long.
    pub fn note_slice(&mut self, kind: usize, rows: usize, took: Duration) {
        self.slices[kind].note(rows, took);
    }

    /// All of a pass took so long: one of the decode lane, or one that would take the same there.
    pub fn note_window(&mut self, load: Load, took: Duration) {
        self.attention.note(load, took);
        let rest = took.saturating_sub(self.attention.takes(load));
        self.windows.note(load.rows, rest);
    }

    /// A window of decode rows alone took so long.
    pub fn note_decode(&mut self, load: Load, took: Duration) {
        let rest = took.saturating_sub(self.attention.takes(load));
        self.decode.note(load.rows, rest.as_secs_f64());
    }

    /// **Units**: seconds. What a window of so many decode rows takes on average, without attention; `None` before the first.
    pub fn decode(&self, rows: usize) -> Option<f64> {
        self.decode.expect(rows)
    }

    /// The most rows of which it is known what a window of decode rows takes.
    pub fn decode_reach(&self) -> usize {
        self.decode.reach()
    }

    /// **Units**: seconds. What attending takes.
    pub fn attention(&self, load: Load) -> f64 {
        self.attention.takes(load).as_secs_f64()
    }

    /// Predicting so many tokens in so many steps took so long. So many of the sequences had not predicted lately and had to read first.
    pub fn note_prediction(
        &mut self,
        head: Head,
        [tokens, steps]: [usize; 2],
        late: usize,
        took: Duration,
    ) {
        let took = took.as_secs_f64();
        self.predictions.note(head, tokens, steps, late, took);
    }

    /// **Units**: seconds. What predicting a token takes where so many sequences predict one; 0 before the first.
    pub fn prediction(&self, head: Head, together: usize) -> f64 {
        self.predictions.takes(head, together)
    }

    /// **Units**: seconds. What predicting takes on top for a sequence that has not done so lately.
    pub fn prediction_late(&self) -> f64 {
        self.predictions.late()
    }

    /// What a slice of this kind will take, or a bound for it.
    pub fn slice(&self, kind: usize, rows: usize) -> Duration {
        let known = self.slices[kind].expect(rows);
        known.unwrap_or_else(|| self.longest_slice(rows))
    }

    /// What a slice of this kind typically takes: the median of the last of about so many rows, or of fewer; a bound if none was measured.
    pub fn slice_typical(&self, kind: usize, rows: usize) -> Duration {
        let typical = self.slices[kind].typical(rows);
        match typical.is_zero() {
            true => self.slice(kind, rows),
            false => typical,
        }
    }

    /// What a slice of any kind will take, or a bound for it.
    pub fn longest_slice(&self, rows: usize) -> Duration {
        let known = self.slices.iter().filter_map(|kind| kind.expect(rows));
        // No slice takes longer than a window.
        let known = known.max().or_else(|| self.windows.expect(rows));
        known.unwrap_or_default()
    }

    /// What slices of about so many rows took, the longest kind, if there was one.
    pub fn measured_slice(&self, rows: usize) -> Option<Duration> {
        self.slices.iter().filter_map(|kind| kind.took(rows)).max()
    }

    /// What a window will take, or a bound for it.
    pub fn window(&self, load: Load) -> Duration {
        self.windows.expect(load.rows).unwrap_or_default() + self.attention.takes(load)
    }

    /// What a window will take as far as is known: what one of about so many rows took, or as windows grow, those of decode rows alone unless others
    /// had more rows; where nothing is known, the bound.
    pub fn window_perhaps(&self, load: Load) -> Duration {
        let rows = load.rows;
        let measured = self.windows.took(rows);
        let grown = || match self.windows.fewer(rows) {
            Some((fewer, took)) if (1..fewer).contains(&self.decode.reach()) => Some(
                curve::seconds(decode::beyond(fewer, took.as_secs_f64(), rows)),
            ),
            _ => self.decode.expect(rows).map(Duration::from_secs_f64),
        };
        match measured.or_else(grown) {
            Some(took) => took + self.attention.takes(load),
            None => self.window(load),
        }
    }

    /// What a window typically takes: the median of the last of about so many rows, or of fewer; zero if none was measured.
    pub fn window_typical(&self, load: Load) -> Duration {
        self.windows.typical(load.rows) + self.attention.takes(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rows_of(rows: usize) -> Load {
        Load { rows, attended: 0 }
    }

    /// Measurements (rows, ms) in order, and what is expected then.
    fn check(measured: &[(usize, u32)], expected: &[(usize, u32)]) {
        let mut costs = Costs::default();
        for (rows, ms) in measured {
            costs.note_window(rows_of(*rows), *ms * MS);
        }
        let found: Vec<_> = expected
            .iter()
            .map(|(rows, _)| costs.window(rows_of(*rows)))
            .collect();
        let expected: Vec<_> = expected.iter().map(|(_, ms)| *ms * MS).collect();
        assert_eq!(found, expected, "after {measured:?}");
    }

    #[test]
    fn neighbours_bound_what_was_not_measured() {
        check(&[], &[(1, 0), (99, 0)]);
        check(&[(1, 2)], &[(0, 2), (1, 2), (2, 4), (3, 6), (128, 256)]);
        check(&[(100, 9)], &[(1, 9), (65, 9), (100, 9), (200, 18)]);
        // A class counts as its second longest does, with its rows.
        check(&[(5, 30), (8, 34), (6, 33)], &[(5, 33), (6, 33), (8, 44)]);
        check(
            &[(1, 7), (128, 133)],
            &[(2, 14), (16, 79), (64, 115), (256, 266)],
        );
        check(&[(1, 2), (64, 317)], &[(2, 4), (16, 32)]);
        check(&[(usize::MAX, 7)], &[(usize::MAX, 7), (1, 7)]);
    }

    #[test]
    fn what_was_measured_with_fewer_rows_is_the_least() {
        let mut costs = Costs::default();
        assert_eq!(costs.window_typical(rows_of(9)), Duration::ZERO);
        costs.note_window(rows_of(4), 5 * MS);
        costs.note_window(rows_of(64), 20 * MS);
        for ms in [9, 5, 4] {
            costs.note_window(rows_of(4), ms * MS);
        }
        let least = [1, 4, 9, 64, 65].map(|rows| costs.window_typical(rows_of(rows)));
        assert_eq!(least, [0, 5, 5, 20, 20].map(|ms| ms * MS));
    }

    #[test]
    fn what_is_not_known_is_tried() {
        let mut costs = Costs::default();
        let check = |costs: &Costs, rows: usize, perhaps: u32, bound: u32| {
            let load = rows_of(rows);
            let found = (costs.window_perhaps(load), costs.window(load));
            assert_eq!(found, (perhaps * MS, bound * MS), "{rows} rows");
        };
        check(&costs, 8, 0, 0);
        costs.note_window(rows_of(1), 10 * MS);
        check(&costs, 8, 80, 80);
        // windows of decode rows tell how it grows
        costs.note_decode(rows_of(1), 10 * MS);
        costs.note_decode(rows_of(8), 24 * MS);
        check(&costs, 8, 24, 80);
        // until it is measured
        costs.note_window(rows_of(8), 30 * MS);
        check(&costs, 8, 30, 30);
    }

    #[test]
    fn the_second_longest_of_the_last_counts() {
        let check = |ms: &[u32], expected| {
            let measured: Vec<_> = ms.iter().map(|ms| (4, *ms)).collect();
            check(&measured, &[(4, expected)]);
        };
        check(&[10], 10);
        check(&[10, 80], 10);
        check(&[80, 10], 10);
        check(&[80, 10, 30], 30);
        check(&[80, 80, 10], 80);
        // Forgotten after sixteen more.
        let then = |first: &[u32], count: usize| [first, &vec![10; count]].concat();
        check(&then(&[80, 70], 14), 70);
        check(&then(&[80, 70], 15), 10);
    }

    #[test]
    fn what_is_not_measured_again_is_forgotten() {
        let hiccup = |later: usize| {
            let mut measured = vec![(64, 5000)];
            measured.resize(1 + later, (1, 1));
            measured
        };
        check(&hiccup(WINDOW_MEMORY as usize), &[(64, 5000)]);
        check(&hiccup(1 + WINDOW_MEMORY as usize), &[(64, 64)]);
    }

    #[test]
    fn windows_with_prompts_tell_of_larger_ones() {
        let mut costs = Costs::default();
        let decode = |costs: &mut Costs, rows: usize, ms| {
            costs.note_window(rows_of(rows), ms * MS);
            costs.note_decode(rows_of(rows), ms * MS);
        };
        let perhaps = |costs: &Costs| costs.window_perhaps(rows_of(16)).as_millis();
        decode(&mut costs, 1, 40);
        assert_eq!(perhaps(&costs), 40 + 15 * 20);
        costs.note_window(rows_of(6), 240 * MS);
        assert_eq!(perhaps(&costs), 240 + 10 * 20);
        decode(&mut costs, 7, 100);
        assert_eq!(perhaps(&costs), 100 + 9 * 10);
    }

    #[test]
    fn a_long_context_costs_more() {
        let mut costs = Costs::default();
        costs.note_window(Load::of(4, 100), 40 * MS);
        // a chunk at a time: 2 ms a row, and 0.2 us a position
        let chunk = |first: usize| {
            let load = Load::of(128, first);
            let took = 256 * MS + Duration::from_nanos(200 * load.attended);
            (load, took)
        };
        for first in (0..4096).step_by(128) {
            let (load, took) = chunk(first);
            costs.note_window(load, took);
        }
        let (load, took) = chunk(8000);
        let expected = costs.window(load);
        let close = took * 9 / 10..took * 11 / 10;
        assert!(close.contains(&expected), "{expected:?} for {took:?}");
        let short = costs.window(Load::of(4, 100));
        assert!((35 * MS..45 * MS).contains(&short), "{short:?}");
    }
}
