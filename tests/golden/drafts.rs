//! Guesses on the real model: predictions against their reference, and answers that are the same with guesses and without.
//!
//! `TIDEGATE_PROMPTS` says how many prompts answers are compared for.

use std::env;

use crate::{
    bare::{Bare, argmax},
    families::every_family,
    follow::STOP,
    guesses::{acceptance, accepted, check_reading, check_writing},
    load::{answers, bundled, settings},
    reference::{Tale, drafted, tales, tales_file, tales_twin, tiny, tiny_file},
};
use std::sync::Arc;
use tidegate::{
    backend::shape::KvType,
    cpu::backend::{Cpu, CpuSettings},
    engine::{
        EngineSettings,
        executor::{Executor, UNLISTED},
        request::{Request, Sampling, Token},
    },
    gguf::Gguf,
    model::start,
    settings::ModelSettings,
};

/// Along the source's own continuations: predictions made as the source made them, and how many of them are the same.
fn predictions(model: &mut Bare, tale: &Tale) -> (usize, usize) {
    let tokens = [&tale.prompt_ids[..], &tale.greedy_ids].concat();
    let (mut same, mut all) = (0, 0);
    let mut at = tale.prompt_ids.len();
    model.rows(0, 0, &tale.prompt_ids);
    for expected in &tale.mtp {
        while at <= expected.position {
            model.rows(0, at, &tokens[at..=at]);
            at += 1;
        }
        assert_eq!(
            (at, tokens[at]),
            (expected.position + 1, expected.next_token)
        );
        let (drafts, _) = model.predict(0, (at, expected.next_token), 1);
        same += usize::from(drafts == [expected.draft]);
        all += 1;
    }
    (same, all)
}

/// Three guesses after the first greedy token.
fn chain(model: &mut Bare, tale: &Tale) -> Vec<(u32, f32)> {
    model.rows(0, 0, &tale.prompt_ids);
    let last = (tale.prompt_ids.len(), tale.greedy_ids[0]);
    let chain = (1..=3).map(|depth| {
        let (drafts, logits) = model.predict(0, last, depth);
        let token = drafts[depth - 1];
        assert_eq!(token, argmax(logits));
        (token, logits[token as usize])
    });
    chain.collect()
}

#[test]
fn float_twin_predicts_as_the_goldens_say() {
    let Some(file) = tales_twin("tales-f32.gguf") else {
        return;
    };
    let mut model = Bare::open(&file, 1, 256, 2, KvType::F32);
    for tale in &tales() {
        let (same, all) = predictions(&mut model, tale);
        assert_eq!(same, all, "{}", tale.prompt);
        for ((token, logit), (expected, value)) in
            chain(&mut model, tale).iter().zip(&tale.mtp_chain.drafts)
        {
            assert_eq!(token, expected, "{}", tale.prompt);
            assert!(
                (logit - value).abs() < 2e-3 * value.abs(),
                "{logit} for {value}"
            );
        }
        for expected in &tale.mtp {
            let known = expected.position + 1;
            let tokens = [&tale.prompt_ids[..], &tale.greedy_ids].concat();
            model.rows(0, 0, &tokens[..known]);
            let (_, logits) = model.predict(0, (known, expected.next_token), 1);
            for (token, value) in &expected.top3 {
                let error = (logits[*token as usize] - value).abs();
                assert!(error < 2e-3 * value.abs().max(1.0), "{error} of {value}");
            }
        }
    }
}

#[test]
fn bundled_file_predicts_much_as_the_goldens_say() {
    let mut model = Bare::open(&tales_file(), 1, 256, 2, KvType::F16);
    let (mut same, mut all) = (0, 0);
    for tale in &tales() {
        let (right, of) = predictions(&mut model, tale);
        (same, all) = (same + right, all + of);
        let first = chain(&mut model, tale)[0].0;
        (same, all) = (
            same + usize::from(first == tale.mtp_chain.drafts[0].0),
            all + 1,
        );
    }
    assert!(same * 100 >= all * 93, "{same} of {all} predictions");
}

