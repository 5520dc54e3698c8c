//! What a model's kernels are compiled from: sources with macros.

use std::ops::Range;

use super::{
    BUCKETS,
    macros::{
        activation_macros, attention_macros, delta_macros, gating, index_macros, ngram_macros,
        norm_macros,
    },
    products::Kinds,
};
use crate::{
    backend::{Act, Needs, Room, shape::AttentionShape},
    cpu::kernels::ActKind,
    cuda::{
        device::Device,
        layout::CANDIDATES,
        set::{Macros, Set, UnitId},
        sources::{self, Source},
        weights::Loading,
    },
    quant::BlockType,
};

/// The types of a model's matrices, by the kernels that read them.
pub(super) struct Types {
    dense: Vec<BlockType>,
    pub(super) integers: Vec<BlockType>,
    /// The same by the length of the matrices' rows.
    pub(super) by_inputs: Vec<(usize, Vec<BlockType>)>,
    floats: Vec<BlockType>,
    experts: Vec<BlockType>,
    /// What the experts' kernels for few rows read: experts and, as far as that brings no floats, the shared expert.
    pub(super) expert_rows: Vec<BlockType>,
    /// Those of them that gate and up have.
    expert_gates: Vec<BlockType>,
}

impl Types {
    pub(super) fn new(loading: &Loading, needs: &Needs) -> Self {
        let (dense, experts) = (loading.dense_types(), loading.expert_types());
        let float = |ty: &BlockType| ActKind::of(*ty) == ActKind::Float;
        let (floats, integers): (Vec<_>, Vec<_>) = dense.iter().partition(|ty| float(ty));
        let mut expert_rows = experts.clone();
        let both = experts.iter().any(float);
        let more = dense.iter().filter(|ty| both || !float(ty));
        expert_rows.extend(more.filter(|ty| !experts.contains(ty)));
        let mut expert_gates = loading.gate_types(needs.residual, &needs.shared_widths);
        expert_gates.retain(|ty| expert_rows.contains(ty));
        let mut by_inputs = loading.dense_inputs();
        for (_, types) in &mut by_inputs {
            types.retain(|ty| !float(ty));
        }
        by_inputs.retain(|(_, types)| !types.is_empty());
        Self {
            dense,
            integers,
            by_inputs,
            floats,
            experts,
            expert_rows,
            expert_gates,
        }
    }
}

/// The units of everything, before they are compiled.
pub(super) struct Units {
    pub(super) embed: UnitId,
    pub(super) quantise: UnitId,
    pub(super) swiglu: UnitId,
    pub(super) bias: UnitId,
    pub(super) norm: UnitId,
    pub(super) choose: UnitId,
    /// If logits may be capped.
    pub(super) softcap: Option<UnitId>,
    /// If tokens are predicted.
    pub(super) draw: Option<UnitId>,
    pub(super) routes: Vec<UnitId>,
    pub(super) attention: Vec<[UnitId; 3]>,
    /// One for each of these.
    pub(super) index: Vec<Option<UnitId>>,
    pub(super) streams: Option<UnitId>,
    pub(super) ngram: Option<UnitId>,
    pub(super) delta: Option<[UnitId; 2]>,
    /// Of quantised types: for one row those of `Types::by_inputs`, and one for each bucket of more.
    pub(super) matvec_one: Vec<UnitId>,
    pub(super) matvec: Vec<UnitId>,
    /// Of floats, for all buckets.
    pub(super) float_matvec: Vec<UnitId>,
    pub(super) matmul: Vec<(BlockType, UnitId)>,
    pub(super) experts: Option<ExpertUnits>,
}

/// Those of the experts.
pub(super) struct ExpertUnits {
    pub(super) matvec: Vec<UnitId>,
    pub(super) matmul: Vec<(BlockType, UnitId)>,
}

/// Rows of a group that a window of this bucket multiplies at once: as many as take a third of shared memory at most.
pub(super) fn group_rows(bucket: usize, device: &Device, types: &Types, needs: &Needs) -> usize {
    let longest = needs.residual.max(needs.expert_width);
    let staged = Kinds::of(&types.expert_rows);
    let fits = |rows: &usize| {
        let bytes: usize = staged.bytes(*rows, longest).iter().sum();
        3 * bytes <= device.shared_bytes as usize
    };
    [8, 4, 2]
        .into_iter()
        .filter(|rows| *rows <= bucket)
        .find(fits)
        .unwrap_or(bucket.min(2))
}

/// Types as a mask.
fn ids(types: &[BlockType]) -> String {
    let ids: u64 = types.iter().fold(0, |all, ty| all | 1 << *ty as u32);
    format!("{ids}ull")
}

fn typed(types: &[BlockType]) -> Macros {
    Macros::default().with("TYPES", ids(types))
}

/// Products of many rows: the source for a type.
fn matmul(ty: BlockType) -> (Source, Macros) {
    match ActKind::of(ty) {
        ActKind::Float => (
            sources::FLOAT_MATMUL,
            Macros::default().with("ELEMENT", ty as u32),
        ),
        _ => (sources::MATMUL, Macros::default().with("TYPE", ty.label())),
    }
}

