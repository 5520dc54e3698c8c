//! The engine on its own thread: starting, waking, failing and stopping.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use futures::StreamExt;
use tidegate::engine::{
    Engine, EngineSettings, Handle, Health, SettingsError, StartError, StillRunning, Stopper,
    executor::Capacity,
    request::{EngineError, Output, Request, Token},
};

use crate::{
    cases::{CAPACITY, request, settings},
    fake::{Behaviour, Broken, Fake, solo},
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a future comes to, which it must within [`PATIENCE`].
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let patient = async { tokio::time::timeout(PATIENCE, future).await };
    runtime.block_on(patient).expect("the engine sleeps")
}

fn start(behaviour: &Behaviour, settings: EngineSettings) -> (Handle, Stopper) {
    let behaviour = behaviour.clone();
    Engine::start(
        move || Ok::<_, Infallible>(Fake::new(CAPACITY, behaviour)),
        settings,
    )
    .unwrap()
}

/// Reads an answer to its end: the tokens, and the error if that was its end.
fn answer(handle: &Handle, request: Request) -> (Vec<Token>, Option<EngineError>) {
    let mut outputs = handle.submit(request).unwrap();
    let mut tokens = Vec::new();
    while let Some(output) = block_on(outputs.next()) {
        match output {
            Ok(Output::Token { token, .. }) => tokens.push(token),
            Ok(Output::Finished { .. }) => {}
            Err(error) => return (tokens, Some(error)),
        }
    }
    (tokens, None)
}

#[test]
fn answers_are_the_same_for_many_at_once_and_one_after_another() {
    // An outbox of one token: engine and readers put each other to sleep and wake each other all the time.
    let settings = EngineSettings {
        queue: 20,
        outbox_tokens: 1,
        ..settings()
    };
    let (handle, stopper) = start(&Behaviour::default(), settings);
    let requests: Vec<_> = (0..12)
        .map(|i| request(i, 5 + 9 * i as usize, 40))
        .collect();
    let expected: Vec<_> = requests
        .iter()
        .map(|r| solo(r, CAPACITY.context, &Behaviour::default()).0)
        .collect();
    let one_by_one: Vec<_> = requests
        .iter()
        .map(|r| answer(&handle, r.clone()).0)
        .collect();
    let at_once: Vec<_> = thread::scope(|scope| {
        let ask = |r: &Request| {
            let (handle, request) = (handle.clone(), r.clone());
            scope.spawn(move || answer(&handle, request).0)
        };
        let asked: Vec<_> = requests.iter().map(ask).collect();
        asked
            .into_iter()
            .map(|answer| answer.join().unwrap())
            .collect()
    });
    assert_eq!(one_by_one, expected);
    assert_eq!(at_once, expected);
    assert_eq!(stopper.stop(PATIENCE), Ok(()));
}

#[test]
fn a_stop_ends_everything() {
    let (handle, stopper) = start(&Behaviour::default(), settings());
    let mut parked = handle.submit(request(0, 9, 100)).unwrap();
    assert!(block_on(parked.next()).unwrap().is_ok());
    assert_eq!(stopper.stop(PATIENCE), Ok(()));
    let stopped = EngineError::Stopped(None);
    let last = block_on(parked.by_ref().collect::<Vec<_>>()).pop();
    assert_eq!(last, Some(Err(stopped.clone())));
    assert_eq!(block_on(parked.next()), None);
    assert_eq!(handle.submit(request(0, 9, 3)).unwrap_err(), stopped);
    assert_eq!(handle.health(), Health::Stopped { why: None });
    assert_eq!(handle.stats().slots_busy, 0);
}

/// Breaks at a layer after the warm-up; everybody there and everybody later is told `why`.
fn check_broken(behaviour: Behaviour, why: &str) {
    let (handle, stopper) = start(&behaviour, settings());
    let stopped = Some(EngineError::Stopped(Some(why.into())));
    thread::scope(|scope| {
        for i in 0..4 {
            let (handle, stopped) = (&handle, &stopped);
            scope.spawn(move || match handle.submit(request(i, 100, 100)) {
                Ok(outputs) => {
                    let last = block_on(outputs.collect::<Vec<_>>()).pop();
                    assert_eq!(last.unwrap().err(), *stopped);
                }
                Err(error) => assert_eq!(Some(error), *stopped),
            });
        }
    });
    assert_eq!(handle.submit(request(0, 9, 3)).err(), stopped);
    assert_eq!(
        handle.health(),
        Health::Stopped {
            why: Some(why.into())
        }
    );
    assert_eq!(stopper.stop(PATIENCE), Ok(()));
}

