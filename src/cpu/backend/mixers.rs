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
            DeltaNet, DeltaRows, DeltaScratch, DeltaShape, DeltaSpan, DeltaStates, Strengths,
        },
        index::{IndexCache, KeyNorm, Selected},
        isa::Isa,
        kv::{KvCache, KvShape, KvSpan},
        math::{self, RopeRows},
    },
    engine::executor::{PAGE_TOKENS, PageId, Slot},
    model::window::{RowSpan, Rows},
};

/// Memory with which the segments of few long rows are shared out.
pub(super) const PARTIAL_BYTES: usize = 4 << 20;

/// Everything a sequence leaves behind in the model.
#[derive(Default)]
pub(super) struct Caches {
    /// One an attention layer.
    kv: Vec<KvCache>,
    /// Keys of its index, if it has one.
    index: Vec<Option<IndexCache>>,
    /// What rows see: `[rows, pages] u64`.
    masks: Vec<u64>,
    attention: Option<AttentionScratch>,
    /// One for every way in which layers rotate.
    rotations: Vec<Rotation>,
    /// Rows of the largest window.
    rows: usize,
    /// As many as a head has channels: the weight of a norm that has none.
    ones: Vec<f32>,
    /// The delta-net layers' states, and what computing them needs.
    delta: Option<(DeltaStates, DeltaScratch)>,
}

/// The cosines and sines of a window's rows, shared by all layers that rotate alike.
struct Rotation {
    of: Rope,
    rope: math::Rope,
    positions: Vec<u32>,
    turns: RopeRows,
}

impl Rotation {
    fn new(of: &Rope) -> Self {
        let frequencies = of
            .frequencies
            .iter()
            .map(|radians| *radians as f32)
            .collect();
        Self {
            of: of.clone(),
            rope: math::Rope::new(frequencies, of.pairs, of.magnitude),
            positions: Vec::new(),
            turns: RopeRows::default(),
        }
    }

    /// Fills the table for these rows, unless it holds them already.
    fn turn_to(&mut self, rows: &Rows) {
        let positions = rows
            .spans()
            .iter()
            .flat_map(|span| (span.first..span.first + span.rows.len()).map(|at| at as u32));
        if positions.clone().eq(self.positions.iter().copied()) {
            return;
        }
        self.positions.clear();
        self.positions.extend(positions);
        self.rope
            .fill(self.positions.iter().copied(), &mut self.turns);
    }
}

/// Where a span's keys and values lie: in the pages of its sequence, or in a ring of its slot's.
struct Places(Vec<Vec<PageId>>);

impl Places {
    /// `ring`: pages of a slot, if there is a window.
    fn new(rows: &Rows, ring: Option<usize>) -> Self {
        let Some(ring) = ring else {
            return Self(Vec::new());
        };
        let pages = |span: &RowSpan| {
            let last = (span.first + span.rows.len() - 1) / PAGE_TOKENS;
            let first = span.slot.0 as usize * ring;
            (0..=last)
                .map(|page| PageId((first + page % ring) as u32))
                .collect()
        };
        Self(rows.spans().iter().map(pages).collect())
    }

    fn of<'a>(&'a self, rows: &'a Rows, number: usize) -> &'a [PageId] {
        match self.0.get(number) {
            Some(pages) => pages,
            None => rows.pages(&rows.spans()[number]),
        }
    }
}

impl Caches {
    pub(super) fn new(needs: &Needs, room: &Room, workers: usize) -> Self {
        let cache = |layer: &AttentionShape| {
            KvCache::new(cache_shape(&layer.kv), room.kv_type, room.pages_of(layer))
        };
        Self {
            kv: needs.attention.iter().map(cache).collect(),
            index: needs
                .attention
                .iter()
                .enumerate()
                .map(|(layer, shape)| {
                    let late = reads_late(needs, layer);
                    Some(IndexCache::new(shape.index?, room.pages, room.slots, late))
                })
                .collect(),
            masks: Vec::new(),
            attention: needs
                .attention
                .iter()
                .map(|layer| AttentionScratch::new(kernel_shape(layer), workers, PARTIAL_BYTES))
                .reduce(AttentionScratch::larger),
            rotations: Vec::new(),
            rows: room.rows,
            ones: vec![
                1.0;
                needs
                    .attention
                    .iter()
                    .map(|layer| layer.kv.head_dim)
                    .max()
                    .unwrap_or(0)
            ],
            delta: needs.delta.first().map(|shape| {
                let shape = delta_shape(shape);
                (
                    DeltaStates::new(shape, needs.delta.len(), room.slots),
                    DeltaScratch::new(&shape, workers),
                )
            }),
        }
    }

