//! Token mixers: attention over the paged cache and the gated delta net over the slots' states.

use super::{
    Act, AttentionWeights, Cuda, CudaError, DeltaWeights, Grid, Ready,
    index::Masks,
    launch,
    layout::{SHORT_ROWS, SPLIT},
};
use crate::{
    backend::shape::BetaDecay,
    cuda::{forms::Acts, kernels::AttentionKernels},
};

/// `struct DeltaIn` of `kernels/delta.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaIn {
    qkv: u64,
    z: u64,
    beta: u64,
    decay: u64,
}

/// `struct DeltaWeights` of `kernels/delta.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaParameters {
    taps: u64,
    decay: u64,
    bias: u64,
    norm: u64,
    eps: f32,
    padding: u32,
}

/// `struct DeltaOut` of `kernels/delta.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaOut {
    mixed: u64,
    wide: Acts,
    narrow: Acts,
    forms: u32,
    padding: u32,
}

/// `struct DeltaScratch` of `kernels/delta_prompt.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaScratch {
    lines: u64,
    weights: u64,
    factors: u64,
}

impl Ready {
    /// `Mixed` = attention of `Query` over the sequences' keys and values, the window's own appended first.
    pub(super) fn attend(&mut self, weights: &AttentionWeights<Cuda>) -> Result<(), CudaError> {
        self.prepare(weights, self.act(Act::Query))?;
        let masks = self.choose_seen(weights)?;
        let kernels = self.kernels.attention(&weights.shape);
        let [cache, page] = self.cache(weights);
        let sinks = self.vector(weights.sinks.as_ref());
        if self.now().few() {
            self.attend_few(kernels, [cache, page], sinks, masks)?;
            self.formed = Some(Act::Mixed);
        } else {
            self.attend_many(kernels, [cache, page], sinks, masks)?;
            if self.formed == Some(Act::Mixed) {
                self.formed = None;
            }
        }
        Ok(())
    }

    /// Where a layer's pages begin, and how long one is.
    fn cache(&self, weights: &AttentionWeights<Cuda>) -> [u64; 2] {
        let page = super::layout::page_bytes(&weights.shape.kv, self.room.kv_type);
        let cache = self.kv.address() + self.kv_at[weights.kv] as u64;
        [cache, page as u64]
    }

    /// Appends `Key` and `Value` to the sequences' keys and values, and those of an index to its own; prepares `query` in its place if that is not null, and the index's.
    pub(super) fn prepare(
        &self,
        weights: &AttentionWeights<Cuda>,
        query: u64,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let kernels = self.kernels.attention(&weights.shape);
        let shape = &weights.shape;
        let [cache, page] = self.cache(weights);
        let [query_bias, key_bias, value_bias] = match &weights.bias {
            Some(bias) => bias.each_ref().map(|bias| self.vector(Some(bias))),
            None => [0; 3],
        };
        let [query_norm, key_norm] = match &weights.qk_norm {
            Some(norm) => norm.each_ref().map(|norm| self.vector(Some(norm))),
            None => [0; 2],
        };
        let turns = self.turns.address() + 4 * kernels.turns as u64;
        let heads = shape.heads + 2 * shape.kv.heads;
        let grid = Grid::new(
            [
                now.rows,
                if kernels.full_width {
                    3
                } else {
                    heads.div_ceil(4)
                },
                1,
            ],
            128,
        );
        // SAFETY: the parameters of `attention_prepare`; the rows' pages are the sequences' own.
        unsafe {
            launch!(&self.queue, &kernels.prepare, grid;
                now.tables, query, self.act(Act::Key), self.act(Act::Value), query_bias, key_bias, value_bias, query_norm, key_norm,
                turns, shape.eps, shape.clamp.unwrap_or(0.0), cache, page)
        }?;
        self.prepare_index(weights, query != 0)
    }

    fn attend_few(
        &self,
        kernels: &AttentionKernels,
        [cache, page]: [u64; 2],
        sinks: u64,
        masks: Masks,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let shape = &kernels.shape;
        let (values, states) = (
            self.at(self.layout.split_values),
            self.at(self.layout.split_states),
        );
        let splits_max = self.layout.splits as u32;
        // with more rows and heads fewer blocks share a row's splits: the device is full anyway
        let blocks = 4 * self.processors / (shape.kv.heads * now.rows);
        let seen = shape
            .window
            .map_or(now.splits, |window| now.splits.min(window / SPLIT + 2));
        let splits = seen.min(blocks.max(1));
        let grid = Grid::new([splits, shape.kv.heads, now.rows], kernels.decode_threads);
        let query = self.act(Act::Query);
        // SAFETY: the parameters of `attention_decode`; the scratch has room for all splits of few rows.
        unsafe {
            launch!(&self.queue, &kernels.decode, grid;
                now.tables, 0u32, query, cache, page, shape.scale, values, states, splits_max, masks)
        }?;
        let width = shape.heads * shape.kv.head_dim;
        let forms = self.forms();
        let grid = Grid::new([width.div_ceil(256), now.rows, 1], 256);
        // SAFETY: the parameters of `attention_combine`.
        unsafe {
            launch!(&self.queue, &kernels.combine, grid;
                now.tables, 0u32, query, values, states, splits_max, sinks, self.act(Act::Mixed), self.forms_for(width), forms.wide, forms.narrow)
        }
    }

