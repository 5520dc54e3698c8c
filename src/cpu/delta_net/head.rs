//! One key head's way through a span, with its value heads.

use super::{
    BLOCK_ROWS, DeltaNet, DeltaRows, DeltaSpan, OutGate, block,
    conv::{self, Inputs, Part},
    mark::{Mark, Step},
    scratch::Scratch,
    state::{HeadState, RING_ROWS},
};
use crate::cpu::{
    math::{
        l2_norm_body,
        lanes::{LANES, Lanes, per_isa},
        rms_norm_body, sigmoid_of, silu_of, softplus_of,
    },
    pool::Disjoint,
};

/// Added under the root when queries and keys are normalised.
const L2_EPS: f32 = 1e-6;

/// How many rows ahead inputs are asked for: a row takes 0.3 us or so, memory half of that.
const PREFETCH_ROWS: usize = 2;

/// What one task computes.
pub(super) struct HeadTask<'a> {
    pub(super) net: &'a DeltaNet<'a>,
    pub(super) rows: &'a DeltaRows<'a>,
    pub(super) span: &'a DeltaSpan,
    pub(super) key_head: usize,
    pub(super) mark: Mark,
}

per_isa! {
    /// Computes a task.
    ///
    /// **Shapes**: `head` a head's state, `memory` a [`Scratch`], `out [window rows, value_heads * value_dim]`, of which the task writes the
    /// rows of its span and the channels of its value heads.
    pub(super) fn run(task: &HeadTask<'_>, head: &mut [f32], memory: &mut [f32], out: &Disjoint<'_, f32>) = run_body;
}

#[inline(always)]
fn run_body<L: Lanes>(
    task: &HeadTask<'_>,
    head: &mut [f32],
    memory: &mut [f32],
    out: &Disjoint<'_, f32>,
) {
    let shape = &task.net.shape;
    let mut head = HeadState::new(head, shape);
    let mut scratch = Scratch::new(memory, shape);
    for (mark, step) in task.mark.walk(task.span.rows) {
        match step {
            Step::Close { behind } => {
                for nth in 0..shape.group() {
                    let (keys, mut state) = head.value(shape, nth);
                    block::decay_keys::<L>(keys, state.g, scratch.decayed);
                    block::fold::<L>(
                        shape,
                        scratch.decayed,
                        state.g,
                        state.u,
                        !mark.blank(),
                        state.s,
                    );
                    state.move_up(behind, shape.width());
                }
                head.move_up(behind, shape.key_dim);
            }
            Step::Fork => {
                for nth in 0..shape.group() {
                    let (keys, state) = head.value(shape, nth);
                    block::decay_keys::<L>(keys, state.g, scratch.decayed);
                    let fork = &mut scratch.forks[nth * state.s.len()..][..state.s.len()];
                    fork.copy_from_slice(state.s);
                    block::fold::<L>(
                        shape,
                        scratch.decayed,
                        state.g,
                        state.u,
                        !mark.blank(),
                        fork,
                    );
                }
            }
            Step::Rows {
                at,
                from,
                window_row,
                rows,
            } => {
                let place = Place {
                    at,
                    from,
                    window_row,
                    rows,
                    blank: mark.blank() && at == 0,
                };
                task.compute::<L>(&place, &mut head, &mut scratch, out);
            }
        }
    }
    conv::remember(
        shape,
        task.key_head,
        task.inputs(),
        task.mark.end,
        head.ring,
    );
}

/// Rows of one block.
pub(super) struct Place {
    /// Where the block is pending.
    pub(super) at: usize,
    /// The first row, counted from the block's start.
    pub(super) from: usize,
    /// The first row, counted from the span's start.
    window_row: usize,
    pub(super) rows: usize,
    /// Whether `S` is zero.
    pub(super) blank: bool,
}

