//! What the device tells of a row chooses the same tokens as the row itself.

use crate::{
    bare::{Bare, Part, argmax},
    gpu,
    reference::{tales, tales_file},
};
use tidegate::{
    backend::shape::KvType,
    cuda::Cuda,
    engine::{
        executor::{Ask, Candidates, Executor, Lane, MASS_TOLERANCE, Outcome},
        request::Sampling,
    },
    sampler::{Sampler, Scratch},
};

/// The largest logits of a row, likeliest first.
fn check_candidates(candidates: &Candidates<'_>, row: &[f32]) {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    let count = candidates.ids.len();
    assert!(count >= 64.min(row.len()), "{count} candidates");
    assert_eq!(candidates.ids, &order[..count]);
    let logits: Vec<f32> = order[..count].iter().map(|id| row[*id as usize]).collect();
    assert_eq!(candidates.logits, logits);
    let peak = f64::from(logits[0]);
    let mass: f64 = row
        .iter()
        .map(|logit| (f64::from(*logit) - peak).exp())
        .sum();
    assert!(
        (candidates.mass / mass - 1.0).abs() <= MASS_TOLERANCE,
        "{} for {mass}",
        candidates.mass
    );
}

fn samplings() -> Vec<Sampling> {
    let warm = |temperature, top_p, top_k, min_p| Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        seed: 7,
        ..Sampling::default()
    };
    vec![
        warm(0.0, 1.0, 0, 0.0),
        warm(0.8, 0.95, 0, 0.0),
        warm(1.0, 0.9, 40, 0.0),
        warm(0.7, 1.0, 20, 0.0),
        warm(1.2, 1.0, 0, 0.05),
    ]
}

/// How many choices could be made of the candidates, of how many.
fn check_row(model: &mut Bare<Cuda>, row: usize, position: u64) -> (usize, usize) {
    let logits = model.runner.logits(row).expect("a row").to_vec();
    let Outcome::Candidates(candidates) = model.runner.outcome(row).expect("an outcome") else {
        panic!("row {row}: no candidates");
    };
    check_candidates(&candidates, &logits);
    let (mut chosen, mut scratch) = (0, Scratch::default());
    let samplings = samplings();
    for sampling in &samplings {
        let sampler = Sampler::new(sampling, &[]);
        let whole = sampler.choose(&logits, position, &mut scratch);
        let among = sampler.choose_among(&candidates, position, &mut scratch);
        if let Some(token) = among {
            assert_eq!(whole, Ok(token), "row {row}, {sampling:?}");
            chosen += 1;
        }
    }
    (chosen, samplings.len())
}

#[test]
fn candidates_choose_as_the_row_does() {
    gpu::shared(|gpu| {
        let mut model = gpu.bare(&tales_file(), 1, 256, KvType::F16);
        let tokens = &tales()[0].prompt_ids[..];
        let (few, many) = (&tokens[..5], &tokens[5..]);
        let (mut chosen, mut of) = (0, 0);
        for (lane, first, tokens) in [(Lane::Decode, 0, few), (Lane::Prompt, 5, many)] {
            let part = Part {
                slot: 0,
                first,
                tokens,
            };
            model.window(lane, &[part], Ask::Candidates);
            for row in 0..tokens.len() {
                let (choices, all) = check_row(&mut model, row, (first + row) as u64);
                (chosen, of) = (chosen + choices, of + all);
            }
        }
        assert!(
            4 * chosen >= 3 * of,
            "{chosen} of {of} choices need no whole row"
        );
    });
}

#[test]
fn the_likeliest_token_is_the_rows() {
    gpu::shared(|gpu| {
        let mut model = gpu.bare(&tales_file(), 1, 256, KvType::F16);
        let tokens = &tales()[1].prompt_ids[..];
        let part = Part {
            slot: 0,
            first: 0,
            tokens,
        };
        let vocab = model.vocab();
        let logits = model.window(Lane::Prompt, &[part], Ask::Greedy).to_vec();
        for (row, logits) in logits.chunks(vocab).enumerate() {
            let outcome = model.runner.outcome(row).expect("an outcome");
            assert_eq!(outcome, Outcome::Greedy(argmax(logits)));
        }
    });
}
