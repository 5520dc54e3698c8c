//! A link in simulated time: what a tier costs on a machine that is not here, and every order in which its transfers can end, by seed.
//!
//! Transfers share the link one after another, those that somebody waits for first; each takes a latency and what its bytes take, more or less by chance. Time passes where somebody waits for
//! a transfer, and where a caller says so.

use std::{collections::VecDeque, time::Duration};

use super::tier::{Landed, Mover, Order, Urgency};
use crate::synth::random::Random;

/// How fast a simulated link is, and how well it behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// **Units**: bytes a second.
    pub bytes_s: f64,
    /// What a transfer takes besides, on top of what the link is busy.
    pub latency: Duration,
    /// By how much the latter may vary: 0 is never, 1 is from nothing to twice as long.
    pub jitter: f64,
    /// How many of a thousand transfers fail.
    pub failures_per_mille: u32,
}

/// A simulated transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulated transfer of expert {expert} of layer {layer} failed")]
pub struct SimulatedFailure {
    /// The expert's layer.
    pub layer: usize,
    /// The expert.
    pub expert: u16,
}

/// The link.
#[derive(Clone, Debug)]
pub struct SimulatedLink {
    speed: LinkSpeed,
    /// `[layers]`. **Units**: bytes. One expert.
    expert_bytes: Vec<u64>,
    now: Duration,
    /// When the link is done with what it has begun.
    busy_until: Duration,
    /// When the last of the transfers that were reported had ended.
    ended: Duration,
    waiting: VecDeque<Order>,
    begun: Vec<(Duration, Order)>,
    random: Random,
    moved_bytes: u64,
}

impl SimulatedLink {
    /// A link that brings experts of these sizes; what happens by chance follows from `seed`.
    pub fn new(expert_bytes: Vec<u64>, speed: LinkSpeed, seed: u64) -> Self {
        Self {
            speed,
            expert_bytes,
            now: Duration::ZERO,
            busy_until: Duration::ZERO,
            ended: Duration::ZERO,
            waiting: VecDeque::new(),
            begun: Vec::new(),
            random: Random::new(0, seed),
            moved_bytes: 0,
        }
    }

    /// The simulated time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// When the last of the transfers that were reported had ended, which may be some time ago.
    pub fn ended(&self) -> Duration {
        self.ended
    }

    /// Something else takes so long.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        // what the link begins meanwhile it begins when it is free, not when somebody looks
        while let Some(free) = self.free_before(until) {
            self.now = self.now.max(free);
            self.begin_next();
        }
        self.now = until;
    }

    /// **Units**: bytes. What was brought so far.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    fn free_before(&self, until: Duration) -> Option<Duration> {
        (!self.waiting.is_empty() && self.busy_until < until).then_some(self.busy_until)
    }

    /// Begins transfers as the link becomes free.
    fn begin_next(&mut self) {
        while self.busy_until <= self.now
            && let Some(order) = self.waiting.pop_front()
        {
            let bytes = self.expert_bytes[order.layer];
            self.moved_bytes += bytes;
            self.busy_until = self.now + Duration::from_secs_f64(bytes as f64 / self.speed.bytes_s);
            let late = 1.0 + self.speed.jitter * (2.0 * f64::from(self.random.unit()) - 1.0);
            let end = self.busy_until + self.speed.latency.mul_f64(late.max(0.0));
            self.begun.push((end, order));
        }
    }

    fn end(&mut self, at: usize) -> Landed<SimulatedFailure> {
        let (end, order) = self.begun.swap_remove(at);
        self.now = self.now.max(end);
        self.ended = self.ended.max(end);
        let fails =
            f64::from(self.random.unit()) * 1000.0 < f64::from(self.speed.failures_per_mille);
        let Order {
            ticket,
            layer,
            expert,
            ..
        } = order;
        Landed {
            ticket,
            result: if fails {
                Err(SimulatedFailure { layer, expert })
            } else {
                Ok(())
            },
        }
    }

    /// Whose transfer ends first, and when.
    fn first(&self) -> Option<(usize, Duration)> {
        let ends = self.begun.iter().enumerate();
        let ends = ends.map(|(at, (end, order))| (*end, order.ticket.0, at));
        ends.min().map(|(end, _, at)| (at, end))
    }
}

impl Mover for SimulatedLink {
    type Error = SimulatedFailure;

    fn start(&mut self, order: Order) {
        let ahead = self.waiting.iter();
        let demands = ahead
            .take_while(|order| order.urgency == Urgency::Demand)
            .count();
        match order.urgency {
            Urgency::Demand => self.waiting.insert(demands, order),
            Urgency::Ahead => self.waiting.push_back(order),
        }
        self.begin_next();
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<SimulatedFailure>> {
        self.begin_next();
        loop {
            match self.first() {
                Some((at, end)) if end <= self.now => return Some(self.end(at)),
                _ if !wait => return None,
                // the link may begin something meanwhile that ends sooner
                Some((_, end)) if self.free_before(end).is_none() => self.now = end,
                None if self.waiting.is_empty() => return None,
                _ => {
                    self.now = self.now.max(self.busy_until);
                    self.begin_next();
                }
            }
        }
    }
}
