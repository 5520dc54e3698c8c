//! What models are compared with: goldens of `fixtures/`, and how close is close.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Logits of a tiny random model may differ by this share of the position's largest logit.
pub(crate) const TOLERANCE: f32 = 1e-3;

/// What transformers computes for a tiny random model.
pub(crate) struct Tiny {
    pub(crate) ids: Vec<u32>,
    pub(crate) vocab: usize,
    /// `[ids, vocab] f32`
    pub(crate) logits: Vec<f32>,
}

/// A prompt for the bundled model and how its source continues it.
#[derive(Deserialize)]
pub(crate) struct Tale {
    pub(crate) prompt: String,
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) greedy_ids: Vec<u32>,
    pub(crate) first4_top5_logprobs: Vec<Vec<(u32, f32)>>,
    pub(crate) top1_margins: Vec<f32>,
    pub(crate) mtp: Vec<Prediction>,
    pub(crate) mtp_chain: Chain,
}

/// A prediction at a position, given the token after it.
#[derive(Deserialize)]
pub(crate) struct Prediction {
    pub(crate) position: usize,
    pub(crate) next_token: u32,
    pub(crate) draft: u32,
    pub(crate) top3: Vec<(u32, f32)>,
}

/// Predictions fed back, after the prompt and its first greedy token.
#[derive(Deserialize)]
pub(crate) struct Chain {
    pub(crate) drafts: Vec<(u32, f32)>,
}

/// What the reference predicts along a sequence. See `scripts/draft-goldens.py`.
#[derive(Deserialize)]
pub(crate) struct Drafted {
    /// Where in the tokens the first of `drafts` was made.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<u32>,
    /// What the trunk says after every position from `first` on.
    pub(crate) greedy: Vec<u32>,
    /// Three guesses each, of the second, third and fourth token after the position.
    pub(crate) drafts: Vec<[u32; 3]>,
}

/// The predictions of the bundled file.
pub(crate) fn drafted() -> Vec<Drafted> {
    serde_json::from_str(include_str!("../../fixtures/tales/drafts.json")).expect("goldens")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// A file of `fixtures/tiny`.
pub(crate) fn tiny_file(name: &str) -> PathBuf {
    fixtures().join("tiny").join(name)
}

/// The bundled model.
pub(crate) fn tales_file() -> PathBuf {
    fixtures().join("tales/tales.gguf")
}

/// A float twin of the bundled model, where there is a folder of them.
pub(crate) fn tales_twin(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_TALES_TWINS");
    if folder.is_none() {
        eprintln!("skipped: TIDEGATE_TALES_TWINS names no folder with {name}");
    }
    folder.map(|folder| Path::new(&folder).join(name))
}

/// The golden of a tiny random model. Its format: `fixtures/tiny/README.md`.
pub(crate) fn tiny(family: &str) -> Tiny {
    read_tiny(&format!("{family}.golden"))
}

/// What its prediction block says, in the same format.
pub(crate) fn tiny_predictions(family: &str) -> Tiny {
    read_tiny(&format!("{family}.predictions"))
}

/// What it says one after the other behind the last position, in the same format.
pub(crate) fn tiny_chain(family: &str) -> Tiny {
    read_tiny(&format!("{family}.chain"))
}

fn read_tiny(name: &str) -> Tiny {
    let bytes = fs::read(tiny_file(name)).expect("golden file");
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
    Tiny { ids, vocab, logits }
}

/// The goldens of the bundled model.
pub(crate) fn tales() -> Vec<Tale> {
    #[derive(Deserialize)]
    struct Goldens {
        items: Vec<Tale>,
    }
    let text = include_str!("../../fixtures/tales/goldens.json");
    serde_json::from_str::<Goldens>(text)
        .expect("goldens")
        .items
}

/// No logit is off by more than `share` of its position's largest. **Shapes**: `[positions, vocab] f32` both.
pub(crate) fn assert_close(what: &str, got: &[f32], expected: &[f32], vocab: usize, share: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let rows = got.chunks(vocab).zip(expected.chunks(vocab));
    for (position, (got, expected)) in rows.enumerate() {
        let largest = expected
            .iter()
            .fold(0f32, |max, logit| max.max(logit.abs()));
        let error = got
            .iter()
            .zip(expected)
            .fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(
            error <= share * largest && got.iter().all(|logit| logit.is_finite()),
            "{what}: position {position}: off by {error}, largest logit {largest}"
        );
    }
}

/// Every number is the same to the bit.
pub(crate) fn assert_same(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = |(got, expected): (&f32, &f32)| got.to_bits() != expected.to_bits();
    if let Some(at) = got.iter().zip(expected).position(differs) {
        panic!(
            "{what}: value {at} is {}, not {}, of {}",
            got[at],
            expected[at],
            got.len()
        );
    }
}
