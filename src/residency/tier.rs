//! A tier: which expert lies in which slot, who is on the way, and who is fetched next.
//!
//! One visit at a time: [`visit`](Tier::visit) says what a window wants in a layer, and [`take`](Tier::take) hands it out as it comes, until nobody is left. A slot is
//! handed out only with an expert in it, and is not used again before the next call, so that what is computed cannot be anything else. Who stays afterwards the policy has
//! said at the beginning; everybody else's slot is free once he is computed. Knows no clock and no memory: a [`Mover`] has both.
//!
//! What is bounded: tickets, spare slots, and what is fetched ahead (half of the spare slots, and only while nobody waits). A visit always ends: residents leave
//! [`spare`](super::slots::Pool::spare) slots alone, and those are free, or on their way, or fetched ahead and so given up, or wanted in this visit and so computed.

use std::collections::VecDeque;

use super::{
    ExpertId, Residents,
    policy::{Guard, Guarded, Policy, Wanted},
    slots::SlotPlan,
};
use crate::backend::ExpertLayer;

#[cfg(test)]
mod tests;

/// A place for one expert, of all pools counted through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u32);

/// A transfer under way. Numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u32);

/// Whether somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A window waits for it.
    Demand,
    /// It will probably be wanted.
    Ahead,
}

/// What a mover is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Under this number.
    pub ticket: Ticket,
    /// The expert's layer, of those that have experts.
    pub layer: usize,
    /// Its number in the layer.
    pub expert: u16,
    /// Where it goes.
    pub slot: SlotId,
    /// Whether somebody waits. Those for whom somebody does go first.
    pub urgency: Urgency,
}

/// What became of a ticket.
#[derive(Debug)]
pub struct Landed<E> {
    /// Which.
    pub ticket: Ticket,
    /// Whether the whole expert is there.
    pub result: Result<(), E>,
}

/// Brings experts into slots.
pub trait Mover {
    /// Why one cannot be brought.
    type Error;

    /// Begins a transfer. The slot is the mover's until it tells of the ticket.
    fn start(&mut self, order: Order);

    /// A ticket whose transfer has ended, each once. Where `wait` is set and any is under way, waits for one.
    fn landed(&mut self, wait: bool) -> Option<Landed<Self::Error>>;
}

/// What a window wants of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The expert's number in the layer.
    pub expert: u16,
    /// Rows that streams wait for.
    pub decode_rows: u32,
    /// Prompt rows.
    pub prompt_rows: u32,
}

/// An expert that can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its number in the layer.
    pub expert: u16,
    /// Where it lies; nothing if it is to be computed where it came from.
    pub slot: Option<SlotId>,
}

/// What has happened so far. Experts are counted once a visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found in their slots, those fetched ahead included.
    pub hits: u64,
    /// Found on their way, because they were fetched ahead.
    pub late: u64,
    /// Not found.
    pub misses: u64,
    /// Computed where they were, of those.
    pub left_below: u64,
    /// **Units**: bytes. Brought because a window waited.
    pub demand_bytes: u64,
    /// **Units**: bytes. Brought ahead.
    pub ahead_bytes: u64,
    /// **Units**: bytes. Of these, wanted when their layer came.
    pub ahead_useful_bytes: u64,
    /// **Units**: bytes. Of these, not wanted.
    pub ahead_wasted_bytes: u64,
    /// Transfers that failed.
    pub failed: u64,
}

/// Where an expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    Below,
    Coming,
    Here(SlotId),
}

#[derive(Clone, Copy, Debug)]
struct Expert {
    at: Whereabouts,
    pool: u32,
    /// Its number in its pool.
    own: ExpertId,
    layer: u32,
    /// Wanted by the visit under way, and not computed yet.
    wanted: bool,
    /// Fetched ahead, and not wanted yet.
    ahead: bool,
}

#[derive(Debug)]
struct Pool {
    residents: Residents,
    policy: Guarded,
    free: Vec<SlotId>,
    /// Slots that those fetched ahead leave to demand.
    reserve: usize,
    slot_bytes: u64,
    /// `[experts of the pool]`: number among all experts.
    members: Vec<u32>,
    /// Of these, in slots.
    here: usize,
}

impl Pool {
    /// Everybody is here, so nobody ever comes or goes again.
    fn is_complete(&self) -> bool {
        self.here == self.members.len()
    }
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    expert: u32,
    slot: SlotId,
    urgency: Urgency,
}

