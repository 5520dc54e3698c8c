//! What attention is cut into: a span's rows for one KV head, and the memory to compute them.

use super::{AttentionShape, SEGMENT, online::Online};
use crate::{
    cpu::{kv::KvSpan, math::lanes::LANES},
    engine::executor::PAGE_TOKENS,
};

/// Query lines (rows times heads of a group) that one task takes on together, where a group is not wider.
const LINES: usize = 64;

/// Numbers kept of one line of one segment beside its values: maximum and sum, in a vector of their own.
pub(super) const EXTRA: usize = LANES;

/// Working memory, made once.
#[derive(Debug)]
pub struct AttentionScratch {
    /// `[workers, task_len] f32`.
    pub(super) tasks: Vec<f32>,
    pub(super) task_len: usize,
    /// Finished segments of lines whose segments are shared out, `[lines, segments, width + EXTRA] f32`.
    pub(super) partials: Vec<f32>,
}

impl AttentionScratch {
    /// For layers of up to this shape. `partial_bytes` bounds the memory with which the segments of few long rows are shared out;
    /// a window that needs more is computed with fewer, longer tasks.
    ///
    /// **Shapes**: the larger dimensions count where layers differ.
    pub fn new(shape: AttentionShape, workers: usize, partial_bytes: usize) -> Self {
        let task_len = Task::len(&shape);
        let partials = if workers > 1 {
            partial_bytes / size_of::<f32>()
        } else {
            0
        };
        Self {
            tasks: vec![0.0; task_len * workers.max(1)],
            task_len,
            partials: vec![0.0; partials],
        }
    }
}

impl AttentionScratch {
    /// What is enough for both.
    pub fn larger(self, other: Self) -> Self {
        if self.task_len < other.task_len {
            other
        } else {
            self
        }
    }
}

/// What one task works with.
pub(super) struct Task<'s> {
    /// Scaled queries `[lines, head_dim]`.
    pub(super) query: &'s mut [f32],
    /// Scores, then weights, `[lines, 64]`.
    pub(super) weights: &'s mut [f32],
    pub(super) segment: Online<'s>,
    pub(super) whole: Online<'s>,
}

impl<'s> Task<'s> {
    pub(super) fn len(shape: &AttentionShape) -> usize {
        let lines = lines_max(shape);
        lines * (shape.head_dim + PAGE_TOKENS) + 2 * Online::len(lines, width(shape))
    }

    pub(super) fn new(memory: &'s mut [f32], shape: &AttentionShape) -> Self {
        let lines = lines_max(shape);
        let (query, memory) = memory.split_at_mut(lines * shape.head_dim);
        let (weights, memory) = memory.split_at_mut(lines * PAGE_TOKENS);
        let (segment, memory) = memory.split_at_mut(Online::len(lines, width(shape)));
        let whole = &mut memory[..Online::len(lines, width(shape))];
        Self {
            query,
            weights,
            segment: Online::new(segment, lines, width(shape)),
            whole: Online::new(whole, lines, width(shape)),
        }
    }
}

pub(super) fn width(shape: &AttentionShape) -> usize {
    shape.head_dim.next_multiple_of(LANES)
}

pub(super) fn group(shape: &AttentionShape) -> usize {
    shape.heads / shape.kv_heads
}

pub(super) fn rows_max(shape: &AttentionShape) -> usize {
    (LINES / group(shape)).max(1)
}

fn lines_max(shape: &AttentionShape) -> usize {
    rows_max(shape) * group(shape)
}

/// A span's rows that one task computes for one KV head.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) span: KvSpan<'a>,
    /// First row within the span.
    pub(super) from: usize,
    pub(super) rows: usize,
}

impl Rows<'_> {
    pub(super) fn first(&self) -> usize {
        self.span.first as usize + self.from
    }

    /// The first position that a row of it sees.
    pub(super) fn begin(&self, shape: &AttentionShape) -> usize {
        shape
            .window
            .map_or(0, |window| (self.first() + 1).saturating_sub(window))
    }

    pub(super) fn segments(&self) -> usize {
        (self.first() + self.rows - 1) / SEGMENT + 1
    }

    pub(super) fn window_row(&self, row: usize) -> usize {
        self.span.first_row + self.from + row
    }
}
