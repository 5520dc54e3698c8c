//! The bound that no policy can beat: who knows the future keeps what is decoded with soonest.
//!
//! Experts differ in size, and packing whole ones best is a hard problem; so this one may keep parts of experts, which can only be better. Then it is Belady's algorithm with a byte for a page, and
//! misses the fewest bytes of decoding that can be missed by anybody who fetches nothing ahead.
//!
//! **Source**: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966).

use std::collections::BTreeSet;

use super::{Tally, Visits};
use crate::residency::{ExpertId, ExpertSizes};

/// When an expert is next wanted: by a row that decodes, then by any. **Units**: visits; the greatest is never.
type Next = (u32, u32);

/// Runs the whole trace.
pub(super) fn run(visits: &Visits, sizes: &ExpertSizes, capacity: u64) -> Tally {
    let next = next_uses(visits, sizes);
    let mut next = next.iter();
    let mut tally = Tally::default();
    let mut kept = Kept {
        order: BTreeSet::new(),
        held: vec![(0, (0, 0)); sizes.count()],
        used: 0,
    };
    for wanted in visits.iter() {
        for wanted in wanted {
            let held = kept.held[wanted.expert.0 as usize].0;
            tally.count(wanted, sizes.bytes(wanted.expert), held);
        }
        for (wanted, next) in wanted.iter().zip(next.by_ref()) {
            kept.put(wanted.expert, sizes.bytes(wanted.expert), *next);
        }
        kept.cut(capacity);
    }
    tally
}

/// What is kept, in parts.
struct Kept {
    /// Who is wanted last goes first.
    order: BTreeSet<(Next, ExpertId)>,
    /// `[experts]`: bytes, and when it is next wanted.
    held: Vec<(u64, Next)>,
    used: u64,
}

impl Kept {
    fn put(&mut self, expert: ExpertId, bytes: u64, next: Next) {
        let (held, before) = &mut self.held[expert.0 as usize];
        self.order.remove(&(*before, expert));
        self.order.insert((next, expert));
        self.used += bytes - *held;
        (*held, *before) = (bytes, next);
    }

    /// Lets go of what is too much.
    fn cut(&mut self, capacity: u64) {
        while self.used > capacity {
            let Some((next, expert)) = self.order.pop_last() else {
                return;
            };
            let held = &mut self.held[expert.0 as usize].0;
            let gone = (*held).min(self.used - capacity);
            *held -= gone;
            self.used -= gone;
            if *held > 0 {
                self.order.insert((next, expert));
            }
        }
    }
}

/// For every entry of every visit, when its expert is wanted after it.
fn next_uses(visits: &Visits, sizes: &ExpertSizes) -> Vec<Next> {
    let mut soonest = vec![(u32::MAX, u32::MAX); sizes.count()];
    let mut uses = Vec::new();
    for (visit, wanted) in visits.iter().enumerate().rev() {
        for wanted in wanted.iter().rev() {
            let soonest = &mut soonest[wanted.expert.0 as usize];
            uses.push(*soonest);
            soonest.1 = visit as u32;
            if wanted.decode_rows > 0 {
                soonest.0 = visit as u32;
            }
        }
    }
    uses.reverse();
    uses
}