/// Acceptance by draft length along the same tokens, beside what the reference finds with the same weights.
#[test]
fn as_many_guesses_are_right_as_the_reference_says() {
    let mut model = Bare::open(&tales_file(), 1, 512, 2, KvType::F16);
    let found = acceptance(&mut model, &drafted(), usize::MAX);
    let [same, all] = found.same;
    assert!(same * 100 >= all * 95, "{same} of {all} first guesses");
    for (ours, theirs) in found.ours.iter().zip(&found.theirs) {
        let share = |[right, all]: [usize; 2]| 100.0 * right as f64 / all as f64;
        let (ours, theirs) = (share(*ours), share(*theirs));
        assert!((ours - theirs).abs() <= 1.0, "{ours} %, not {theirs} %");
    }
}

/// The tokens beside the frequent ones that stood before.
fn own(tokens: &[u32], frequent: usize) -> Vec<u32> {
    let mut own: Vec<u32> = tokens.to_vec();
    own.retain(|token| *token as usize >= frequent);
    own.sort_unstable();
    own.dedup();
    own
}

/// Guesses from a shortlist, along the same tokens: a listed guess stays as it is, and how many fewer are right. In so small a vocabulary the list is half of it, and rare words are
/// missing: 4.6 of 100.
#[test]
fn a_shortlist_costs_few_guesses() {
    let mut model = Bare::open(&tales_file(), 1, 512, 2, KvType::F16);
    let frequent = model.runner.capacity().frequent;
    let mut counts = [[[0; 2]; 3]; 2];
    for expected in &drafted() {
        let tokens = &expected.tokens;
        model.rows(0, 0, &tokens[..expected.first]);
        let mut drafts: [Vec<[u32; 3]>; 2] = Default::default();
        for at in expected.first..tokens.len() - 1 {
            model.rows(0, at, &tokens[at..=at]);
            let own = own(&tokens[..=at + 1], frequent);
            for (drafts, among) in drafts.iter_mut().zip([None, Some(&own[..])]) {
                let after = (0, (at + 1, tokens[at + 1]), among);
                let (mut predicted, _) = model.predictions(&[after], 3);
                drafts.push(predicted.swap_remove(0).try_into().expect("three"));
            }
        }
        let [all, few] = &drafts;
        for (at, (all, few)) in (expected.first..).zip(all.iter().zip(few)) {
            let known = &tokens[..=at + 1];
            if (all[0] as usize) < frequent || known.contains(&all[0]) {
                assert_eq!(few[0], all[0], "a listed guess");
            }
        }
        for (drafts, counts) in drafts.iter().zip(&mut counts) {
            accepted(&expected.greedy, drafts, counts);
        }
    }
    let [whole, listed] = counts
        .map(|counts| counts.map(|[right, all]: [usize; 2]| 100.0 * right as f64 / all as f64));
    println!("whole {whole:.1?} %, among {frequent} and their own {listed:.1?} %");
    for (whole, listed) in whole.iter().zip(listed) {
        assert!(whole - listed <= 5.0, "{listed} %, not {whole} %");
    }
}

/// Listed tokens have the same bits as without a list, whoever else predicts in which way; the others have none.
#[test]
fn listed_logits_are_the_same() {
    let mut model = Bare::open(&tales_file(), 3, 256, 2, KvType::F16);
    let (vocab, frequent) = (model.vocab(), model.runner.capacity().frequent);
    assert_eq!((vocab, frequent), (8192, 4096));
    let tokens: Vec<u32> = (0..40).map(|at| 3 + at * 131 % 8000).collect();
    for slot in 0..3 {
        model.rows(slot, 0, &tokens[slot..]);
    }
    let after = |slot: usize| (tokens.len() - slot, 77 + slot as u32);
    let whole = [0, 1, 2].map(|slot| model.predict(slot, after(slot), 1).1.to_vec());
    // more than a task takes, none in order
    let many: Vec<u32> = (0..101).map(|at| 4096 + at * 977 % 4096).collect();
    for lists in [
        [None, Some(&many[..]), Some(&[8191][..])],
        [Some(&[][..]), None, Some(&many[..])],
        [Some(&many[..]), Some(&many[..40]), Some(&[5000, 4096][..])],
    ] {
        let after = [0, 1, 2].map(|slot| (slot, after(slot), lists[slot]));
        let rows = model.predictions(&after, 1).1.chunks(vocab);
        for ((row, whole), list) in rows.zip(&whole).zip(lists) {
            for (token, (logit, whole)) in row.iter().zip(whole).enumerate() {
                let listed =
                    list.is_none_or(|list| token < frequent || list.contains(&(token as u32)));
                let expected = if listed { *whole } else { UNLISTED };
                assert_eq!(logit.to_bits(), expected.to_bits(), "{token}");
            }
        }
    }
}

