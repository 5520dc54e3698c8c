//! The memory plan of everything but weights: one function of a model's needs and the room asked for, so that what is planned, what is shown and what
//! is allocated cannot differ.

use super::{
    backend::ChainTable,
    forms::{FormPlan, mask},
    memory::Plan,
    tables::{FEW_ROWS, bucket},
};
use crate::{
    backend::{
        Act, CUT_ROWS, HIDDEN_ROWS, Needs, Room,
        shape::{AttentionShape, DeltaShape, IndexShape, KvShape, KvType, NgramShape},
    },
    engine::executor::PAGE_TOKENS,
};

/// Positions whose keys and values a block of `attention_decode` takes: `SPLIT` of `kernels/attention.cuh`.
pub(super) const SPLIT: usize = 128;
/// Candidates of a row that is sampled: `CANDIDATES` of `kernels/choose.cu`.
pub(super) const CANDIDATES: usize = 256;
/// Rows of a span that `delta_step` takes: `SHORT_ROWS` of `kernels/delta.cuh`.
pub(super) const SHORT_ROWS: usize = FEW_ROWS;

/// **Units**: bytes. One page of one attention layer, as `kernels/kv.cuh` lays it out.
pub(super) fn page_bytes(kv: &KvShape, kind: KvType) -> usize {
    let part = match kind {
        KvType::F32 => PAGE_TOKENS * kv.head_dim * 4,
        KvType::F16 => PAGE_TOKENS * kv.head_dim * 2,
        KvType::Q8_0 => PAGE_TOKENS * (kv.head_dim + 2 * kv.head_dim.div_ceil(32)),
    };
    2 * kv.heads * part
}

/// **Units**: bytes. One slot's state in one layer, as `kernels/delta.cuh` lays it out.
pub(super) fn state_bytes(shape: &DeltaShape) -> usize {
    let pending = PAGE_TOKENS + CUT_ROWS + SHORT_ROWS;
    let (k, v) = (shape.k_heads, shape.v_heads);
    let floats = v * shape.k_dim * shape.v_dim
        + v * pending * shape.v_dim
        + k * pending * shape.k_dim
        + v * pending
        + (SHORT_ROWS + 4) * shape.channels()
        + v * (shape.v_dim / 8);
    4 * floats.next_multiple_of(64)
}

/// **Units**: positions. The longest sequence.
pub(super) fn positions(room: &Room) -> usize {
    room.pages.div_ceil(room.slots) * PAGE_TOKENS
}

/// Whether sequences may be longer than what rows of a layer with an index see of them.
pub(super) fn selects(shape: &AttentionShape, room: &Room) -> bool {
    let of = shape.index.as_ref();
    of.is_some_and(|index| positions(room) / index.group > index.budget)
}

/// **Units**: positions. How many single keys of an index are kept of a slot: those of a group that is not complete, rows that may be taken back, rows of a window that other
/// blocks of threads may write while one still reads, and rows that a prediction block takes in a second time.
pub(super) fn index_ring(needs: &Needs, shape: &IndexShape) -> usize {
    shape.group + CUT_ROWS + FEW_ROWS + usize::from(needs.predicts) * HIDDEN_ROWS
}

/// Buffers besides the normed residual that products read rows from.
pub(super) const INPUTS: [Act; 6] = [
    Act::Mixed,
    Act::Gate,
    Act::Paired,
    Act::Streams,
    Act::StreamLow,
    Act::Ngram,
];

/// Rows of which scores are kept at once, before what they see is chosen.
pub(super) const SELECT_ROWS: usize = 128;

/// Offsets of what indexes work with.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexLayout {
    /// By attention layer, `[slots, ring, head_dim] f32`.
    pub(super) rings: Vec<usize>,
    /// `[SELECT_ROWS, groups] f32`
    pub(super) scores: usize,
    /// Groups of the longest sequence.
    pub(super) groups: usize,
    /// `[rows, pages] u64`
    pub(super) masks: usize,
    /// Pages of the longest sequence.
    pub(super) pages: usize,
}

