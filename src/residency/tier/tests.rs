//! Every interleaving of copies, hits, misses, failures and evictions, by seed: what is handed out lies where it should, nothing lies in two places, everything is handed out once, and it all ends.

use std::{collections::HashMap, time::Duration};

use super::*;
use crate::{
    residency::{
        link::{LinkSpeed, SimulatedFailure, SimulatedLink},
        slots::SlotPlan,
    },
    synth::random::Random,
};

/// A link that knows what lies in every slot.
struct Witness {
    link: SimulatedLink,
    under_way: HashMap<Ticket, Order>,
    /// What lies in a slot; nothing while something is on its way into it.
    slots: HashMap<SlotId, (usize, u16)>,
}

impl Mover for Witness {
    type Error = SimulatedFailure;

    fn start(&mut self, order: Order) {
        let taken = self
            .under_way
            .values()
            .any(|other| other.slot == order.slot);
        assert!(!taken, "two tickets for {:?}", order.slot);
        self.slots.remove(&order.slot);
        assert!(self.under_way.insert(order.ticket, order).is_none());
        self.link.start(order);
    }

    fn landed(&mut self, wait: bool) -> Option<Landed<SimulatedFailure>> {
        let landed = self.link.landed(wait)?;
        let order = self.under_way.remove(&landed.ticket).expect("a ticket");
        if landed.result.is_ok() {
            self.slots.insert(order.slot, (order.layer, order.expert));
        }
        Some(landed)
    }
}

fn layers() -> Vec<ExpertLayer> {
    [(16, 2, 100), (16, 2, 150), (8, 3, 100), (16, 2, 150)]
        .iter()
        .enumerate()
        .map(|(layer, &(experts, used, expert_bytes))| ExpertLayer {
            layer,
            experts,
            used,
            expert_bytes,
        })
        .collect()
}

/// A few experts, some of them much more often than others.
fn wants(random: &mut Random, experts: usize, rows: usize) -> Vec<Want> {
    let mut wants: Vec<Want> = Vec::new();
    for _ in 0..rows {
        let uniform = f64::from(random.unit());
        let expert = ((uniform * uniform) * experts as f64) as u16;
        let decode = u32::from(random.below(3) > 0);
        match wants.iter_mut().find(|want| want.expert == expert) {
            Some(want) => want.decode_rows += decode,
            None => wants.push(Want {
                expert,
                decode_rows: decode,
                prompt_rows: 1 - decode,
            }),
        }
    }
    wants
}

/// Runs visits; how many experts failed that were wanted, and what was counted.
fn check(seed: u64, capacity: u64, tickets: usize, failures_per_mille: u32) -> (usize, Counts) {
    let layers = layers();
    let plan = SlotPlan::new(&layers, capacity).expect("enough");
    let speed = LinkSpeed {
        bytes_s: 1e6,
        latency: Duration::from_micros(300),
        jitter: 1.0,
        failures_per_mille,
    };
    let bytes = layers.iter().map(|layer| layer.expert_bytes).collect();
    let witness = Witness {
        link: SimulatedLink::new(bytes, speed, seed),
        under_way: HashMap::new(),
        slots: HashMap::new(),
    };
    let mut tier = Tier::new(&layers, &plan, tickets, witness);
    let mut random = Random::new(1, seed);
    let mut batch = Vec::new();
    let mut failed = 0;
    for window in 0..150 {
        for (layer, shape) in layers.iter().enumerate() {
            let rows = if window % 7 == 0 {
                40
            } else {
                1 + random.below(4)
            };
            let wanted = wants(&mut random, shape.experts, rows);
            let moves_max = if random.below(4) == 0 {
                random.below(3)
            } else {
                usize::MAX
            };
            tier.visit(layer, &wanted, moves_max);
            let next = (layer + 1) % layers.len();
            if random.below(2) == 0 {
                tier.allow_ahead(random.below(5));
                let ahead = wants(&mut random, layers[next].experts, 6);
                tier.look_ahead(next, ahead.iter().map(|want| want.expert));
            }
            let mut given = Vec::new();
            loop {
                let left = tier.take(random.below(4) > 0, &mut batch);
                for here in &batch {
                    given.push(here.expert);
                    if let Some(slot) = here.slot {
                        let lies = tier.mover.slots.get(&slot);
                        assert_eq!(lies, Some(&(layer, here.expert)), "seed {seed}");
                    }
                }
                let below = batch.iter().filter(|here| here.slot.is_none()).count();
                assert!(below == 0 || moves_max < wanted.len());
                tier.mover
                    .link
                    .pass(Duration::from_micros(random.below(400) as u64));
                if left == 0 {
                    break;
                }
            }
            for (expert, error) in tier.failures() {
                assert_eq!((error.layer, error.expert), (layer, expert));
                given.push(expert);
                failed += 1;
            }
            let mut expected: Vec<u16> = wanted.iter().map(|want| want.expert).collect();
            expected.sort_unstable();
            given.sort_unstable();
            assert_eq!(
                given, expected,
                "seed {seed}, window {window}, layer {layer}"
            );
            tier.finish();
            tally(&tier, &plan);
            tier.mover
                .link
                .pass(Duration::from_micros(random.below(2000) as u64));
        }
    }
    (failed, tier.counts())
}

