//! The cases that matter, one by one, on one thread.

use futures::{FutureExt, StreamExt};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use tidegate::engine::{
    Engine, EngineSettings, Handle, Health, Tokens, Turn,
    executor::Capacity,
    request::{EngineError, FinishReason, Output, Request, Sampling, Token},
};

use crate::fake::{Behaviour, Cost, End, Fake, VOCAB, solo};

pub(crate) const CAPACITY: Capacity = Capacity {
    slots: 2,
    pages: 8,
    rows: 64,
    decode_rows: 64,
    logits_rows: 4,
    layers: 5,
    vocab: VOCAB,
    context: 256,
    slices_ahead: 0,
    lanes_alike: false,
    candidates: 0,
    drafts: 0,
    predicts: false,
    frequent: 0,
};

pub(crate) fn settings() -> EngineSettings {
    EngineSettings {
        queue: 2,
        chunk_rows: Some(16),
        outbox_tokens: 4,
        ..EngineSettings::default()
    }
}

/// A greedy request; `first` makes prompts differ.
pub(crate) fn request(first: Token, prompt: usize, max_tokens: usize) -> Request {
    Request {
        prompt: (0..prompt as Token)
            .map(|i| (first + i) % VOCAB as Token)
            .collect(),
        sampling: Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        max_tokens,
        stop_tokens: [].into(),
        logprobs: None,
        deadline: None,
        drafts: true,
    }
}

/// An engine whose layers take no time, unless `cost` says otherwise.
pub(crate) fn engine_with(
    capacity: Capacity,
    settings: &EngineSettings,
    cost: Option<Cost>,
) -> (Engine<Fake>, Handle, Behaviour) {
    let behaviour = Behaviour {
        cost,
        ..Behaviour::default()
    };
    let (engine, handle) = Engine::new(Fake::new(capacity, behaviour.clone()), settings).unwrap();
    (engine, handle, behaviour)
}

fn engine(capacity: Capacity, settings: &EngineSettings) -> (Engine<Fake>, Handle, Behaviour) {
    engine_with(capacity, settings, Some(|_| Duration::ZERO))
}

/// Everything that lies in the outbox.
pub(crate) fn read(tokens: &mut Tokens) -> Vec<Result<Output, EngineError>> {
    std::iter::from_fn(|| tokens.next().now_or_never().flatten()).collect()
}

pub(crate) fn run_until_idle(engine: &mut Engine<Fake>) {
    while engine.turn().unwrap() != Turn::Idle {}
}

/// Takes turns and reads until the sequence has ended.
fn read_to_end(engine: &mut Engine<Fake>, tokens: &mut Tokens) -> (Vec<Token>, FinishReason) {
    let mut found = Vec::new();
    loop {
        run_until_idle(engine);
        for output in read(tokens) {
            match output.unwrap() {
                Output::Token { token, .. } => found.push(token),
                Output::Finished { reason, .. } => return (found, reason),
            }
        }
    }
}

#[test]
fn a_cancel_is_seen_at_the_next_layer() {
    for turns in 1..=7 {
        let (mut engine, handle, behaviour) = engine(CAPACITY, &settings());
        let tokens = handle.submit(request(0, 40, 5)).unwrap();
        for _ in 0..turns {
            assert_eq!(engine.turn(), Ok(Turn::Busy));
        }
        let layers = behaviour.calls.advance.load(Relaxed);
        drop(tokens);
        run_until_idle(&mut engine);
        assert_eq!(
            behaviour.calls.advance.load(Relaxed),
            layers,
            "after {turns} turns"
        );
        assert_eq!(
            (handle.stats().slots_busy, handle.stats().pages_used),
            (0, 0)
        );
        // The slot is as good as new.
        let next = request(7, 20, 5);
        let expected = solo(&next, CAPACITY.context, &Behaviour::default());
        let mut tokens = handle.submit(next).unwrap();
        let (found, reason) = read_to_end(&mut engine, &mut tokens);
        assert_eq!(
            (found, End::Finished(reason)),
            expected,
            "after {turns} turns"
        );
    }
}