impl ExpertUnits {
    fn new(set: &mut Set, device: &Device, types: &Types, needs: &Needs) -> Self {
        let mut known = typed(&types.expert_rows).with("FIXED_K", needs.residual);
        known = known.and(activation_macros(needs));
        if needs.expert_bias {
            known = known.with("EXPERT_BIAS", 1);
        }
        if let [width] = needs.routed_widths[..] {
            known = known.with("FIXED_WIDTH", width);
        }
        match needs.shared_widths[..] {
            [] => known = known.with("SHARED_WIDTH", 0),
            [width] => known = known.with("SHARED_WIDTH", width),
            _ => {}
        }
        let integers = types.experts.iter();
        let integers = integers.filter(|ty| ActKind::of(**ty) != ActKind::Float);
        Self {
            matvec: (0..BUCKETS)
                .map(|at| {
                    let rows = group_rows(1 << at, device, types, needs);
                    let mut macros = known.clone().with("ROWS_MAX", rows);
                    // of one row, kernels for fewer types have been slower (H200, 2026-11-30)
                    if rows > 1 {
                        macros = macros.with("GATE_TYPES", ids(&types.expert_gates));
                    }
                    set.add(sources::EXPERT_MATVEC, macros)
                })
                .collect(),
            matmul: integers
                .map(|ty| {
                    let macros = Macros::default().with("TYPE", ty.label());
                    let macros = macros.and(activation_macros(needs));
                    (*ty, set.add(sources::EXPERT_MATMUL, macros))
                })
                .collect(),
        }
    }
}

impl Units {
    pub(super) fn new(
        set: &mut Set,
        device: &Device,
        types: &Types,
        needs: &Needs,
        room: &Room,
        shapes: &[AttentionShape],
    ) -> Self {
        let mut norm = norm_macros(needs);
        if needs.sandwich {
            norm = norm.with("SANDWICH", 1);
        }
        let choose = Macros::default()
            .with("VOCAB", needs.vocab)
            .with("CANDIDATES", CANDIDATES);
        let mut buckets = |source, types: &[BlockType], buckets: Range<usize>| -> Vec<UnitId> {
            buckets
                .filter(|_| !types.is_empty())
                .map(|at| set.add(source, typed(types).with("ROWS", 1 << at)))
                .collect()
        };
        let matvec = buckets(sources::MATVEC, &types.integers, 1..BUCKETS);
        // blocks of one row or two (H200, 2026-12-01: 8 rows of a router in 4.2 us, with blocks of all of them in 5.7)
        let float_matvec = buckets(sources::FLOAT_MATVEC, &types.floats, 0..2);
        Self {
            embed: set.add(sources::EMBED, typed(&types.dense)),
            quantise: set.add(sources::QUANTISE, Macros::default()),
            swiglu: set.add(sources::SWIGLU, activation_macros(needs)),
            bias: set.add(sources::BIAS, Macros::default()),
            norm: set.add(sources::NORM, norm),
            softcap: (needs.sandwich).then(|| set.add(sources::SOFTCAP, Macros::default())),
            draw: needs.predicts.then(|| {
                let streams = 1 + needs.more_streams;
                let macros = match needs.more_streams {
                    0 => choose.clone(),
                    _ => choose.clone().with("STREAMS", streams),
                };
                set.add(sources::DRAW, macros)
            }),
            choose: set.add(sources::CHOOSE, choose),
            routes: needs
                .routes
                .iter()
                .map(|shape| {
                    let macros = Macros::default()
                        .with("EXPERTS", shape.experts)
                        .with("USED", shape.used)
                        .with("GATING", gating(shape.gating));
                    set.add(sources::ROUTE, macros)
                })
                .collect(),
            attention: shapes
                .iter()
                .map(|shape| {
                    [
                        sources::ATTENTION_PREPARE,
                        sources::ATTENTION_DECODE,
                        sources::ATTENTION_PROMPT,
                    ]
                    .map(|source| set.add(source, attention_macros(shape, room, device)))
                })
                .collect(),
            index: shapes
                .iter()
                .map(|shape| {
                    let index = shape.index.as_ref()?;
                    Some(set.add(sources::INDEX, index_macros(needs, shape, index)))
                })
                .collect(),
            streams: (needs.widths.of(Act::Streams) > 0)
                .then(|| set.add(sources::STREAMS, norm_macros(needs))),
            ngram: (needs.ngram.as_ref())
                .map(|shape| set.add(sources::NGRAM, ngram_macros(needs, shape))),
            delta: needs.delta.first().map(|shape| {
                [sources::DELTA_NET, sources::DELTA_PROMPT]
                    .map(|source| set.add(source, delta_macros(shape, device)))
            }),
            matvec_one: types
                .by_inputs
                .iter()
                .map(|(inputs, types)| {
                    let macros = typed(types).with("ROWS", 1).with("FIXED_K", inputs);
                    set.add(sources::MATVEC, macros)
                })
                .collect(),
            matvec,
            float_matvec,
            matmul: types
                .dense
                .iter()
                .map(|ty| {
                    let (source, macros) = matmul(*ty);
                    (*ty, set.add(source, macros))
                })
                .collect(),
            experts: (needs.experts_used > 0).then(|| ExpertUnits::new(set, device, types, needs)),
        }
    }
}
