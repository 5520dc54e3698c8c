//! What windows of streams take, by the number of rows: exact enough to tell what one more row costs.

/// Rows that are told apart.
const ROWS_MAX: usize = 96;
/// The last measurements that count. What interrupts a window makes it longer, nothing makes it shorter: so of these the lowest third is believed.
const LAST: usize = 15;
/// Windows after which what was measured counts as not measured: many where it rests on several measurements, few where it may have been an interruption.
const FRESH: [u32; 2] = [256, 2048];
/// What counts as several.
const SEVERAL: usize = 4;
/// A window that takes less than so much of what is believed says that what was measured before holds no more.
const FASTER: f64 = 0.8;
/// What a row is assumed to add to a window, as a share of what a row of the window takes: too little, so that it is tried.
const ASSUMED: f64 = 0.5;

/// Windows of one number of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// **Units**: seconds. The first `count`, in no order.
    last: [f64; LAST],
    count: usize,
    /// Where the next one goes.
    next: usize,
    /// What is believed.
    took: f64,
    /// Windows of other numbers of rows since.
    age: u32,
}

impl Class {
    fn note(&mut self, took: f64) {
        if !self.fresh() || took < FASTER * self.took {
            *self = Self::default(); // the world has changed
        }
        self.last[self.next] = took;
        self.next = (self.next + 1) % LAST;
        self.count = LAST.min(self.count + 1);
        let mut last = self.last;
        let last = &mut last[..self.count];
        last.sort_unstable_by(f64::total_cmp);
        self.took = last[self.count / 3];
        self.age = 0;
    }

    fn fresh(&self) -> bool {
        self.age <= FRESH[usize::from(self.count >= SEVERAL)]
    }
}

/// Times by number of rows.
#[derive(Clone, Debug)]
pub(super) struct Decode {
    /// Those that were measured, in order. Before every window it is asked many times: so there is nothing else to look through.
    of: Vec<(usize, Class)>,
}

impl Default for Decode {
    fn default() -> Self {
        Self {
            of: Vec::with_capacity(ROWS_MAX),
        }
    }
}

impl Decode {
    /// A window of so many rows took so long.
    pub(super) fn note(&mut self, rows: usize, took: f64) {
        if !(1..=ROWS_MAX).contains(&rows) {
            return;
        }
        for (_, class) in &mut self.of {
            class.age = class.age.saturating_add(1);
        }
        let at = self.of.binary_search_by_key(&rows, |(rows, _)| *rows);
        let at = at.unwrap_or_else(|at| {
            self.of.insert(at, (rows, Class::default()));
            at
        });
        self.of[at].1.note(took);
    }

    /// What a window of so many rows takes, if anything was measured: in proportion between two measured numbers of rows, and beyond them as the last ones grow.
    pub(super) fn expect(&self, rows: usize) -> Option<f64> {
        between(self.known(Class::fresh), rows).or_else(|| between(self.known(|_| true), rows))
    }

    /// The most rows that were measured.
    pub(super) fn reach(&self) -> usize {
        self.known(|_| true).next_back().map_or(0, |(rows, _)| rows)
    }

    fn known(
        &self,
        counts: impl Fn(&Class) -> bool + Clone,
    ) -> impl DoubleEndedIterator<Item = (usize, f64)> + Clone {
        let known = self.of.iter().filter(move |(_, class)| counts(class));
        known.map(|(rows, class)| (*rows, class.took))
    }
}

/// What a window of `rows` rows takes where no more than `at` were measured, which took `took`.
pub(super) fn beyond(at: usize, took: f64, rows: usize) -> f64 {
    took + ASSUMED * took / at.max(1) as f64 * rows.saturating_sub(at) as f64
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
                None => return Some(beyond(at, took, rows)),
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
    fn what_has_become_faster_is_believed_at_once() {
        let mut decode = Decode::default();
        (0..LAST).for_each(|_| decode.note(1, 3.0));
        decode.note(1, 2.5);
        assert_eq!(decode.expect(1), Some(3.0));
        decode.note(1, 2.0);
        assert_eq!(decode.expect(1), Some(2.0));
        (0..4).for_each(|_| decode.note(1, 3.0));
        assert_eq!(decode.expect(1), Some(3.0), "it was one lucky window");
    }

    #[test]
    fn a_hiccup_counts_little_and_old_measurements_do_not() {
        let mut decode = Decode::default();
        (0..20).for_each(|_| decode.note(2, 1.0));
        (0..4).for_each(|_| decode.note(2, 100.0));
        assert_eq!(decode.expect(2), Some(1.0));
        decode.note(1, 0.5);
        (0..=FRESH[1]).for_each(|_| decode.note(1, 0.5));
        assert_eq!(decode.expect(2), Some(0.75)); // as if it had never been measured
        decode.note(3, 100.0); // perhaps a hiccup: not held against it for long
        assert!(decode.expect(2).unwrap() > 9.0);
        (0..=FRESH[0]).for_each(|_| decode.note(1, 0.5));
        assert_eq!(decode.expect(2), Some(0.75));
        decode.note(0, 9.0);
        decode.note(ROWS_MAX + 1, 9.0);
        assert_eq!(decode.expect(1), Some(0.5));
    }
}
