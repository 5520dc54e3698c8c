//! What attending takes, found from windows that differ in it.
//!
//! A regression within each class of rows, so that it is not taken for what the rows themselves take. Only windows that attend much count:
//! between others, noise would be taken for a slope.

use std::time::Duration;

use super::{
    Load,
    curve::{CLASSES, class, seconds},
};

/// **Units**: positions attended to. With fewer a window tells nothing.
const LEAST: f64 = 32_768.0;
/// **Units**: positions attended to. A spread no larger than this is mistrusted.
const SPREAD: f64 = 8192.0;
/// What a new measurement counts for in the averages.
const WEIGHT: f64 = 1.0 / 16.0;

/// Seconds a position attended to.
#[derive(Clone, Debug, Default)]
pub(super) struct Attention {
    /// Averages of (attended, seconds) by class of rows.
    means: [Option<(f64, f64)>; CLASSES],
    covariance: f64,
    variance: f64,
}

impl Attention {
    pub(super) fn note(&mut self, load: Load, took: Duration) {
        let (attended, seconds) = (load.attended as f64, took.as_secs_f64());
        if attended < LEAST {
            return;
        }
        let mean = self.means[class(load.rows)].get_or_insert((attended, seconds));
        let (dx, dy) = (attended - mean.0, seconds - mean.1);
        *mean = (mean.0 + WEIGHT * dx, mean.1 + WEIGHT * dy);
        self.covariance += WEIGHT * (dx * dy - self.covariance);
        self.variance += WEIGHT * (dx * dx - self.variance);
    }

    /// What a window takes for attending.
    pub(super) fn takes(&self, load: Load) -> Duration {
        let slope = (self.covariance / (self.variance + SPREAD * SPREAD)).max(0.0);
        seconds(slope * load.attended as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of these rows, one after the other, each taking a millisecond a row and this for every 1000 positions attended to.
    fn check(rows: usize, chunks: usize, us: f64) {
        let mut attention = Attention::default();
        for chunk in 0..chunks {
            let load = Load::of(rows, rows * chunk);
            let seconds = rows as f64 * 1e-3 + load.attended as f64 * us * 1e-9;
            attention.note(load, Duration::from_secs_f64(seconds));
            // what others take, in between, changes nothing
            attention.note(Load::of(4, 100), Duration::from_millis(40));
        }
        let found = attention.takes(Load {
            rows: 1,
            attended: 1_000_000,
        });
        let expected = us * 1e-3;
        let error = (found.as_secs_f64() - expected).abs();
        assert!(error <= 0.15 * expected, "{found:?} of {expected} s");
    }

    #[test]
    fn the_slope_is_found() {
        check(128, 40, 220.0);
        check(64, 60, 220.0);
        check(2048, 20, 1.5);
        check(128, 40, 0.0);
    }

    #[test]
    fn without_a_spread_there_is_none() {
        let mut attention = Attention::default();
        for ms in [40, 44, 39, 47, 41] {
            attention.note(Load::of(8, 6000 + ms), Duration::from_millis(ms as u64));
        }
        let found = attention.takes(Load::of(128, 8000));
        assert!(found < Duration::from_millis(1), "{found:?}");
    }
}
