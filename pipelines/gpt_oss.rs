//! gpt-oss (`gpt-oss`): attention with biases and sinks, every other layer over a window, and experts with biases and a clamped activation.

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
    Ok(Layer::new(Norm::load(from, &format!("{at}.attn_norm"))?)
        .then(Attention::load(from, at, ATTENTION)?)
        .then(Add)
        .block()
        .then(
            Layer::new(Norm::load(from, &format!("{at}.post_attention_norm"))?)
                .then(route)
                .then(Place(chosen))
                .then(Experts::load(
                    from,
                    at,
                    chosen.experts,
                    Activation::ClampedSwiGlu,
                )?)
                .then(Add),
        ))
}
