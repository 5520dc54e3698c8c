//! Token mixers: attention over the paged cache and the gated delta net over the slots' states.

use super::Cpu;
use crate::{
    backend::{
        Act, AttentionWeights, DeltaWeights, Needs, Room,
        shape::{self, AttentionShape, BetaDecay, QkNorm, Rope},
    },
    cpu::{
        attention::{self, Attention, AttentionScratch, HeadRows},
        delta_net::{
            DeltaNet, DeltaRows, DeltaScratch, DeltaShape, DeltaSpan, DeltaStates, OutGate,
            Strengths,
        },
        isa::Isa,
        kv::{KvCache, KvShape, KvSpan},
        math::{self, RopeRows},
    },
    engine::executor::{PAGE_TOKENS, Slot},
    model::window::{RowSpan, Rows},
};

/// Memory with which the segments of few long rows are shared out.
const PARTIAL_BYTES: usize = 4 << 20;

/// Everything a sequence leaves behind in the model.
#[derive(Default)]
pub(super) struct Caches {
    /// One an attention layer.
    kv: Vec<KvCache>,
    attention: Option<AttentionScratch>,
    rotation: Rotation,
    /// The delta-net layers' states, and what computing them needs.
    delta: Option<(DeltaStates, DeltaScratch)>,
}

/// The cosines and sines of a window's rows, shared by all layers that rotate alike.
#[derive(Default)]
struct Rotation {
    of: Option<(Rope, math::Rope)>,
    positions: Vec<u32>,
    turns: RopeRows,
}

impl Rotation {
    /// Fills the table for these rows, unless it holds them already.
    fn turn_to(&mut self, rope: &Rope, rows: &Rows) {
        let positions = rows
            .spans()
            .iter()
            .flat_map(|span| (span.first..span.first + span.rows.len()).map(|at| at as u32));
        let known = self.of.as_ref().is_some_and(|(of, _)| of == rope);
        if known && positions.clone().eq(self.positions.iter().copied()) {
            return;
        }
        if !known {
            let frequencies = rope
                .frequencies
                .iter()
                .map(|radians| *radians as f32)
                .collect();
            self.of = Some((rope.clone(), math::Rope::new(frequencies, rope.pairs, 1.0)));
        }
        self.positions.clear();
        self.positions.extend(positions);
        if let Some((_, rope)) = &self.of {
            rope.fill(self.positions.iter().copied(), &mut self.turns);
        }
    }

    fn get(&self) -> Option<(&math::Rope, &RopeRows)> {
        self.of.as_ref().map(|(_, rope)| (rope, &self.turns))
    }
}

impl Caches {
    pub(super) fn new(needs: &Needs, room: &Room, workers: usize) -> Self {
        let cache =
            |layer: &AttentionShape| KvCache::new(cache_shape(&layer.kv), room.kv_type, room.pages);
        Self {
            kv: needs.attention.iter().map(cache).collect(),
            attention: needs
                .attention
                .iter()
                .map(|layer| kernel_shape(layer.heads, layer.kv, 1.0))
                .max_by_key(|shape| shape.heads * shape.head_dim)
                .map(|largest| AttentionScratch::new(largest, workers, PARTIAL_BYTES)),
            rotation: Rotation::default(),
            delta: needs.delta.first().map(|shape| {
                let shape = delta_shape(shape);
                (
                    DeltaStates::new(shape, needs.delta.len(), room.slots),
                    DeltaScratch::new(&shape, workers),
                )
            }),
        }
    }

    pub(super) fn reset(&mut self, slot: Slot) {
        if let Some((states, _)) = &mut self.delta {
            states.reset(slot);
        }
    }

    /// Keys and values need nothing: what comes next at a position replaces what is there, and nobody looks past his own.
    pub(super) fn cut(&mut self, slot: Slot, rows: usize) {
        if let Some((states, _)) = &mut self.delta {
            states
                .cut(slot, rows)
                .expect("no more rows are taken back than the last window had");
        }
    }
}

/// **Units**: bytes. One KV page of one attention layer.
pub(super) fn page_bytes(kv: &shape::KvShape, kind: shape::KvType) -> usize {
    cache_shape(kv).page_bytes(kind)
}