/// Offsets of the experts' working memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpertLayout {
    /// `[rows, used] u16`
    pub(super) ids: usize,
    /// `[rows, used] f32`
    pub(super) weights: usize,
    /// `[rows * used] u32`
    pub(super) places: usize,
    /// `[groups] u32`
    pub(super) group_expert: usize,
    /// `[groups + 1] u32`
    pub(super) group_start: usize,
    /// `[1] u32`
    pub(super) group_count: usize,
    /// `[experts] u32`
    pub(super) expert_rows: usize,
    /// `[1] u32`, 0 between launches.
    pub(super) done: usize,
    /// `[tiles] uint4`
    pub(super) tiles: usize,
    /// `[2] u32`
    pub(super) tile_count: usize,
    /// `[rows * used, width] f32`
    pub(super) hidden: usize,
    pub(super) hidden_forms: FormPlan,
    /// `[rows * used, residual] f32`; before that `[rows * used, width] f32`, the up projections, where gate and up have different types.
    pub(super) outputs: usize,
    /// `[rows, shared width] f32` each.
    pub(super) shared_gate: usize,
    pub(super) shared_up: usize,
    /// `[rows, residual] f32`
    pub(super) shared_outputs: usize,
}

/// Where everything lies in the working memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// By [`Act`], `[rows, width] f32`.
    pub(super) acts: [usize; Act::COUNT],
    pub(super) forms: FormPlan,
    /// `[logits_rows, vocab] f32`
    pub(super) logits: usize,
    /// Packed rows for the head: `[logits_rows, residual] f32`, and their forms.
    pub(super) head: usize,
    pub(super) head_forms: FormPlan,
    pub(super) experts: ExpertLayout,
    /// `[few rows, splits, heads, head_dim] f32`
    pub(super) split_values: usize,
    /// `[few rows, splits, heads, 2] f32`
    pub(super) split_states: usize,
    /// Most splits of a row.
    pub(super) splits: usize,
    /// `delta_prompt`'s: lines, weights, factors.
    pub(super) delta: [usize; 3],
    /// `[slots, v heads] u32`, 0 between launches.
    pub(super) arrivals: usize,
    /// `choose`'s scratch and results.
    pub(super) choose: ChooseLayout,
    /// What predictions need besides.
    pub(super) predict: PredictLayout,
    pub(super) index: IndexLayout,
    /// `[slots, INPUTS_KEPT, streams, residual] f32`: what n-grams' convolution has read.
    pub(super) ngram_ring: usize,
    /// **Units**: bytes. What has to be zero at first: all of it, it is little enough.
    pub(super) bytes: usize,
}

/// Offsets of what `choose` works with, a row each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChooseLayout {
    /// `[rows, segments] u32`, at most a quarter of the vocabulary.
    pub(super) segments: usize,
    /// `[rows, parts, 16 bytes]`
    pub(super) parts: usize,
    /// `[rows] u32`, 0 between launches.
    pub(super) done: usize,
    /// Results: `[rows, 24 bytes]`, `[rows, CANDIDATES] u32`, `[rows, CANDIDATES] f32`.
    pub(super) choices: usize,
    pub(super) ids: usize,
    pub(super) values: usize,
}

/// Offsets of what is there where tokens are predicted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PredictLayout {
    /// `[slots, HIDDEN_ROWS, streams, residual] f32`: final hidden states.
    pub(super) states: usize,
    /// [`ChainTable`](super::backend::ChainTable)
    pub(super) chain: usize,
    /// `[CUT_ROWS, rows] u32`: what was predicted.
    pub(super) drafts: usize,
}

/// Logits that a block of `choose` looks at.
pub(super) const CHOOSE_PART: usize = 2048;
/// **Units**: bytes. `struct Choice` of `kernels/choose.cu`.
pub(super) const CHOICE_BYTES: usize = 24;
/// Rows of an expert's tile: the least that `kernels/mma_tile.cuh` is compiled for.
const TILE_ROWS_MIN: usize = 16;

