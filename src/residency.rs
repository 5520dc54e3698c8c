//! Which experts lie in fast memory: who comes and goes ([`policy`], with its books, [`Residents`]), in which slots they lie and what is under way
//! ([`tier`]), how memory is cut into slots ([`slots`]), and who will be wanted next ([`predict`]).
//!
//! Knows experts by number and size, not by content: moving bytes is a [`Mover`](tier::Mover)'s work. A tier serves any two memories, the faster of which has room for some
//! experts only: a file's experts in host memory, or the host's in a device's. What a backend calls:
//!
//! | when | call | what comes of it |
//! | --- | --- | --- |
//! | the model is loaded | [`SlotPlan::new`](slots::SlotPlan::new), [`Tier::new`](tier::Tier::new) | slots, or the capacity that would do |
//! | | [`Tier::fill`](tier::Tier::fill) | those that an earlier run used most are there |
//! | the rows of a layer are routed | [`Tier::visit`](tier::Tier::visit) | tickets for who is missing, as far as there are slots |
//! | before each batch of experts | [`Tier::take`](tier::Tier::take) | experts with their slots; those of the batch before are done, and their slots may be used again |
//! | the next layers are predicted | [`Tier::look_ahead`](tier::Tier::look_ahead) | tickets, once nobody waits for the link |
//! | it ends | [`Tier::ranked`](tier::Tier::ranked) | the profile for the next start |
//!
//! The mover is told `start` and asked what has `landed`; a device's would enqueue copies on a stream of its own, and tell of those whose events have come.

use std::sync::Arc;

use crate::backend::ExpertLayer;

pub mod link;
pub mod policy;
pub mod predict;
pub mod slots;
pub mod split;
pub mod tier;

/// An expert of any layer: the layers' experts counted through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId(pub u32);

/// How large every expert is.
#[derive(Clone, Debug)]
pub struct ExpertSizes {
    /// `[layers]`: the layer's first expert.
    first: Vec<u32>,
    /// `[experts of all layers]`. **Units**: bytes.
    bytes: Arc<[u64]>,
}

impl ExpertSizes {
    /// The experts of these layers, in their order.
    pub fn new(layers: &[ExpertLayer]) -> Self {
        let mut first = Vec::with_capacity(layers.len());
        let mut bytes = Vec::new();
        for layer in layers {
            first.push(bytes.len() as u32);
            bytes.resize(bytes.len() + layer.experts, layer.expert_bytes);
        }
        Self {
            first,
            bytes: bytes.into(),
        }
    }

    /// Layers that have experts.
    pub fn layers(&self) -> usize {
        self.first.len()
    }

    /// Experts of all layers.
    pub fn count(&self) -> usize {
        self.bytes.len()
    }

    /// The expert with this number in its layer.
    pub fn id(&self, layer: usize, expert: u16) -> ExpertId {
        ExpertId(self.first[layer] + u32::from(expert))
    }

    /// **Units**: bytes. One expert.
    pub fn bytes(&self, expert: ExpertId) -> u64 {
        self.bytes[expert.0 as usize]
    }
}

/// Who is resident. No more than the capacity, ever.
#[derive(Clone, Debug)]
pub struct Residents {
    /// `[experts]`. **Units**: bytes.
    sizes: Arc<[u64]>,
    here: Vec<bool>,
    used: u64,
    capacity: u64,
    /// Who was let go since [`begin`](Self::begin).
    evicted: Vec<ExpertId>,
}

impl Residents {
    /// Nobody yet, and room for `capacity` bytes.
    pub fn new(sizes: &ExpertSizes, capacity: u64) -> Self {
        Self {
            here: vec![false; sizes.count()],
            sizes: sizes.bytes.clone(),
            used: 0,
            capacity,
            evicted: Vec::new(),
        }
    }

    /// Whether an expert is resident.
    pub fn holds(&self, expert: ExpertId) -> bool {
        self.here[expert.0 as usize]
    }

    /// Whether there is room for one more, or it is there already.
    pub fn fits(&self, expert: ExpertId) -> bool {
        self.holds(expert) || self.sizes[expert.0 as usize] <= self.capacity - self.used
    }

    /// Lets an expert in; false if there is no room for it.
    pub fn insert(&mut self, expert: ExpertId) -> bool {
        let fits = self.fits(expert);
        if fits && !self.holds(expert) {
            self.here[expert.0 as usize] = true;
            self.used += self.sizes[expert.0 as usize];
        }
        fits
    }

    /// Lets an expert go, if it is there.
    pub fn evict(&mut self, expert: ExpertId) {
        if std::mem::take(&mut self.here[expert.0 as usize]) {
            self.used -= self.sizes[expert.0 as usize];
            self.evicted.push(expert);
        }
    }

    /// A visit begins: forgets who has been let go.
    pub fn begin(&mut self) {
        self.evicted.clear();
    }

    /// Who was let go since the visit began; some may be back.
    pub fn evicted(&self) -> &[ExpertId] {
        &self.evicted
    }

    /// **Units**: bytes. What those who are here take.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// **Units**: bytes. What they may take.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }
}