impl HeadTask<'_> {
    /// The span's rows before the convolution.
    fn inputs(&self) -> &[f32] {
        let channels = self.net.shape.channels();
        &self.rows.qkv[self.span.first_row * channels..][..self.span.rows * channels]
    }

    #[inline(always)]
    fn compute<L: Lanes>(
        &self,
        place: &Place,
        head: &mut HeadState<'_>,
        scratch: &mut Scratch<'_>,
        out: &Disjoint<'_, f32>,
    ) {
        let shape = &self.net.shape;
        self.convolve::<L>(place, head, scratch);
        block::append_keys(place, shape.key_dim, scratch.lines, head.keys);
        block::products::<L>(
            place,
            shape.key_dim,
            scratch.lines,
            head.keys,
            scratch.products,
        );
        for nth in 0..shape.group() {
            let (_, state) = head.value(shape, nth);
            self.strengths(place, nth, scratch.strengths, state.g);
            let s_len = state.s.len();
            let s = if place.at == 0 {
                &*state.s
            } else {
                &scratch.forks[nth * s_len..][..s_len]
            };
            let reads = block::Reads {
                s,
                lines: scratch.lines,
                key_dim: shape.key_dim,
                width: shape.width(),
            };
            reads.compute::<L>(place, state.g, scratch.reads);
            block::weigh::<L>(place, state.g, scratch.products, scratch.weights);
            let values = &scratch.values[nth * BLOCK_ROWS * shape.width()..];
            let update = block::Update {
                weights: scratch.weights,
                strengths: scratch.strengths,
                values,
                width: shape.width(),
            };
            update.compute::<L>(place, scratch.reads, state.u);
            self.emit::<L>(place, nth, scratch.reads, out);
        }
    }

    /// Fills `lines` and `values` from the convolution.
    #[inline(always)]
    fn convolve<L: Lanes>(&self, place: &Place, head: &HeadState<'_>, scratch: &mut Scratch<'_>) {
        let shape = &self.net.shape;
        let (key_dim, width) = (shape.key_dim, shape.width());
        let inputs = Inputs {
            rows: self.inputs(),
            channels: shape.channels(),
            first: self.mark.end,
            ring: head.ring,
            ring_width: head.ring.len() / RING_ROWS,
            zeros: scratch.zeros,
        };
        for row in 0..place.rows {
            let (keys, queries) =
                scratch.lines[2 * row * key_dim..][..2 * key_dim].split_at_mut(key_dim);
            for (nth, part) in Part::all(shape, self.key_head).enumerate() {
                let to = match nth {
                    0 => &mut *queries,
                    1 => &mut *keys,
                    _ => &mut scratch.values[((nth - 2) * BLOCK_ROWS + row) * width..][..part.len],
                };
                inputs.prefetch::<L>(&part, place.window_row + row, PREFETCH_ROWS);
                inputs.convolve::<L>(self.net.taps, &part, place.window_row + row, to);
            }
            l2_norm_body::<L>(keys, L2_EPS, 1.0);
            l2_norm_body::<L>(queries, L2_EPS, 1.0 / (key_dim as f32).sqrt());
        }
    }

    /// Fills the rows' write strengths, and continues the running sum of the decay.
    fn strengths(&self, place: &Place, nth: usize, strengths: &mut [f32], g: &mut [f32]) {
        let value_head = self.net.shape.value_head(self.key_head, nth);
        for (row, strength) in strengths[..place.rows].iter_mut().enumerate() {
            let window_row = self.span.first_row + place.window_row + row;
            let (b, a) = self
                .rows
                .strengths
                .get(&self.net.shape, window_row, self.key_head, nth);
            *strength = sigmoid_of(b);
            let decay = self.net.decay[value_head] * softplus_of(a + self.net.dt_bias[value_head]);
            let local = place.from + row;
            let before = if local == 0 {
                0.0
            } else {
                g[place.at + local - 1]
            };
            g[place.at + local] = before + decay;
        }
    }

    /// Normalises and gates the rows' outputs of one value head.
    #[inline(always)]
    fn emit<L: Lanes>(
        &self,
        place: &Place,
        nth: usize,
        reads: &mut [f32],
        out: &Disjoint<'_, f32>,
    ) {
        let shape = &self.net.shape;
        let value_dim = shape.value_dim;
        for row in 0..place.rows {
            let line = &mut reads[(2 * row + 1) * shape.width()..][..value_dim];
            rms_norm_body::<L>(line, self.net.norm, self.net.norm_eps);
            let window_row = self.span.first_row + place.window_row + row;
            let at =
                (window_row * shape.value_heads + shape.value_head(self.key_head, nth)) * value_dim;
            // SAFETY: a window row belongs to one span and a value head to one key head, so to this task.
            let to = unsafe { out.part(at..at + value_dim) };
            let z = &self.rows.z[at..at + value_dim];
            match self.net.out_gate {
                OutGate::Silu => gated::<L, true>(line, z, to),
                OutGate::Sigmoid => gated::<L, false>(line, z, to),
            }
        }
    }
}

/// `out = x * silu(z)`, or `x * sigmoid(z)`.
#[inline(always)]
fn gated<L: Lanes, const SILU: bool>(x: &[f32], z: &[f32], out: &mut [f32]) {
    for ((x, z), out) in x
        .chunks(LANES)
        .zip(z.chunks(LANES))
        .zip(out.chunks_mut(LANES))
    {
        let z = L::load_part(z);
        let open = if SILU { silu_of(z) } else { sigmoid_of(z) };
        (L::load_part(x) * open).store_part(out);
    }
}
