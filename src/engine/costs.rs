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

    /// All of a pass of the decode lane took so long. Those of the prompt lane do not count: a backend may compute them in other ways.
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
        self.slices.took(class(rows))
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

/// The next smaller number of rows whose costs are kept apart.
pub fn step_down(rows: usize) -> usize {
    match class(rows) {
        0 => 0,
        class => 1 << (class - 1),
    }
}

/// The last measurements of a class.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The first `count`, in no order.
    last: [Duration; LAST],
    count: usize,
    /// Where the next one goes.
    next: usize,
    /// The second longest of them, or the only one.
    took: Duration,
    /// Measurements of other classes since.
    age: u32,
}

impl Class {
    const EMPTY: Self = Self {
        last: [Duration::ZERO; LAST],
        count: 0,
        next: 0,
        took: Duration::ZERO,
        age: 0,
    };

    fn note(&mut self, took: Duration) {
        self.last[self.next] = took;
        self.next = (self.next + 1) % LAST;
        self.count = LAST.min(self.count + 1);
        let mut longest = [Duration::ZERO; 2];
        for &took in &self.last[..self.count] {
            longest = [longest[0].max(took), longest[1].max(took.min(longest[0]))];
        }
        self.took = longest[usize::from(self.count > 1)];
        self.age = 0;
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
        class.get_or_insert(Class::EMPTY).note(took);
    }

    fn took(&self, class: usize) -> Option<Duration> {
        self.of[class].as_ref().map(|known| known.took)
    }

    /// More rows never take less time.
    fn least(&self, rows: usize) -> Duration {
        let below = (0..=class(rows)).rev();
        below
            .filter_map(|of| self.took(of))
            .next()
            .unwrap_or_default()
    }

    /// More rows never take less time, nor more than in proportion: so neighbours bound what has not been measured.
    fn expect(&self, rows: usize) -> Option<Duration> {
        let class = class(rows);
        let took = |of| self.took(of);
        if let Some(took) = took(class) {
            return Some(took);
        }
        let above = (class + 1..CLASSES).find_map(took);
        let below = (0..class)
            .rev()
            .find_map(|of| took(of).map(|took| took.saturating_mul(1 << (class - of))));
        match (above, below) {
            (Some(above), Some(below)) => Some(above.min(below)),
            (above, below) => above.or(below),
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
        check(&[(1, 2)], &[(0, 2), (1, 2), (2, 4), (3, 8), (128, 256)]);
        check(&[(100, 9)], &[(1, 9), (65, 9), (128, 9), (129, 18)]);
        check(
            &[(1, 2), (128, 20)],
            &[(2, 4), (8, 16), (16, 20), (64, 20), (256, 40)],
        );
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

    #[test]
    fn steps_go_down_to_nothing() {
        let steps: Vec<_> = std::iter::successors(Some(132), |rows| Some(step_down(*rows)))
            .take(10)
            .collect();
        assert_eq!(steps, [132, 128, 64, 32, 16, 8, 4, 2, 1, 0]);
    }
}