#[test]
fn predictions_depend_on_nothing_but_the_tokens() {
    let tokens: Vec<u32> = (0..400).map(|at| 3 + at * 131 % 8000).collect();
    let mut model = Bare::open(&tales_file(), 2, 512, 2, KvType::F16);
    check_reading(&mut model, &tokens);
    // several streams, and an index that takes positions in a second time
    let ids = tiny("qwen4exp-mtp").ids;
    let mut model = Bare::open(
        &tiny_file("qwen4exp-mtp.gguf"),
        2,
        ids.len(),
        2,
        KvType::F32,
    );
    check_reading(&mut model, &ids);
}

#[test]
fn chains_of_guesses_change_no_token() {
    let mut model = Bare::open(&tales_file(), 4, 256, 2, KvType::F16);
    let right = check_writing(&mut model, &tales()[0].prompt_ids, 60);
    assert!(right > 0);
    let prompt = &tiny("qwen4exp-mtp").ids[..70];
    let mut model = Bare::open(&tiny_file("qwen4exp-mtp.gguf"), 4, 192, 2, KvType::F16);
    check_writing(&mut model, prompt, 60);
}

/// Prompts that are copied, repeated, or have nothing to do with what follows.
fn requests(count: usize, vocab: u32) -> Vec<Request> {
    let kinds = [
        Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        Sampling {
            temperature: 0.8,
            ..Sampling::default()
        },
        Sampling {
            temperature: 0.0,
            repetition_penalty: 1.1,
            frequency_penalty: 0.3,
            logit_bias: vec![(5, 1.5)],
            ..Sampling::default()
        },
    ];
    let tales = tales();
    let prompt = |index: usize| -> Vec<Token> {
        let tale = &tales[index % tales.len()];
        let mut prompt = match index / tales.len() % 3 {
            0 => tale.prompt_ids.clone(),
            1 => [&tale.greedy_ids[..], &tale.prompt_ids].concat(),
            _ => [
                &tale.prompt_ids[..],
                &tale.greedy_ids[..20],
                &tale.greedy_ids[..6],
            ]
            .concat(),
        };
        prompt.push(20 + index as u32);
        prompt.iter().map(|token| token % vocab).collect()
    };
    let requests = (0..count).flat_map(|index| {
        let prompt: Arc<[Token]> = prompt(index).into();
        kinds.clone().map(|sampling| Request {
            prompt: prompt.clone(),
            sampling: Sampling {
                seed: index as u64,
                ..sampling
            },
            max_tokens: 40,
            stop_tokens: [STOP].into(),
            logprobs: None,
            deadline: None,
            drafts: true,
        })
    });
    requests.collect()
}

fn on_the_cpu(file: Arc<Gguf>, drafts: bool, requests: &[Request]) -> [Vec<Vec<Token>>; 2] {
    let backend = || Cpu::new(CpuSettings { threads: Some(2) });
    let settings = settings(64, Some(2), 8);
    let settings = ModelSettings {
        engine: EngineSettings {
            drafts,
            queue: 1024,
            ..settings.engine
        },
        ..settings
    };
    let started = start::start(file, backend, &settings).expect("an engine");
    answers(started, requests)
}

/// Eight at once, and alone: the same tokens with guesses as without.
pub(crate) fn check(file: &Arc<Gguf>, prompts: usize, vocab: u32) {
    let requests = requests(prompts, vocab);
    let [expected, together] = on_the_cpu(file.clone(), false, &requests);
    assert_eq!(expected, together);
    let [alone, together] = on_the_cpu(file.clone(), true, &requests);
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(alone[number], expected[number], "{request:?}");
        assert_eq!(together[number], expected[number], "at once: {request:?}");
    }
}

#[test]
fn guesses_change_no_token() {
    let prompts = env::var("TIDEGATE_PROMPTS").map_or(6, |count| count.parse().unwrap());
    check(&bundled(), prompts, 8192);
}

/// Tiny models soon repeat themselves, so that there is much to guess.
fn check_tiny(file: &str, _golden: &str) {
    let file = Gguf::open(tiny_file(file)).expect("fixture");
    check(&Arc::new(file), 2, 96);
}

every_family!(check_tiny);
