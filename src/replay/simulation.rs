//! The tier that a server has, run over a trace on a machine that is not here.
//!
//! It is the same code, with a link in simulated time: slots cut from the capacity, tickets, the policy, and lookahead where the trace tells what routers named. Experts are computed as fast as memory gives
//! their bytes, while the link brings the next; what every row reads besides passes between the layers, and that is when the link has time for those who are expected.

use std::time::Duration;

use super::{Replay, Speeds};
use crate::{
    residency::{
        link::{LinkSpeed, SimulatedLink},
        predict::{DISTANCES, Hits, Predictor},
        slots::{SlotPlan, TooSmall},
        tier::{Counts, Tier, Want},
    },
    trace::Header,
};

/// Transfers under way at once.
const TICKETS: usize = 32;

/// What a simulated server did with a trace.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// What it found and fetched.
    pub counts: Counts,
    /// How often lookahead was right, one layer ahead first.
    pub lookahead: [Hits; DISTANCES],
    /// Choices of rows that decode, and how many of these found their expert in its slot when their layer came.
    pub decode: Hits,
    /// What windows with rows that decode took.
    pub decode_time: Duration,
}

impl Replay {
    /// What a server with `capacity` bytes for experts does on a machine of these speeds, with lookahead or without.
    ///
    /// **Errors**: the capacity is too small for one token.
    pub fn simulate(
        &self,
        capacity: u64,
        speeds: Speeds,
        lookahead: bool,
    ) -> Result<Simulated, TooSmall> {
        let mut server = Server::new(&self.header, capacity, speeds)?;
        let mut wants = Vec::new();
        self.visits.walk(|layer, ids, wanted, said| {
            wants.clear();
            let first = self.sizes.id(layer, 0).0;
            wants.extend(wanted.iter().map(|wanted| Want {
                expert: (wanted.expert.0 - first) as u16,
                decode_rows: wanted.decode_rows,
                prompt_rows: wanted.prompt_rows,
            }));
            server.visit(layer, ids, &wants);
            for (layer, distance, ids) in said.filter(|(_, distance, _)| *distance <= DISTANCES) {
                server.say(layer, distance, ids, lookahead);
            }
            server.compute(layer);
        });
        Ok(Simulated {
            counts: server.tier.counts(),
            lookahead: server.predictor.hits(),
            decode: server.decode,
            decode_time: server.decode_time,
        })
    }
}

struct Server<'a> {
    header: &'a Header,
    speeds: Speeds,
    tier: Tier<SimulatedLink>,
    predictor: Predictor,
    /// What passes before every layer.
    before: Duration,
    begun: Duration,
    decodes: bool,
    decode: Hits,
    decode_time: Duration,
}

impl<'a> Server<'a> {
    fn new(header: &'a Header, capacity: u64, speeds: Speeds) -> Result<Self, TooSmall> {
        let plan = SlotPlan::new(&header.layers, capacity)?;
        let bytes = header.layers.iter().map(|layer| layer.expert_bytes);
        let speed = LinkSpeed {
            bytes_s: speeds.link,
            latency: Duration::ZERO,
            jitter: 0.0,
            failures_per_mille: 0,
        };
        let link = SimulatedLink::new(bytes.collect(), speed, 0);
        let common = header.common_bytes as f64 / header.layers.len() as f64;
        let before = Duration::from_secs_f64(common / speeds.fast);
        let expert = header.token_bytes() as f64
            / header.layers.iter().map(|layer| layer.used).sum::<usize>() as f64;
        let mut tier = Tier::new(&header.layers, &plan, TICKETS, link);
        tier.allow_ahead(((before.as_secs_f64() * speeds.link / expert) as usize).max(1));
        Ok(Self {
            header,
            speeds,
            tier,
            predictor: Predictor::new(header.layers.len()),
            before,
            begun: Duration::ZERO,
            decodes: false,
            decode: Hits::default(),
            decode_time: Duration::ZERO,
        })
    }

    /// A window reaches a layer.
    fn visit(&mut self, layer: usize, ids: &[u16], wants: &[Want]) {
        self.begun = self.tier.mover().now();
        self.decodes = wants.iter().any(|want| want.decode_rows > 0);
        self.tier.mover_mut().pass(self.before);
        // whoever has landed meanwhile is there
        self.tier.settle();
        for want in wants.iter().filter(|want| want.decode_rows > 0) {
            self.decode.all += u64::from(want.decode_rows);
            let found = self.tier.holds(layer, want.expert);
            self.decode.right += u64::from(found) * u64::from(want.decode_rows);
        }
        self.predictor
            .chosen(layer, ids, self.header.layers[layer].used);
        self.tier.visit(layer, wants, usize::MAX);
    }

    /// A router names whom it would choose.
    fn say(&mut self, layer: usize, distance: usize, ids: &[u16], lookahead: bool) {
        self.predictor.say(layer, distance, ids);
        if lookahead {
            let used = self.header.layers[layer].used;
            let worth = self.predictor.worth(layer, distance, used);
            self.tier.look_ahead(layer, worth.iter().copied());
        }
    }

    /// Computes who was wanted, as they come.
    fn compute(&mut self, layer: usize) {
        let each = self.header.layers[layer].expert_bytes as f64 / self.speeds.fast;
        let mut batch = Vec::new();
        loop {
            let left = self.tier.take(true, &mut batch); // this link does not fail
            let time = Duration::from_secs_f64(each * batch.len() as f64);
            self.tier.mover_mut().pass(time);
            if left == 0 {
                break;
            }
        }
        self.tier.finish();
        if self.decodes {
            self.decode_time += self.tier.mover().now() - self.begun;
        }
    }
}
