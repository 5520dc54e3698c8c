//! Qwen3.8-Flash-Next (`qwen4exp`): four streams around every block, delta nets with a sigmoid gate, attention that an index thins out, and n-grams in one layer.

use std::rc::Rc;

use crate::{
    backend::{
        Backend,
        shape::{Activation, Gating, HeadMap, OutGate, QkNorm},
    },
    model::{
        Frame,
        loader::{LoadError, Loader},
    },
    op::{
        Block, Hidden, Layer, Normed, Op,
        attention::{Attention, AttentionKind, KeysAndValues},
        delta_net::DeltaNet,
        experts::Experts,
        mixer::halves,
        ngram::Ngram,
        place::Place,
        route::Route,
        streams::{AddToStreams, ReadStreams},
    },
};

/// The residual has several streams.
pub const FRAME: Frame = Frame {
    embedding_by_root: false,
    streams: true,
};

const ATTENTION: AttentionKind = AttentionKind {
    qk_norm: Some(QkNorm::PerHead),
    gated: true,
    indexed: true,
    ..AttentionKind::PLAIN
};

/// streams <- mixer(read(streams)); streams <- experts(read(streams)) + gated shared expert. Where the file says so, streams += n-grams before.
pub fn block<B: Backend>(from: &mut Loader<'_, B>, at: &str) -> Result<Block<B>, LoadError> {
    let read = ReadStreams::load(from, &format!("{at}.hc_attn"), true)?;
    if from.names_layer("ple.layers")? {
        let ngram = Ngram::load(from, at)?;
        mixed(from, at, Layer::new(ngram).then(read))
    } else {
        mixed(from, at, Layer::new(read))
    }
}

/// The layer after what gives its mixer's input.
fn mixed<B: Backend, O>(
    from: &mut Loader<'_, B>,
    at: &str,
    read: Layer<O>,
) -> Result<Block<B>, LoadError>
where
    O: Op<B, In = Hidden, Out = Normed> + 'static,
{
    let full = from.full_attention()?;
    let read_experts = ReadStreams::load(from, &format!("{at}.hc_ffn"), true)?;
    let route = Route::load(from, at, Gating::Softmax, true)?;
    let chosen = route.shape();
    let experts = Experts::load(from, at, chosen.experts, Activation::SwiGlu)?;
    let (first, others) = experts.halves();
    let fed = Layer::new(read_experts)
        .then(route)
        .then(Place(chosen))
        .then(first);
    let last = Layer::new(others).then(AddToStreams);
    Ok(if full {
        let read = Rc::new(read.0);
        let attention = Rc::new(Attention::load(from, at, ATTENTION)?);
        let remembers = Layer::new(read.clone()).then(KeysAndValues(attention.clone()));
        let (project, mix) = halves(&attention);
        Layer::new(read)
            .then(project)
            .part()
            .then(Layer::new(mix).then(AddToStreams))
            .then(fed)
            .then(last)
            .block()
            .remembering(remembers)
    } else {
        let delta_net = DeltaNet::load(from, at, HeadMap::Tiled, OutGate::Sigmoid)?;
        let (project, mix) = halves(&Rc::new(delta_net));
        read.then(project)
            .part()
            .then(Layer::new(mix).then(AddToStreams))
            .then(fed)
            .then(last)
            .block()
    })
}
