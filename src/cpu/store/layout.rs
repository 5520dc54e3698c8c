//! Where experts lie in their file, and where in a slot.
//!
//! A slot has a region for each of an expert's matrices. Direct reads begin and end at multiples of [`ALIGN`] in the file, so a matrix lies as far behind its region's start as
//! it lies behind such a multiple in the file.

use std::ops::Range;

use crate::{
    backend::ExpertSource,
    residency::{slots::SlotPlan, tier::SlotId},
};

/// **Units**: bytes. What the addresses, offsets and lengths of direct reads are multiples of: no drive or file system in use asks for more.
pub(super) const ALIGN: u64 = 4096;

/// One matrix of every expert of a layer.
#[derive(Debug)]
struct Part {
    /// Its region's start in a slot.
    region: usize,
    bytes: usize,
    /// `[experts]`: which file, and where in it.
    at: Vec<(u32, u64)>,
}

/// A piece of a file that goes to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Which file of a split model.
    pub(super) file: usize,
    /// Where the read begins in it.
    pub(super) offset: u64,
    /// What is needed from there.
    pub(super) needed: usize,
    /// What is asked for: whole multiples of [`ALIGN`].
    pub(super) asked: usize,
    /// Where it goes in the arena.
    pub(super) to: usize,
}

/// All layers' experts, and all slots.
#[derive(Debug)]
pub(super) struct Layout {
    /// `[layers][parts]`
    layers: Vec<Vec<Part>>,
    /// `[layers]`: the slots of its pool are so large.
    slot_bytes: Vec<u64>,
    /// `[pools]`: the first slot, where it lies, and how large each is.
    pools: Vec<(u32, usize, usize)>,
    arena_bytes: usize,
}

/// **Units**: bytes. What a slot for experts of these parts takes.
pub(super) fn slot_bytes(parts: &[ExpertSource]) -> u64 {
    parts.iter().map(|part| region_bytes(bytes(part))).sum()
}

/// A region has room for a matrix wherever it begins between two multiples.
fn region_bytes(bytes: u64) -> u64 {
    (bytes + ALIGN - 1).next_multiple_of(ALIGN)
}

fn bytes(part: &ExpertSource) -> u64 {
    part.experts.first().map_or(0, |expert| expert.bytes())
}

impl Layout {
    pub(super) fn new(layers: &[Vec<ExpertSource>], plan: &SlotPlan) -> Self {
        let mut pools = Vec::new();
        let (mut slots, mut arena_bytes) = (0, 0);
        let mut layer_slot_bytes = vec![0; layers.len()];
        for pool in &plan.pools {
            pools.push((slots, arena_bytes, pool.slot_bytes as usize));
            slots += pool.slots as u32;
            arena_bytes += pool.slots * pool.slot_bytes as usize;
            for layer in &pool.layers {
                layer_slot_bytes[*layer] = pool.slot_bytes;
            }
        }
        Self {
            layers: layers.iter().map(|parts| self::parts(parts)).collect(),
            slot_bytes: layer_slot_bytes,
            pools,
            arena_bytes,
        }
    }

    /// **Units**: bytes. All slots.
    pub(super) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// **Units**: bytes. One slot for experts of a layer.
    pub(super) fn layer_slot_bytes(&self, layer: usize) -> u64 {
        self.slot_bytes[layer]
    }

    /// Where a slot begins in the arena.
    pub(super) fn slot(&self, slot: SlotId) -> usize {
        let pool = self
            .pools
            .partition_point(|(first, _, _)| *first <= slot.0)
            .saturating_sub(1);
        let (first, at, bytes) = self.pools[pool];
        at + (slot.0 - first) as usize * bytes
    }

    /// Where a matrix of an expert lies in its slot.
    pub(super) fn place(&self, layer: usize, part: usize, expert: usize) -> Range<usize> {
        let part = &self.layers[layer][part];
        let start = part.region + (part.at[expert].1 % ALIGN) as usize;
        start..start + part.bytes
    }

    /// What is to be read for an expert that goes to `slot`.
    pub(super) fn extents(
        &self,
        layer: usize,
        expert: u16,
        slot: SlotId,
    ) -> impl ExactSizeIterator<Item = Extent> {
        let start = self.slot(slot);
        self.layers[layer].iter().map(move |part| {
            let (file, at) = part.at[usize::from(expert)];
            let before = at % ALIGN;
            let needed = before as usize + part.bytes;
            Extent {
                file: file as usize,
                offset: at - before,
                needed,
                asked: needed.next_multiple_of(ALIGN as usize),
                to: start + part.region,
            }
        })
    }
}

fn parts(parts: &[ExpertSource]) -> Vec<Part> {
    let mut region = 0;
    let parts = parts.iter().map(|source| {
        let here = region;
        region += region_bytes(bytes(source)) as usize;
        let at = source.experts.iter().map(|expert| {
            let tensor = &expert.tensor;
            let start = expert.rows.start * tensor.row_bytes();
            (tensor.shard as u32, (tensor.offset + start) as u64)
        });
        Part {
            region: here,
            bytes: bytes(source) as usize,
            at: at.collect(),
        }
    });
    parts.collect()
}
