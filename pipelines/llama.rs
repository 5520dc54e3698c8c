//! Llama (`llama`), and Mixtral, which is the same with experts in place of the feed-forward block.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, RopePairs},
    },
    model::loader::{LoadError, Loader},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind},
        experts::Experts,
        feed_forward::FeedForward,
        mixer::halves,
        norm::Norm,
        place::Place,
        residual::Add,
        route::Route,
    },
};

const ATTENTION: AttentionKind = AttentionKind {
    pairs: RopePairs::Adjacent,
    ..AttentionKind::PLAIN
};

/// x += attention(norm(x)); x += feed_forward(norm(x)), or experts(norm(x)) with renormalised weights.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let norm = Norm::load(from, &format!("{at}.attn_norm"))?;
    let (project, mix) = halves(&Rc::new(Attention::load(from, at, ATTENTION)?));
    let mixed = Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(Add));
    let normed = Layer::new(Norm::load(from, &format!("{at}.ffn_norm"))?);
    if from.optional_count("expert_count")?.unwrap_or(0) == 0 {
        let dense = FeedForward::load(from, at, Activation::SwiGlu)?;
        return Ok(mixed.then(normed.then(dense).then(Add)).block());
    }
    let route = Route::load(from, at, Gating::Softmax, true)?;
    let chosen = route.shape();
    let experts = Experts::load(from, at, chosen.experts, Activation::SwiGlu)?;
    let (first, others) = experts.halves();
    Ok(mixed
        .then(normed.then(route).then(Place(chosen)).then(first))
        .then(Layer::new(others).then(Add))
        .block())
}