#[test]
fn a_cancel_leaves_others_in_the_window_alone() {
    let (mut engine, handle, _) = engine(CAPACITY, &settings());
    let staying = request(3, 5, 6);
    let mut stays = handle.submit(staying.clone()).unwrap();
    let leaves = handle.submit(request(0, 40, 5)).unwrap();
    for _ in 0..3 {
        engine.turn().unwrap();
    }
    drop(leaves);
    // one more layer, and the other's slot and pages are free while the window goes on
    let pages = handle.stats().pages_used;
    engine.turn().unwrap();
    assert_eq!(handle.stats().slots_busy, 1);
    assert!(handle.stats().pages_used < pages);
    let (found, reason) = read_to_end(&mut engine, &mut stays);
    assert_eq!(
        (found, End::Finished(reason)),
        solo(&staying, CAPACITY.context, &Behaviour::default())
    );
    assert_eq!(
        (handle.stats().slots_busy, handle.stats().pages_used),
        (0, 0)
    );
}

/// Of three sequences in a window the second is cancelled, and while its rows are withdrawn the first: the third gets its own tokens.
#[test]
fn a_cancel_at_any_moment_leaves_others_alone() {
    let capacity = Capacity {
        slots: 3,
        pages: 12,
        ..CAPACITY
    };
    for turns in 1..=20 {
        let (mut engine, handle, behaviour) = engine(capacity, &settings());
        let submit = |request: &Request| handle.submit(request.clone()).unwrap();
        let (first, second) = (request(0, 5, 6), request(11, 20, 6));
        let third = request(3, 9, 6);
        let (first, second, mut stays) = (submit(&first), submit(&second), submit(&third));
        for _ in 0..turns {
            assert_eq!(engine.turn(), Ok(Turn::Busy));
        }
        behaviour.leave_at_withdraw.lock().unwrap().push(first);
        drop(second);
        engine.turn().unwrap();
        behaviour.leave_at_withdraw.lock().unwrap().clear();
        // whoever comes next must not meet rows of those who have gone
        let next = request(7, 20, 5);
        let mut comes = submit(&next);
        for (request, tokens) in [(third, &mut stays), (next, &mut comes)] {
            let (found, reason) = read_to_end(&mut engine, tokens);
            let expected = solo(&request, capacity.context, &behaviour);
            assert_eq!((found, End::Finished(reason)), expected, "{turns} turns");
        }
        assert_eq!(handle.stats().slots_busy, 0);
    }
}

#[test]
fn a_queued_request_that_is_cancelled_never_starts() {
    let (mut engine, handle, behaviour) = engine(
        Capacity {
            slots: 1,
            ..CAPACITY
        },
        &settings(),
    );
    let mut first = handle.submit(request(0, 9, 3)).unwrap();
    let second = handle.submit(request(1, 9, 3)).unwrap();
    let mut third = handle.submit(request(2, 9, 3)).unwrap();
    assert!(matches!(
        handle.submit(request(3, 9, 3)),
        Err(EngineError::QueueFull {
            queued: 2,
            limit: 2,
            ..
        })
    ));
    engine.turn().unwrap();
    assert_eq!(handle.stats().queued, 2);
    drop(second);
    engine.turn().unwrap();
    // Its place is free while the first is still being computed.
    assert_eq!(handle.stats().queued, 1);
    let mut fourth = handle.submit(request(3, 9, 3)).unwrap();
    for tokens in [&mut first, &mut third, &mut fourth] {
        read_to_end(&mut engine, tokens);
    }
    assert_eq!(behaviour.calls.started.load(Relaxed), 3);
}

#[test]
fn a_reader_who_stops_parks_his_own_sequence_and_no_other() {
    let (mut engine, handle, _) = engine(CAPACITY, &settings());
    let mut slow = handle.submit(request(0, 9, 30)).unwrap();
    let mut quick = handle.submit(request(1, 9, 30)).unwrap();
    let (found, _) = read_to_end(&mut engine, &mut quick);
    assert_eq!(found.len(), 30);
    let stats = handle.stats();
    assert_eq!(
        (stats.slots_busy, stats.sequences[0].generated),
        (1, 4),
        "as many as it has credits"
    );
    assert_eq!(
        (engine.turn(), handle.health()),
        (Ok(Turn::Idle), Health::Idle)
    );
    let (found, _) = read_to_end(&mut engine, &mut slow);
    assert_eq!(
        found,
        solo(&request(0, 9, 30), CAPACITY.context, &Behaviour::default()).0
    );
}

