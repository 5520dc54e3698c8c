//! What windows of streams take, by the number of rows: exact enough to tell what one more row costs.

/// Rows that are told apart.
const ROWS_MAX: usize = 96;
/// Measurements that an average remembers.
const MEMORY: f64 = 16.0;
/// A measurement that is this many times the average counts as so many times it: hiccups are no measurements.
const OUTLIER: f64 = 2.0;
/// Windows after which an average counts as not measured.
const FRESH: u32 = 2048;
/// What a row is assumed to add to a window, as a share of what a row of the window takes: too little, so that it is tried.
const ASSUMED: f64 = 0.5;

/// Windows of one number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    /// **Units**: seconds.
    took: f64,
    count: f64,
    /// Windows of other numbers of rows since.
    age: u32,
}

/// Times by number of rows.
#[derive(Clone, Debug)]
pub(super) struct Decode {
    /// `of[i]` is for `i + 1` rows.
    of: [Mean; ROWS_MAX],
}

impl Default for Decode {
    fn default() -> Self {
        Self {
            of: [Mean::default(); ROWS_MAX],
        }
    }
}

impl Decode {
    /// A window of so many rows took so long.
    pub(super) fn note(&mut self, rows: usize, took: f64) {
        let Some(index) = rows.checked_sub(1).filter(|index| *index < ROWS_MAX) else {
            return;
        };
        for mean in &mut self.of {
            mean.age = mean.age.saturating_add(1);
        }
        let mean = &mut self.of[index];
        if mean.age > FRESH {
            mean.count = mean.count.min(1.0); // the world has changed
        }
        let took = if mean.count >= 4.0 {
            took.min(OUTLIER * mean.took)
        } else {
            took
        };
        mean.count = (mean.count + 1.0).min(MEMORY);
        mean.took += (took - mean.took) / mean.count;
        mean.age = 0;
    }

    /// What a window of so many rows takes, if anything was measured: in proportion between two measured numbers of rows, and beyond them as the last ones grow.
    pub(super) fn expect(&self, rows: usize) -> Option<f64> {
        let fresh = self.known(FRESH);
        if let Some(found) = between(fresh, rows) {
            return Some(found);
        }
        between(self.known(u32::MAX), rows)
    }

    fn known(&self, age: u32) -> impl DoubleEndedIterator<Item = (usize, f64)> + Clone {
        let known = self.of.iter().enumerate();
        let known = known.filter(move |(_, mean)| mean.count > 0.0 && mean.age <= age);
        known.map(|(index, mean)| (index + 1, mean.took))
    }
}

fn between(
    known: impl DoubleEndedIterator<Item = (usize, f64)> + Clone,
    rows: usize,
) -> Option<f64> {
    let above = known.clone().find(|(at, _)| *at >= rows);
    let mut below = known.rev().skip_while(|(at, _)| *at >= rows);
    let nearest = below.next();
    let line = |(from, a): (usize, f64), (to, b): (usize, f64)| {
        a + (b - a) * (rows - from) as f64 / (to - from) as f64
    };
    Some(match (nearest, above) {
        (_, Some((at, took))) if at == rows => took,
        (Some(below), Some(above)) => line(below, above),
        (None, Some((at, took))) => took * (1.0 - ASSUMED * (1.0 - rows as f64 / at as f64)),
        (Some((at, took)), None) => {
            let proportion = took / at as f64;
            let slope = match below.next() {
                Some((lower, a)) => ((took - a) / (at - lower) as f64).clamp(0.0, proportion),
                None => ASSUMED * proportion,
            };
            took + slope * (rows - at) as f64
        }
        (None, None) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measurements (rows, time), and what is expected then.
    fn check(measured: &[(usize, f64)], expected: &[(usize, f64)]) {
        let mut decode = Decode::default();
        measured
            .iter()
            .for_each(|(rows, took)| decode.note(*rows, *took));
        for (rows, took) in expected {
            let found = decode.expect(*rows).unwrap();
            assert!(
                (found - took).abs() < 1e-9,
                "{rows} rows: {found}, not {took}"
            );
        }
    }

    #[test]
    fn what_is_between_is_in_proportion() {
        assert_eq!(Decode::default().expect(1), None);
        check(&[(1, 2.0)], &[(1, 2.0), (2, 3.0), (3, 4.0), (200, 201.0)]);
        check(&[(1, 2.0), (3, 5.0)], &[(2, 3.5), (4, 6.5)]);
        check(&[(4, 8.0)], &[(4, 8.0), (2, 6.0)]);
        // noise never makes more rows cheaper than fewer beyond what is measured
        check(&[(1, 3.0), (2, 2.0)], &[(3, 2.0)]);
    }

    #[test]
    fn a_hiccup_counts_little_and_old_measurements_do_not() {
        let mut decode = Decode::default();
        (0..20).for_each(|_| decode.note(2, 1.0));
        decode.note(2, 100.0);
        assert!(decode.expect(2).unwrap() < 1.07);
        decode.note(1, 0.5);
        (0..=FRESH).for_each(|_| decode.note(1, 0.5));
        assert_eq!(decode.expect(2), Some(0.75)); // as if it had never been measured
        decode.note(0, 9.0);
        decode.note(ROWS_MAX + 1, 9.0);
        assert_eq!(decode.expect(1), Some(0.5));
    }
}
