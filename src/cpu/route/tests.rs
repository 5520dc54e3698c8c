use super::*;
use crate::cpu::test_numbers::{bits, numbers};

const WAYS: [usize; 3] = [1, 2, 3];

fn run(router: &Router<'_>, isa: Isa, workers: usize, logits: &[f32]) -> (Vec<u16>, Vec<f32>) {
    let choices = logits.len() / router.experts * router.top_k;
    let (mut ids, mut weights) = (vec![u16::MAX; choices], vec![f32::NAN; choices]);
    router.run(
        &Pool::unpinned(workers),
        isa,
        &mut logits.to_vec(),
        &mut ids,
        &mut weights,
    );
    (ids, weights)
}

/// Probabilities in f64, a stable sort, and the definition of the weights.
fn reference(router: &Router<'_>, logits: &[f32]) -> Vec<(usize, f64)> {
    let of = |vector: Option<&[f32]>, expert: usize| vector.map(|vector| f64::from(vector[expert]));
    let logits: Vec<f64> = logits
        .iter()
        .enumerate()
        .map(|(expert, x)| f64::from(*x) + of(router.bias, expert).unwrap_or(0.0))
        .collect();
    let softmax = |x: f64, over: &[f64]| x.exp() / over.iter().map(|x| x.exp()).sum::<f64>();
    let probabilities: Vec<f64> = logits
        .iter()
        .map(|x| match router.gating {
            Gating::Softmax => softmax(*x, &logits),
            Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Gating::SoftmaxOfChosen => *x,
            Gating::SqrtSoftplus => x.exp().ln_1p().sqrt(),
        })
        .collect();
    let score =
        |expert: &usize| probabilities[*expert] + of(router.choice_bias, *expert).unwrap_or(0.0);
    let mut order: Vec<usize> = (0..router.experts).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    order.truncate(router.top_k);
    let mut weights: Vec<f64> = order.iter().map(|expert| probabilities[*expert]).collect();
    if router.gating == Gating::SoftmaxOfChosen {
        weights = weights.iter().map(|x| softmax(*x, &weights)).collect();
    } else if router.renormalise {
        let sum = weights.iter().sum::<f64>().max(2f64.powi(-14));
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    let scale =
        |expert: usize| f64::from(router.scale) * of(router.expert_scale, expert).unwrap_or(1.0);
    let weighed = order.into_iter().zip(weights);
    weighed
        .map(|(expert, weight)| (expert, weight * scale(expert)))
        .collect()
}

fn check(router: &Router<'_>, rows: usize) {
    let logits: Vec<f32> = numbers(rows * router.experts, 11)
        .iter()
        .map(|x| x * 3.0)
        .collect();
    let (ids, weights) = run(router, Isa::Portable, 1, &logits);
    for (row, logits) in logits.chunks(router.experts).enumerate() {
        for (rank, (id, weight)) in reference(router, logits).into_iter().enumerate() {
            let at = row * router.top_k + rank;
            assert_eq!(usize::from(ids[at]), id, "{router:?} row {row} rank {rank}");
            assert!(
                (f64::from(weights[at]) - weight).abs() < 2e-6 * weight.abs().max(0.1),
                "{router:?}: {} for {weight}",
                weights[at]
            );
        }
    }
    for isa in Isa::available() {
        for workers in WAYS {
            let (other_ids, other_weights) = run(router, isa, workers, &logits);
            assert_eq!(
                (&other_ids, bits(&other_weights)),
                (&ids, bits(&weights)),
                "{router:?} {isa:?} {workers}"
            );
        }
    }
    // a row alone gives what it gives among others
    let (alone_ids, alone_weights) = run(router, Isa::detect(), 1, &logits[..router.experts]);
    assert_eq!(
        (&alone_ids[..], bits(&alone_weights)),
        (&ids[..router.top_k], bits(&weights[..router.top_k]))
    );
}

#[test]
fn every_gating() {
    for (experts, top_k) in [(8, 2), (60, 4), (128, 8), (512, 10), (5, 5), (1, 1)] {
        let [logit_bias, choice_bias, scales] = [12, 13, 14].map(|seed| numbers(experts, seed));
        for gating in [
            Gating::Softmax,
            Gating::Sigmoid,
            Gating::SoftmaxOfChosen,
            Gating::SqrtSoftplus,
        ] {
            for ([bias, choice_bias, expert_scale], renormalise, scale) in [
                ([None; 3], true, 1.0),
                ([None; 3], false, 2.5),
                ([None, Some(&choice_bias[..]), None], true, 1.5),
                ([Some(&logit_bias[..]), None, None], true, 1.0),
                ([None, None, Some(&scales[..])], true, 1.0),
                (
                    [&logit_bias, &choice_bias, &scales].map(|of| Some(&of[..])),
                    false,
                    2.5,
                ),
            ] {
                check(
                    &Router {
                        experts,
                        top_k,
                        gating,
                        bias,
                        choice_bias,
                        expert_scale,
                        renormalise,
                        scale,
                    },
                    37,
                );
            }
        }
    }
}

#[test]
fn equal_logits_go_to_the_lower_number() {
    let router = Router {
        experts: 6,
        top_k: 3,
        gating: Gating::Softmax,
        bias: None,
        choice_bias: None,
        expert_scale: None,
        renormalise: true,
        scale: 1.0,
    };
    let check = |logits: [f32; 6], want: [u16; 3]| {
        let (ids, weights) = run(&router, Isa::detect(), 1, &logits);
        assert_eq!(ids, want, "{logits:?}");
        weights
    };
    assert_eq!(check([1.0; 6], [0, 1, 2]), [1.0 / 3.0; 3]);
    check([0.0, 2.0, 1.0, 2.0, 1.0, 1.0], [1, 3, 2]);
    check([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [5, 0, 1]);
    // nonsense in, different experts out
    check([f32::NAN; 6], [0, 1, 2]);
    check([f32::NEG_INFINITY; 6], [0, 1, 2]);
    let sigmoid = Router {
        gating: Gating::Sigmoid,
        ..router
    };
    assert_eq!(
        run(
            &sigmoid,
            Isa::detect(),
            1,
            &[0.0, f32::NAN, 1.0, f32::NAN, 3.0, f32::NAN]
        )
        .0,
        [4, 2, 0]
    );
}

#[test]
fn groups_hold_every_place_once() {
    let mut groups = Groups::new(7, 8);
    for (rows, top_k) in [(4, 2), (0, 2), (50, 3), (1, 7)] {
        let ids: Vec<u16> = (0..rows * top_k).map(|at| (at * at % 7) as u16).collect();
        groups.fill(7, &ids);
        let mut seen = vec![false; ids.len()];
        for (expert, places) in groups.iter() {
            assert!(places.is_sorted() && places == groups.of(expert));
            for place in places {
                assert_eq!(usize::from(ids[*place as usize]), expert);
                assert!(!std::mem::replace(&mut seen[*place as usize], true));
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!(
            (groups.starts().len(), groups.places().len()),
            (8, ids.len())
        );
    }
    assert!(Groups::default().iter().next().is_none());
}

#[test]
#[should_panic(expected = "expert 7 of 7")]
fn an_expert_that_is_not_there_is_refused() {
    Groups::default().fill(7, &[0, 7]);
}

#[test]
fn combining_goes_by_rank() {
    for (rows, top_k, width) in [(1, 8, 64), (19, 2, 70), (3, 1, 5)] {
        let (weights, results) = (numbers(rows * top_k, 1), numbers(rows * top_k * width, 2));
        let (shared, gate) = (numbers(rows * width, 3), numbers(rows, 4));
        let plain = SharedExpert {
            results: &shared,
            gate: None,
        };
        let (of, ids) = (
            numbers(4 * width, 5),
            (0..rows * top_k).map(|at| (at % 4) as u16),
        );
        let ids: Vec<u16> = ids.collect();
        let bias = (rows != 3).then_some(ExpertBias { of: &of, ids: &ids });
        for shared in [
            None,
            Some(plain),
            Some(SharedExpert {
                gate: Some(&gate),
                ..plain
            }),
        ] {
            let combine = Combine {
                width,
                top_k,
                weights: &weights,
                results: &results,
                bias,
                shared,
            };
            for isa in Isa::available() {
                for workers in WAYS {
                    let mut out = vec![f32::NAN; rows * width];
                    combine.run(&Pool::unpinned(workers), isa, &mut out);
                    for (at, got) in out.iter().enumerate() {
                        let (row, channel) = (at / width, at % width);
                        let mut want = 0.0f32;
                        for rank in 0..top_k {
                            let place = row * top_k + rank;
                            let mut result = results[place * width + channel];
                            if bias.is_some() {
                                result += of[usize::from(ids[place]) * width + channel];
                            }
                            want = weights[place].mul_add(result, want);
                        }
                        if let Some(shared) = shared {
                            let weight = shared
                                .gate
                                .map_or(1.0, |gate| crate::cpu::math::sigmoid(gate[row]));
                            want = weight.mul_add(shared.results[at], want);
                        }
                        assert_eq!(
                            got.to_bits(),
                            want.to_bits(),
                            "{rows} {top_k} {width} {isa:?} {workers}"
                        );
                    }
                }
            }
        }
    }
}