/// The visit under way.
#[derive(Debug, Default)]
struct Visit {
    /// The layer's first expert.
    first: u32,
    experts: Vec<u32>,
    /// Not on their way yet, most urgent first.
    queue: VecDeque<u32>,
    /// To be handed out.
    ready: Vec<u32>,
    /// To be computed where they are.
    below: Vec<u32>,
    /// Handed out last.
    given: Vec<u32>,
    /// Not handed out yet.
    left: usize,
}

/// A tier, and what brings experts into it.
pub struct Tier<M: Mover> {
    mover: M,
    /// `[layers]`: first expert, and the pool.
    layers: Vec<(u32, usize)>,
    pools: Vec<Pool>,
    experts: Vec<Expert>,
    /// `[tickets]`
    flights: Vec<Option<Flight>>,
    free_tickets: Vec<Ticket>,
    demands: usize,
    aheads: usize,
    /// How many may be fetched ahead at the same time.
    aheads_max: usize,
    visit: Visit,
    wanted: Vec<Wanted>,
    /// To be fetched ahead, best first.
    wishes: VecDeque<u32>,
    /// Fetched ahead and not wanted yet, on their way or here; some entries are out of date.
    ahead: VecDeque<u32>,
    failures: Vec<(u16, M::Error)>,
    counts: Counts,
}

impl<M: Mover> Tier<M> {
    /// A tier of these slots, with nobody in it. `tickets` transfers may be under way at once, at least one.
    pub fn new(layers: &[ExpertLayer], plan: &SlotPlan, tickets: usize, mover: M) -> Self {
        let mut at = vec![(0, 0); layers.len()];
        let mut experts = Vec::new();
        let mut own = vec![0; plan.pools.len()];
        for (layer, shape) in layers.iter().enumerate() {
            let pool = plan.pools.iter();
            let pool = pool
                .take_while(|pool| !pool.layers.contains(&layer))
                .count();
            at[layer] = (experts.len() as u32, pool);
            for _ in 0..shape.experts {
                experts.push(Expert {
                    at: Whereabouts::Below,
                    pool: pool as u32,
                    own: ExpertId(own[pool]),
                    layer: layer as u32,
                    wanted: false,
                    ahead: false,
                });
                own[pool] += 1;
            }
        }
        let mut slots = 0;
        let pools = plan.pools.iter().enumerate().map(|(index, pool)| {
            let sizes = plan.sizes(index, layers);
            let first = slots;
            slots += pool.slots as u32;
            let members = experts.iter().enumerate();
            let members = members.filter(|(_, expert)| expert.pool as usize == index);
            Pool {
                residents: Residents::new(&sizes, pool.residents() as u64 * pool.slot_bytes),
                policy: Guarded::new(&sizes, Guard::default()),
                free: (first..slots).rev().map(SlotId).collect(),
                reserve: pool.spare.div_ceil(2),
                slot_bytes: pool.slot_bytes,
                members: members.map(|(number, _)| number as u32).collect(),
                here: 0,
            }
        });
        Self {
            pools: pools.collect(),
            layers: at,
            experts,
            flights: vec![None; tickets.max(1)],
            free_tickets: (0..tickets.max(1) as u32).rev().map(Ticket).collect(),
            demands: 0,
            aheads: 0,
            aheads_max: usize::MAX,
            visit: Visit::default(),
            wanted: Vec::new(),
            wishes: VecDeque::new(),
            ahead: VecDeque::new(),
            failures: Vec::new(),
            counts: Counts::default(),
            mover,
        }
    }

    /// What brings experts.
    pub fn mover(&self) -> &M {
        &self.mover
    }

