//! Quantised files of every family, of the types that popular files mix, against the same weights in f32: they say nearly the same, as near as rounded activations let them.
//!
//! Weights are random blocks, so nothing is lost by quantising: both files hold the same numbers. What remains is that products with quantised weights round their
//! activations to eight bits, and that a router which hardly prefers one expert may then choose another.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    bare::{Bare, argmax},
    made::{VOCAB, made},
    remade::Remade,
};
use tidegate::{
    backend::shape::KvType,
    cpu::backend::{Cpu, CpuSettings},
    gguf::Gguf,
    quant::BlockType,
    synth::Mix,
};

const POSITIONS: usize = 120;

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
        median < 0.03 && most < 0.1 && alike > 0.9,
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
