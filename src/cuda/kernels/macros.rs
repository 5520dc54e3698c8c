//! The macros of a model's shapes: what routing, attention and the delta net are compiled with.

use crate::{
    backend::{
        Needs, Room,
        shape::{
            Activation, AttentionShape, BetaDecay, DeltaShape, Gating, HeadMap, IndexShape, KvType,
            NgramShape, OutGate, QkNorm, RopePairs,
        },
    },
    cuda::{
        device::Device,
        layout::{self, SHORT_ROWS, SPLIT},
        set::Macros,
    },
};

/// As `kernels/route.cu` numbers them.
pub(super) fn gating(gating: Gating) -> usize {
    match gating {
        Gating::Softmax => 0,
        Gating::Sigmoid => 1,
        Gating::SoftmaxOfChosen => 2,
        Gating::SqrtSoftplus => 3,
    }
}

/// Warps that share a tile of `attention_prompt`: as many as shared memory allows. The kernel tells the exact bytes; these are for the choice.
fn line_warps(shape: &AttentionShape, kv: KvType, device: &Device) -> usize {
    let d = shape.kv.head_dim;
    let wide = d > 128;
    let part = if d > 256 { d / 2 } else { d };
    let unit = ((d / 8).min(16) * 1056).max((if wide { 4 } else { 8 }) * (16 * part + 32));
    let pages = if kv == KvType::Q8_0 {
        unit + 17_408
    } else {
        2 * unit
    };
    // of heads above 256 channels four warps have a tile's lines, and registers are short
    let (most, queries) = if d > 256 { (2, 1024) } else { (4, 2048) };
    let each = queries * d.div_ceil(32) + if wide { 2304 } else { 0 };
    let fits = |warps: &usize| warps * each + pages <= device.shared_bytes as usize;
    let choices = [4, 2, 1].into_iter().filter(|warps| *warps <= most);
    choices.into_iter().find(fits).unwrap_or(1)
}

/// What becomes of gates, where it is not the usual.
pub(super) fn activation_macros(needs: &Needs) -> Macros {
    match needs.activations.first() {
        None | Some(Activation::SwiGlu) => Macros::default(),
        Some(Activation::ClampedSwiGlu) => Macros::default().with("ACTIVATION", 1),
        Some(Activation::GeGlu) => Macros::default().with("ACTIVATION", 2),
    }
}

/// Of `kernels/attention_*.cu`.
pub(super) fn attention_macros(shape: &AttentionShape, room: &Room, device: &Device) -> Macros {
    let kv = room.kv_type;
    let kv_type = match kv {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    };
    let rope = &shape.rope;
    let mut macros = Macros::default();
    if let (Some(window), Some(ring)) = (shape.window, shape.ring_pages(room.rows)) {
        macros = macros.with("WINDOW", window).with("RING", ring);
    }
    if shape.sinks {
        macros = macros.with("SINKS", 1);
    }
    if shape.v_norm {
        macros = macros.with("V_NORM", 1);
    }
    if layout::selects(shape, room) {
        macros = macros.with("SELECTED", 1);
    }
    macros
        .with("HEAD_DIM", shape.kv.head_dim)
        .with("KV_HEADS", shape.kv.heads)
        .with("HEADS", shape.heads)
        .with("KV_TYPE", kv_type)
        .with("GATED", usize::from(shape.gated))
        .with("SPLIT", SPLIT)
        .with("LINE_WARPS", line_warps(shape, kv, device))
        .with(
            "QK_NORM",
            match shape.qk_norm {
                None => 0,
                Some(QkNorm::PerHead) => 1,
                Some(QkNorm::FullWidth) => 2,
            },
        )
        .with("ROPE_CHANNELS", 2 * rope.frequencies.len())
        .with("ROPE_HALVES", usize::from(rope.pairs == RopePairs::Halves))
        .with("CLAMP", usize::from(shape.clamp.is_some()))
}

/// Of `kernels/norm.cuh`.
pub(super) fn norm_macros(needs: &Needs) -> Macros {
    let macros = Macros::default()
        .with("WIDTH", needs.residual)
        .with("USED", needs.experts_used.max(1));
    match needs.more_streams {
        0 => macros,
        more => macros.with("STREAMS", 1 + more),
    }
}

/// Of `kernels/ngram.cu`.
pub(super) fn ngram_macros(needs: &Needs, shape: &NgramShape) -> Macros {
    norm_macros(needs)
        .with("TAPS", shape.taps)
        .with("TOKENS", shape.tokens)
        .with("RING", NgramShape::INPUTS_KEPT)
}

/// Of `kernels/index.cu`.
pub(super) fn index_macros(needs: &Needs, of: &AttentionShape, shape: &IndexShape) -> Macros {
    let rope = &of.rope;
    Macros::default()
        .with("HEADS", shape.heads)
        .with("DIM", shape.head_dim)
        .with("GROUP", shape.group)
        .with("BUDGET", shape.budget)
        .with("RING", layout::index_ring(needs, shape))
        .with("ROPE_CHANNELS", 2 * rope.frequencies.len())
        .with("ROPE_HALVES", usize::from(rope.pairs == RopePairs::Halves))
}

/// Of `kernels/delta_*.cu`; cards with little shared memory keep less there.
pub(super) fn delta_macros(shape: &DeltaShape, device: &Device) -> Macros {
    let macros = Macros::default()
        .with("K_HEADS", shape.k_heads)
        .with("V_HEADS", shape.v_heads)
        .with("KD", shape.k_dim)
        .with("VD", shape.v_dim)
        .with("TILED", usize::from(shape.head_map == HeadMap::Tiled))
        .with(
            "INTERLEAVED",
            usize::from(shape.beta_decay == BetaDecay::Interleaved),
        )
        .with("SHORT_ROWS", SHORT_ROWS);
    let macros = match shape.out_gate {
        OutGate::Silu => macros,
        OutGate::Sigmoid => macros.with("OUT_GATE", 1),
    };
    if device.shared_bytes >= 96 * 1024 {
        return macros;
    }
    macros
        .with("SCAN_COLUMNS", 16)
        .with("SCAN_STAGES", 2)
        .with("WEIGHTS_SHARED", 0)
        .with("QUERIES_SHARED", 0)
        .with("STEP_ROWS", 4)
}
