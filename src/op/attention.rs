//! Softmax attention over a sequence's own positions or a window of them: grouped queries, optional biases, sinks and output gate.

use std::rc::Rc;

use super::{Normed, Op, Pass, Remembered, mixer::Mixer};
use crate::{
    backend::{
        Act, AttentionWeights, Backend,
        shape::{AttentionShape, IndexShape, KvShape, QkNorm, RopePairs},
    },
    engine::executor::PAGE_TOKENS,
    model::loader::{LoadError, Loader, YarnEnds},
};

/// What a family says about its attention; the numbers come from the file.
#[derive(Clone, Copy, Debug)]
pub struct AttentionKind {
    /// Rotated pairs.
    pub pairs: RopePairs,
    /// Norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether queries bring an output gate.
    pub gated: bool,
    /// In which layers a row sees a window only: all but every so manieth, where the file names none.
    pub windows: Option<usize>,
    /// Whether heads have sinks.
    pub sinks: bool,
    /// Whether an index chooses what rows see, in layers with an `attention.compress_ratios`.
    pub indexed: bool,
    /// Values are normed head by head; where the file has no projection of them they are the keys before norm and rotation.
    pub v_norm: bool,
    /// Factor on the scores; the inverse root of a head's width where there is none.
    pub scale: Option<f32>,
    /// How YaRN cuts its ramp, where the file says nothing.
    pub yarn: YarnEnds,
}

impl AttentionKind {
    /// Attention over all positions, without norms, gates, windows or sinks.
    pub const PLAIN: Self = Self {
        pairs: RopePairs::Halves,
        qk_norm: None,
        gated: false,
        windows: None,
        sinks: false,
        indexed: false,
        v_norm: false,
        scale: None,
        yarn: YarnEnds::Whole,
    };
}

/// Of an attention, keys and values alone: for rows that others will attend to, and that are asked nothing themselves.
pub struct KeysAndValues<B: Backend>(pub Rc<Attention<B>>);

impl<B: Backend> Op<B> for KeysAndValues<B> {
    type In = Normed;
    type Out = Remembered;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Remembered, B::Error> {
        let of = &*self.0;
        let rows = pass.window.rows();
        let mut to = vec![(&of.key, Act::Key), (&of.value, Act::Value)];
        to.extend(of.index.iter().map(|[_, key]| (key, Act::IndexKey)));
        pass.backend.matmul(rows.count(), Act::Normed, &to)?;
        pass.backend.remember(rows, &of.weights)?;
        Ok(Remembered(()))
    }
}

/// `attn_q`, `attn_k`, `attn_v` (or `attn_qkv`), norm, rotation, attention, gate, `attn_output`.
pub struct Attention<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    output: B::Matrix,
    output_bias: Option<B::Vector>,
    /// Queries and keys of the index, if there is one.
    index: Option<[B::Matrix; 2]>,
    weights: AttentionWeights<B>,
}

impl<B: Backend> Attention<B> {
    /// Tensors `{at}.attn_*`.
    pub fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        kind: AttentionKind,
    ) -> Result<Self, LoadError> {
        let shape = shape(from, kind)?;
        let (heads, kv, d) = (shape.heads, shape.kv.heads, shape.kv.head_dim);
        let widths = [heads * d * if kind.gated { 2 } else { 1 }, kv * d, kv * d];
        let residual = from.residual();
        let own_value = from.has(&format!("{at}.attn_v.weight")) || !kind.v_norm;
        let [query, key, value] = from.parts(
            &format!("{at}.attn_qkv.weight"),
            ["q", "k", if own_value { "v" } else { "k" }]
                .map(|part| format!("{at}.attn_{part}.weight")),
            residual,
            widths,
        )?;
        let bias = from.bias_parts(
            &format!("{at}.attn_qkv.bias"),
            ["q", "k", "v"].map(|part| format!("{at}.attn_{part}.bias")),
            widths,
        )?;
        let qk_norm = match kind.qk_norm {
            None => None,
            Some(over) => {
                let (q, k) = if over == QkNorm::PerHead {
                    (d, d)
                } else {
                    (heads * d, kv * d)
                };
                Some([
                    from.vector(&format!("{at}.attn_q_norm.weight"), q)?,
                    from.vector(&format!("{at}.attn_k_norm.weight"), k)?,
                ])
            }
        };
        let output = from.matrix(&format!("{at}.attn_output.weight"), heads * d, residual)?;
        let output_bias = from.optional_vector(&format!("{at}.attn_output.bias"), residual)?;
        let sinks = if kind.sinks {
            Some(from.vector(&format!("{at}.attn_sinks.weight"), heads)?)
        } else {
            None
        };
        for (act, width) in [
            (Act::Query, widths[0]),
            (Act::Key, widths[1]),
            (Act::Value, widths[2]),
            (Act::Mixed, heads * d),
        ] {
            from.need(act, width);
        }
        let (mut index, mut index_norm) = (None, None);
        if let Some(of) = shape.index {
            let (queries, key) = (of.heads * of.head_dim, of.head_dim);
            from.need(Act::IndexQuery, queries);
            from.need(Act::IndexKey, key);
            index = Some([
                from.matrix(&format!("{at}.indexer.q_proj.weight"), residual, queries)?,
                from.matrix(&format!("{at}.indexer.k_proj.weight"), residual, key)?,
            ]);
            index_norm = Some([
                from.vector(&format!("{at}.indexer.q_norm.weight"), key)?,
                from.vector(&format!("{at}.indexer.k_norm.weight"), key)?,
            ]);
        }
        let kv = from.kv(shape.clone());
        Ok(Self {
            query,
            key,
            value,
            output,
            output_bias,
            index,
            weights: AttentionWeights {
                shape,
                kv,
                bias,
                qk_norm,
                sinks,
                index_norm,
            },
        })
    }
}

