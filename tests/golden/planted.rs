//! Synthetic files whose guesses are right with a chosen chance: what a real decode makes of them.

use std::{path::Path, sync::Arc};

use indicatif::ProgressBar;
use tidegate::{
    backend::shape::KvType,
    gguf::Gguf,
    synth::{Blueprint, Hybrid, Mix, Plan},
};

use crate::{
    bare::{Bare, argmax},
    drafts,
};

/// Of the family of a public model, but small.
fn small(like: &str) -> Blueprint {
    let model = Blueprint::named(like).unwrap();
    let hybrid = model.hybrid.map(|hybrid| Hybrid {
        interval: 2,
        k_heads: 2,
        v_heads: 4,
        head_width: 64,
        shared_width: 64,
        ..hybrid
    });
    Blueprint {
        layers: 2,
        width: 512,
        heads: 4,
        kv_heads: 2,
        head_width: 64,
        rotated: 64,
        experts: 16,
        used: 4,
        expert_width: 64,
        feed_forward: model.feed_forward.map(|_| 128),
        hybrid,
        vocabulary: VOCAB,
        ..model
    }
}

const VOCAB: usize = 9000;
/// Tokens along which guesses are made.
const TOKENS: usize = 1500;
/// Guesses behind a token.
const DEPTH: usize = 3;

fn write(like: &str, acceptance: f32, path: &Path) {
    let plan = Plan::new(small(like), None, Mix::Q4KM).unwrap();
    let plan = plan.predicting(acceptance).unwrap();
    plan.write(path, &ProgressBar::hidden()).unwrap();
}

/// How often the first, second and third guess is right, given that those before it are.
fn shares(path: &Path) -> [f32; DEPTH] {
    let mut model = Bare::open(path, 1, TOKENS + 1, 2, KvType::F16);
    let mut counts = [[0; 2]; DEPTH];
    for at in 0..TOKENS {
        let token = at as u32 + 300;
        let said = argmax(model.rows(0, at, &[token]));
        assert_eq!(said, token + 1, "what follows {token}");
        let (guesses, _) = model.predict(0, (at + 1, said), DEPTH);
        for ((guess, truth), [right, all]) in guesses.iter().zip(said + 1..).zip(&mut counts) {
            *all += 1;
            if *guess != truth {
                break;
            }
            *right += 1;
        }
    }
    counts.map(|[right, all]| right as f32 / all as f32)
}

fn check(like: &str, acceptance: f32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("planted.gguf");
    write(like, acceptance, &path);
    let shares = shares(&path);
    println!("{like}, {acceptance}: {shares:.3?}");
    // each place rests on as many tokens as the places before it were right for
    for (place, share) in shares.iter().enumerate() {
        let all = TOKENS as f32 * acceptance.powi(place as i32);
        if all < 30.0 {
            break;
        }
        let deviation = (acceptance * (1.0 - acceptance) / all).sqrt();
        let error = (share - acceptance).abs();
        assert!(
            error <= 3.0 * deviation,
            "{like}, {acceptance}: {shares:.3?}"
        );
    }
}

#[test]
fn guesses_are_right_with_the_chance_asked_for() {
    for acceptance in [0.2, 0.5, 0.8] {
        check("qwen3.5-35b-a3b", acceptance);
    }
    check("qwen3-next-80b-a3b", 0.5);
    check("glm-4.5-air", 0.5);
    check("glm-4.5-air", 0.0);
    check("glm-4.5-air", 1.0);
}

/// The engine guesses with the block, and answers are the same without.
#[test]
fn planted_guesses_change_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("planted.gguf");
    write("qwen3.5-35b-a3b", 0.5, &path);
    let file = Arc::new(Gguf::open(&path).unwrap());
    drafts::check(&file, 3, VOCAB as u32);
}
