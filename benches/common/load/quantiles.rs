//! What is said of many times: the median, the tail, the longest.

use std::time::Duration;

use serde_json::{Value, json};

/// Of at least one time, by nearest rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantiles {
    pub(crate) p50: Duration,
    pub(crate) p95: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Quantiles {
    /// None of none.
    pub(crate) fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort();
        let last = times.len().checked_sub(1)?;
        let rank = |share: f64| times[(share * times.len() as f64).ceil() as usize - 1];
        Some(Self {
            p50: rank(0.5),
            p95: rank(0.95),
            p99: rank(0.99),
            max: times[last],
        })
    }

    /// **Units**: milliseconds.
    pub(crate) fn json(&self) -> Value {
        json!({"p50": ms(self.p50), "p95": ms(self.p95), "p99": ms(self.p99), "max": ms(self.max)})
    }

    /// A line of a table.
    pub(crate) fn line(&self) -> String {
        let [p50, p95, p99, max] = [self.p50, self.p95, self.p99, self.max].map(ms);
        format!("p50 {p50:>8.2}  p95 {p95:>8.2}  p99 {p99:>8.2}  max {max:>8.2} ms")
    }
}

pub(crate) fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// The middle one; of an even number, the upper of the two.
pub(crate) fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    values.get(values.len() / 2).copied()
}