/// **Units**: bytes. One slot's state in one delta-net layer.
pub(super) fn state_bytes(shape: &shape::DeltaShape) -> usize {
    DeltaStates::bytes(&delta_shape(shape))
}

/// The rows of a window as the cache takes them.
fn kv_spans(rows: &Rows) -> Vec<KvSpan<'_>> {
    let span = |span: &RowSpan| KvSpan {
        first_row: span.rows.start,
        rows: span.rows.len(),
        first: span.first as u32,
        pages: rows.pages(span),
    };
    rows.spans().iter().map(span).collect()
}

/// Every layer has a cache of its own, since layers may differ.
fn cache_shape(kv: &shape::KvShape) -> KvShape {
    KvShape {
        layers: 1,
        kv_heads: kv.heads,
        head_dim: kv.head_dim,
    }
}

impl Cpu {
    /// `Mixed` = attention of `Query` over the sequences' keys and values, the window's own appended first.
    pub(super) fn attention(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) {
        self.append_keys(rows, weights);
        let (isa, shape, count) = (self.isa, &weights.shape, rows.count());
        let head_dim = shape.kv.head_dim;
        let query_head = head_dim * if shape.gated { 2 } else { 1 };
        let query_width = shape.heads * query_head;
        self.prepare_heads(Act::Query, count, query_head, shape.heads, weights, Some(0));
        let spans = kv_spans(rows);
        let page = cache_shape(&shape.kv).page_bytes(self.caches.kv[weights.kv].kind());
        let pages: usize = spans.iter().map(|span| span.last() / PAGE_TOKENS + 1).sum();
        self.moved_bytes += (page * pages) as u64;
        let cache = &self.caches.kv[weights.kv];
        let mut mixed = self.acts.take(Act::Mixed);
        let query = HeadRows {
            data: self.acts.rows(Act::Query, count, query_width),
            row: query_width,
            head: query_head,
            offset: 0,
        };
        let gate = shape.gated.then_some(HeadRows {
            offset: head_dim,
            ..query
        });
        let attention = Attention {
            shape: kernel_shape(shape.heads, shape.kv, shape.scale),
            layer: 0,
            spans: &spans,
            query,
            gate,
            cache,
        };
        let scratch = self
            .caches
            .attention
            .as_mut()
            .expect("a model with attention has room for it");
        attention.run(
            &self.pool,
            isa,
            scratch,
            &mut mixed[..count * shape.heads * head_dim],
        );
        self.acts.put(Act::Mixed, mixed);
    }
}

impl Cpu {
    /// Prepares the rows' keys and values, and appends them to their sequences' own.
    pub(super) fn append_keys(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) {
        let (shape, count) = (&weights.shape, rows.count());
        self.caches.rotation.turn_to(&shape.rope, rows);
        let (heads, head_dim) = (shape.kv.heads, shape.kv.head_dim);
        self.prepare_heads(Act::Key, count, head_dim, heads, weights, Some(1));
        self.prepare_heads(Act::Value, count, head_dim, heads, weights, None);
        let kv_width = heads * head_dim;
        self.caches.kv[weights.kv].write(
            &self.pool,
            self.isa,
            0,
            &kv_spans(rows),
            self.acts.rows(Act::Key, count, kv_width),
            self.acts.rows(Act::Value, count, kv_width),
        );
    }

    /// Bias, norm, clamp and rotation of queries (`normed` 0), keys (1) or values, of which only bias and clamp change anything.
    fn prepare_heads(
        &mut self,
        act: Act,
        count: usize,
        stride: usize,
        heads: usize,
        weights: &AttentionWeights<Self>,
        normed: Option<usize>,
    ) {
        let (isa, width) = (self.isa, heads * stride);
        let inputs = HeadInputs {
            shape: &weights.shape,
            stride,
            bias: weights
                .bias
                .as_ref()
                .map(|bias| &bias[normed.unwrap_or(2)][..]),
            norm: normed.and_then(|part| weights.qk_norm.as_ref().map(|norm| &norm[part][..])),
            turns: normed.and_then(|_| self.caches.rotation.get()),
        };
        if !inputs.changes() {
            return;
        }
        let out = self.acts.rows_mut(act, count, width);
        Self::each_row(&self.pool, out, width, 4 * width, |row, values| {
            inputs.prepare(isa, row, values)
        });
    }