#[test]
fn a_broken_executor_ends_everything_and_everybody_is_told_why() {
    // The warm-up takes 2 windows of 5 layers.
    for at in [11, 14, 37, 90] {
        let behaviour = Behaviour {
            fail_at: Some(at),
            ..Behaviour::default()
        };
        check_broken(
            behaviour,
            &format!("the device fell off the bus at layer {at}"),
        );
        let behaviour = Behaviour {
            panic_at: Some(at),
            ..Behaviour::default()
        };
        check_broken(behaviour, "its thread panicked");
    }
}

#[test]
fn an_engine_that_hangs_cannot_hold_up_its_end() {
    let hold = Arc::new(Mutex::new(()));
    let behaviour = Behaviour {
        hold: Some(hold.clone()),
        ..Behaviour::default()
    };
    let (handle, stopper) = start(&behaviour, settings());
    let hung = hold.lock().unwrap();
    let warm = behaviour.calls.advance.load(Relaxed);
    let outputs = handle.submit(request(0, 9, 3)).unwrap();
    while behaviour.calls.advance.load(Relaxed) == warm {
        thread::yield_now();
    }
    assert!(handle.stats().computing);
    let waited = Duration::from_millis(1);
    assert_eq!(stopper.stop(waited), Err(StillRunning { waited }));
    drop(hung);
    let stopped = vec![Err(EngineError::Stopped(None))];
    assert_eq!(block_on(outputs.collect::<Vec<_>>()), stopped);
}

#[test]
fn an_engine_ends_with_its_stopper() {
    let (handle, stopper) = start(&Behaviour::default(), settings());
    let outputs = handle.submit(request(0, 9, 100)).unwrap();
    drop(stopper);
    let last = block_on(outputs.collect::<Vec<_>>()).pop();
    assert_eq!(last, Some(Err(EngineError::Stopped(None))));
}

type Refused = StartError<io::Error, Broken>;

fn check_start(
    build: impl FnOnce() -> io::Result<Fake> + Send + 'static,
    settings: EngineSettings,
    expected: impl FnOnce(&Refused) -> bool,
) {
    let error = Engine::start(build, settings).map(|_| ()).unwrap_err();
    assert!(expected(&error), "{error:?}");
}

#[test]
fn an_engine_that_cannot_work_does_not_start() {
    let fake = |behaviour| move || Ok(Fake::new(CAPACITY, behaviour));
    let good = || fake(Behaviour::default());
    let no_file = || Err(io::Error::from(io::ErrorKind::NotFound));
    check_start(no_file, settings(), |e| matches!(e, StartError::Build(_)));
    check_start(
        || panic!("told to"),
        settings(),
        |e| matches!(e, StartError::Vanished),
    );
    for at in [1, 5, 6, 10] {
        let broken = Behaviour {
            fail_at: Some(at),
            ..Behaviour::default()
        };
        check_start(
            fake(broken),
            settings(),
            |e| matches!(e, StartError::WarmUp(Broken { at: found }) if *found == at),
        );
    }
    let none = EngineSettings {
        outbox_tokens: 0,
        ..settings()
    };
    let too_small = |what: &'static str| move |e: &Refused| matches!(e, StartError::Settings(SettingsError::TooSmall { what: found, got: 0, least: 1 }) if *found == what);
    check_start(good(), none, too_small("outbox_tokens"));
    let no_slots = || {
        Ok(Fake::new(
            Capacity {
                slots: 0,
                ..CAPACITY
            },
            Behaviour::default(),
        ))
    };
    check_start(no_slots, settings(), too_small("the model's slots"));
    let nowhere = EngineSettings {
        step_stats: Some("/nowhere/steps.jsonl".into()),
        ..settings()
    };
    check_start(good(), nowhere, |e| {
        matches!(e, StartError::Settings(SettingsError::StepLog { .. }))
    });
}
