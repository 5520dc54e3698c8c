//! Recency and decayed frequency, few replacements a layer and window, and prompts that do not evict what streams use.
//!
//! A resident's rank is its faded number of decode uses, discounted by the time since the last one. Time is counted in decode windows, so it stands still while a prompt is
//! read; and a prompt's use weighs so little that it outranks only what no stream has used for long. Free room is filled at once.

use super::{Policy, Wanted, ranking::Ranking, score::Score};
use crate::residency::{ExpertId, ExpertSizes, Residents};

/// What [`Guarded`] goes by.
///
/// **Source**: of a trace of 6,000 tokens of the bundled model (2026-11-30), half-lives from 32 to 512, recency from 0 to 4 and 2 to 8 replacements hit within half a
/// point of each other, at any capacity: what is there by default lies in the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// **Units**: decode windows. After so many a use counts half.
    pub half_life: f64,
    /// How many half-lives a half-life without use counts on top: 0 is frequency alone, much is recency alone.
    pub recency: f64,
    /// What a prompt's use weighs; a stream's weighs 1.
    pub prompt_weight: f64,
    /// Residents that are replaced a layer and window at most.
    pub replaced_max: usize,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            half_life: 128.0,
            recency: 1.0,
            prompt_weight: 1.0 / 64.0,
            replaced_max: 4,
        }
    }
}

/// Recency, decayed frequency and a guard for streams.
#[derive(Debug)]
pub struct Guarded {
    guard: Guard,
    /// **Units**: half-lives of decode windows.
    now: f64,
    visit: f64,
    /// `[experts]`
    uses: Vec<Uses>,
    order: Ranking<Score>,
    /// Those who are not resident, the highest rank last.
    missed: Vec<(Score, ExpertId)>,
}

/// How an expert was used.
#[derive(Clone, Copy, Debug)]
struct Uses {
    score: Score,
    /// When a stream last used it. **Units**: half-lives.
    last: f64,
}

impl Guarded {
    /// For experts of these sizes.
    pub fn new(sizes: &ExpertSizes, guard: Guard) -> Self {
        let never = Uses {
            score: Score::NEVER,
            last: 0.0,
        };
        Self {
            guard,
            now: 0.0,
            visit: 1.0 / (guard.half_life * sizes.layers().max(1) as f64),
            uses: vec![never; sizes.count()],
            order: Ranking::new(sizes.count()),
            missed: Vec::new(),
        }
    }

    /// How much streams use an expert: the binary logarithm of its faded uses as of now. Nothing if they never did.
    pub fn rank(&self, expert: ExpertId) -> Option<f64> {
        let uses = &self.uses[expert.0 as usize];
        (uses.last > 0.0).then(|| uses.score.at(self.now))
    }

    /// Lets an expert in that had this rank in an earlier run, if there is room; whether it is in.
    pub fn warm(&mut self, expert: ExpertId, rank: f64, residents: &mut Residents) -> bool {
        let uses = &mut self.uses[expert.0 as usize];
        uses.score = Score::of(rank);
        uses.last = uses.last.max(f64::MIN_POSITIVE);
        self.admit(expert, residents)
    }

    /// Lets an expert in whom nobody has wanted now, if there is room; whether it is in.
    pub fn admit(&mut self, expert: ExpertId, residents: &mut Residents) -> bool {
        let uses = self.uses[expert.0 as usize];
        let fits = residents.insert(expert);
        if fits {
            let rank = uses.score.raised(self.guard.recency * uses.last);
            self.order.put(expert, rank);
        }
        fits
    }

    /// Takes note of a use; the expert's rank from now on.
    fn note(&mut self, wanted: &Wanted) -> Score {
        let uses = &mut self.uses[wanted.expert.0 as usize];
        if wanted.decode_rows > 0 {
            uses.score = uses.score.used(f64::from(wanted.decode_rows), self.now);
            uses.last = self.now;
        } else {
            uses.score = uses.score.used(self.guard.prompt_weight, self.now);
        }
        uses.score.raised(self.guard.recency * uses.last)
    }

    /// Lets an expert in, and for it out who ranks lower; false if it must stay out.
    fn replace(&mut self, rank: Score, expert: ExpertId, residents: &mut Residents) -> bool {
        while !residents.fits(expert) {
            match self.order.first() {
                Some((least, out)) if least < rank => {
                    residents.evict(out);
                    self.order.remove(out);
                }
                _ => return false,
            }
        }
        residents.insert(expert);
        self.order.put(expert, rank);
        true
    }
}

impl Policy for Guarded {
    fn visit(&mut self, wanted: &[Wanted], residents: &mut Residents) {
        if wanted.iter().any(|wanted| wanted.decode_rows > 0) {
            self.now += self.visit;
        }
        let mut missed = std::mem::take(&mut self.missed);
        missed.clear();
        for wanted in wanted {
            let rank = self.note(wanted);
            if residents.holds(wanted.expert) {
                self.order.put(wanted.expert, rank);
            } else {
                missed.push((rank, wanted.expert));
            }
        }
        missed.sort_unstable();
        let mut replaced = 0;
        while let Some((rank, expert)) = missed.pop() {
            let free = residents.fits(expert);
            if !free && replaced == self.guard.replaced_max {
                continue; // a smaller one may still fit
            }
            if !self.replace(rank, expert, residents) {
                break; // nor can those that rank lower
            }
            replaced += usize::from(!free);
        }
        self.missed = missed;
    }
}
