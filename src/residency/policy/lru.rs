//! Least recently used: everything that was wanted stays, whoever was wanted longest ago goes.

use super::{Policy, Wanted, ranking::Ranking};
use crate::residency::{ExpertSizes, Residents};

/// Least recently used.
#[derive(Debug)]
pub struct Lru {
    visits: u64,
    order: Ranking<u64>,
}

impl Lru {
    /// For experts of these sizes.
    pub fn new(sizes: &ExpertSizes) -> Self {
        Self {
            visits: 0,
            order: Ranking::new(sizes.count()),
        }
    }
}

impl Policy for Lru {
    fn visit(&mut self, wanted: &[Wanted], residents: &mut Residents) {
        self.visits += 1;
        for wanted in wanted
            .iter()
            .filter(|wanted| residents.holds(wanted.expert))
        {
            self.order.put(wanted.expert, self.visits);
        }
        for wanted in wanted {
            while !residents.fits(wanted.expert) {
                match self.order.first() {
                    // nobody makes room for who came in the same visit
                    Some((visit, expert)) if visit < self.visits => {
                        residents.evict(expert);
                        self.order.remove(expert);
                    }
                    _ => break,
                }
            }
            if residents.insert(wanted.expert) {
                self.order.put(wanted.expert, self.visits);
            }
        }
    }
}
