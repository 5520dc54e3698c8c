//! Qwen2 and 2.5 (`qwen2`), dense: biases on queries, keys and values.

use std::rc::Rc;

use crate::{
    backend::{Backend, shape::Activation},
    model::loader::{LoadError, Loader},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind},
        feed_forward::FeedForward,
        mixer::halves,
        norm::Norm,
        residual::Add,
    },
};

const ATTENTION: AttentionKind = AttentionKind::PLAIN;

/// x += attention(norm(x)); x += feed_forward(norm(x)).
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let norm = Norm::load(from, &format!("{at}.attn_norm"))?;
    let (project, mix) = halves(&Rc::new(Attention::load(from, at, ATTENTION)?));
    Ok(Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(Add))
        .then(
            Layer::new(Norm::load(from, &format!("{at}.ffn_norm"))?)
                .then(FeedForward::load(from, at, Activation::SwiGlu)?)
                .then(Add),
        )
        .block())
}
