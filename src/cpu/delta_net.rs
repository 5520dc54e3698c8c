//! The gated delta net, anchored to blocks: one form for decoding, prompts in any chunks, and drafts.
//!
//! Knows rows, heads and slots; knows no projection and no sequence. The state `S` of a head advances only at positions that are
//! multiples of [`BLOCK_ROWS`]. Rows since that anchor stay pending as `(k_j, u_j, G_j)`, `G_i` the running sum of `g` from the anchor on, and row
//! `i` is computed from `S` and the rows before it:
//!
//! ```text
//! u_i = beta_i (v_i - (e^{G_i} S^T k_i + sum_{j<i} e^{G_i-G_j} (k_j . k_i) u_j))
//! o_i = e^{G_i} S^T q_i + sum_{j<=i} e^{G_i-G_j} (k_j . q_i) u_j
//! at the block's end:  S <- e^{G_C} S + sum_j e^{G_C-G_j} k_j u_j^T
//! ```
//!
//! which is the recurrence `S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q`, unrolled. Every inner product is one chain of fused
//! multiply-adds, channels ascending; every sum over `j` continues the chain of its element, rows ascending. So the bits depend on the
//! position only. Before the heads comes a causal convolution of [`TAPS`] inputs with silu, and q and k are normalised; after them each
//! head's output is normalised and gated.
//!
//! **Source**: arXiv 2412.06464 (the recurrence).

mod block;
mod conv;
mod head;
mod mark;
mod scratch;
mod state;

pub use state::{CutTooDeep, DeltaStates};

pub use crate::backend::shape::{HeadMap, OutGate};

use super::{
    isa::Isa,
    math::lanes::LANES,
    pool::{Disjoint, Pool},
};
use crate::engine::executor::{PAGE_TOKENS, Slot};
use head::HeadTask;
use scratch::Scratch;

/// Rows between two anchors.
pub const BLOCK_ROWS: usize = PAGE_TOKENS;

/// Inputs that the convolution sees, the row's own included.
pub const TAPS: usize = 4;

pub use crate::backend::CUT_ROWS;

/// The dimensions of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Channels of a key head, a multiple of 8.
    pub key_dim: usize,
    /// Channels of a value head, a multiple of 8.
    pub value_dim: usize,
    /// Which key head a value head belongs to.
    pub head_map: HeadMap,
}

impl DeltaShape {
    /// Channels that the convolution runs over: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Value heads per key head.
    fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// The `nth` value head of a key head.
    fn value_head(&self, key_head: usize, nth: usize) -> usize {
        match self.head_map {
            HeadMap::Grouped => key_head * self.group() + nth,
            HeadMap::Tiled => nth * self.key_heads + key_head,
        }
    }

    /// Channels of a value head as kept: whole vectors.
    fn width(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }
}

/// The weights of a layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet<'a> {
    /// The layer's dimensions.
    pub shape: DeltaShape,
    /// Convolution taps `[4, channels] f32`, the last for the row's own input; see [`taps_by_channel`].
    pub taps: &'a [f32],
    /// `[value_heads] f32`, at most 0: the decay's factor (already `-exp(A_log)`).
    pub decay: &'a [f32],
    /// `[value_heads] f32`: added before the softplus.
    pub dt_bias: &'a [f32],
    /// `[value_dim] f32`: weight of the output norm.
    pub norm: &'a [f32],
    /// Epsilon of the output norm.
    pub norm_eps: f32,
    /// What the output gate goes through.
    pub out_gate: OutGate,
}

/// Turns taps as files hold them, `[channels, 4]`, into `[4, channels]`.
pub fn taps_by_channel(taps: &[f32]) -> Vec<f32> {
    (0..TAPS)
        .flat_map(|tap| taps.iter().skip(tap).step_by(TAPS))
        .copied()
        .collect()
}

/// Where the write strength `b` and the step `a` of a row stand.
#[derive(Clone, Copy, Debug)]
pub enum Strengths<'a> {
    /// `b`, `a` `[rows, value_heads] f32` each.
    Separate {
        /// Through a sigmoid: how much of a value is written.
        b: &'a [f32],
        /// Through a softplus: how fast the state decays.
        a: &'a [f32],
    },
    /// `[rows, key_heads, (b r times, a r times)] f32`, `r` value heads per key head.
    Fused(&'a [f32]),
}

