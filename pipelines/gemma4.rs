//! Gemma 4 with experts (`gemma4`): every block between two norms, experts beside a dense block, and heads that differ between windows and full layers.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, QkNorm},
    },
    model::{
        Frame,
        loader::{LoadError, Loader},
    },
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
        sandwich::{AddAside, PostNorm, Renorm, Scale, ScaledNorm, SetAside},
    },
};

/// Embeddings are multiplied by the root of their width.
pub const FRAME: Frame = Frame {
    embedding_by_root: true,
    streams: false,
};

const ATTENTION: AttentionKind = AttentionKind {
    qk_norm: Some(QkNorm::PerHead),
    windows: Some(6),
    v_norm: true,
    scale: Some(1.0),
    ..AttentionKind::PLAIN
};

/// x += post(attention(norm(x))); m = post(feed_forward(norm(x))); e = post(experts(norm(x)), routed by another norm); x += post(m + e); x *= scale.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let norm = Norm::load(from, &format!("{at}.attn_norm"))?;
    let (project, mix) = halves(&Rc::new(Attention::load(from, at, ATTENTION)?));
    let post_attention = PostNorm::load(from, &format!("{at}.post_attention_norm"))?;
    let mixed = Layer::new(norm)
        .then(project)
        .part()
        .then(Layer::new(mix).then(post_attention).then(Add));
    let dense = Layer::new(Norm::load(from, &format!("{at}.ffn_norm"))?).then(FeedForward::load(
        from,
        at,
        Activation::GeGlu,
    )?);
    let post = PostNorm::load(from, &format!("{at}.post_ffw_norm"))?;
    let scale = Scale::load(from, &format!("{at}.layer_output_scale"))?;
    if from.optional_count("expert_count")?.unwrap_or(0) == 0 {
        return Ok(mixed.then(dense.then(post).then(Add).then(scale)).block());
    }
    let route = Route::load(from, at, Gating::Softmax, true)?;
    let chosen = route.shape();
    let first_half = dense
        .then(PostNorm::load(from, &format!("{at}.post_ffw_norm_1"))?)
        .then(SetAside::new(from))
        .then(ScaledNorm::load(from, &format!("{at}.ffn_gate_inp"))?)
        .then(route)
        .then(Renorm(Norm::load(from, &format!("{at}.pre_ffw_norm_2"))?))
        .then(Place(chosen));
    let experts = Experts::load(from, at, chosen.experts, Activation::GeGlu)?;
    let (first, others) = experts.halves();
    let second_half = Layer::new(others)
        .then(PostNorm::load(from, &format!("{at}.post_ffw_norm_2"))?)
        .then(AddAside)
        .then(post)
        .then(Add)
        .then(scale);
    Ok(mixed.then(first_half.then(first)).then(second_half).block())
}
