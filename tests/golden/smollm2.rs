//! Real weights: SmolLM2-135M-Instruct, where `TIDEGATE_SMOLLM2` names the folder that `scripts/smollm2.py` filled.
//!
//! The float twin must agree with llama.cpp; a mixture of equal experts must agree with the dense model whatever its router does.

use std::path::{Path, PathBuf};

use crate::bare::{Bare, argmax};
use serde::Deserialize;
use tidegate::backend::shape::KvType;

/// `<|im_end|>`
const STOP: u32 = 2;

#[derive(Deserialize)]
struct Goldens {
    items: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    ids: Vec<u32>,
    top1: Vec<u32>,
    margins: Vec<f32>,
    greedy: Vec<u32>,
    greedy_margins: Vec<f32>,
    top1_q4_1: Vec<u32>,
}

fn goldens() -> Vec<Golden> {
    let text = include_str!("../../fixtures/smollm2/goldens.json");
    serde_json::from_str::<Goldens>(text)
        .expect("goldens")
        .items
}

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_SMOLLM2").map(PathBuf::from);
    if folder.is_none() {
        assert!(
            std::env::var_os("TIDEGATE_REQUIRE_PYTHON").is_none(),
            "TIDEGATE_SMOLLM2 is not set"
        );
        eprintln!("skipped: TIDEGATE_SMOLLM2 names no folder");
    }
    folder
}

fn open(folder: &Path, name: &str, kv_type: KvType) -> Bare {
    Bare::open(&folder.join(name), 1, 384, 2, kv_type)
}

fn top1(model: &mut Bare, ids: &[u32]) -> Vec<u32> {
    let vocab = model.vocab();
    model.rows(0, 0, ids).chunks(vocab).map(argmax).collect()
}

/// Shares of positions at which `ours` and `theirs` agree, in percent.
fn agreement(ours: &[u32], theirs: &[u32]) -> f64 {
    100.0 * ours.iter().zip(theirs).filter(|(a, b)| a == b).count() as f64 / ours.len() as f64
}

#[test]
fn float_twin_agrees_with_llama_cpp() {
    let Some(folder) = folder() else { return };
    let mut model = open(&folder, "smollm2-f32.gguf", KvType::F32);
    for golden in goldens() {
        for (position, ours) in top1(&mut model, &golden.ids).into_iter().enumerate() {
            let (theirs, margin) = (golden.top1[position], golden.margins[position]);
            assert!(
                ours == theirs || margin < 0.01,
                "position {position}: {ours} for {theirs}, which leads by {margin}"
            );
        }
        // an exact text, up to the first place where two tokens are as good
        let exact = golden
            .greedy_margins
            .iter()
            .position(|margin| *margin < 0.01)
            .unwrap_or(golden.greedy.len());
        let greedy = model.greedy(&golden.ids, STOP, golden.greedy.len());
        assert_eq!(greedy[..exact], golden.greedy[..exact]);
    }
}

/// Activations are quantised too, so both engines differ from the float twin where two tokens are nearly as likely.
#[test]
fn quantised_file_agrees_with_llama_cpp() {
    let Some(folder) = folder() else { return };
    let mut model = open(&folder, "smollm2.gguf", KvType::F16);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for golden in goldens() {
        let decided = |position: &usize| golden.margins[*position] >= 0.1;
        let top1 = top1(&mut model, &golden.ids);
        ours.extend(
            (0..top1.len())
                .filter(decided)
                .map(|position| top1[position]),
        );
        theirs.extend(
            (0..top1.len())
                .filter(decided)
                .map(|position| golden.top1_q4_1[position]),
        );
    }
    let share = agreement(&ours, &theirs);
    assert!(share >= 98.0, "{share:.1} % of {} positions", ours.len());
}

/// Renormalised weights of equal experts add up to one: only the order of additions differs.
#[test]
fn equal_experts_are_the_dense_model() {
    let Some(folder) = folder() else { return };
    let mut dense = open(&folder, "smollm2-f32.gguf", KvType::F32);
    let mut mixture = open(&folder, "smollm2-moe-f32.gguf", KvType::F32);
    let vocab = dense.vocab();
    for golden in goldens() {
        let expected = dense.rows(0, 0, &golden.ids).to_vec();
        let got = mixture.rows(0, 0, &golden.ids);
        for (position, (got, expected)) in got.chunks(vocab).zip(expected.chunks(vocab)).enumerate()
        {
            let largest = expected
                .iter()
                .fold(0f32, |max, logit| max.max(logit.abs()));
            let error = got
                .iter()
                .zip(expected)
                .fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(
                error <= 1e-4 * largest,
                "position {position}: off by {error}, largest logit {largest}"
            );
        }
        assert_eq!(
            mixture.greedy(&golden.ids, STOP, 24),
            dense.greedy(&golden.ids, STOP, 24)
        );
    }
}
