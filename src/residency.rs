//! Which experts lie in fast memory: the books of it ([`Residents`]), and who comes and goes ([`policy`]).
//!
//! Knows experts by number and size, not by content: moving bytes is somebody else's work.

use crate::backend::ExpertLayer;

pub mod policy;

/// An expert of any layer: the layers' experts counted through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId(pub u32);

/// How large every expert is.
#[derive(Clone, Debug)]
pub struct ExpertSizes {
    /// `[layers]`: the layer's first expert.
    first: Vec<u32>,
    /// `[experts of all layers]`. **Units**: bytes.
    bytes: Vec<u64>,
}

impl ExpertSizes {
    /// The experts of these layers, in their order.
    pub fn new(layers: &[ExpertLayer]) -> Self {
        let mut sizes = Self {
            first: Vec::with_capacity(layers.len()),
            bytes: Vec::new(),
        };
        for layer in layers {
            sizes.first.push(sizes.bytes.len() as u32);
            let end = sizes.bytes.len() + layer.experts;
            sizes.bytes.resize(end, layer.expert_bytes);
        }
        sizes
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
pub struct Residents<'a> {
    sizes: &'a ExpertSizes,
    here: Vec<bool>,
    used: u64,
    capacity: u64,
}

impl<'a> Residents<'a> {
    /// Nobody yet, and room for `capacity` bytes.
    pub fn new(sizes: &'a ExpertSizes, capacity: u64) -> Self {
        Self {
            here: vec![false; sizes.count()],
            sizes,
            used: 0,
            capacity,
        }
    }

    /// Whether an expert is resident.
    pub fn holds(&self, expert: ExpertId) -> bool {
        self.here[expert.0 as usize]
    }

    /// Whether there is room for one more, or it is there already.
    pub fn fits(&self, expert: ExpertId) -> bool {
        self.holds(expert) || self.sizes.bytes(expert) <= self.capacity - self.used
    }

    /// Lets an expert in; false if there is no room for it.
    pub fn insert(&mut self, expert: ExpertId) -> bool {
        let fits = self.fits(expert);
        if fits && !self.holds(expert) {
            self.here[expert.0 as usize] = true;
            self.used += self.sizes.bytes(expert);
        }
        fits
    }

    /// Lets an expert go, if it is there.
    pub fn evict(&mut self, expert: ExpertId) {
        if std::mem::take(&mut self.here[expert.0 as usize]) {
            self.used -= self.sizes.bytes(expert);
        }
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