    fn attend_many(
        &self,
        kernels: &AttentionKernels,
        [cache, page]: [u64; 2],
        sinks: u64,
        masks: Masks,
    ) -> Result<(), CudaError> {
        let now = self.now();
        let shape = &kernels.shape;
        // a span that begins inside a tile touches one tile more
        let tiles = now.rows.div_ceil(kernels.prompt.tile_rows) + 2 * now.spans;
        let grid = Grid::new([shape.kv.heads, tiles, 1], kernels.prompt.threads)
            .with_shared(kernels.prompt.shared);
        // SAFETY: the parameters of `attention_prompt`.
        unsafe {
            launch!(&self.queue, &kernels.prompt.kernel, grid;
                now.tables, 0u32, self.act(Act::Query), cache, page, shape.scale, sinks, self.act(Act::Mixed), masks)
        }
    }

    /// `Mixed` = gated delta net of `DeltaQkv`; advances the slots' states.
    pub(super) fn delta_net(&mut self, weights: &DeltaWeights<Cuda>) -> Result<(), CudaError> {
        let now = self.now();
        let shape = &weights.shape;
        let delta = self.kernels.delta(shape);
        let input = DeltaIn {
            qkv: self.act(Act::DeltaQkv),
            z: self.act(Act::DeltaZ),
            beta: self.act(Act::DeltaBeta),
            decay: match shape.beta_decay {
                BetaDecay::Separate => self.act(Act::DeltaDecay),
                BetaDecay::Interleaved => 0,
            },
        };
        let parameters = DeltaParameters {
            taps: self.weight(weights.conv.at),
            decay: self.weight(weights.decay.at),
            bias: self.weight(weights.decay_bias.at),
            norm: self.weight(weights.norm.at),
            eps: shape.eps,
            padding: 0,
        };
        let forms = self.forms();
        let out = DeltaOut {
            mixed: self.act(Act::Mixed),
            wide: forms.wide,
            narrow: forms.narrow,
            forms: self.forms_for(shape.inner()),
            padding: 0,
        };
        let states = self.states.address() + self.states_at[weights.state] as u64;
        // spans of a few rows, in any window, are decoding and drafts
        let longest = SHORT_ROWS.min(delta.short_rows) as u32;
        let grid = Grid::new([shape.v_dim.div_ceil(32), shape.v_heads, now.spans], 128)
            .with_shared(delta.step_bytes);
        // SAFETY: the parameters of `delta_step`; each span's slot has a state of its own.
        unsafe {
            launch!(&self.queue, &delta.step, grid;
                now.tables, longest, input, parameters, states, out, self.at(self.layout.arrivals))
        }?;
        if !now.few() {
            let [lines, weights, factors] = self.layout.delta.map(|offset| self.at(offset));
            let scratch = DeltaScratch {
                lines,
                weights,
                factors,
            };
            let blocks = now.rows / 64 + 3 * now.spans;
            let grid = Grid::new([blocks, shape.k_heads, 1], 256).with_shared(delta.blocks_bytes);
            // SAFETY: the parameters of `delta_blocks`; the scratch has room for as many blocks.
            unsafe {
                launch!(&self.queue, &delta.blocks, grid;
                    now.tables, longest, input, parameters, states, scratch)
            }?;
            let columns = shape.v_dim.div_ceil(delta.scan_columns);
            let grid =
                Grid::new([columns, shape.v_heads, now.spans], 256).with_shared(delta.scan_bytes);
            // SAFETY: the parameters of `delta_scan`.
            unsafe {
                launch!(&self.queue, &delta.scan, grid;
                    now.tables, longest, input, parameters, states, scratch, out.mixed)
            }?;
            let grid = Grid::new(
                [now.rows.div_ceil(delta.gate_rows), delta.gate_groups, 1],
                128,
            )
            .with_shared(delta.gate_bytes);
            // SAFETY: the parameters of `delta_gate`.
            unsafe {
                launch!(&self.queue, &delta.gate, grid;
                    now.tables, longest, input, parameters, out)
            }?;
        }
        self.formed = Some(Act::Mixed);
        Ok(())
    }
}
