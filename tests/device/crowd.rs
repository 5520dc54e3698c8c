//! Clients who come at random and of whom a third leave in the middle: the others get what each gets alone, and nothing is left of any of them.
//!
//! For a few seconds, or for `TIDEGATE_CROWD_SECONDS`.

use std::time::{Duration, Instant};

use crate::{
    dice::Dice,
    gpu::{self, Gpu},
    load::{answer, bundled, requests, settings},
};
use futures::StreamExt;
use tidegate::{
    cuda::Cuda,
    engine::{
        Handle, Stopper,
        request::{Output, Request, Token},
    },
    model::start,
    settings::ModelSettings,
};

/// What clients ask: short prompts, and some that are read in many chunks.
fn questions(gpu: &Gpu) -> Vec<Request> {
    let tokens = if gpu.is_slow() { 3 } else { 60 };
    let mut questions = requests(tokens);
    if gpu.is_slow() {
        questions.truncate(4);
        questions.remove(1); // the long one
        return questions;
    }
    for (question, length) in questions.iter_mut().zip([1, 90, 700, 64, 1500]) {
        question.prompt = (0..length).map(|at| 3 + at * 131 % 8000).collect();
    }
    questions
}

fn seconds(gpu: &Gpu) -> Duration {
    let asked = std::env::var("TIDEGATE_CROWD_SECONDS").ok();
    let asked = asked.map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(asked.unwrap_or(if gpu.is_slow() { 0 } else { 3 }))
}

/// What is allocated while an engine runs; not what the driver takes for graphs, of which more are recorded as windows of other sizes come.
fn bytes(gpu: &Gpu) -> Vec<(&'static str, i64)> {
    let mut in_use = gpu.in_use();
    in_use.retain(|(name, _)| name.ends_with("_bytes"));
    in_use
}

/// Answers that were read to the end, and others.
#[derive(Debug, Default)]
struct Count {
    whole: usize,
    left: usize,
}

/// One client, who asks at least once and until `end`.
async fn client(
    handle: &Handle,
    mut dice: Dice,
    questions: &[(Request, Vec<Token>)],
    end: Instant,
) -> Count {
    let mut count = Count::default();
    loop {
        let (question, expected) = &questions[dice.below(questions.len())];
        let leaves = dice.once_in(3);
        let patience = dice.below(expected.len());
        let mut tokens = handle
            .submit(question.clone())
            .expect("a place in the queue");
        let mut read = Vec::new();
        while !leaves || read.len() < patience {
            match tokens.next().await {
                Some(Ok(Output::Token { token, .. })) => read.push(token),
                Some(Ok(Output::Finished { .. })) | None => break,
                Some(Err(error)) => panic!("{error}"),
            }
        }
        if leaves {
            assert_eq!(read, expected[..patience]);
            count.left += 1;
        } else {
            assert_eq!(&read, expected);
            count.whole += 1;
        }
        drop(tokens);
        if Instant::now() >= end {
            return count;
        }
    }
}

#[test]
fn who_comes_and_goes_leaves_nothing() {
    gpu::alone(|gpu| {
        // more clients than slots
        let (clients, slots) = if gpu.is_slow() { (3, 2) } else { (12, 8) };
        let start = || {
            let settings = ModelSettings {
                context_tokens: Some(2048),
                ..settings(128, None, slots)
            };
            let started = gpu.load(|device, cuda| {
                start::start(bundled(), move || Cuda::new(device, cuda), &settings)
            });
            started.expect("an engine")
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let stop = |(handle, stopper): (Handle, Stopper)| {
            drop(handle);
            stopper
                .stop(Duration::from_secs(10))
                .expect("the engine ends");
        };
        stop(start()); // what the driver keeps once it is there
        let without = gpu.in_use();
        let (handle, stopper) = start();
        let count = runtime.block_on(async {
            let mut questions: Vec<_> = questions(gpu).into_iter().map(|q| (q, vec![])).collect();
            for (question, expected) in &mut questions {
                *expected = answer(&handle, question.clone()).await;
                assert_eq!(expected.len(), question.max_tokens);
            }
            let before = bytes(gpu);
            let end = Instant::now() + seconds(gpu);
            let clients = (0..clients).map(|seed| client(&handle, Dice(seed), &questions, end));
            let counts = futures::future::join_all(clients).await;
            // who left last is noticed between two layers
            while handle.stats().slots_busy > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(handle.stats().pages_used, 0);
            assert_eq!(bytes(gpu), before);
            counts.into_iter().fold(Count::default(), |a, b| Count {
                whole: a.whole + b.whole,
                left: a.left + b.left,
            })
        });
        stop((handle, stopper));
        assert_eq!(gpu.in_use(), without);
        println!("{count:?}");
    });
}
