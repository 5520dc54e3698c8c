//! Guesses: the same tokens in fewer windows, and nobody's guesses are another's business.

use std::{path::Path, sync::atomic::Ordering::Relaxed, time::Duration};

use serde_json::Value;
use tidegate::engine::{
    Engine, EngineSettings, Handle, Turn,
    executor::Capacity,
    request::{Output, Request, Sampling, Token},
};

use crate::{
    cases::{CAPACITY, read, request, settings},
    fake::{Behaviour, Fake, solo},
};

const US: Duration = Duration::from_micros(1);

/// Room for guesses of four sequences.
const ROOMY: Capacity = Capacity {
    slots: 4,
    pages: 16,
    logits_rows: 36,
    drafts: 8,
    ..CAPACITY
};

/// What predicts.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    None,
    Whole,
    /// For less, from a shortlist.
    Listing,
}

/// Sequences repeat themselves, and a row costs a tenth of a window.
fn start(settings: &EngineSettings, block: Block) -> (Engine<Fake>, Handle, Behaviour) {
    let behaviour = Behaviour {
        habits: true,
        cost: Some(|work| 90 * US + work.rows as u32 * 10 * US),
        ..Behaviour::default()
    };
    let capacity = Capacity {
        predicts: block != Block::None,
        frequent: match block {
            Block::Listing => 16,
            _ => 0,
        },
        ..ROOMY
    };
    let fake = Fake::new(capacity, behaviour.clone());
    let (engine, handle) = Engine::new(fake, settings).unwrap();
    (engine, handle, behaviour)
}

/// An answer's tokens, how many were guessed, and how many of these were right.
type Told = (Vec<Token>, usize, usize);

/// All of them at once: their tokens and what was guessed and right for each, and the windows that it took.
fn answers(
    settings: &EngineSettings,
    block: Block,
    requests: &[Request],
) -> (Vec<Told>, u64, Behaviour) {
    let (mut engine, handle, behaviour) = start(settings, block);
    engine.warm_up().unwrap(); // what nobody has measured is worth trying, by whoever comes first
    let mut streams: Vec<_> = requests
        .iter()
        .map(|request| handle.submit(request.clone()).unwrap())
        .collect();
    let mut answers = vec![(Vec::new(), 0, 0); requests.len()];
    let mut left = requests.len();
    while left > 0 {
        engine.turn().unwrap();
        for (stream, answer) in streams.iter_mut().zip(&mut answers) {
            for output in read(stream) {
                match output.unwrap() {
                    Output::Token { token, .. } => answer.0.push(token),
                    Output::Finished { timings, .. } => {
                        (answer.1, answer.2) = (timings.drafted_tokens, timings.accepted_tokens);
                        left -= 1;
                    }
                }
            }
        }
    }
    while engine.turn().unwrap() != Turn::Idle {}
    let windows = handle.stats().windows;
    engine.stop(None);
    (answers, windows, behaviour)
}

fn sampled(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.5,
        seed,
        ..Sampling::default()
    }
}

/// A request long enough to repeat itself.
fn long(first: Token) -> Request {
    Request {
        max_tokens: 200,
        ..request(first, 10, 1)
    }
}

fn roomy_settings() -> EngineSettings {
    EngineSettings {
        outbox_tokens: 32,
        ..settings()
    }
}

fn check(block: Block) {
    let settings = roomy_settings();
    let off = EngineSettings {
        drafts: false,
        ..settings.clone()
    };
    for sampling in [
        long(0).sampling,
        sampled(3),
        Sampling {
            frequency_penalty: 0.2,
            ..long(0).sampling
        },
    ] {
        let asked = Request {
            sampling,
            ..long(5)
        };
        let (with, fewer, behaviour) = answers(&settings, block, std::slice::from_ref(&asked));
        let (without, windows, plain) = answers(&off, block, std::slice::from_ref(&asked));
        let refused = Request {
            drafts: false,
            ..asked.clone()
        };
        let (refused, same, warm) = answers(&settings, block, &[refused]);
        let (expected, _) = solo(&asked, ROOMY.context, &behaviour);
        assert_eq!(with[0].0, expected);
        assert_eq!((&without[0], windows), (&(expected.clone(), 0, 0), same));
        assert_eq!(refused, without);
        let (_, drafted, accepted) = with[0];
        assert!(drafted >= accepted && accepted > 0, "{drafted}, {accepted}");
        assert_eq!(
            windows - fewer,
            accepted as u64,
            "a right guess saves a window"
        );
        assert_eq!(plain.calls.cut.load(Relaxed), 0);
        let listed = behaviour.calls.listed.load(Relaxed);
        assert_eq!(listed > 0, block == Block::Listing, "{listed}");
        let cut = behaviour.calls.cut.load(Relaxed) - warm.calls.cut.load(Relaxed);
        assert_eq!(cut, (drafted - accepted) as u64, "beside the warm-up's");
    }
    // mostly right where a sequence mostly repeats itself
    let (greedy, fewer, _) = answers(&settings, block, &[long(0)]);
    assert!(
        greedy[0].2 * 2 > greedy[0].1 && fewer < 140,
        "{fewer} windows"
    );
}

#[test]
fn guesses_save_windows_and_change_no_token() {
    for block in [Block::None, Block::Whole, Block::Listing] {
        check(block);
    }
}

/// The rows that a slot had in every window that it decoded in, as the step log tells.
fn rows_of(path: &Path, slot: u64) -> Vec<u64> {
    let written = std::fs::read_to_string(path).unwrap();
    let lines = written
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decoded = lines.filter(|line| line["prompt_rows"] == 0);
    decoded
        .flat_map(|line| line["by_slot"].as_array().unwrap().clone())
        .filter(|of| of["slot"] == slot)
        .map(|of| of["rows"].as_u64().unwrap())
        .collect()
}

fn check_rows(block: Block) {
    let folder = tempfile::tempdir().unwrap();
    let rows = |name: &str, sampling: Sampling| {
        let path = folder.path().join(name);
        let settings = EngineSettings {
            step_stats: Some(path.clone()),
            ..roomy_settings()
        };
        let mut requests = [0, 7, 13, 29].map(long);
        requests[3].sampling = sampling;
        let (answers, _, behaviour) = answers(&settings, block, &requests);
        for (answer, request) in answers.iter().zip(&requests) {
            assert_eq!(answer.0, solo(request, ROOMY.context, &behaviour).0);
        }
        [0, 1, 2, 3].map(|slot| rows_of(&path, slot))
    };
    let greedy = rows("greedy.jsonl", long(0).sampling);
    let beside = rows("sampled.jsonl", sampled(9));
    // until the first of the four has ended, or what predictions were measured to take begins to tell how many predicted
    let most = if block == Block::Listing { 40 } else { 60 };
    let all = greedy.iter().chain(&beside);
    let both = all.map(Vec::len).min().unwrap().min(most);
    assert!(both > 30, "{both} windows");
    for (greedy, beside) in greedy.iter().zip(&beside).take(3) {
        assert!(greedy.iter().any(|rows| *rows > 1), "{greedy:?}");
        assert_eq!(greedy[..both], beside[..both]);
    }
}

#[test]
fn a_sampled_sequence_changes_nobody_elses_rows() {
    for block in [Block::None, Block::Whole, Block::Listing] {
        check_rows(block);
    }
}
