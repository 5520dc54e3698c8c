//! Prediction blocks on the device: what they say, and answers that are the same with their guesses and without.

use std::fs;

use crate::{
    bare::{Bare, argmax},
    gpu,
    guesses::{acceptance, check_reading, check_writing},
    load::{answers, bundled, settings},
    reference::{
        TOLERANCE, assert_close, drafted, tales, tales_file, tiny, tiny_file, tiny_predictions,
    },
};
use serde_json::Value;
use tidegate::{
    backend::shape::KvType,
    cuda::Cuda,
    engine::{
        EngineSettings,
        request::{Request, Sampling},
    },
    model::start,
    settings::ModelSettings,
};

/// Logits may differ from the CPU's by this share of the largest: attention adds up in another order.
const CPU_TOLERANCE: f32 = 1e-4;

fn check(name: &str) {
    gpu::shared(|gpu| {
        let (ids, expected) = (tiny(name).ids, tiny_predictions(name));
        let file = tiny_file(&format!("{name}.gguf"));
        let mut model = gpu.bare(&file, 4, 192, KvType::F32);
        let mut cpu = Bare::open(&file, 1, 192, 1, KvType::F32);
        for known in [1, 17, 100, ids.len() - 1] {
            model.rows(1, 0, &ids[..known]);
            cpu.rows(0, 0, &ids[..known]);
            let what = format!("{name} after {known}");
            let last = (known, ids[known]);
            let (_, logits) = model.predict(1, last, 1);
            let theirs = &expected.logits[(known - 1) * expected.vocab..][..expected.vocab];
            assert_close(&what, logits, theirs, expected.vocab, TOLERANCE);
            for depth in [1, 2, 5] {
                let (ours, logits) = model.predict(1, last, depth);
                let (theirs, cpu_logits) = cpu.predict(0, last, depth);
                assert_eq!(ours, theirs, "{what}, {depth} tokens");
                assert_eq!(ours[depth - 1], argmax(logits));
                assert_close(&what, logits, cpu_logits, expected.vocab, CPU_TOLERANCE);
            }
        }
        check_reading(&mut model, &ids);
        check_writing(&mut model, &ids[..70], if gpu.is_slow() { 12 } else { 60 });
    });
}

#[test]
fn glm4moe() {
    check("glm4moe-mtp");
}

#[test]
fn qwen3next() {
    check("qwen3next-mtp");
}

#[test]
fn qwen35moe() {
    check("qwen35moe-mtp");
}

#[test]
fn qwen4exp() {
    check("qwen4exp-mtp");
}

#[test]
fn what_predicts_goes_back() {
    gpu::alone(|gpu| {
        let run = || {
            let mut model = gpu.bare(&tiny_file("qwen35moe-mtp.gguf"), 2, 64, KvType::F16);
            model.rows(0, 0, &[3, 4, 5, 6, 7]);
            model.predict(0, (5, 8), 3);
        };
        run(); // what the driver keeps once it is there
        let before = gpu.in_use();
        run();
        assert_eq!(gpu.in_use(), before);
    });
}

#[test]
fn as_many_guesses_are_right_as_the_reference_says() {
    gpu::shared(|gpu| {
        let mut model = gpu.bare(&tales_file(), 1, 512, KvType::F16);
        let (texts, most) = if gpu.is_slow() {
            (2, 12)
        } else {
            (usize::MAX, usize::MAX)
        };
        let mut expected = drafted();
        expected.truncate(texts);
        let found = acceptance(&mut model, &expected, most);
        let [same, all] = found.same;
        println!(
            "{:?} right, the reference {:?}; {same} of {all} the same",
            found.ours, found.theirs
        );
        assert!(
            found.ours[0][0] > 0 && same * 100 >= all * 90,
            "{same} of {all} first guesses"
        );
        // a point of so few says nothing: there the CPU's are the reference
        let theirs = if gpu.is_slow() {
            let mut cpu = Bare::open(&tales_file(), 1, 512, 2, KvType::F16);
            acceptance(&mut cpu, &expected, most).ours
        } else {
            found.theirs
        };
        for (ours, theirs) in found.ours.iter().zip(&theirs) {
            // in points, or one of few
            let share = |of: &[usize; 2]| 100.0 * of[0] as f64 / of[1].max(1) as f64;
            let most = (100.0 / theirs[1].max(1) as f64).max(1.0);
            let off = (share(ours) - share(theirs)).abs();
            assert!(off <= 1.001 * most, "{ours:?}, not {theirs:?}");
        }
    });
}

#[test]
fn chains_change_no_token() {
    gpu::shared(|gpu| {
        let mut model = gpu.bare(&tales_file(), 4, 256, KvType::F16);
        let most = if gpu.is_slow() { 6 } else { 60 };
        let right = check_writing(&mut model, &tales()[0].prompt_ids, most);
        assert!(right > 0);
    });
}

/// The bundled model behind an engine: the same answers, and some of what its block predicts is right.
#[test]
fn predictions_change_no_answer() {
    gpu::shared(|gpu| {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = if gpu.is_slow() { 14 } else { 80 };
        let request = |index: usize, temperature| Request {
            prompt: tales()[index].prompt_ids.clone().into(),
            sampling: Sampling {
                temperature,
                top_p: 0.9,
                seed: index as u64,
                ..Sampling::default()
            },
            max_tokens: tokens,
            stop_tokens: [].into(),
            logprobs: None,
            deadline: None,
            drafts: true,
        };
        let requests = [request(0, 0.0), request(1, 0.6), request(2, 0.0)];
        let steps = folder.path().join("steps.jsonl");
        let run = |drafts| {
            let settings = settings(128, None, 3);
            let settings = ModelSettings {
                engine: EngineSettings {
                    drafts,
                    step_stats: drafts.then(|| steps.clone()),
                    ..settings.engine
                },
                ..settings
            };
            let started = gpu.load(|device, cuda| {
                start::start(bundled(), move || Cuda::new(device, cuda), &settings)
            });
            answers(started.expect("an engine"), &requests)
        };
        let [expected, _] = run(false);
        let [alone, together] = run(true);
        assert_eq!(alone, expected);
        assert_eq!(together, expected);
        let steps = fs::read_to_string(&steps).expect("steps");
        let (mut made, mut right) = (0, 0);
        for line in steps.lines() {
            let step: Value = serde_json::from_str(line).expect("a step");
            let slots = step["by_slot"].as_array().expect("slots");
            for slot in slots.iter().filter(|of| of["source"] == "prediction") {
                made += slot["drafts"].as_u64().expect("a number");
                right += slot["accepted"].as_u64().expect("a number");
            }
        }
        println!("{right} of {made} predictions were right");
        // where rows are as slow as windows, nothing that is predicted pays
        assert!(gpu.is_slow() || right > 0, "{right} of {made}");
    });
}