    /// Which of the rotations, turned to these rows.
    fn turned(&mut self, of: &Rope, rows: &Rows) -> usize {
        let known = self.rotations.iter().position(|known| known.of == *of);
        let number = known.unwrap_or_else(|| {
            self.rotations.push(Rotation::new(of));
            self.rotations.len() - 1
        });
        self.rotations[number].turn_to(rows);
        number
    }

    pub(super) fn reset(&mut self, slot: Slot) {
        if let Some((states, _)) = &mut self.delta {
            states.reset(slot);
        }
    }

    /// Keys and values need nothing, those of an index and what n-grams keep neither: what comes next at a position replaces what is there, nobody looks past
    /// his own, and what the rows that go have replaced in a ring lies further back than anybody looks.
    pub(super) fn cut(&mut self, slot: Slot, rows: usize) {
        if let Some((states, _)) = &mut self.delta {
            states
                .cut(slot, rows)
                .expect("no more rows are taken back than the last window had");
        }
    }
}

/// Whether an attention layer is a prediction block's, which reads positions late.
fn reads_late(needs: &Needs, layer: usize) -> bool {
    needs.predicts && layer + 1 == needs.attention.len()
}

/// **Units**: bytes. What indexes keep beside their pages.
pub(super) fn index_bytes(needs: &Needs, room: &Room) -> usize {
    let layers = needs.attention.iter().enumerate();
    let keys = layers.filter_map(|(layer, shape)| {
        let index = shape.index?;
        Some(IndexCache::ring(&index, reads_late(needs, layer)) * index.head_dim)
    });
    room.slots * keys.sum::<usize>() * size_of::<f32>()
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
fn kv_spans<'a>(rows: &'a Rows, places: &'a Places) -> Vec<KvSpan<'a>> {
    let span = |(number, span): (usize, &RowSpan)| KvSpan {
        first_row: span.rows.start,
        rows: span.rows.len(),
        first: span.first as u32,
        pages: places.of(rows, number),
    };
    rows.spans().iter().enumerate().map(span).collect()
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
        let rotation = self.caches.turned(&shape.rope, rows);
        let head_dim = shape.kv.head_dim;
        let query_head = head_dim * if shape.gated { 2 } else { 1 };
        let query_width = shape.heads * query_head;
        self.prepare_heads(Act::Query, count, query_head, weights, rotation);
        let places = Places::new(rows, shape.ring_pages(self.caches.rows));
        let spans = kv_spans(rows, &places);
        let page = cache_shape(&shape.kv).page_bytes(self.caches.kv[weights.kv].kind());
        let seen = |span: &KvSpan<'_>| {
            let from = shape
                .window
                .map_or(0, |window| (span.first as usize + 1).saturating_sub(window));
            span.last() / PAGE_TOKENS - from / PAGE_TOKENS + 1
        };
        let pages: usize = spans.iter().map(seen).sum();
        self.moved_bytes += (page * pages) as u64;
        let pages = spans.iter().map(|span| span.pages.len()).max().unwrap_or(0);
        let chosen = self.choose(count, &spans, weights, rotation, pages);
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
            shape: kernel_shape(shape),
            layer: 0,
            spans: &spans,
            query,
            gate,
            sinks: weights.sinks.as_deref(),
            selected: chosen.then_some(Selected {
                masks: &self.caches.masks,
                pages,
            }),
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
    /// Prepares the rows' keys and values, and appends them to their sequences' own; those of an index too.
    pub(super) fn append_keys(&mut self, rows: &Rows, weights: &AttentionWeights<Self>) {
        let (shape, count) = (&weights.shape, rows.count());
        let rotation = self.caches.turned(&shape.rope, rows);
        let head_dim = shape.kv.head_dim;
        self.prepare_heads(Act::Key, count, head_dim, weights, rotation);
        self.prepare_heads(Act::Value, count, head_dim, weights, rotation);
        let width = shape.kv.heads * head_dim;
        let places = Places::new(rows, shape.ring_pages(self.caches.rows));
        let spans = kv_spans(rows, &places);
        self.caches.kv[weights.kv].write(
            &self.pool,
            self.isa,
            0,
            &spans,
            self.acts.rows(Act::Key, count, width),
            self.acts.rows(Act::Value, count, width),
        );
        let (Some(index), Some([_, weight])) =
            (&mut self.caches.index[weights.kv], &weights.index_norm)
        else {
            return;
        };
        let norm = KeyNorm {
            weight,
            eps: shape.eps,
            rope: &self.caches.rotations[rotation].rope,
        };
        let keys = self.acts.rows(Act::IndexKey, count, weight.len());
        for (span, of) in spans.iter().zip(rows.spans()) {
            index.append(self.isa, of.slot, span, keys, &norm);
        }
    }

    /// Bias, norm, clamp and rotation of `Query`, `Key` or `Value`; values are not rotated, and normed without a weight if at all.
    fn prepare_heads(
        &mut self,
        act: Act,
        count: usize,
        stride: usize,
        weights: &AttentionWeights<Self>,
        rotation: usize,
    ) {
        let (isa, shape) = (self.isa, &weights.shape);
        let (part, heads) = match act {
            Act::Query => (0, shape.heads),
            Act::Key => (1, shape.kv.heads),
            _ => (2, shape.kv.heads),
        };
        let turning = &self.caches.rotations[rotation];
        let (norm, norms, turns) = if part < 2 {
            let norm = weights.qk_norm.as_ref().map(|norm| &norm[part][..]);
            let turns = Some((&turning.rope, &turning.turns));
            (norm, shape.qk_norm, turns)
        } else {
            let ones = &self.caches.ones[..shape.kv.head_dim];
            (shape.v_norm.then_some(ones), Some(QkNorm::PerHead), None)
        };
        let inputs = HeadInputs {
            shape,
            stride,
            bias: weights.bias.as_ref().map(|bias| &bias[part][..]),
            norm,
            norms,
            turns,
        };
        if !inputs.changes() {
            return;
        }
        let width = heads * stride;
        let out = self.acts.rows_mut(act, count, width);
        Self::each_row(&self.pool, out, width, 4 * width, |row, values| {
            inputs.prepare(isa, row, values)
        });
    }

    /// Chooses what the rows see, if the layer has an index; tells whether that is less than everything.
    fn choose(
        &mut self,
        count: usize,
        spans: &[KvSpan<'_>],
        weights: &AttentionWeights<Self>,
        rotation: usize,
        pages: usize,
    ) -> bool {
        let (Some(index), Some([norm, _]), Some(shape)) = (
            &self.caches.index[weights.kv],
            &weights.index_norm,
            weights.shape.index,
        ) else {
            return false;
        };
        let (isa, eps) = (self.isa, weights.shape.eps);
        let Rotation { rope, turns, .. } = &self.caches.rotations[rotation];
        let width = shape.heads * shape.head_dim;
        let queries = self.acts.rows_mut(Act::IndexQuery, count, width);
        Self::each_row(&self.pool, queries, width, 4 * width, |row, query| {
            for head in query.chunks_exact_mut(shape.head_dim) {
                math::rms_norm(isa, head, norm, eps);
                rope.turn(isa, turns, row, head);
            }
        });
        if self.caches.masks.len() < count * pages {
            self.caches.masks.resize(count * pages, 0);
        }
        let queries = self.acts.rows(Act::IndexQuery, count, width);
        let masks = &mut self.caches.masks[..count * pages];
        index.select((&self.pool, isa), spans, queries, pages, masks)
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
            out_gate: shape.out_gate,
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

pub(super) fn delta_shape(shape: &shape::DeltaShape) -> DeltaShape {
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
    /// Over what it goes.
    norms: Option<QkNorm>,
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
        if let (Some(norm), Some(QkNorm::FullWidth)) = (self.norm, self.norms) {
            math::rms_norm(isa, values, norm, shape.eps);
        }
        if let Some(limit) = shape.clamp {
            values
                .iter_mut()
                .for_each(|value| *value = value.clamp(-limit, limit));
        }
        for head in values.chunks_exact_mut(self.stride) {
            let head = &mut head[..head_dim];
            if let (Some(norm), Some(QkNorm::PerHead)) = (self.norm, self.norms) {
                math::rms_norm(isa, head, norm, shape.eps);
            }
            if let Some((rope, turns)) = self.turns {
                rope.turn(isa, turns, row, head);
            }
        }
    }
}

pub(super) fn kernel_shape(shape: &AttentionShape) -> attention::AttentionShape {
    attention::AttentionShape {
        heads: shape.heads,
        kv_heads: shape.kv.heads,
        head_dim: shape.kv.head_dim,
        scale: shape.scale,
        window: shape.window,
    }
}
