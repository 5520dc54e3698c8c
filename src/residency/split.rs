//! Dividing a layer's misses: some are brought over the link, the others computed where they are, so that both end together.
//!
//! It knows only what it has measured: what an expert takes on either way, and how the ways compare in whole visits, as moving averages. Two ways at once may take longer than either alone (both use the
//! host's memory), so the best single way is tried now and then, and taken as long as it is the faster one.
//! Pure: times come in, numbers of experts come out.

use std::time::Duration;

/// After so many visits with misses, a way that is not the best is measured again: as many times more as the square of how much worse it is, so that measuring costs next to nothing.
const MEASURE_EVERY: f64 = 48.0;
/// What a new measurement weighs.
const WEIGHT: f64 = 1.0 / 8.0;

/// What is done with misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Some are brought and the others computed where they are.
    Both,
    /// All are brought.
    Link,
    /// All are computed where they are.
    Host,
}

impl Way {
    const ALL: [Self; 3] = [Self::Both, Self::Link, Self::Host];
}

/// What a visit with misses took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Experts that were brought.
    pub moved: usize,
    /// Experts that were computed where they are.
    pub left: usize,
    /// From the visit's beginning until the last one had been brought.
    pub link: Duration,
    /// What computing the others took.
    pub host: Duration,
    /// The whole visit.
    pub whole: Duration,
}

/// A moving average that knows whether it is one.
#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn note(&mut self, value: f64) {
        self.0 = Some(match self.0 {
            None => value,
            Some(average) => average + WEIGHT * (value - average),
        });
    }
}

/// The model.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// **Units**: seconds an expert.
    link: Average,
    host: Average,
    /// `[ways]`: what visits took, over what the faster single way should have taken by the averages above.
    ways: [Average; 3],
    /// `[ways]`: when each was taken last. **Units**: visits with misses.
    taken: [f64; 3],
    visits: f64,
    way: Option<Way>,
}

impl Split {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many of so many misses are to be brought.
    pub fn moves(&mut self, misses: usize) -> usize {
        if misses == 0 {
            self.way = None;
            return 0;
        }
        let way = self.choose();
        let (way, moved) = match (way, self.link.0, self.host.0) {
            (Way::Link, ..) => (way, misses),
            (Way::Host, ..) => (way, 0),
            (Way::Both, Some(link), Some(host)) => both(misses, link, host),
            // one tells enough of a link of which nothing is known
            (Way::Both, None, _) => (way, 1),
            (Way::Both, _, None) => (way, misses - 1),
        };
        self.way = Some(way);
        moved
    }

    /// Which way is taken: the best, or one whose turn it is to be measured.
    fn choose(&mut self) -> Way {
        self.visits += 1.0;
        let costs = Way::ALL.map(|way| self.cost(way));
        let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let due = |way: &usize| {
            let worse = costs[*way] / best;
            worse > 1.0 && self.visits - self.taken[*way] > MEASURE_EVERY * worse * worse
        };
        let way = (0..3)
            .find(due)
            .or_else(|| (0..3).find(|way| costs[*way] == best))
            .unwrap_or(0);
        self.taken[way] = self.visits;
        Way::ALL[way]
    }

    /// What a visit takes this way, over what the faster single one takes: as measured, or else as the costs of one expert let expect.
    fn cost(&self, way: Way) -> f64 {
        let (Some(link), Some(host)) = (self.link.0, self.host.0) else {
            // both are to be known first
            return if way == Way::Both { 1.0 } else { f64::INFINITY };
        };
        self.ways[way as usize].0.unwrap_or_else(|| {
            let single = link.min(host);
            match way {
                Way::Link => link / single,
                Way::Host => host / single,
                Way::Both => link.max(host) / (link + host),
            }
        })
    }

    /// What came of the last [`moves`](Self::moves).
    pub fn note(&mut self, measured: Measured) {
        let Some(way) = self.way.take() else {
            return;
        };
        if measured.moved > 0 {
            let each = measured.link.as_secs_f64() / measured.moved as f64;
            self.link.note(each);
        }
        if measured.left > 0 {
            let each = measured.host.as_secs_f64() / measured.left as f64;
            self.host.note(each);
        }
        let (Some(link), Some(host)) = (self.link.0, self.host.0) else {
            return;
        };
        let single = link.min(host) * (measured.moved + measured.left) as f64;
        if single > 0.0 {
            let whole = measured.whole.as_secs_f64() / single;
            self.ways[way as usize].note(whole);
        }
    }