#[test]
fn a_request_that_does_not_fit_waits_in_its_place() {
    // 8 pages of 64: the first takes 3 and the second needs 6.
    let (mut engine, handle, _) = engine(
        Capacity {
            slots: 4,
            context: 512,
            ..CAPACITY
        },
        &settings(),
    );
    let mut first = handle.submit(request(0, 100, 92)).unwrap();
    let mut second = handle.submit(request(1, 300, 60)).unwrap();
    let mut third = handle.submit(request(2, 9, 3)).unwrap(); // would fit, but came later
    engine.turn().unwrap();
    let stats = handle.stats();
    assert_eq!(
        (stats.slots_busy, stats.queued, stats.pages_used),
        (1, 2, 3)
    );
    read_to_end(&mut engine, &mut first);
    let stats = handle.stats();
    assert_eq!(
        (stats.slots_busy, stats.queued, stats.pages_used),
        (1, 0, 6)
    );
    assert_eq!(read_to_end(&mut engine, &mut second).0.len(), 60);
    assert_eq!(read_to_end(&mut engine, &mut third).0.len(), 3);
}

#[test]
fn what_can_never_be_served_is_refused() {
    let check = |request: Request, expected: EngineError| {
        let (_engine, handle, _) = engine(CAPACITY, &settings());
        assert_eq!(handle.submit(request).unwrap_err(), expected);
    };
    let too_long = |prompt_tokens| EngineError::PromptTooLong {
        prompt_tokens,
        context_tokens: 256,
    };
    let unknown = EngineError::UnknownToken {
        token: 48,
        vocab: 48,
    };
    check(request(0, 0, 5), EngineError::EmptyPrompt);
    check(request(0, 5, 0), EngineError::NothingToGenerate);
    check(request(0, 256, 5), too_long(256));
    check(request(0, 9999, 5), too_long(9999));
    check(
        Request {
            prompt: [0, 48].into(),
            ..request(0, 5, 5)
        },
        unknown.clone(),
    );
    let sampling = Sampling {
        logit_bias: vec![(3, 1.0), (48, 1.0)],
        ..Sampling::default()
    };
    check(
        Request {
            sampling,
            ..request(0, 5, 5)
        },
        unknown,
    );
}

#[test]
fn the_context_ends_a_sequence_as_length() {
    let (mut engine, handle, _) = engine(CAPACITY, &settings());
    assert_eq!(handle.context(), 256);
    let mut tokens = handle.submit(request(0, 255, usize::MAX)).unwrap();
    let (found, reason) = read_to_end(&mut engine, &mut tokens);
    assert_eq!((found.len(), reason), (1, FinishReason::Length));
    // No more pages than the context: then the pages are the context.
    let (_engine, handle, _) = self::engine(
        Capacity {
            pages: 2,
            ..CAPACITY
        },
        &settings(),
    );
    assert_eq!(handle.context(), 128);
}

/// The executor looks that it is told before a window begins, in order, and the truth.
#[test]
fn prompts_are_told_ahead_and_once() {
    let (mut engine, handle, behaviour) = engine(CAPACITY, &settings());
    let prompts = [3, 100, 200];
    let tokens: Vec<_> = prompts
        .map(|prompt| handle.submit(request(0, prompt, 2)).unwrap())
        .into();
    run_until_idle(&mut engine);
    let told = behaviour.calls.told.load(Relaxed);
    assert_eq!(told, prompts.iter().sum::<usize>() as u64);
    drop(tokens);
}

#[test]
fn log_probabilities_come_with_their_token() {
    let (mut engine, handle, _) = engine(CAPACITY, &settings());
    let mut tokens = handle
        .submit(Request {
            logprobs: Some(3),
            ..request(0, 5, 4)
        })
        .unwrap();
    run_until_idle(&mut engine);
    let outputs = read(&mut tokens);
    assert_eq!(outputs.len(), 5);
    for output in &outputs[..4] {
        let Ok(Output::Token {
            token,
            logprobs: Some(logprobs),
        }) = output
        else {
            panic!("{output:?}");
        };
        // Greedy: the token is the likeliest.
        assert_eq!(
            (logprobs.top.len(), logprobs.top[0]),
            (3, (*token, logprobs.chosen))
        );
    }
}

