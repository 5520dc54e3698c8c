//! What one task of the delta net works with.

use super::{BLOCK_ROWS, DeltaShape};
use crate::cpu::math::lanes::LANES;

/// A task's working memory. Line `2i` belongs to the key of row `i`, line `2i + 1` to its query.
pub(super) struct Scratch<'s> {
    /// `[2 * 64, key_dim]`.
    pub(super) lines: &'s mut [f32],
    /// Inner products with the block's keys `[2 * 64, 64]`.
    pub(super) products: &'s mut [f32],
    /// The products, decayed, for one value head `[2 * 64, 64]`.
    pub(super) weights: &'s mut [f32],
    /// `[group, 64, width]`.
    pub(super) values: &'s mut [f32],
    /// What a row reads `[2 * 64, width]`: the key lines before they become `u`, the query lines become the output.
    pub(super) reads: &'s mut [f32],
    /// Decayed keys of a whole block `[key_dim, 64]`.
    pub(super) decayed: &'s mut [f32],
    /// Copies of `S`, folded ahead of time, `[group, key_dim, width]`.
    pub(super) forks: &'s mut [f32],
    /// Write strengths `[64]`.
    pub(super) strengths: &'s mut [f32],
    /// Zeros, as many as a part has channels.
    pub(super) zeros: &'s [f32],
}

impl<'s> Scratch<'s> {
    fn lens(shape: &DeltaShape) -> [usize; 9] {
        let (key_dim, width, group) = (shape.key_dim, shape.width(), shape.group());
        [
            2 * BLOCK_ROWS * key_dim,
            2 * BLOCK_ROWS * BLOCK_ROWS,
            2 * BLOCK_ROWS * BLOCK_ROWS,
            group * BLOCK_ROWS * width,
            2 * BLOCK_ROWS * width,
            key_dim * BLOCK_ROWS,
            group * key_dim * width,
            BLOCK_ROWS,
            key_dim.max(width),
        ]
    }

    /// Numbers that a task needs.
    pub(super) fn len(shape: &DeltaShape) -> usize {
        Self::lens(shape)
            .iter()
            .sum::<usize>()
            .next_multiple_of(LANES)
    }

    /// The parts of a task's memory.
    pub(super) fn new(memory: &'s mut [f32], shape: &DeltaShape) -> Self {
        let mut rest = memory;
        let mut take = |len: usize| {
            let (part, left) = std::mem::take(&mut rest).split_at_mut(len);
            rest = left;
            part
        };
        let [
            lines,
            products,
            weights,
            values,
            reads,
            decayed,
            forks,
            strengths,
            zeros,
        ] = Self::lens(shape).map(&mut take);
        Self {
            lines,
            products,
            weights,
            values,
            reads,
            decayed,
            forks,
            strengths,
            zeros,
        }
    }
}
