//! What slices and windows take on this machine, by how many rows they have.
//!
//! Knows rows and durations; knows neither clocks nor sequences. What counts is the second longest of the last few: a stream's pause is as
//! long as the slowest kind of layer makes it, but a single hiccup says nothing.

use std::time::Duration;

/// One for every factor of two.
const CLASSES: usize = 24;

/// The last measurements of a class that count.
const LAST: usize = 16;

/// Measurements of other classes after which a class counts as not measured: conditions change, and a hiccup must not be held against
/// a class that is then never tried again.
const MEMORY: u32 = 512;

/// What has been measured so far.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    slices: Curve,
    windows: Curve,
}

impl Costs {
    /// A slice of a pass of the prompt lane took so long.
    pub fn note_slice(&mut self, rows: usize, took: Duration) {
        self.slices.note(rows, took);
    }

    /// All of a pass took so long: one of the decode lane, or one that would take the same there.
    pub fn note_window(&mut self, rows: usize, took: Duration) {
        self.windows.note(rows, took);
    }

    /// What a slice will take, or a bound for it.
    pub fn slice(&self, rows: usize) -> Duration {
        // No slice takes longer than a window.
        self.slices
            .expect(rows)
            .or(self.windows.expect(rows))
            .unwrap_or_default()
    }

    /// What a slice of about so many rows took, if there was one.
    pub fn measured_slice(&self, rows: usize) -> Option<Duration> {
        self.slices.took(rows)
    }

    /// What a window will take, or a bound for it.
    pub fn window(&self, rows: usize) -> Duration {
        self.windows.expect(rows).unwrap_or_default()
    }

    /// What a window will take at least, as far as is known.
    pub fn window_least(&self, rows: usize) -> Duration {
        self.windows.least(rows)
    }
}

/// The last measurements of a class.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// What rows took, and how many they were; the first `count`, in no order.
    last: [(Duration, usize); LAST],
    count: usize,
    /// Where the next one goes.
    next: usize,
    /// The second longest of them, or the only one.
    took: Duration,
    /// With so many rows.
    rows: usize,
    /// Measurements of other classes since.
    age: u32,
}

impl Class {
    const EMPTY: Self = Self {
        last: [(Duration::ZERO, 0); LAST],
        count: 0,
        next: 0,
        took: Duration::ZERO,
        rows: 0,
        age: 0,
    };

    fn note(&mut self, rows: usize, took: Duration) {
        self.last[self.next] = (took, rows);
        self.next = (self.next + 1) % LAST;
        self.count = LAST.min(self.count + 1);
        let mut longest = [Self::EMPTY.last[0]; 2];
        for &last in &self.last[..self.count] {
            longest = [longest[0].max(last), longest[1].max(last.min(longest[0]))];
        }
        (self.took, self.rows) = longest[usize::from(self.count > 1)];
        self.age = 0;
    }

    /// What `rows` rows take, if time is in proportion.
    fn in_proportion(&self, rows: usize) -> Duration {
        let times = rows as f64 / self.rows.max(1) as f64;
        Duration::try_from_secs_f64(self.took.as_secs_f64() * times).unwrap_or(Duration::MAX)
    }

    /// What `rows` rows take, if it grows by the same with every doubling from here to `above`. Experts are like that: the first rows
    /// touch new ones, later rows mostly those that are read already.
    fn on_the_way_to(&self, above: &Self, rows: usize) -> Duration {
        let log = |rows: usize| (rows.max(1) as f64).log2();
        let part =
            (log(rows) - log(self.rows)) / (log(above.rows) - log(self.rows)).max(f64::EPSILON);
        self.took
            + above
                .took
                .saturating_sub(self.took)
                .mul_f64(part.clamp(0.0, 1.0))
    }
}

/// Times by number of rows; class `i` is for more than `2^(i-1)` and at most `2^i`.
#[derive(Clone, Debug, Default)]
struct Curve {
    of: [Option<Class>; CLASSES],
}

fn class(rows: usize) -> usize {
    let log = usize::BITS - rows.saturating_sub(1).leading_zeros();
    (log as usize).min(CLASSES - 1)
}

impl Curve {
    fn note(&mut self, rows: usize, took: Duration) {
        for class in &mut self.of {
            if let Some(known) = class {
                known.age += 1;
                if known.age > MEMORY {
                    *class = None;
                }
            }
        }
        let class = &mut self.of[class(rows)];
        class.get_or_insert(Class::EMPTY).note(rows, took);
    }

    fn took(&self, rows: usize) -> Option<Duration> {
        self.of[class(rows)].as_ref().map(|known| known.took)
    }

    /// More rows never take less time.
    fn least(&self, rows: usize) -> Duration {
        let fewer = self.of.iter().flatten().rfind(|known| known.rows <= rows);
        fewer.map_or(Duration::ZERO, |known| known.took)
    }

    /// More rows take no less time, and no more than in proportion.
    fn expect(&self, rows: usize) -> Option<Duration> {
        let above = self.of.iter().flatten().find(|known| known.rows >= rows);
        let below = self.of.iter().flatten().rfind(|known| known.rows < rows);
        match (below, above) {
            (Some(below), Some(above)) => {
                let between = below.on_the_way_to(above, rows);
                // a measurement of much the same outweighs what others tell of it
                let known = class(above.rows) == class(rows);
                let bound = (!known).then(|| below.in_proportion(rows));
                Some(between.min(bound.unwrap_or(between)))
            }
            (Some(below), None) => Some(below.in_proportion(rows)),
            (None, above) => above.map(|known| known.took),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Measurements (rows, ms) in order, and what is expected then.
    fn check(measured: &[(usize, u32)], expected: &[(usize, u32)]) {
        let mut costs = Costs::default();
        for (rows, ms) in measured {
            costs.note_window(*rows, *ms * MS);
        }
        let found: Vec<_> = expected
            .iter()
            .map(|(rows, _)| costs.window(*rows))
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
        assert_eq!(costs.window_least(9), Duration::ZERO);
        costs.note_window(4, 5 * MS);
        costs.note_window(64, 20 * MS);
        let least = [1, 4, 9, 64, 65].map(|rows| costs.window_least(rows));
        assert_eq!(least, [0, 5, 5, 20, 20].map(|ms| ms * MS));
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
        check(&hiccup(MEMORY as usize), &[(64, 5000)]);
        check(&hiccup(1 + MEMORY as usize), &[(64, 64)]);
    }
}
