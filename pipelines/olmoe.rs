//! OLMoE (`olmoe`): queries and keys are normed over the whole projection, router weights are used as they are.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, QkNorm},
    },
    model::loader::{LoadError, Loader},
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
    qk_norm: Some(QkNorm::FullWidth),
    ..AttentionKind::PLAIN
};

/// x += attention(norm(x)); x += experts(norm(x)).
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let route = Route::load(from, at, Gating::Softmax, false)?;
    let chosen = route.shape();
    let norm = Norm::load(from, &format!("{at}.attn_norm"))?;
    let (project, mix) = halves(&Rc::new(Attention::load(from, at, ATTENTION)?));
    let (first, others) = Experts::load(from, at, chosen.experts, Activation::SwiGlu)?.halves();
    Ok(Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(Add))
        .then(
            Layer::new(Norm::load(from, &format!("{at}.ffn_norm"))?)
                .then(route)
                .then(Place(chosen))
                .then(first),
        )
        .then(Layer::new(others).then(Add))
        .block())
}