/// Every slot is free, on its way to somebody, or holds one who may be there.
fn tally(tier: &Tier<Witness>, plan: &SlotPlan) {
    for (index, pool) in tier.pools.iter().enumerate() {
        let own = |expert: &&Expert| expert.pool as usize == index;
        let experts = || tier.experts.iter().filter(own);
        let here = experts().filter(|expert| matches!(expert.at, Whereabouts::Here(_)));
        assert_eq!(here.clone().count(), pool.here);
        let coming = experts().filter(|expert| expert.at == Whereabouts::Coming);
        let taken = pool.here + coming.count();
        assert_eq!(taken + pool.free.len(), plan.pools[index].slots);
        for expert in here {
            assert!(expert.ahead || pool.residents.holds(expert.own));
        }
    }
    let under_way = tier.flights.iter().flatten().count();
    assert_eq!(under_way, tier.mover.under_way.len());
    assert_eq!(under_way + tier.free_tickets.len(), tier.flights.len());
}

#[test]
fn every_interleaving_hands_out_what_was_wanted() {
    // 1,100 bytes are what one token uses, 7,200 all experts
    for (index, capacity) in [1_100, 1_150, 1_700, 3_000, 6_000, 7_100, 7_200, 1 << 30]
        .into_iter()
        .enumerate()
    {
        for seed in 0..12 {
            let seed = 100 * index as u64 + seed;
            let tickets = [1, 2, 5, 32][seed as usize % 4];
            let (failed, counts) = check(seed, capacity, tickets, 0);
            assert_eq!((failed, counts.failed), (0, 0));
            if capacity >= 7_200 {
                assert!(counts.demand_bytes + counts.ahead_bytes <= 7_200);
            }
        }
    }
}

#[test]
fn whoever_fails_is_told_and_the_others_come() {
    for seed in 0..40 {
        let capacity = [1_100, 2_000, 5_000][seed as usize % 3];
        let (failed, counts) = check(seed, capacity, 8, 30);
        assert!(failed > 0 && counts.failed >= failed as u64, "seed {seed}");
    }
}

fn quiet(capacity: u64) -> Tier<SimulatedLink> {
    let layers = layers();
    let speed = LinkSpeed {
        bytes_s: 1e6,
        latency: Duration::ZERO,
        jitter: 0.0,
        failures_per_mille: 0,
    };
    let bytes = layers.iter().map(|layer| layer.expert_bytes).collect();
    let plan = SlotPlan::new(&layers, capacity).expect("enough");
    Tier::new(&layers, &plan, 8, SimulatedLink::new(bytes, speed, 1))
}

fn decode(experts: &[u16]) -> Vec<Want> {
    let want = |expert: &u16| Want {
        expert: *expert,
        decode_rows: 1,
        prompt_rows: 0,
    };
    experts.iter().map(want).collect()
}

fn run(tier: &mut Tier<SimulatedLink>, layer: usize, experts: &[u16]) {
    tier.visit(layer, &decode(experts), usize::MAX);
    let mut batch = Vec::new();
    while tier.take(true, &mut batch) > 0 {}
    tier.finish();
}

#[test]
fn whoever_was_fetched_ahead_is_there() {
    let mut tier = quiet(3_000);
    run(&mut tier, 0, &[1]);
    tier.look_ahead(1, [5, 6].into_iter());
    tier.finish();
    tier.mover_mut().pass(Duration::from_millis(1));
    run(&mut tier, 1, &[5]);
    let counts = tier.counts();
    assert_eq!((counts.hits + counts.late, counts.misses), (1, 1));
    assert_eq!(counts.ahead_bytes, 300);
    assert_eq!(counts.ahead_useful_bytes, 150);
    assert_eq!(counts.ahead_wasted_bytes, 150);
}

#[test]
fn nobody_is_fetched_ahead_while_somebody_waits() {
    let mut tier = quiet(3_000);
    tier.visit(0, &decode(&[1, 2]), usize::MAX);
    tier.look_ahead(1, [5].into_iter());
    let mut batch = Vec::new();
    tier.take(true, &mut batch);
    assert_eq!(tier.counts().ahead_bytes, 0, "the other one is on its way");
    while tier.take(true, &mut batch) > 0 {}
    tier.finish();
    assert_eq!(tier.counts().ahead_bytes, 150);
}

#[test]
fn a_profile_brings_back_who_was_used_most() {
    let mut tier = quiet(3_000);
    for _ in 0..9 {
        for layer in 0..4 {
            run(&mut tier, layer, &[3, 4]);
        }
    }
    run(&mut tier, 0, &[7]);
    let ranked = tier.ranked();
    assert_eq!(ranked.len(), 9);
    assert_eq!(ranked[8].1, 7, "used once");
    let mut again = quiet(3_000);
    again.fill(&ranked).expect("no failures");
    let before = again.counts();
    for layer in 0..4 {
        run(&mut again, layer, &[3, 4]);
    }
    assert_eq!(again.counts().misses, before.misses);
    assert_eq!(again.counts().hits, before.hits + 8);
}
