//! Qwen3-Next (`qwen3next`): delta-net layers and gated full attention, MoE with a gated shared expert.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, HeadMap, OutGate, QkNorm},
    },
    model::loader::{LoadError, Loader},
    op::{
        Block, Layer,
        attention::{Attention, AttentionKind, KeysAndValues},
        delta_net::DeltaNet,
        experts::Experts,
        mixer::halves,
        norm::Norm,
        place::Place,
        residual::Add,
        route::Route,
    },
};

const ATTENTION: AttentionKind = AttentionKind {
    qk_norm: Some(QkNorm::PerHead),
    gated: true,
    ..AttentionKind::PLAIN
};

/// x += mixer(norm(x)); x += experts(norm(x)) + gated shared expert. The mixer is full attention in every fourth layer and in
/// prediction blocks, a delta net elsewhere.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    hybrid(from, at, HeadMap::Grouped)
}

/// The block both hybrids share; `head_map` says which k head a v head of the file uses.
pub(super) fn hybrid<B: Backend>(
    from: &mut Loader<'_, B>,
    at: &str,
    head_map: HeadMap,
) -> Result<Block<B>, LoadError> {
    let norm = Rc::new(Norm::load(from, &format!("{at}.attn_norm"))?);
    let post_norm = Norm::load(from, &format!("{at}.post_attention_norm"))?;
    let route = Route::load(from, at, Gating::Softmax, true)?;
    let chosen = route.shape();
    let experts = Experts::load(from, at, chosen.experts, Activation::SwiGlu)?;
    let (first, others) = experts.halves();
    let fed = Layer::new(post_norm)
        .then(route)
        .then(Place(chosen))
        .then(first);
    let last = Layer::new(others).then(Add);
    Ok(if from.full_attention()? {
        let attention = Rc::new(Attention::load(from, at, ATTENTION)?);
        let remembers = Layer::new(norm.clone()).then(KeysAndValues(attention.clone()));
        let (project, mix) = halves(&attention);
        Layer::new(norm)
            .then(project)
            .part()
            .then(Layer::new(mix).then(Add))
            .then(fed)
            .then(last)
            .block()
            .remembering(remembers)
    } else {
        let delta_net = DeltaNet::load(from, at, head_map, OutGate::Silu)?;
        let (project, mix) = halves(&Rc::new(delta_net));
        Layer::new(norm)
            .then(project)
            .part()
            .then(Layer::new(mix).then(Add))
            .then(fed)
            .then(last)
            .block()
    })
}
