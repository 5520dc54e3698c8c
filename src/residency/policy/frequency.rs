//! Decayed frequency: who was wanted most stays, every row a use, and a use counts half after a while.

use super::{Policy, Wanted, ranking::Ranking, score::Score};
use crate::residency::{ExpertSizes, Residents};

/// **Units**: windows. After so many a use counts half.
const HALF_LIFE: f64 = 128.0;

/// Decayed frequency.
#[derive(Debug)]
pub struct Frequency {
    /// **Units**: half-lives.
    now: f64,
    visit: f64,
    /// `[experts]`
    scores: Vec<Score>,
    order: Ranking<Score>,
}

impl Frequency {
    /// For experts of these sizes.
    pub fn new(sizes: &ExpertSizes) -> Self {
        Self {
            now: 0.0,
            visit: 1.0 / (HALF_LIFE * sizes.layers().max(1) as f64),
            scores: vec![Score::NEVER; sizes.count()],
            order: Ranking::new(sizes.count()),
        }
    }
}

impl Policy for Frequency {
    fn visit(&mut self, wanted: &[Wanted], residents: &mut Residents) {
        self.now += self.visit;
        for wanted in wanted {
            let score = &mut self.scores[wanted.expert.0 as usize];
            *score = score.used(
                f64::from(wanted.decode_rows) + f64::from(wanted.prompt_rows),
                self.now,
            );
            if residents.holds(wanted.expert) {
                self.order.put(wanted.expert, *score);
            }
        }
        for wanted in wanted {
            let score = self.scores[wanted.expert.0 as usize];
            while !residents.fits(wanted.expert) {
                match self.order.first() {
                    Some((least, expert)) if least < score => {
                        residents.evict(expert);
                        self.order.remove(expert);
                    }
                    _ => break,
                }
            }
            if residents.insert(wanted.expert) {
                self.order.put(wanted.expert, score);
            }
        }
    }
}
