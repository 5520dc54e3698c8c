use std::collections::HashMap;

use super::*;
use crate::engine::executor::{Ask, Candidates, MASS_TOLERANCE};

fn rng(seed: u64) -> impl FnMut() -> f64 {
    let mut position = 0;
    move || {
        position += 1;
        draw::uniform(seed, position)
    }
}

/// Logits of roughly normal distribution; rounded to quarters (so with many ties) if `coarse`.
fn row(seed: u64, vocab: usize, width: f64, coarse: bool) -> Vec<f32> {
    let mut next = rng(seed);
    let mut normal = || (0..12).map(|_| next()).sum::<f64>() - 6.0;
    let mut logit = || (normal() * width) as f32;
    let row = (0..vocab).map(|_| logit());
    row.map(|l| if coarse { (l * 4.0).round() / 4.0 } else { l })
        .collect()
}

/// Tokens from likeliest to least likely, with probabilities: by sorting everything, in f64.
fn ranked(row: &[f32]) -> Vec<(Token, f64)> {
    let peak = row.iter().fold(f64::NEG_INFINITY, |m, l| m.max(*l as f64));
    let total: f64 = row.iter().map(|l| (*l as f64 - peak).exp()).sum();
    let mut ranked: Vec<_> = (0..row.len() as Token)
        .map(|t| (t, (row[t as usize] as f64 - peak).exp() / total))
        .collect();
    ranked.sort_by(|a, b| {
        let logits = row[b.0 as usize].partial_cmp(&row[a.0 as usize]);
        logits.unwrap().then(a.0.cmp(&b.0))
    });
    ranked
}

/// What top-k, top-p and min-p leave, as their definitions say; top-p's target may be off by `slack`.
fn left(row: &[f32], sampling: &Sampling, slack: f64) -> Vec<Token> {
    let mut left = ranked(row);
    if sampling.top_k > 0 {
        left.truncate(sampling.top_k);
    }
    let total: f64 = left.iter().map(|(_, p)| p).sum();
    let best = left[0].1;
    let mut mass = 0.0;
    left.retain(|(_, p)| {
        let stays = mass < (sampling.top_p as f64 + slack) * total || mass == 0.0;
        mass += p;
        stays || sampling.top_p >= 1.0
    });
    left.retain(|(_, p)| *p >= sampling.min_p as f64 * best * (1.0 - slack));
    let mut ids: Vec<_> = left.into_iter().map(|(t, _)| t).collect();
    ids.sort();
    ids
}

fn candidates(row: &[f32], sampling: &Sampling) -> Vec<Token> {
    let peak = scan::peak(row).unwrap();
    let cut = Sampler::new(sampling, &[]).cut(row, peak, &mut cut::Scratch::default());
    let ids = 0..row.len() as Token;
    ids.filter(|id| cut.keeps(row[*id as usize], *id)).collect()
}

/// The candidates are those of the definitions, give or take rounding at top-p's and min-p's edge.
fn check_cuts(name: &str, row: &[f32], top_k: usize, top_p: f32, min_p: f32) {
    let sampling = Sampling {
        top_k,
        top_p,
        min_p,
        ..Sampling::default()
    };
    let found = candidates(row, &sampling);
    let within =
        |small: &[Token], large: &[Token]| small.iter().all(|t| large.binary_search(t).is_ok());
    let (least, most) = (left(row, &sampling, -1e-5), left(row, &sampling, 1e-5));
    let case = format!("{name}, top-k {top_k}, top-p {top_p}, min-p {min_p}");
    assert!(
        within(&least, &found),
        "{case}: {} of at least {}",
        found.len(),
        least.len()
    );
    assert!(
        within(&found, &most),
        "{case}: {} of at most {}",
        found.len(),
        most.len()
    );
}

#[test]
fn cuts_are_those_of_the_definitions() {
    let rows = [
        ("peaked", row(1, 5000, 4.0, false)),
        ("flat", row(2, 5000, 0.3, false)),
        ("ties", row(3, 5000, 1.0, true)),
        ("equal", vec![0.25; 777]),
        ("rising", (0..5000).map(|i| i as f32 / 500.0).collect()),
        ("one", vec![-3.0]),
        ("wide", row(4, 130, 30.0, false)),
    ];
    for (name, row) in &rows {
        for top_k in [0, 1, 2, 40, 1500, 4999, 5000, usize::MAX] {
            for top_p in [0.0, 0.1, 0.5, 0.95, 0.9999, 1.0] {
                for min_p in [0.0, 0.05, 1.0] {
                    check_cuts(name, row, top_k, top_p, min_p);
                }
            }
        }
    }
}