#[test]
fn timings_add_up() {
    let (mut engine, handle, _) = engine_with(CAPACITY, &settings(), None);
    let submitted = Instant::now();
    let mut tokens = handle.submit(request(0, 30, 4)).unwrap();
    run_until_idle(&mut engine);
    let elapsed = submitted.elapsed();
    let Some(Ok(Output::Finished { timings, .. })) = read(&mut tokens).pop() else {
        panic!("no end");
    };
    assert_eq!((timings.prompt_tokens, timings.generated_tokens), (30, 4));
    for part in [timings.queued, timings.prefill, timings.decode] {
        assert!(part > Duration::ZERO, "{timings:?}");
    }
    assert!(
        timings.queued + timings.prefill + timings.decode <= elapsed,
        "{timings:?}"
    );
}

#[test]
fn the_watchdog_looks_at_progress_while_there_is_work() {
    let settings = EngineSettings {
        stuck_after: Duration::ZERO,
        ..settings()
    };
    let (mut engine, handle, _) = engine(CAPACITY, &settings);
    assert_eq!(handle.health(), Health::Idle);
    let _tokens = handle.submit(request(0, 30, 4)).unwrap();
    engine.turn().unwrap();
    assert!(matches!(handle.health(), Health::Stuck { silent } if silent > Duration::ZERO));
    run_until_idle(&mut engine);
    assert_eq!(handle.health(), Health::Idle);
    engine.stop(None);
    assert_eq!(handle.health(), Health::Stopped { why: None });
}

#[test]
fn every_window_is_a_line_of_the_step_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.jsonl");
    let settings = EngineSettings {
        step_stats: Some(path.clone()),
        ..settings()
    };
    let (mut engine, handle, _) = engine(CAPACITY, &settings);
    let mut first = handle.submit(request(0, 12, 3)).unwrap();
    let mut second = handle.submit(request(1, 40, 5)).unwrap();
    read_to_end(&mut engine, &mut first);
    read_to_end(&mut engine, &mut second);
    let stats = handle.stats();
    engine.stop(None); // and so the log is complete
    let written = std::fs::read_to_string(path).unwrap();
    let lines: Vec<serde_json::Value> = written
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let sum = |key: &str| {
        lines
            .iter()
            .map(|line| line[key].as_u64().unwrap())
            .sum::<u64>()
    };
    // Each token but a sequence's last is a decode row.
    assert_eq!((sum("prompt_rows"), sum("decode_rows")), (52, 2 + 4));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (52, 8));
    assert_eq!((sum("rows"), lines.len() as u64), (58, stats.windows));
    let kinds: Vec<_> = lines
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "prefill", "prefill", "mixed", "mixed", "decode", "decode", "decode", "decode"
        ]
    );
    assert!(
        lines
            .iter()
            .all(|line| line["ms"].as_f64() >= line["ms_parts"]["compute"].as_f64())
    );
}

#[test]
fn metrics_count_what_happened() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let (mut engine, handle, _) = engine(CAPACITY, &settings());
        let mut tokens = handle.submit(request(0, 20, 3)).unwrap();
        let cancelled = handle.submit(request(1, 20, 3)).unwrap();
        drop(cancelled);
        read_to_end(&mut engine, &mut tokens);
    });
    let page = page.render();
    for line in [
        "tidegate_prompt_tokens_total 20",
        "tidegate_generated_tokens_total 3",
        "tidegate_sequences_total{reason=\"length\"} 1",
        "tidegate_sequences_total{reason=\"cancelled\"} 1",
        "tidegate_ttft_seconds_count 1",
        "tidegate_itl_seconds_count 2",
        "tidegate_window_seconds_count{kind=\"prefill\"} 2",
        "tidegate_window_seconds_count{kind=\"decode\"} 2",
        "tidegate_slots 2",
        "tidegate_slots_busy 0",
        "tidegate_kv_pages 8",
        "tidegate_kv_pages_used 0",
        "tidegate_queued 0",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no {line} in\n{page}"
        );
    }
}

const MS: Duration = Duration::from_millis(1);

/// An engine whose layers take a millisecond, with room for one sequence that gets ahead of its reader by four tokens.
fn slow_engine(idle_timeout: Duration) -> (Engine<Fake>, Handle, Behaviour) {
    let capacity = Capacity {
        slots: 1,
        ..CAPACITY
    };
    let settings = EngineSettings {
        idle_timeout,
        ..settings()
    };
    engine_with(capacity, &settings, Some(|_| MS))
}