impl Layout {
    pub(super) fn new(needs: &Needs, room: &Room) -> Self {
        let mut plan = Plan::default();
        let (rows, width) = (bucket(room.rows), needs.residual);
        let both = mask::WIDE | mask::NARROW;
        let mut acts = [0; Act::COUNT];
        for (index, at) in acts.iter_mut().enumerate() {
            // rows of n-grams have buffers of their own, one a lane
            if index != Act::Ngram as usize {
                *at = plan.take(4 * rows * needs.widths.at(index));
            }
        }
        let inputs = INPUTS.map(|act| needs.widths.of(act));
        let input = inputs.into_iter().fold(width, usize::max);
        let forms = FormPlan::new(&mut plan, rows, input, both);
        let head = plan.take(4 * room.logits_rows * width);
        let head_forms = FormPlan::new(&mut plan, room.logits_rows, width, both);
        let logits = plan.take(4 * room.logits_rows * needs.vocab);
        let experts = Self::experts(&mut plan, needs, rows);
        let splits = positions(room).div_ceil(SPLIT);
        let few = FEW_ROWS.min(rows);
        let widest = |channels: fn(&AttentionShape) -> usize| {
            needs.attention.iter().map(channels).max().unwrap_or(0)
        };
        let split_values =
            plan.take(4 * few * splits * widest(|shape| shape.heads * shape.kv.head_dim));
        let split_states = plan.take(4 * few * splits * 2 * widest(|shape| shape.heads));
        let delta_blocks = rows / PAGE_TOKENS + 3 * room.slots;
        let mut delta = [0; 3];
        if let Some(shape) = needs.delta.first() {
            let floats = [
                shape.k_heads * 2 * PAGE_TOKENS * shape.k_dim,
                shape.v_heads * 2 * PAGE_TOKENS * PAGE_TOKENS,
                shape.v_heads * 4 * PAGE_TOKENS,
            ];
            delta = floats.map(|floats| plan.take(4 * delta_blocks * floats));
        }
        let v_heads = needs.delta.first().map_or(0, |shape| shape.v_heads);
        let arrivals = plan.take(4 * room.slots * v_heads);
        let choose = ChooseLayout {
            segments: plan.take(room.logits_rows * needs.vocab),
            parts: plan.take(16 * room.logits_rows * needs.vocab.div_ceil(CHOOSE_PART)),
            done: plan.take(4 * room.logits_rows),
            choices: plan.take(CHOICE_BYTES * room.logits_rows),
            ids: plan.take(4 * room.logits_rows * CANDIDATES),
            values: plan.take(4 * room.logits_rows * CANDIDATES),
        };
        let all = width * (1 + needs.more_streams);
        let kept = needs.ngram.as_ref().map_or(0, |_| NgramShape::INPUTS_KEPT);
        let ngram_ring = plan.take(4 * room.slots * kept * all);
        let index = Self::index(&mut plan, needs, room, rows);
        let mut predict = PredictLayout::default();
        if needs.predicts {
            let rows = bucket(room.slots);
            predict = PredictLayout {
                states: plan.take(4 * room.slots * HIDDEN_ROWS * all),
                chain: plan.take(4 * ChainTable::new(rows).words),
                drafts: plan.take(4 * CUT_ROWS * rows),
            };
        }
        Self {
            bytes: plan.bytes(),
            acts,
            forms,
            logits,
            head,
            head_forms,
            experts,
            split_values,
            split_states,
            splits,
            delta,
            arrivals,
            choose,
            predict,
            index,
            ngram_ring,
        }
    }

    fn index(plan: &mut Plan, needs: &Needs, room: &Room, rows: usize) -> IndexLayout {
        let ring = |shape: &AttentionShape| {
            let of = shape.index.as_ref();
            of.map_or(0, |index| index_ring(needs, index) * index.head_dim)
        };
        let rings = needs.attention.iter().map(ring);
        let rings = rings.map(|floats| plan.take(4 * room.slots * floats));
        let mut layout = IndexLayout {
            rings: rings.collect(),
            ..IndexLayout::default()
        };
        let chosen = needs.attention.iter().filter(|shape| selects(shape, room));
        let group = chosen.filter_map(|shape| Some(shape.index?.group)).min();
        if let Some(group) = group {
            layout.groups = positions(room).div_ceil(group);
            layout.scores = plan.take(4 * SELECT_ROWS.min(rows) * layout.groups);
            layout.pages = positions(room) / PAGE_TOKENS;
            layout.masks = plan.take(8 * rows * layout.pages);
        }
        layout
    }

    fn experts(plan: &mut Plan, needs: &Needs, rows: usize) -> ExpertLayout {
        if needs.experts_used == 0 {
            return ExpertLayout::default();
        }
        let places = rows * needs.experts_used;
        let experts = needs
            .routes
            .iter()
            .map(|shape| shape.experts)
            .max()
            .unwrap_or(0);
        let groups = experts.min(places);
        let tiles = places / TILE_ROWS_MIN + groups;
        let width = needs.expert_width;
        ExpertLayout {
            ids: plan.take(2 * places),
            weights: plan.take(4 * places),
            places: plan.take(4 * places),
            group_expert: plan.take(4 * groups),
            group_start: plan.take(4 * (groups + 1)),
            group_count: plan.take(4),
            expert_rows: plan.take(4 * experts),
            done: plan.take(4),
            tiles: plan.take(16 * tiles),
            tile_count: plan.take(8),
            hidden: plan.take(4 * places * width),
            hidden_forms: FormPlan::new(plan, places, width, mask::WIDE | mask::NARROW),
            outputs: plan.take(4 * places * needs.residual.max(width)),
            shared_gate: plan.take(4 * rows * width),
            shared_up: plan.take(4 * rows * width),
            shared_outputs: plan.take(4 * rows * needs.residual),
        }
    }
}
