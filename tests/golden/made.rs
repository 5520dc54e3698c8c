//! Small files with the tensors, keys and block types of popular ones.

use std::fs::File;

use crate::remade::{Key, Remade};
use tidegate::{
    gguf::Gguf,
    synth::{Blueprint, Hybrid, Mix, Plan, Streams, WindowHeads, Windows},
};

/// Tokens in their vocabularies.
pub(crate) const VOCAB: usize = 1000;

/// A model of this name made small: rows of the residual are two of the widest blocks, rows of an expert's intermediate are a multiple of 256 only if they are that of the model.
pub(crate) fn small(name: &str) -> Blueprint {
    let like = Blueprint::named(name).expect("a model");
    let narrow = |width: usize| if width.is_multiple_of(256) { 256 } else { 96 };
    let mut model = Blueprint {
        layers: 4,
        width: 512,
        heads: 8,
        kv_heads: if like.kv_heads == like.heads { 8 } else { 2 },
        head_width: 64,
        rotated: 64 * like.rotated / like.head_width,
        experts: 12,
        used: 3,
        expert_width: narrow(like.expert_width),
        feed_forward: like.feed_forward.map(narrow),
        vocabulary: VOCAB,
        context: 256,
        ..like
    };
    model.hybrid = like.hybrid.map(|of| Hybrid {
        k_heads: 2,
        v_heads: 6,
        head_width: 32,
        shared_width: narrow(of.shared_width),
        ..of
    });
    model.more.window = like.more.window.map(|of| Windows {
        positions: 24,
        period: of.period.min(3),
        own_heads: of.own_heads.map(|of| WindowHeads {
            kv_heads: 4,
            head_width: 32,
            ..of
        }),
    });
    model.more.yarn = like.more.yarn.map(|(factor, _)| (factor, 64));
    model.more.streams = like.more.streams.map(|of| Streams {
        rank: 64,
        index_width: 32,
        index_positions: 32,
        ngram_rows: 20_000,
        ..of
    });
    model
}

/// A small model's file of this mixture.
pub(crate) fn made(name: &str, mix: Mix) -> Remade {
    made_of(small(name), mix)
}

/// The same of a model of other dimensions.
pub(crate) fn made_of(model: Blueprint, mix: Mix) -> Remade {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("twin.gguf");
    let plan = Plan::new(model, None, mix).expect("a plan");
    plan.fill(&File::create(&path).expect("a file"))
        .expect("written");
    let mut file = Remade::of(&Gguf::open(&path).expect("a valid file"));
    fill_table(&mut file);
    // logits of random weights are so large that all would be the bound
    let bound = "final_logit_softcapping";
    match file.key(bound) {
        Some(_) => file.with(bound, Some(Key::Float(1e4))),
        None => file,
    }
}

/// A table of n-grams is a hole in such files: it gets blocks of another tensor of its type.
fn fill_table(file: &mut Remade) {
    let is_table = |name: &str| name == "per_layer_token_embd.weight";
    let Some(at) = file.tensors.iter().position(|of| is_table(&of.name)) else {
        return;
    };
    let ty = file.tensors[at].ty;
    let mut others = file.tensors.iter();
    let other = others.find(|of| of.ty == ty && of.dims.len() > 1 && !is_table(&of.name));
    let blocks = other.expect("a tensor of its type").bytes.clone();
    let table = &mut file.tensors[at].bytes;
    let length = table.len();
    *table = blocks.into_iter().cycle().take(length).collect();
}