    /// `Mixed` = gated delta net of `DeltaQkv`; advances the slots' states.
    pub(super) fn gated_delta(&mut self, rows: &Rows, weights: &DeltaWeights<Self>) {
        let (shape, count) = (&weights.shape, rows.count());
        let spans: Vec<DeltaSpan> = rows
            .spans()
            .iter()
            .map(|span| DeltaSpan {
                slot: span.slot,
                first_row: span.rows.start,
                rows: span.rows.len(),
            })
            .collect();
        let mut mixed = self.acts.take(Act::Mixed);
        let inputs = DeltaRows {
            qkv: self.acts.rows(Act::DeltaQkv, count, shape.channels()),
            z: self.acts.rows(Act::DeltaZ, count, shape.inner()),
            strengths: match shape.beta_decay {
                BetaDecay::Interleaved => {
                    Strengths::Fused(self.acts.rows(Act::DeltaBeta, count, 2 * shape.v_heads))
                }
                BetaDecay::Separate => Strengths::Separate {
                    b: self.acts.rows(Act::DeltaBeta, count, shape.v_heads),
                    a: self.acts.rows(Act::DeltaDecay, count, shape.v_heads),
                },
            },
        };
        let state = shape.v_heads * shape.k_dim * shape.v_dim * size_of::<f32>();
        self.moved_bytes += (state * spans.len()) as u64;
        let net = DeltaNet {
            shape: delta_shape(shape),
            taps: &weights.conv,
            decay: &weights.decay,
            dt_bias: &weights.decay_bias,
            norm: &weights.norm,
            norm_eps: shape.eps,
            out_gate: OutGate::Silu,
        };
        let (states, scratch) = self
            .caches
            .delta
            .as_mut()
            .expect("a model with delta nets has states");
        let out = &mut mixed[..count * shape.inner()];
        net.run(
            &self.pool,
            self.isa,
            weights.state,
            &spans,
            &inputs,
            states,
            scratch,
            out,
        );
        self.acts.put(Act::Mixed, mixed);
    }
}

fn delta_shape(shape: &shape::DeltaShape) -> DeltaShape {
    DeltaShape {
        key_heads: shape.k_heads,
        value_heads: shape.v_heads,
        key_dim: shape.k_dim,
        value_dim: shape.v_dim,
        head_map: shape.head_map,
    }
}

/// What happens to queries, keys or values between projection and attention.
struct HeadInputs<'a> {
    shape: &'a AttentionShape,
    /// Values from a head to the next.
    stride: usize,
    bias: Option<&'a [f32]>,
    norm: Option<&'a [f32]>,
    turns: Option<(&'a math::Rope, &'a RopeRows)>,
}

impl HeadInputs<'_> {
    fn changes(&self) -> bool {
        self.bias.is_some()
            || self.norm.is_some()
            || self.turns.is_some()
            || self.shape.clamp.is_some()
    }

    /// Bias, norm, clamp and rotation of one row.
    fn prepare(&self, isa: Isa, row: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            math::add(isa, bias, values);
        }
        let (shape, head_dim) = (self.shape, self.shape.kv.head_dim);
        if let (Some(norm), Some(QkNorm::FullWidth)) = (self.norm, shape.qk_norm) {
            math::rms_norm(isa, values, norm, shape.eps);
        }
        if let Some(limit) = shape.clamp {
            values
                .iter_mut()
                .for_each(|value| *value = value.clamp(-limit, limit));
        }
        for head in values.chunks_exact_mut(self.stride) {
            let head = &mut head[..head_dim];
            if let (Some(norm), Some(QkNorm::PerHead)) = (self.norm, shape.qk_norm) {
                math::rms_norm(isa, head, norm, shape.eps);
            }
            if let Some((rope, turns)) = self.turns {
                rope.turn(isa, turns, row, head);
            }
        }
    }
}

fn kernel_shape(heads: usize, kv: shape::KvShape, scale: f32) -> attention::AttentionShape {
    attention::AttentionShape {
        heads,
        kv_heads: kv.heads,
        head_dim: kv.head_dim,
        scale,
    }
}
