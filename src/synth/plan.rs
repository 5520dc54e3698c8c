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
    NextEmbeddings,
    /// Token embeddings, but for this share's rest, whose rows are those of other tokens.
    EmbeddingsMostly { acceptance: f32 },
    /// Passes the first half of its input on.
    FirstHalf,
    /// A router: experts' popularity along the common direction, noise elsewhere.
    Router,
    /// Around this.
    Norm { mean: f32 },
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
    /// Whether a prediction block follows the layers.
    pub(super) predicts: bool,
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
        Ok(Self {
            model,
            layers,
            mix,
            tensors: tensors.collect(),
            predicts: false,
        })
    }

    /// The same with a prediction block whose guesses are right with this chance.
    ///
    /// For that the head is a copy of the embedding, a row further: what follows token `t` is `t + 1`, whatever the context, since layers add little to the
    /// embedding. The block passes the embedding on, from a table of its own in which rows are those of other tokens wherever it shall be wrong.
    ///
    /// **Errors**: [`SynthError::Acceptance`], [`SynthError::NoPrediction`].
    pub fn with_prediction(mut self, acceptance: f32) -> Result<Self, SynthError> {
        if !(0.0..=1.0).contains(&acceptance) {
            return Err(SynthError::Acceptance { got: acceptance });
        }
        if self.model.hybrid.is_none() {
            return Err(SynthError::NoPrediction {
                model: self.model.name,
            });
        }
        let embedding = self.tensors[0].ty;
        for tensor in &mut self.tensors {
            if tensor.name == "output.weight" {
                (tensor.ty, tensor.fill) = (embedding, Fill::NextEmbeddings);
            }
        }
        for (name, dims) in self.model.prediction_tensors(self.layers) {
            let mut tensor = planned(&self.model, self.layers, self.mix, name, dims);
            match split_name(&tensor.name).1 {
                "nextn.eh_proj.weight" => {
                    (tensor.ty, tensor.fill) = (BlockType::F16, Fill::FirstHalf);
                }
                "nextn.embed_tokens.weight" => {
                    (tensor.ty, tensor.fill) = (embedding, Fill::EmbeddingsMostly { acceptance });
                }
                _ => {}
            }
            self.tensors.push(tensor);
        }
        self.predicts = true;
        Ok(self)
    }
}

fn planned(
    model: &Blueprint,
    layers: usize,
    mix: Mix,
    name: String,
    dims: Vec<usize>,
) -> PlannedTensor {
    let (layer, role) = split_name(&name);
    let fill = fill(role, &dims, layers, model.qk_norm);
    let ty = match fill {
        Fill::Weights { .. } | Fill::Embeddings
            if dims.len() > 1 && !role.starts_with("ssm_conv1d") =>
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
        norm if norm.ends_with("norm.weight") => Fill::Norm { mean: 1.0 },
        // What is added to the residual stays small beside the embedding, over all layers together, so that the common direction lasts.
        "attn_output.weight"
        | "ssm_out.weight"
        | "ffn_down_exps.weight"
        | "ffn_down_shexp.weight" => Fill::Weights {
            std: std * 0.5 / (2.0 * layers as f32).sqrt(),
        },
        _ => Fill::Weights { std },
    }
}