/// **Source**: keys `attention.*` and `rope.*`.
fn shape<B: Backend>(
    from: &Loader<'_, B>,
    kind: AttentionKind,
) -> Result<AttentionShape, LoadError> {
    let heads = from.layer_count("attention.head_count")?;
    let kv_heads = from.layer_count_or("attention.head_count_kv", heads)?;
    let window = match kind.windows {
        Some(period) => from.window(period)?,
        None => None,
    };
    let own = |name: &str| from.windowed(name, window.is_some());
    let head_dim = from.count_or(&own("attention.key_length"), from.residual() / heads)?;
    let value_dim = from.count_or(&own("attention.value_length"), head_dim)?;
    from.equal("attention.value_length", value_dim, head_dim)?;
    from.multiple("attention.head_count", heads, kv_heads)?;
    from.multiple("attention.key_length", head_dim, 8)?;
    let rotated = from.count_or(&own("rope.dimension_count"), head_dim)?;
    from.at_most("rope.dimension_count", rotated, head_dim)?;
    from.multiple("rope.dimension_count", rotated, 2)?;
    Ok(AttentionShape {
        heads,
        kv: KvShape {
            heads: kv_heads,
            head_dim,
        },
        rope: from.rope(rotated, kind.pairs, kind.yarn, window.is_some())?,
        qk_norm: kind.qk_norm,
        v_norm: kind.v_norm,
        eps: from.rms_eps()?,
        scale: kind
            .scale
            .unwrap_or_else(|| (1.0 / (head_dim as f64).sqrt()) as f32),
        gated: kind.gated,
        clamp: from
            .float("attention.clamp_kqv")?
            .filter(|limit| *limit > 0.0),
        window,
        sinks: kind.sinks,
        index: if kind.indexed { index(from)? } else { None },
    })
}

/// **Source**: keys `attention.compress_ratios` (0: no index) and `attention.indexer.*`.
fn index<B: Backend>(from: &Loader<'_, B>) -> Result<Option<IndexShape>, LoadError> {
    let group = from.layer_count_or_zero("attention.compress_ratios")?;
    if group == 0 {
        return Ok(None);
    }
    let positions = from.count("attention.indexer.top_k")?;
    from.multiple("attention.compress_ratios", PAGE_TOKENS, group)?;
    let head_dim = from.count("attention.indexer.key_length")?;
    from.multiple("attention.indexer.key_length", head_dim, 8)?;
    Ok(Some(IndexShape {
        heads: from.count("attention.indexer.head_count")?,
        head_dim,
        group,
        budget: positions / group,
    }))
}

impl<B: Backend> Mixer<B> for Attention<B> {
    fn project(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        let count = pass.window.rows().count();
        pass.backend.matmul(
            count,
            Act::Normed,
            &[
                (&self.query, Act::Query),
                (&self.key, Act::Key),
                (&self.value, Act::Value),
            ],
        )?;
        if let Some([query, key]) = &self.index {
            pass.backend.matmul(
                count,
                Act::Normed,
                &[(query, Act::IndexQuery), (key, Act::IndexKey)],
            )?;
        }
        Ok(())
    }

    fn mix(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        let rows = pass.window.rows();
        let count = rows.count();
        pass.backend.attend(rows, &self.weights)?;
        pass.backend
            .matmul(count, Act::Mixed, &[(&self.output, Act::Branch)])?;
        if let Some(bias) = &self.output_bias {
            pass.backend.bias(count, Act::Branch, bias)?;
        }
        Ok(())
    }
}
