//! Quantised files of every family, of the types that popular files mix, against the same weights in f32: they say nearly the same, as near as rounded activations let them.
//!
//! Weights are random blocks, so nothing is lost by quantising: both files hold the same numbers. What remains is that products with quantised weights round their
//! activations to eight bits, and that a router which hardly prefers one expert may then choose another.

use std::{collections::BTreeSet, fs::File, sync::Arc};

use crate::{
    bare::{Bare, argmax},
    remade::Remade,
};
use tidegate::{
    backend::shape::KvType,
    cpu::backend::{Cpu, CpuSettings},
    gguf::Gguf,
    quant::BlockType,
    synth::{Blueprint, Hybrid, Mix, Plan, Streams, WindowHeads, Windows},
};

const VOCAB: usize = 1000;
const POSITIONS: usize = 120;

/// A model of this name made small: rows of the residual are two of the widest blocks, rows of an expert's intermediate are a multiple of 256 only if they are that of the model.
fn small(name: &str) -> Blueprint {
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
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("twin.gguf");
    let plan = Plan::new(small(name), None, mix).expect("a plan");
    plan.fill(&File::create(&path).expect("a file"))
        .expect("written");
    let mut file = Remade::of(&Gguf::open(&path).expect("a valid file"));
    fill_table(&mut file);
    file
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

/// The same numbers in f32.
fn in_floats(file: &Remade) -> Remade {
    let mut file = file.clone();
    for tensor in &mut file.tensors {
        tensor.put(&tensor.values());
    }
    file
}

fn logits(file: &Arc<Gguf>, ids: &[u32]) -> Vec<f32> {
    let backend = Cpu::new(CpuSettings { threads: Some(2) });
    let room = (POSITIONS, POSITIONS);
    Bare::of(backend, file, 1, room, KvType::F32).chunked(0, ids, &[50, 1])
}

/// How many of so many are nearer than this, as a share.
fn share(of: impl Iterator<Item = bool>) -> f64 {
    let (mut all, mut some) = (0, 0);
    of.for_each(|is| (all, some) = (all + 1, some + usize::from(is)));
    some as f64 / f64::from(all)
}

fn check(name: &str, mix: Mix) -> BTreeSet<BlockType> {
    let file = made(name, mix);
    let ids: Vec<u32> = (0..POSITIONS as u32)
        .map(|at| 300 + at * 131 % 600)
        .collect();
    let (quantised, floats) = (
        logits(&file.file(), &ids),
        logits(&in_floats(&file).file(), &ids),
    );
    let rows = || quantised.chunks(VOCAB).zip(floats.chunks(VOCAB));
    let mut errors: Vec<f32> = rows()
        .map(|(ours, theirs)| {
            let largest = theirs.iter().fold(0f32, |max, x| max.max(x.abs()));
            let pairs = ours.iter().zip(theirs);
            pairs.fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest
        })
        .collect();
    let alike = share(rows().map(|(ours, theirs)| argmax(ours) == argmax(theirs)));
    errors.sort_by(f32::total_cmp);
    let (median, most) = (errors[POSITIONS / 2], errors[POSITIONS * 9 / 10]);
    println!(
        "{name}, {}: median {median:.4}, nine tenths {most:.4}, alike {alike:.2}",
        mix.name()
    );
    assert!(
        median < 0.05 && most < 0.2 && alike > 0.8,
        "{name}, {}: {errors:?}",
        mix.name()
    );
    file.tensors.iter().map(|tensor| tensor.ty).collect()
}

/// `name: model, mixtures` as a test of this name.
macro_rules! twins {
    ($($name:ident: $model:literal, $($mix:ident)*;)*) => {
        $(#[test]
        fn $name() {
            $(check($model, Mix::$mix);)*
        })*
    };
}

twins! {
    qwen3moe: "qwen3-30b-a3b", Q4KM Iq3Xxs;
    olmoe: "olmoe-1b-7b", Q4KM;
    mixtral: "mixtral-8x7b", Q5KM;
    qwen3next: "qwen3-next-80b-a3b", Q4KM;
    qwen35moe: "qwen3.5-35b-a3b", Q4KM Iq3Xxs;
    gpt_oss: "gpt-oss-20b", Mxfp4Moe Q4KM;
    glm4moe: "glm-4.5-air", Q4KM Iq4Xs Q2K;
    minimax_m2: "minimax-m2", Q4KM Iq4Xs Iq2Xxs;
    gemma4: "gemma-4-26b-a4b", Q4_0 Q4KM;
    qwen4exp: "qwen3.8-flash-next", Q4KM Iq4Xs Iq2Xs;
}

#[test]
fn trap_12_rows_that_are_no_whole_blocks_have_other_types() {
    for name in ["glm-4.5-air", "gemma-4-26b-a4b", "qwen3.8-flash-next"] {
        let types = check(name, Mix::Iq4Xs);
        for ty in [BlockType::IQ4_XS, BlockType::IQ4_NL] {
            assert!(types.contains(&ty), "{name}: {types:?}");
        }
    }
}
