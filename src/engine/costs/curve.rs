//! Times by number of rows, as far as they have been measured.

use std::time::Duration;

/// One for every factor of two.
pub(super) const CLASSES: usize = 24;

/// The last measurements of a class that count.
const LAST: usize = 16;

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
    /// The median of them, the shorter one of two.
    typical: Duration,
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
        typical: Duration::ZERO,
        age: 0,
    };

    fn note(&mut self, rows: usize, took: Duration) {
        self.last[self.next] = (took, rows);
        self.next = (self.next + 1) % LAST;
        self.count = LAST.min(self.count + 1);
        let mut last = self.last;
        let last = &mut last[..self.count];
        last.sort_unstable();
        (self.took, self.rows) = last[self.count.saturating_sub(2)];
        self.typical = last[(self.count - 1) / 2].0;
        self.age = 0;
    }

    /// What `rows` rows take, if time is in proportion.
    fn in_proportion(&self, rows: usize) -> Duration {
        let times = rows as f64 / self.rows.max(1) as f64;
        seconds(self.took.as_secs_f64() * times)
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

/// Nothing is expected to take longer, so that times can be added up.
const LONGEST: f64 = 86_400.0;

/// A time, within reason.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.clamp(0.0, LONGEST)).unwrap_or_default()
}

/// Times by number of rows; class `i` is for more than `2^(i-1)` and at most `2^i`.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    of: [Option<Class>; CLASSES],
    /// Measurements of other classes after which a class counts as not measured: conditions change, and hiccups must not be held
    /// against a class that is then never tried again.
    memory: u32,
}

/// Rows count as much the same within a class.
pub(super) fn class(rows: usize) -> usize {
    let log = usize::BITS - rows.saturating_sub(1).leading_zeros();
    (log as usize).min(CLASSES - 1)
}

impl Curve {
    pub(super) fn new(memory: u32) -> Self {
        Self {
            of: [None; CLASSES],
            memory,
        }
    }

    pub(super) fn note(&mut self, rows: usize, took: Duration) {
        for class in &mut self.of {
            if let Some(known) = class {
                known.age += 1;
                if known.age > self.memory {
                    *class = None;
                }
            }
        }
        let class = &mut self.of[class(rows)];
        class.get_or_insert(Class::EMPTY).note(rows, took);
    }

    pub(super) fn took(&self, rows: usize) -> Option<Duration> {
        self.of[class(rows)].as_ref().map(|known| known.took)
    }

    /// The most rows below these that were measured, and what they took.
    pub(super) fn fewer(&self, rows: usize) -> Option<(usize, Duration)> {
        let below = self.of.iter().flatten().rfind(|known| known.rows < rows);
        below.map(|known| (known.rows, known.took))
    }

    /// What so many rows, or fewer, typically take: more never take less.
    pub(super) fn typical(&self, rows: usize) -> Duration {
        let fewer = self.of.iter().flatten().rfind(|known| known.rows <= rows);
        fewer.map_or(Duration::ZERO, |known| known.typical)
    }

    /// More rows take no less time, and no more than in proportion.
    pub(super) fn expect(&self, rows: usize) -> Option<Duration> {
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
