//! GLM-4.5, 4.6 and 4.7 (`glm4moe`): biased attention that rotates half of a head, dense layers first, then sigmoid experts beside a shared one.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, QkNorm},
    },
    model::loader::{LoadError, Loader},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind, KeysAndValues},
        experts::Experts,
        feed_forward::FeedForward,
        mixer::halves,
        norm::Norm,
        place::Place,
        residual::Add,
        route::Route,
    },
};

/// x += attention(norm(x)); x += feed_forward(norm(x)) in the first `leading_dense_block_count` layers, then experts(norm(x)) + shared expert.
/// A prediction block is one of the latter.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let normed = from.has(&format!("{at}.attn_q_norm.weight"));
    let attention = AttentionKind {
        qk_norm: normed.then_some(QkNorm::PerHead),
        ..AttentionKind::PLAIN
    };
    let norm = Rc::new(Norm::load(from, &format!("{at}.attn_norm"))?);
    let attention = Rc::new(Attention::load(from, at, attention)?);
    let remembers = Layer::new(norm.clone()).then(KeysAndValues(attention.clone()));
    let (project, mix) = halves(&attention);
    let mixed = Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(Add));
    let normed = Layer::new(Norm::load(from, &format!("{at}.post_attention_norm"))?);
    if from.leading_dense()? {
        let dense = FeedForward::load(from, at, Activation::SwiGlu)?;
        return Ok(mixed.then(normed.then(dense).then(Add)).block());
    }
    let route = Route::load(from, at, Gating::Sigmoid, true)?;
    let chosen = route.shape();
    let experts = Experts::load(from, at, chosen.experts, Activation::SwiGlu)?;
    let (first, others) = experts.halves();
    Ok(mixed
        .then(normed.then(route).then(Place(chosen)).then(first))
        .then(Layer::new(others).then(Add))
        .block()
        .remembering(remembers))
}
