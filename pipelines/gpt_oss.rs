//! gpt-oss (`gpt-oss`): attention with biases and sinks, every other layer over a window, and experts with biases and a clamped activation.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating},
    },
    model::loader::{LoadError, Loader, YarnEnds},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind},
        experts::Experts,
        mixer::halves,
        norm::Norm,
        place::Place,
        residual::Add,
        route::Route,
    },
};

const ATTENTION: AttentionKind = AttentionKind {
    windows: Some(2),
    sinks: true,
    yarn: YarnEnds::Exact,
    ..AttentionKind::PLAIN
};

/// x += attention(norm(x)); x += experts(norm(x)), weights a softmax over the chosen ones.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let route = Route::load(from, at, Gating::SoftmaxOfChosen, false)?;
    let chosen = route.shape();
    let norm = Norm::load(from, &format!("{at}.attn_norm"))?;
    let (project, mix) = halves(&Rc::new(Attention::load(from, at, ATTENTION)?));
    let (first, others) =
        Experts::load(from, at, chosen.experts, Activation::ClampedSwiGlu)?.halves();
    Ok(Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(Add))
        .then(
            Layer::new(Norm::load(from, &format!("{at}.post_attention_norm"))?)
                .then(route)
                .then(Place(chosen))
                .then(first),
        )
        .then(Layer::new(others).then(Add))
        .block())
}