fn pass(behaviour: &Behaviour, time: Duration) {
    let clock = &behaviour.calls.clock;
    clock.fetch_add(time.as_nanos() as u64, Relaxed);
}

#[test]
fn a_late_answer_ends_whether_it_waits_or_runs() {
    let (mut engine, handle, behaviour) = slow_engine(Duration::MAX);
    let due = |ms: u32, max_tokens| Request {
        deadline: Some(ms * MS),
        ..request(1, 10, max_tokens)
    };
    let mut runs = handle.submit(due(33, 100)).unwrap();
    let mut waits = handle.submit(due(20, 100)).unwrap();
    let mut comes_in_time = handle.submit(due(1000, 2)).unwrap();
    let place = waits.queue_place();
    engine.turn().unwrap();
    assert_eq!(*place.borrow(), 1);
    assert_eq!(*comes_in_time.queue_place().borrow(), 2);
    let (mut before, mut first_out) = (Vec::new(), None);
    while !matches!(before.last(), Some(Err(_))) {
        engine.turn().unwrap();
        before.extend(read(&mut runs));
        if let Some(output) = read(&mut waits).pop() {
            first_out = Some((output, behaviour.calls.clock.load(Relaxed)));
        }
    }
    let late = |ms: u32| Err(EngineError::DeadlineExceeded { after: ms * MS });
    let at = |ms: u64| ms * 1_000_000;
    assert_eq!(first_out, Some((late(20), at(20))));
    // five layers a window: the prompt's, then five tokens' and three layers of the next
    assert_eq!((before.len(), before.pop()), (7, Some(late(33))));
    assert_eq!(behaviour.calls.clock.load(Relaxed), at(33));
    assert!(before.iter().all(Result::is_ok));
    let (found, _) = read_to_end(&mut engine, &mut comes_in_time);
    assert_eq!(
        found,
        solo(&request(1, 10, 2), 256, &Behaviour::default()).0
    );
    let stats = handle.stats();
    assert_eq!(
        (stats.slots_busy, stats.pages_used, stats.queued),
        (0, 0, 0)
    );
}

#[test]
fn an_idle_reader_loses_his_place_and_a_slow_one_does_not() {
    let (mut engine, handle, behaviour) = slow_engine(100 * MS);
    let mut reader = handle.submit(request(1, 10, 40)).unwrap();
    let mut next = handle.submit(request(2, 10, 3)).unwrap();
    let mut got = 0;
    for _ in 0..10 {
        run_until_idle(&mut engine);
        assert!(handle.stats().sequences[0].parked);
        pass(&behaviour, 99 * MS);
        // one token is enough, at the last moment
        assert!(matches!(
            reader.next().now_or_never(),
            Some(Some(Ok(Output::Token { .. })))
        ));
        got += 1;
    }
    // what its reader has kept it waiting is no pause
    let worst = handle.stats().sequences[0].worst_gap;
    assert_eq!(worst, CAPACITY.layers as u32 * MS);
    run_until_idle(&mut engine);
    pass(&behaviour, 100 * MS);
    engine.turn().unwrap();
    let rest = read(&mut reader);
    let idle = EngineError::ReaderIdle { after: 100 * MS };
    assert_eq!((rest.len(), rest.last()), (5, Some(&Err(idle))));
    assert_eq!(got + rest.len() - 1, 14);
    let (found, _) = read_to_end(&mut engine, &mut next);
    assert_eq!(found.len(), 3);
}

#[test]
fn whoever_finds_the_queue_full_learns_when_a_slot_frees() {
    let (mut engine, handle, _) = slow_engine(Duration::MAX);
    let hint = || {
        let held: Vec<_> = (0..3)
            .map(|i| handle.submit(request(i, 10, 2)).unwrap())
            .collect();
        match handle.submit(request(9, 10, 2)) {
            Err(EngineError::QueueFull { retry_after, .. }) => (held, retry_after),
            other => panic!("{other:?}"),
        }
    };
    let (held, before) = hint();
    assert_eq!(before, Duration::from_secs(1), "nothing is known yet");
    drop(held);
    run_until_idle(&mut engine);
    let mut long = handle.submit(request(1, 10, 230)).unwrap();
    read_to_end(&mut engine, &mut long);
    let (_held, after) = hint();
    // 230 windows of 5 ms
    assert!(after > Duration::from_millis(1100), "{after:?}");
}
