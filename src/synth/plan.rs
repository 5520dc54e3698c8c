//! What a synthetic file will hold: every tensor with its type and what its values are drawn from.

use super::mix::Site;
use super::{Blueprint, Mix, QkNorm, SynthError};
use crate::quant::BlockType;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(super) struct PlannedTensor {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    pub(super) ty: BlockType,
    pub(super) fill: Fill,
}

/// What a tensor's values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    /// Mean 0 and this spread.
    Weights { std: f32 },
    /// Token embeddings, spread 1, which share their first values so that every hidden state has a common direction.
    Embeddings,
    /// Row `t + 1` is the embedding of token `t`.
    Successors,
    /// Token embeddings, but with this chance only: other rows are embeddings of other tokens.
    Mistaken { right: f32 },
    /// The first half of a row of activations as it is.
    FirstHalf,
    /// A router: experts' popularity along the common direction, noise elsewhere.
    Router,
    /// Around this.
    Norm { mean: f32 },
    /// Nothing: a hole in the file, which reads as zeros.
    Hole,
    /// Divisors of frequencies: those of the first quarter 1, of the others so large that nothing turns.
    Divisors,
    /// `-exp(A_log)` of a delta net, from -16 to -1.
    Decay,
    /// Biases whose softplus, the time step, lies between 0.001 and 0.1.
    TimeStep,
}

/// A model to be written: dimensions, mixture and tensors.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) model: Blueprint,
    pub(super) layers: usize,
    pub(super) mix: Mix,
    pub(super) tensors: Vec<PlannedTensor>,
    /// Prediction blocks behind the layers.
    pub(super) predicting: usize,
}

impl Plan {
    /// Plans a file like `model`, with its first `layers` layers or all.
    ///
    /// **Errors**: [`SynthError::Layers`].
    pub fn new(model: Blueprint, layers: Option<usize>, mix: Mix) -> Result<Self, SynthError> {
        let layers = layers.unwrap_or(model.layers);
        if !(1..=model.layers).contains(&layers) {
            return Err(SynthError::Layers {
                model: model.name,
                got: layers,
                allowed: model.layers,
            });
        }
        let tensors = model.tensors(layers).into_iter();
        let tensors = tensors.map(|(name, dims)| planned(&model, layers, mix, name, dims));
        let tensors = tensors.collect();
        Ok(Self {
            model,
            layers,
            mix,
            tensors,
            predicting: 0,
        })
    }
}

/// A tensor of a model cut to `layers` layers.
pub(super) fn planned(
    model: &Blueprint,
    layers: usize,
    mix: Mix,
    name: String,
    dims: Vec<usize>,
) -> PlannedTensor {
    let (layer, role) = split_name(&name);
    let fill = fill(role, &dims, layers, model.qk_norm);
    let ty = match fill {
        Fill::Weights { .. } | Fill::Embeddings | Fill::Hole
            if dims.len() > 1 && !role.contains("conv1d") && !role.starts_with("indexer") =>
        {
            let role = role.trim_end_matches(".weight");
            mix.type_of(
                Site {
                    role,
                    layer,
                    layers,
                    experts: model.experts,
                    heads_per_kv: model.heads / model.kv_heads,
                },
                dims[0],
            )
        }
        _ => BlockType::F32,
    };
    PlannedTensor {
        name,
        dims,
        ty,
        fill,
    }
}

impl PlannedTensor {
    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.dims[0] / self.ty.block_values() * self.ty.block_bytes()
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> usize {
        self.row_bytes() * self.dims[1..].iter().product::<usize>()
    }
}

/// The layer (0 for global tensors) and the rest of a tensor's name.
fn split_name(name: &str) -> (usize, &str) {
    let parts = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    parts
        .and_then(|(layer, role)| Some((layer.parse().ok()?, role)))
        .unwrap_or((0, name))
}

/// How far queries are stretched. Trained attention is peaked: with scores of spread 3 a few positions count and the next token depends on the
/// context; with spread 1 greedy decoding soon goes round in circles, and with it the choice of experts.
const QUERY_STRETCH: f32 = 3.0;

fn fill(role: &str, dims: &[usize], layers: usize, qk_norm: QkNorm) -> Fill {
    let std = (dims[0] as f32).sqrt().recip();
    match role {
        "token_embd.weight" => Fill::Embeddings,
        "ffn_gate_inp.weight" => Fill::Router,
        "ssm_a" => Fill::Decay,
        "ssm_dt.bias" => Fill::TimeStep,
        "attn_q_norm.weight" => Fill::Norm {
            mean: QUERY_STRETCH,
        },
        "attn_q.weight" if qk_norm == QkNorm::None => Fill::Weights {
            std: std * QUERY_STRETCH,
        },
        // as large as a table of n-grams is, it is not worth a disk
        "per_layer_token_embd.weight" => Fill::Hole,
        "rope_freqs.weight" => Fill::Divisors,
        // a router reads values of a mean square of 1 over the width
        "ffn_gate_inp.scale" => Fill::Norm {
            mean: (dims[0] as f32).sqrt(),
        },
        "layer_output_scale.weight" | "ffn_down_exps.scale" => Fill::Norm { mean: 1.0 },
        "attn_sinks.weight" => Fill::Norm { mean: 0.0 },
        bias if bias.ends_with(".bias") => Fill::Norm { mean: 0.0 },
        norm if norm.ends_with("norm.weight")
            || norm.contains("_norm_")
            || norm.starts_with("ple_norm") =>
        {
            Fill::Norm { mean: 1.0 }
        }
        // What is added to the residual stays small beside the embedding, over all layers together, so that the common direction lasts.
        "attn_output.weight"
        | "ssm_out.weight"
        | "ffn_down.weight"
        | "ffn_down_exps.weight"
        | "ffn_down_shexp.weight" => Fill::Weights {
            std: std * 0.5 / (2.0 * layers as f32).sqrt(),
        },
        _ => Fill::Weights { std },
    }
}