impl Strengths<'_> {
    fn get(&self, shape: &DeltaShape, row: usize, key_head: usize, nth: usize) -> (f32, f32) {
        match self {
            Self::Separate { b, a } => {
                let at = row * shape.value_heads + shape.value_head(key_head, nth);
                (b[at], a[at])
            }
            Self::Fused(both) => {
                let at = row * 2 * shape.value_heads + key_head * 2 * shape.group() + nth;
                (both[at], both[at + shape.group()])
            }
        }
    }
}

/// The projections of a window's rows.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// `[rows, channels] f32`: queries, keys, values, before the convolution.
    pub qkv: &'a [f32],
    /// Write strengths and steps.
    pub strengths: Strengths<'a>,
    /// `[rows, value_heads * value_dim] f32`: the output gate.
    pub z: &'a [f32],
}

/// Consecutive rows of one sequence, which follow the rows that its slot has seen.
#[derive(Clone, Copy, Debug)]
pub struct DeltaSpan {
    /// Whose state.
    pub slot: Slot,
    /// The span's first row among the window's.
    pub first_row: usize,
    /// Rows, at least one.
    pub rows: usize,
}

/// Working memory, made once for the largest layer.
#[derive(Debug)]
pub struct DeltaScratch {
    /// `[workers, task_len] f32`.
    memory: Vec<f32>,
    task_len: usize,
}

impl DeltaScratch {
    /// For layers of this shape.
    pub fn new(shape: &DeltaShape, workers: usize) -> Self {
        let task_len = Scratch::len(shape);
        Self {
            memory: vec![0.0; task_len * workers.max(1)],
            task_len,
        }
    }
}

impl DeltaNet<'_> {
    /// Computes the window's rows and advances the slots' states of layer `layer`.
    ///
    /// **Shapes**: `out [rows, value_heads * value_dim] f32`.
    ///
    /// **Panics** if a slice does not fit the shape, the states or the scratch were made for another shape, or a slot is named twice.
    #[allow(
        clippy::too_many_arguments,
        reason = "what to compute, on what, with what: grouping them names nothing"
    )]
    pub fn run(
        &self,
        pool: &Pool,
        isa: Isa,
        layer: usize,
        spans: &[DeltaSpan],
        rows: &DeltaRows<'_>,
        states: &mut DeltaStates,
        scratch: &mut DeltaScratch,
        out: &mut [f32],
    ) {
        self.check(spans, states, scratch);
        assert!(
            pool.workers() * scratch.task_len <= scratch.memory.len(),
            "scratch made for fewer workers than {}",
            pool.workers()
        );
        let heads = states.heads(layer);
        let task_len = scratch.task_len;
        let memory = Disjoint::new(&mut scratch.memory);
        let out = Disjoint::new(out);
        let key_heads = self.shape.key_heads;
        pool.run(spans.len() * key_heads, |number, worker| {
            let (span, key_head) = (&spans[number / key_heads], number % key_heads);
            let task = HeadTask {
                net: self,
                rows,
                span,
                key_head,
                mark: heads.mark(span.slot),
            };
            // SAFETY: a slot has one span and a key head one task; a worker runs one task at a time.
            let (head, memory) = unsafe {
                (
                    heads.head(span.slot, key_head),
                    memory.nth(worker, task_len),
                )
            };
            // a task writes its own rows and value heads of `out`
            head::run(isa, &task, head, memory, &out);
        });
        for span in spans {
            states.advance(span.slot, layer, span.rows);
        }
    }

    fn check(&self, spans: &[DeltaSpan], states: &DeltaStates, scratch: &DeltaScratch) {
        let shape = &self.shape;
        assert!(
            shape.value_heads.is_multiple_of(shape.key_heads),
            "{shape:?}"
        );
        assert_eq!(*shape, states.shape(), "states made for another shape");
        assert!(
            Scratch::len(shape) <= scratch.task_len,
            "scratch made for another shape"
        );
        assert_eq!(self.taps.len(), TAPS * shape.channels(), "taps");
        let twice =
            |span: &DeltaSpan| spans.iter().filter(|other| other.slot == span.slot).count() > 1;
        assert!(!spans.iter().any(twice), "a slot named twice");
    }
}

#[cfg(test)]
mod tests;
