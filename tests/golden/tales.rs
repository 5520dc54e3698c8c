//! The bundled model against its reference: the quantised file always, the float twins where `TIDEGATE_TALES_TWINS` names a folder
//! with `tales-f32.gguf` and `tales-bf16.gguf` (made by `scripts/convert-tales.py`).

use std::path::{Path, PathBuf};

use crate::bare::{Bare, argmax};
use serde::Deserialize;
use tidegate::backend::shape::KvType;

/// `<|im_end|>`
const STOP: u32 = 2;
/// Tokens that the goldens continue a prompt by, at most.
const GREEDY_MAX: usize = 64;

#[derive(Deserialize)]
struct Goldens {
    items: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    prompt: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    first4_top5_logprobs: Vec<Vec<(u32, f32)>>,
    top1_margins: Vec<f32>,
}

fn goldens() -> Vec<Golden> {
    let text = include_str!("../../fixtures/tales/goldens.json");
    serde_json::from_str::<Goldens>(text)
        .expect("goldens")
        .items
}

fn logprobs(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - max).exp())
        .sum();
    logits
        .iter()
        .map(|logit| logit - max - sum.ln() as f32)
        .collect()
}

/// Exact in tokens, and close in log-probabilities.
fn check_twin(file: &Path, kv_type: KvType) {
    let mut model = Bare::open(file, 1, 256, 2, kv_type);
    let vocab = model.vocab();
    for golden in goldens() {
        assert_eq!(
            model.greedy(&golden.prompt_ids, STOP, GREEDY_MAX),
            golden.greedy_ids,
            "{}",
            golden.prompt
        );
        let tokens = [&golden.prompt_ids[..], &golden.greedy_ids].concat();
        let logits = model.rows(0, 0, &tokens).to_vec();
        for (step, expected) in golden.first4_top5_logprobs.iter().enumerate() {
            let ours = logprobs(&logits[(golden.prompt_ids.len() - 1 + step) * vocab..][..vocab]);
            for (token, logprob) in expected {
                let error = (ours[*token as usize] - logprob).abs();
                assert!(
                    error < 2e-3 * logprob.abs().max(1.0),
                    "{}: step {step}, token {token}: {} for {logprob}",
                    golden.prompt,
                    ours[*token as usize]
                );
            }
        }
    }
}

fn twin(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_TALES_TWINS");
    if folder.is_none() {
        eprintln!("skipped: TIDEGATE_TALES_TWINS names no folder with {name}");
    }
    folder.map(|folder| Path::new(&folder).join(name))
}

#[test]
fn float_twin_repeats_the_goldens() {
    twin("tales-f32.gguf").inspect(|file| check_twin(file, KvType::F32));
}

#[test]
fn bf16_twin_repeats_the_goldens() {
    twin("tales-bf16.gguf").inspect(|file| check_twin(file, KvType::F32));
}

/// Along the reference's own continuations the bundled file chooses the same token but where two are nearly as likely.
#[test]
fn bundled_file_follows_the_goldens() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tales/tales.gguf");
    let mut model = Bare::open(&file, 1, 256, 2, KvType::F16);
    let vocab = model.vocab();
    let (mut steps, mut same) = (0, 0);
    for golden in goldens() {
        let tokens = [&golden.prompt_ids[..], &golden.greedy_ids].concat();
        let logits = model.rows(0, 0, &tokens).to_vec();
        for (step, (expected, margin)) in golden
            .greedy_ids
            .iter()
            .zip(&golden.top1_margins)
            .enumerate()
        {
            let chosen = argmax(&logits[(golden.prompt_ids.len() - 1 + step) * vocab..][..vocab]);
            assert!(
                chosen == *expected || *margin < 0.8,
                "{}: step {step}: {chosen} for {expected}, which leads by {margin}",
                golden.prompt
            );
            (steps, same) = (steps + 1, same + usize::from(chosen == *expected));
        }
    }
    assert!(same * 100 >= steps * 96, "{same} of {steps} tokens");
}
