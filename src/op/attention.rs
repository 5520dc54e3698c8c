//! Softmax attention over a sequence's own positions, grouped queries, optional output gate.

use std::rc::Rc;

use super::{Branch, Normed, Op, Pass, Remembered};
use crate::{
    backend::{
        Act, AttentionWeights, Backend,
        shape::{AttentionShape, KvShape, QkNorm, Rope, RopePairs},
    },
    model::loader::{LoadError, Loader},
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
}

/// Of an attention, keys and values alone: for rows that others will attend to, and that are asked nothing themselves.
pub struct KeysAndValues<B: Backend>(pub Rc<Attention<B>>);

impl<B: Backend> Op<B> for KeysAndValues<B> {
    type In = Normed;
    type Out = Remembered;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Remembered, B::Error> {
        let Attention {
            key,
            value,
            weights,
            ..
        } = &*self.0;
        let rows = pass.window.rows();
        let to = [(key, Act::Key), (value, Act::Value)];
        pass.backend.matmul(rows.count(), Act::Normed, &to)?;
        pass.backend.remember(rows, weights)?;
        Ok(Remembered(()))
    }
}

/// `attn_q`, `attn_k`, `attn_v` (or `attn_qkv`), norm, rotation, attention, gate, `attn_output`.
pub struct Attention<B: Backend> {
    query: B::Matrix,
    key: B::Matrix,
    value: B::Matrix,
    output: B::Matrix,
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
        let [query, key, value] = from.parts(
            &format!("{at}.attn_qkv.weight"),
            ["q", "k", "v"].map(|part| format!("{at}.attn_{part}.weight")),
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
        for (act, width) in [
            (Act::Query, widths[0]),
            (Act::Key, widths[1]),
            (Act::Value, widths[2]),
            (Act::Mixed, heads * d),
        ] {
            from.need(act, width);
        }
        let kv = from.kv(shape.clone());
        Ok(Self {
            query,
            key,
            value,
            output,
            weights: AttentionWeights {
                shape,
                kv,
                bias,
                qk_norm,
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
    let head_dim = from.count_or("attention.key_length", from.residual() / heads)?;
    let value_dim = from.count_or("attention.value_length", head_dim)?;
    from.equal("attention.value_length", value_dim, head_dim)?;
    from.multiple("attention.head_count", heads, kv_heads)?;
    from.multiple("attention.key_length", head_dim, 8)?;
    let rotated = from.count_or("rope.dimension_count", head_dim)?;
    from.at_most("rope.dimension_count", rotated, head_dim)?;
    from.multiple("rope.dimension_count", rotated, 2)?;
    Ok(AttentionShape {
        heads,
        kv: KvShape {
            heads: kv_heads,
            head_dim,
        },
        rope: Rope {
            pairs: kind.pairs,
            frequencies: from.rope_frequencies(rotated)?,
        },
        qk_norm: kind.qk_norm,
        eps: from.rms_eps()?,
        scale: (1.0 / (head_dim as f64).sqrt()) as f32,
        gated: kind.gated,
        clamp: from
            .float("attention.clamp_kqv")?
            .filter(|limit| *limit > 0.0),
    })
}

impl<B: Backend> Op<B> for Attention<B> {
    type In = Normed;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Branch, B::Error> {
        let rows = pass.window.rows();
        let count = rows.count();
        pass.backend.matmul(
            count,
            Act::Normed,
            &[
                (&self.query, Act::Query),
                (&self.key, Act::Key),
                (&self.value, Act::Value),
            ],
        )?;
        pass.backend.attend(rows, &self.weights)?;
        pass.backend
            .matmul(count, Act::Mixed, &[(&self.output, Act::Branch)])?;
        Ok(Branch(()))
    }
}
