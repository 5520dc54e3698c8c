//! Logits against transformers: tiny random models of every family, at every position, for any chunk size.
//!
//! The goldens are float32 and come from `scripts/tiny-models.py`; see `fixtures/tiny/README.md`.

use std::{fs, path::PathBuf};

use crate::bare::Bare;
use tidegate::backend::shape::KvType;

/// Logits may differ by this share of the position's largest logit.
const TOLERANCE: f32 = 1e-3;

struct Golden {
    ids: Vec<u32>,
    vocab: usize,
    /// `[ids, vocab] f32`
    logits: Vec<f32>,
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/tiny")
        .join(name)
}

fn golden(family: &str) -> Golden {
    let bytes = fs::read(fixture(&format!("{family}.golden"))).expect("golden file");
    let words: Vec<[u8; 4]> = bytes
        .chunks_exact(4)
        .map(|word| word.try_into().expect("four bytes"))
        .collect();
    let (tokens, vocab) = (
        u32::from_le_bytes(words[0]) as usize,
        u32::from_le_bytes(words[1]) as usize,
    );
    let ids = words[2..2 + tokens]
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    let logits = words[2 + tokens..]
        .iter()
        .map(|word| f32::from_le_bytes(*word))
        .collect();
    Golden { ids, vocab, logits }
}

fn check(file: &str, golden_name: &str) {
    let golden = golden(golden_name);
    let open = |threads| Bare::open(&fixture(file), 2, golden.ids.len(), threads, KvType::F32);
    let mut one = open(1);
    let whole = one.chunked(0, &golden.ids, &[golden.ids.len()]);
    assert_eq!(whole.len(), golden.logits.len(), "{file}");
    for (position, (ours, theirs)) in whole
        .chunks(golden.vocab)
        .zip(golden.logits.chunks(golden.vocab))
        .enumerate()
    {
        let largest = theirs.iter().fold(0f32, |max, logit| max.max(logit.abs()));
        let error = ours
            .iter()
            .zip(theirs)
            .fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(
            error <= TOLERANCE * largest,
            "{file}: position {position}: off by {error}, largest logit {largest}"
        );
    }
    // any chunking, any slot and any number of threads: the same bits
    let mut three = open(3);
    for (threads, slot, chunks) in [
        (1, 1, &[1][..]),
        (1, 0, &[3]),
        (3, 1, &[17]),
        (3, 0, &[64, 1, 7]),
    ] {
        let model = if threads == 1 { &mut one } else { &mut three };
        let again = model.chunked(slot, &golden.ids, chunks);
        let same = again
            .iter()
            .zip(&whole)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(
            same,
            "{file}: chunks of {chunks:?} give other logits than one chunk"
        );
    }
}

#[test]
fn qwen3moe() {
    check("qwen3moe.gguf", "qwen3moe");
}

#[test]
fn qwen3moe_with_fused_gate_and_up() {
    check("qwen3moe-fused.gguf", "qwen3moe");
}

#[test]
fn olmoe() {
    check("olmoe.gguf", "olmoe");
}

#[test]
fn mixtral() {
    check("mixtral.gguf", "mixtral");
}

#[test]
fn qwen3next() {
    check("qwen3next.gguf", "qwen3next");
}

#[test]
fn qwen35moe() {
    check("qwen35moe.gguf", "qwen35moe");
}

#[test]
fn llama() {
    check("llama.gguf", "llama");
}

#[test]
fn qwen2() {
    check("qwen2.gguf", "qwen2");
}

#[test]
fn qwen3() {
    check("qwen3.gguf", "qwen3");
}