    /// **Units**: seconds. What an expert takes over the link, and where it is, as far as known.
    pub fn costs(&self) -> (Option<f64>, Option<f64>) {
        (self.link.0, self.host.0)
    }
}

/// Both ways end together where moved x link = left x host; but experts are whole, and for few of them a single way may be the faster one.
fn both(misses: usize, link: f64, host: f64) -> (Way, usize) {
    let count = misses as f64;
    let moved = (count * host / (link + host)).round().min(count);
    let together = (moved * link).max((count - moved) * host);
    if together < count * link.min(host) {
        (Way::Both, moved as usize)
    } else if link < host {
        (Way::Link, misses)
    } else {
        (Way::Host, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::random::Random;

    /// A machine of these costs, which are more by `contention` while both ways are in use. **Units**: microseconds an expert.
    #[derive(Clone, Copy)]
    struct Machine {
        link: f64,
        host: f64,
        contention: f64,
    }

    impl Machine {
        fn run(self, moved: usize, left: usize, random: &mut Random) -> Measured {
            let slower = if moved > 0 && left > 0 {
                1.0 + self.contention
            } else {
                1.0
            };
            let noise = 0.9 + 0.2 * f64::from(random.unit());
            let time = |each: f64, count: usize| {
                Duration::from_secs_f64(1e-6 * each * count as f64 * slower * noise)
            };
            let (link, host) = (time(self.link, moved), time(self.host, left));
            Measured {
                moved,
                left,
                link,
                host,
                whole: link.max(host),
            }
        }
    }

    /// Over many visits it takes no more than `of_best` of what the best single way takes.
    fn check(machine: Machine, of_best: f64) {
        for seed in 0..8 {
            let mut random = Random::new(2, seed);
            let mut split = Split::new();
            let (mut got, mut best) = (0.0, 0.0);
            for _ in 0..4000 {
                let misses = 1 + random.below(10);
                let moved = split.moves(misses);
                assert!(moved <= misses);
                let measured = machine.run(moved, misses - moved, &mut random);
                got += measured.whole.as_secs_f64();
                best += 1e-6 * machine.link.min(machine.host) * misses as f64;
                split.note(measured);
            }
            let share = got / best;
            assert!(
                share < of_best,
                "seed {seed}: {share} of the best single way"
            );
        }
    }

    #[test]
    fn both_ways_end_together() {
        let alone = |link, host| Machine {
            link,
            host,
            contention: 0.0,
        };
        // as fast as each other: little more than half; whole experts do not divide better
        check(alone(70.0, 70.0), 0.62);
        check(alone(70.0, 95.0), 0.75);
        check(alone(200.0, 100.0), 0.82);
    }

    #[test]
    fn it_is_never_slower_than_the_best_single_way() {
        for (link, host, contention) in [
            (70.0, 95.0, 0.3),
            (70.0, 95.0, 2.0),
            (95.0, 70.0, 1.0),
            (30.0, 300.0, 0.5),
            (3000.0, 100.0, 0.1),
        ] {
            let machine = Machine {
                link,
                host,
                contention,
            };
            check(machine, 1.03);
        }
    }

    #[test]
    fn it_follows_a_machine_that_changes() {
        let mut random = Random::new(3, 0);
        let mut split = Split::new();
        let mut moved_last = 0;
        for visit in 0..4000 {
            let machine = Machine {
                link: if visit < 2000 { 50.0 } else { 5000.0 },
                host: 500.0,
                contention: 0.0,
            };
            let moved = split.moves(10);
            split.note(machine.run(moved, 10 - moved, &mut random));
            if visit % 2000 >= 1800 {
                moved_last += moved;
            }
            if visit == 1999 {
                assert!(moved_last > 1700, "{moved_last} of 2000");
                moved_last = 0;
            }
        }
        assert!(moved_last < 300, "{moved_last} of 2000");
    }
}