    /// The same, to change it.
    pub fn mover_mut(&mut self) -> &mut M {
        &mut self.mover
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether all experts of all layers are here.
    pub fn is_complete(&self) -> bool {
        self.pools.iter().all(Pool::is_complete)
    }

    /// Whether an expert is here.
    pub fn holds(&self, layer: usize, expert: u16) -> bool {
        let expert = &self.experts[(self.layers[layer].0 + u32::from(expert)) as usize];
        matches!(expert.at, Whereabouts::Here(_))
    }

    /// How many of these a visit would have to have brought.
    pub fn missing(&self, layer: usize, wanted: &[Want]) -> usize {
        let missing = wanted.iter().filter(|want| !self.holds(layer, want.expert));
        missing.count()
    }

    /// A window has reached a layer and wants these experts, each once. No more than `moves_max` of those who are not here are brought; the others are handed out to be computed
    /// where they are.
    ///
    /// **Panics** if the visit before has not ended.
    pub fn visit(&mut self, layer: usize, wanted: &[Want], moves_max: usize) {
        assert!(self.visit.left == 0, "one visit at a time");
        self.release();
        self.failures.clear();
        let (first, pool) = self.layers[layer];
        self.visit.first = first;
        self.visit.left = wanted.len();
        self.visit.experts.clear();
        let numbers = wanted.iter().map(|want| first + u32::from(want.expert));
        self.visit.experts.extend(numbers);
        if self.pools[pool].is_complete() {
            self.counts.hits += wanted.len() as u64;
            for number in &self.visit.experts {
                self.experts[*number as usize].wanted = true;
            }
            self.visit.ready.extend_from_slice(&self.visit.experts);
            return;
        }
        self.place(pool, wanted);
        self.expire(layer);
        self.order(pool, wanted, moves_max);
        self.pump();
    }

    /// Asks the policy who stays, and frees the slots of those that do not.
    fn place(&mut self, pool: usize, wanted: &[Want]) {
        let home = &mut self.pools[pool];
        self.wanted.clear();
        for (want, number) in wanted.iter().zip(&self.visit.experts) {
            let expert = &mut self.experts[*number as usize];
            expert.wanted = true;
            self.wanted.push(Wanted {
                expert: expert.own,
                decode_rows: want.decode_rows,
                prompt_rows: want.prompt_rows,
            });
            if std::mem::take(&mut expert.ahead) {
                self.counts.ahead_useful_bytes += home.slot_bytes;
            }
            *match expert.at {
                Whereabouts::Here(_) => &mut self.counts.hits,
                Whereabouts::Coming => &mut self.counts.late,
                Whereabouts::Below => &mut self.counts.misses,
            } += 1;
        }
        home.residents.begin();
        home.policy.visit(&self.wanted, &mut home.residents);
        for gone in 0..home.residents.evicted().len() {
            let home = &self.pools[pool];
            let own = home.residents.evicted()[gone];
            self.free_unless_needed(home.members[own.0 as usize]);
        }
    }

    /// Lets go of who was fetched ahead for this layer and is not wanted.
    fn expire(&mut self, layer: usize) {
        let layer = layer as u32;
        let experts = &self.experts;
        let elsewhere = |number: &u32| experts[*number as usize].layer != layer;
        self.wishes.retain(elsewhere);
        for _ in 0..self.ahead.len() {
            let Some(number) = self.ahead.pop_front() else {
                break;
            };
            let expert = &mut self.experts[number as usize];
            if !expert.ahead {
                continue;
            }
            if expert.layer == layer {
                self.give_up(number);
                let Expert { own, pool, .. } = self.experts[number as usize];
                let pool = &mut self.pools[pool as usize];
                if pool.residents.fits(own) {
                    // there is room, so he may as well stay
                    pool.policy.admit(own, &mut pool.residents);
                } else {
                    self.free_unless_needed(number);
                }
            } else {
                self.ahead.push_back(number);
            }
        }
    }

    /// Who was fetched ahead was not wanted. His slot is still his.
    fn give_up(&mut self, number: u32) {
        let expert = &mut self.experts[number as usize];
        expert.ahead = false;
        self.counts.ahead_wasted_bytes += self.pools[expert.pool as usize].slot_bytes;
    }

    /// Sorts the wanted: here, to be brought, to be left where they are. Whom streams wait for comes first, then who stays.
    fn order(&mut self, pool: usize, wanted: &[Want], moves_max: usize) {
        let home = &mut self.pools[pool];
        let mut missing: Vec<(bool, bool, u32)> = Vec::new();
        for (want, number) in wanted.iter().zip(&self.visit.experts) {
            let expert = &self.experts[*number as usize];
            match expert.at {
                Whereabouts::Here(_) => self.visit.ready.push(*number),
                Whereabouts::Coming => {}
                Whereabouts::Below => {
                    let stays = home.residents.holds(expert.own);
                    missing.push((want.decode_rows == 0, !stays, *number));
                }
            }
        }
        if missing.len() > moves_max {
            // whoever would stay is worth bringing most
            missing.sort_by_key(|(prompt, leaves, _)| (*leaves, *prompt));
            for (_, _, number) in missing.drain(moves_max..) {
                home.residents.evict(self.experts[number as usize].own);
                self.visit.below.push(number);
                self.counts.left_below += 1;
            }
        }
        missing.sort_by_key(|(prompt, leaves, _)| (*prompt, *leaves));
        let missing = missing.into_iter().map(|(_, _, number)| number);
        self.visit.queue.extend(missing);
    }

    /// Experts of the visit that can be computed now, whose slots are theirs until the next call; those of the call before are done with. With `wait` at least one, if any is left that can
    /// be brought. Returns how many are still to come.
    pub fn take(&mut self, wait: bool, batch: &mut Vec<Here>) -> usize {
        batch.clear();
        self.release();
        loop {
            self.settle();
            self.pump();
            let visit = &mut self.visit;
            if !visit.ready.is_empty() || !visit.below.is_empty() {
                for number in visit.ready.drain(..) {
                    batch.push(here(&self.experts, visit.first, number));
                    visit.given.push(number);
                }
            } else if visit.left == 0 || !wait {
                return visit.left;
            } else {
                let landed = self.mover.landed(true);
                // `pump` has started whom it could, and there is a slot for one at least
                self.land(landed.expect("a visit that waits has a ticket under way"));
                continue;
            }
            if batch.is_empty() {
                // last, so that what comes may come meanwhile
                for number in visit.below.drain(..) {
                    batch.push(here(&self.experts, visit.first, number));
                    visit.given.push(number);
                }
            }
            visit.left -= batch.len();
            return visit.left;
        }
    }

    /// Whom the visit has wanted and who cannot be brought, and why. They have not been handed out, and will be tried again when they are wanted again.
    pub fn failures(&mut self) -> impl Iterator<Item = (u16, M::Error)> {
        self.failures.drain(..)
    }

    /// Takes note of who has come.
    pub fn settle(&mut self) {
        while let Some(landed) = self.mover.landed(false) {
            self.land(landed);
        }
    }

    /// The visit's last experts are computed.
    pub fn finish(&mut self) {
        self.release();
        self.pump();
    }

    /// So many may be fetched ahead at the same time from now on: what the link brings before somebody waits for it again.
    pub fn allow_ahead(&mut self, aheads_max: usize) {
        self.aheads_max = aheads_max;
    }

    /// These experts of a layer will probably be wanted, best first: they replace what was said of the layer before. They are brought while nobody waits, as far as spare slots
    /// allow, in the order of the calls.
    pub fn look_ahead(&mut self, layer: usize, experts: impl Iterator<Item = u16>) {
        let (first, _) = self.layers[layer];
        let known = &self.experts;
        self.wishes
            .retain(|number| known[*number as usize].layer != layer as u32);
        for expert in experts {
            let number = first + u32::from(expert);
            if self.experts[number as usize].at == Whereabouts::Below {
                self.wishes.push_back(number);
            }
        }
    }

    /// Brings who was used most by an earlier run, best first, as far as there is room.
    ///
    /// **Errors**: one cannot be brought.
    pub fn fill(&mut self, ranked: &[(usize, u16, f64)]) -> Result<(), M::Error> {
        for (layer, expert, rank) in ranked {
            let number = self.layers[*layer].0 + u32::from(*expert);
            let Expert { own, pool, at, .. } = self.experts[number as usize];
            let pool = &mut self.pools[pool as usize];
            if !pool.policy.warm(own, *rank, &mut pool.residents) || at != Whereabouts::Below {
                continue;
            }
            while self.free_tickets.is_empty() {
                let landed = self.mover.landed(true);
                let failed = self.land(landed.expect("all tickets are under way"));
                failed.map_or(Ok(()), Err)?;
            }
            let slot = self.pools[self.experts[number as usize].pool as usize]
                .free
                .pop();
            if let Some(slot) = slot {
                self.start(number, slot, Urgency::Demand);
            }
        }
        while self.demands > 0 {
            let landed = self.mover.landed(true);
            let failed = self.land(landed.expect("some are under way"));
            failed.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// All experts that streams have used with their ranks, the most used first: what [`fill`](Self::fill) takes.
    pub fn ranked(&self) -> Vec<(usize, u16, f64)> {
        let mut ranked: Vec<_> = self
            .experts
            .iter()
            .enumerate()
            .filter_map(|(number, expert)| {
                let rank = self.pools[expert.pool as usize].policy.rank(expert.own)?;
                let layer = expert.layer as usize;
                let number = number as u32 - self.layers[layer].0;
                Some((layer, number as u16, rank))
            })
            .collect();
        ranked.sort_by(|a, b| b.2.total_cmp(&a.2));
        ranked
    }

    /// Starts what can be started: whom the visit waits for, and if nobody waits, who is expected.
    fn pump(&mut self) {
        while let Some(number) = self.visit.queue.front().copied() {
            let pool = self.experts[number as usize].pool as usize;
            if self.free_tickets.is_empty() {
                return;
            }
            let Some(slot) = self.pools[pool].free.pop().or_else(|| self.reclaim(pool)) else {
                return;
            };
            self.visit.queue.pop_front();
            self.start(number, slot, Urgency::Demand);
        }
        while self.demands == 0 && self.aheads < self.aheads_max && !self.free_tickets.is_empty() {
            let Some(number) = self.wishes.pop_front() else {
                return;
            };
            let expert = &self.experts[number as usize];
            let pool = &mut self.pools[expert.pool as usize];
            if expert.at != Whereabouts::Below || pool.free.len() <= pool.reserve {
                continue;
            }
            if let Some(slot) = pool.free.pop() {
                self.experts[number as usize].ahead = true;
                self.ahead.push_back(number);
                self.start(number, slot, Urgency::Ahead);
            }
        }
    }

    /// The slot of somebody who was fetched ahead, of this pool.
    fn reclaim(&mut self, pool: usize) -> Option<SlotId> {
        for at in 0..self.ahead.len() {
            let number = self.ahead[at];
            let expert = &self.experts[number as usize];
            let here = matches!(expert.at, Whereabouts::Here(_));
            if expert.ahead && here && expert.pool as usize == pool {
                self.ahead.remove(at);
                self.give_up(number);
                self.free_unless_needed(number);
                return self.pools[pool].free.pop();
            }
        }
        None
    }

    fn start(&mut self, number: u32, slot: SlotId, urgency: Urgency) {
        let Some(ticket) = self.free_tickets.pop() else {
            unreachable!("callers make sure of a ticket")
        };
        let expert = &mut self.experts[number as usize];
        expert.at = Whereabouts::Coming;
        self.flights[ticket.0 as usize] = Some(Flight {
            expert: number,
            slot,
            urgency,
        });
        let bytes = self.pools[expert.pool as usize].slot_bytes;
        match urgency {
            Urgency::Demand => {
                self.demands += 1;
                self.counts.demand_bytes += bytes;
            }
            Urgency::Ahead => {
                self.aheads += 1;
                self.counts.ahead_bytes += bytes;
            }
        }
        let layer = expert.layer as usize;
        self.mover.start(Order {
            ticket,
            layer,
            expert: (number - self.layers[layer].0) as u16,
            slot,
            urgency,
        });
    }

    /// Takes note of a ticket's end. Returns its error if no visit is to be told: nobody waits for him, and he will fail again if he is wanted.
    fn land(&mut self, landed: Landed<M::Error>) -> Option<M::Error> {
        let flight = self.flights[landed.ticket.0 as usize].take();
        let flight = flight.expect("a mover tells of a ticket once");
        self.free_tickets.push(landed.ticket);
        match flight.urgency {
            Urgency::Demand => self.demands -= 1,
            Urgency::Ahead => self.aheads -= 1,
        }
        let expert = &mut self.experts[flight.expert as usize];
        let pool = &mut self.pools[expert.pool as usize];
        match landed.result {
            Ok(()) => {
                expert.at = Whereabouts::Here(flight.slot);
                pool.here += 1;
                if expert.wanted {
                    self.visit.ready.push(flight.expert);
                } else {
                    self.free_unless_needed(flight.expert);
                }
                None
            }
            Err(error) => {
                self.counts.failed += 1;
                expert.at = Whereabouts::Below;
                expert.ahead = false;
                pool.residents.evict(expert.own);
                pool.free.push(flight.slot);
                if !std::mem::take(&mut expert.wanted) {
                    return Some(error);
                }
                let number = (flight.expert - self.visit.first) as u16;
                self.visit.left -= 1;
                self.failures.push((number, error));
                None
            }
        }
    }

    /// What was handed out is computed.
    fn release(&mut self) {
        for at in 0..self.visit.given.len() {
            let number = self.visit.given[at];
            self.experts[number as usize].wanted = false;
            self.free_unless_needed(number);
        }
        self.visit.given.clear();
    }

    /// Frees the slot of who is here, and neither stays nor is wanted nor expected.
    fn free_unless_needed(&mut self, number: u32) {
        let expert = &mut self.experts[number as usize];
        let pool = &mut self.pools[expert.pool as usize];
        let Whereabouts::Here(slot) = expert.at else {
            return;
        };
        if !expert.wanted && !expert.ahead && !pool.residents.holds(expert.own) {
            expert.at = Whereabouts::Below;
            pool.here -= 1;
            pool.free.push(slot);
        }
    }
}

fn here(experts: &[Expert], first: u32, number: u32) -> Here {
    Here {
        expert: (number - first) as u16,
        slot: match experts[number as usize].at {
            Whereabouts::Here(slot) => Some(slot),
            Whereabouts::Below | Whereabouts::Coming => None,
        },
    }
}