#[test]
fn draws_follow_the_tempered_distribution() {
    let row = row(5, 300, 1.5, false);
    for (temperature, top_k) in [(0.5, 0), (1.0, 0), (1.7, 0), (0.8, 7)] {
        let sampling = Sampling {
            temperature,
            top_k,
            seed: 9,
            ..Sampling::default()
        };
        let sampler = Sampler::new(&sampling, &[]);
        let mut scratch = Scratch::default();
        let draws = 200_000;
        let mut counts = HashMap::<Token, f64>::new();
        for position in 0..draws {
            let token = sampler.choose(&row, position, &mut scratch).unwrap();
            *counts.entry(token).or_default() += 1.0;
        }
        let weight = |t: &Token| (row[*t as usize] as f64 / temperature as f64).exp();
        let kept = left(&row, &sampling, 0.0);
        let total: f64 = kept.iter().map(weight).sum();
        let mut chi2 = 0.0;
        for token in &kept {
            let expected = weight(token) / total * draws as f64;
            chi2 += (counts.remove(token).unwrap_or(0.0) - expected).powi(2) / expected;
        }
        let freedom = (kept.len() - 1) as f64;
        assert!(counts.is_empty(), "drew what had been cut: {counts:?}");
        // Five standard deviations of chi-square.
        let most = freedom + 5.0 * (2.0 * freedom).sqrt();
        assert!(
            chi2 < most,
            "temperature {temperature}, top-k {top_k}: {chi2} of {most}"
        );
    }
}

/// The choice for `row` at position 0 after `prompt` and `output`.
fn choice(
    row: &[f32],
    sampling: &Sampling,
    prompt: &[Token],
    output: &[Token],
) -> Result<Token, NotFinite> {
    let mut sampler = Sampler::new(sampling, prompt);
    output.iter().for_each(|t| sampler.accept(*t));
    sampler.choose(row, 0, &mut Scratch::default())
}

#[test]
fn greedy_takes_the_first_of_the_likeliest() {
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    for vocab in [1, 3, 16, 17, 63, 64, 65, 1000] {
        let mut row = row(6, vocab, 1.0, false);
        for at in [vocab - 1, vocab / 2, 0] {
            row[at] = 9.0; // the later ones stay and tie
            assert_eq!(
                choice(&row, &greedy, &[], &[]),
                Ok(at as Token),
                "vocabulary {vocab}"
            );
        }
    }
    for temperature in [-1.0, f32::NAN, 1e-9] {
        let sampling = Sampling {
            temperature,
            ..greedy.clone()
        };
        assert_eq!(
            choice(&[0.0, 2.0, 2.0], &sampling, &[], &[]),
            Ok(1),
            "{temperature}"
        );
    }
}

#[test]
fn penalties_and_bias_are_those_of_the_formulas() {
    type Set = fn(&mut Sampling);
    let row = [2.0, -1.0, 1.5, 0.0];
    // After prompt [0] and output [2, 2, 1].
    let cases: [(&str, Set, [f32; 4]); 8] = [
        ("nothing", |_| {}, [2.0, -1.0, 1.5, 0.0]),
        (
            "repetition",
            |s| s.repetition_penalty = 2.0,
            [1.0, -2.0, 0.75, 0.0],
        ),
        (
            "presence",
            |s| s.presence_penalty = 0.5,
            [2.0, -1.5, 1.0, 0.0],
        ),
        (
            "frequency",
            |s| s.frequency_penalty = 0.5,
            [2.0, -1.5, 0.5, 0.0],
        ),
        (
            "bias",
            |s| s.logit_bias = vec![(3, 7.0), (0, -1.0)],
            [1.0, -1.0, 1.5, 7.0],
        ),
        (
            "bias first",
            |s| (s.logit_bias, s.repetition_penalty) = (vec![(1, 3.0)], 2.0),
            [1.0, 1.0, 0.75, 0.0],
        ),
        (
            "all",
            |s| {
                (
                    s.repetition_penalty,
                    s.presence_penalty,
                    s.frequency_penalty,
                ) = (2.0, 0.25, 0.5)
            },
            [1.0, -2.75, -0.5, 0.0],
        ),
        (
            "out of range",
            |s| s.repetition_penalty = f32::NAN,
            [2.0, -1.0, 1.5, 0.0],
        ),
    ];
    for (name, set, expected) in cases {
        let mut sampling = Sampling::default();
        set(&mut sampling);
        let mut history = History::new(&sampling, &[0]);
        [2, 2, 1].iter().for_each(|t| history.accept(*t));
        let mut adjusted = row;
        history.adjust(&mut adjusted);
        assert_eq!(adjusted, expected, "{name}");
        assert_eq!(history.matters(), adjusted != row, "{name}");
    }
}

