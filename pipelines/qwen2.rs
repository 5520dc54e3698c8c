//! Qwen2 and 2.5 (`qwen2`), dense: biases on queries, keys and values.

use crate::{
    backend::{Backend, shape::Activation},
    model::loader::{LoadError, Loader},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind},
        feed_forward::FeedForward,
        norm::Norm,
        residual::Add,
    },
};

const ATTENTION: AttentionKind = AttentionKind::PLAIN;

/// x += attention(norm(x)); x += feed_forward(norm(x)).
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    Ok(Layer::new(Norm::load(from, &format!("{at}.attn_norm"))?)
        .then(Attention::load(from, at, ATTENTION)?)
        .then(Add)
        .block()
        .then(
            Layer::new(Norm::load(from, &format!("{at}.ffn_norm"))?)
                .then(FeedForward::load(from, at, Activation::SwiGlu)?)
                .then(Add),
        ))
}