#[test]
fn only_finite_rows_are_sampled() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 15, 16, 99] {
            let mut row = row(7, 100, 1.0, false);
            row[at] = bad;
            for temperature in [0.0, 1.0] {
                let sampling = Sampling {
                    temperature,
                    ..Sampling::default()
                };
                assert_eq!(
                    choice(&row, &sampling, &[], &[]),
                    Err(NotFinite),
                    "{bad} at {at}"
                );
            }
        }
    }
}

#[test]
fn no_settings_break_the_choice() {
    let odd = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -1.0,
        0.0,
        1e-40,
        1e-4,
        1.0,
        1e30,
    ];
    let row = row(8, 200, 3.0, true);
    for a in odd {
        for b in odd {
            for (top_k, bias) in [(0, vec![]), (3, vec![(5, a), (999, b), (7, -a)])] {
                let sampling = Sampling {
                    temperature: a,
                    top_p: b,
                    min_p: a,
                    top_k,
                    repetition_penalty: b,
                    presence_penalty: a,
                    frequency_penalty: b,
                    logit_bias: bias,
                    seed: 1,
                };
                let token = choice(&row, &sampling, &[1, 2, 300], &[5, 5]);
                assert!(token.is_ok_and(|t| t < 200), "{sampling:?}: {token:?}");
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    for (name, row) in [
        ("peaked", row(9, 700, 4.0, false)),
        ("ties", row(10, 700, 1.0, true)),
    ] {
        let ranked = ranked(&row);
        for (chosen, top) in [(0, 0), (17, 1), (699, 20), (3, 700), (3, 9999)] {
            let found = logprobs(&row, chosen, top, &mut Scratch::default());
            let near = |a: f32, p: f64| (a as f64 - p.ln()).abs() < 1e-5 * p.ln().abs().max(1.0);
            let of_chosen = ranked.iter().find(|(t, _)| *t == chosen).unwrap().1;
            assert!(near(found.chosen, of_chosen), "{name} {chosen}");
            assert_eq!(found.top.len(), top.min(700), "{name}");
            for ((token, logprob), (expected, p)) in found.top.iter().zip(&ranked) {
                assert_eq!(token, expected, "{name}");
                assert!(near(*logprob, *p), "{name} {token}");
            }
        }
    }
}

#[test]
fn exp_is_accurate() {
    for i in 0..=870_000 {
        let x = -(i as f32) / 10_000.0;
        let (found, exact) = (scan::exp(x) as f64, (x as f64).exp());
        assert!(
            (found / exact - 1.0).abs() < 2.4e-7,
            "e^{x} is {exact}, not {found}"
        );
    }
    assert_eq!(scan::exp(0.0), 1.0);
    assert_eq!(scan::exp(-87.1), 0.0);
    assert_eq!(scan::exp(f32::NEG_INFINITY), 0.0);
}

/// A row's likeliest tokens as a device tells them, with a mass that is off by `error`.
fn likeliest(row: &[f32], count: usize, error: f64) -> (Vec<Token>, Vec<f32>, f64) {
    let ranked = ranked(row).into_iter().take(count);
    let ids: Vec<_> = ranked.map(|(token, _)| token).collect();
    let logits: Vec<_> = ids.iter().map(|id| row[*id as usize]).collect();
    let mass: f64 = row
        .iter()
        .map(|l| (*l as f64 - logits[0] as f64).exp())
        .sum();
    (ids, logits, mass * (1.0 + error))
}

/// Among candidates nothing else is chosen than from the whole row; returns in how many of the draws it could be told.
fn check_among(name: &str, row: &[f32], sampling: &Sampling, count: usize, error: f64) -> usize {
    let sampler = Sampler::new(sampling, &[]);
    let (ids, logits, mass) = likeliest(row, count, error);
    let candidates = Candidates {
        ids: &ids,
        logits: &logits,
        mass,
        vocab: row.len(),
    };
    let mut scratch = Scratch::default();
    let mut told = 0;
    for position in 0..DRAWS as u64 {
        let found = sampler.choose_among(&candidates, position, &mut scratch);
        let expected = sampler.choose(row, position, &mut scratch).unwrap();
        assert!(
            found.is_none_or(|found| found == expected),
            "{name}, {sampling:?}: {found:?} among {count}, not {expected}"
        );
        told += usize::from(found.is_some());
    }
    told
}

const DRAWS: usize = 5;

#[test]
fn a_choice_among_candidates_is_that_of_the_row() {
    let rows = [
        ("peaked", row(11, 5000, 4.0, false)),
        ("flat", row(12, 3001, 0.3, false)),
        ("ties", row(13, 5000, 1.0, true)),
        ("equal", vec![0.25; 777]),
        ("few", row(14, 40, 2.0, true)),
        ("one", vec![-3.0]),
    ];
    for (name, row) in &rows {
        for (i, error) in [-MASS_TOLERANCE, 0.0, MASS_TOLERANCE]
            .into_iter()
            .enumerate()
        {
            for count in [1, 2, 40, 64, 777] {
                for top_k in [0, 1, 40, 41, 1000] {
                    for (top_p, min_p) in SHARES {
                        let sampling = Sampling {
                            temperature: [0.0, 0.8, 1.3][(i + top_k) % 3],
                            top_k,
                            top_p,
                            min_p,
                            seed: count as u64,
                            ..Sampling::default()
                        };
                        let count = count.min(row.len());
                        let told = check_among(name, row, &sampling, count, error);
                        // With the k likeliest there is nothing left to prove.
                        let top = (1..=count).contains(&top_k) && top_k < row.len();
                        let sure = top || sampling.temperature == 0.0;
                        assert!(told == DRAWS || !sure, "{name}, {sampling:?} among {count}");
                    }
                }
            }
        }
    }
}

const SHARES: [(f32, f32); 8] = [
    (1.0, 0.0),
    (1.0, 0.05),
    (0.0, 0.0),
    (0.5, 0.0),
    (0.95, 0.0),
    (0.95, 0.02),
    (0.999_999_9, 0.0),
    (0.3, 0.9),
];

#[test]
fn usual_settings_seldom_need_the_whole_row() {
    // As peaked as language is: the likeliest has half of the mass or so, and the next a quarter of that.
    let language = |seed: u64| {
        let noise = row(100 + seed, 30_000, 0.2, false).into_iter().enumerate();
        let logits =
            noise.map(|(id, noise)| noise - 2.0 * (1.0 + (id * 7919 % 30_000) as f32).ln());
        logits.collect()
    };
    let rows: Vec<Vec<f32>> = (0..100).map(language).collect();
    for (top_k, top_p, min_p, least) in [
        (40, 0.95, 0.0, 1.0),
        (0, 0.95, 0.0, 0.95),
        (0, 1.0, 0.05, 1.0),
    ] {
        let sampling = Sampling {
            top_k,
            top_p,
            min_p,
            ..Sampling::default()
        };
        let told: usize = rows
            .iter()
            .map(|row| check_among("peaked", row, &sampling, 64, 0.0))
            .sum();
        let share = told as f64 / (rows.len() * DRAWS) as f64;
        assert!(share >= least, "{share} with {sampling:?}");
    }
}

#[test]
fn what_is_asked_suffices() {
    type Set = fn(&mut Sampling);
    let check = |set: Set, output: &[Token], candidates: usize, expected: Ask| {
        let mut sampling = Sampling::default();
        set(&mut sampling);
        let mut sampler = Sampler::new(&sampling, &[7]);
        output.iter().for_each(|token| sampler.accept(*token));
        assert_eq!(
            sampler.ask(candidates),
            expected,
            "{sampling:?} of {candidates}"
        );
    };
    check(|s| s.temperature = 0.0, &[], 0, Ask::Greedy);
    check(|s| s.temperature = 0.0, &[], 64, Ask::Greedy);
    check(|_| {}, &[], 64, Ask::Logits);
    check(|s| s.top_k = 64, &[], 64, Ask::Candidates);
    check(|s| s.top_k = 65, &[], 64, Ask::Logits);
    check(|s| s.top_k = 64, &[], 0, Ask::Logits);
    check(|s| s.top_p = 0.9, &[], 64, Ask::Candidates);
    check(|s| s.min_p = 0.1, &[], 64, Ask::Candidates);
    check(|s| s.min_p = 0.1, &[], 0, Ask::Logits);
    // Bias and penalties: of several rows at once the later ones have something to penalise.
    check(
        |s| (s.temperature, s.logit_bias) = (0.0, vec![(3, 1.0)]),
        &[],
        64,
        Ask::Logits,
    );
    check(
        |s| (s.temperature, s.repetition_penalty) = (0.0, 1.1),
        &[],
        64,
        Ask::Logits,
    );
    check(
        |s| (s.top_k, s.presence_penalty) = (5, 1.0),
        &[],
        64,
        Ask::Logits,
    );
    check(
        |s| (s.top_k, s.presence_penalty) = (5, 1.0),
        &[2],
        64,
        Ask::Logits,
    );
}
