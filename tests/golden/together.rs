//! Same tokens whatever the load: the bundled model behind the real engine, eight requests one after another and all at once, for several
//! chunk sizes and numbers of threads.

use std::{num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use futures::StreamExt;
use tidegate::{
    cpu::backend::{Cpu, CpuSettings},
    engine::{
        EngineSettings, Handle,
        request::{Output, Request, Sampling, Token},
    },
    gguf::Gguf,
    model::start,
    settings::ModelSettings,
};

const TOKENS: usize = 40;

/// Eight requests with prompts of 1 to 90 tokens, greedy and seeded in turn.
fn requests() -> Vec<Request> {
    let request = |index: u32| {
        let length = [1, 90, 7, 64, 33, 65, 2, 50][index as usize];
        let sampled = Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repetition_penalty: 1.1,
            seed: u64::from(index),
            ..Sampling::default()
        };
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        Request {
            prompt: (0..length)
                .map(|at| 3 + (at * 131 + index * 977) % 8000)
                .collect(),
            sampling: if index.is_multiple_of(2) {
                greedy
            } else {
                sampled
            },
            max_tokens: TOKENS,
            stop_tokens: Arc::from([]),
            logprobs: None,
        }
    };
    (0..8).map(request).collect()
}

async fn answer(handle: &Handle, request: Request) -> Vec<Token> {
    let mut tokens = handle.submit(request).expect("a place in the queue");
    let mut out = Vec::new();
    while let Some(output) = tokens.next().await {
        if let Output::Token { token, .. } = output.expect("an answer") {
            out.push(token);
        }
    }
    out
}

/// Answers one after another, then all at once.
fn answers(chunk_rows: usize, threads: usize, slots: usize) -> [Vec<Vec<Token>>; 2] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tales/tales.gguf");
    let file = Arc::new(Gguf::open(file).expect("the bundled model"));
    let settings = ModelSettings {
        threads: NonZeroUsize::new(threads),
        slots,
        context_tokens: Some(256),
        kv: None,
        engine: EngineSettings {
            chunk_rows,
            ..EngineSettings::default()
        },
    };
    let backend = move || {
        Cpu::new(CpuSettings {
            threads: Some(threads),
        })
    };
    let (handle, stopper) = start::start(file, backend, &settings).expect("an engine");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let both = runtime.block_on(async {
        let mut alone = Vec::new();
        for request in requests() {
            alone.push(answer(&handle, request).await);
        }
        let together = futures::future::join_all(
            requests()
                .into_iter()
                .map(|request| answer(&handle, request)),
        )
        .await;
        [alone, together]
    });
    drop(handle);
    stopper
        .stop(Duration::from_secs(10))
        .expect("the engine ends");
    both
}

#[test]
fn eight_at_once_get_what_each_gets_alone() {
    let [expected, together] = answers(128, 1, 8);
    assert!(expected.iter().all(|tokens| tokens.len() == TOKENS));
    assert_eq!(together, expected);
    for (chunk_rows, threads, slots) in [(1, 2, 8), (17, 3, 3), (64, 2, 8), (200, 2, 5)] {
        let [alone, together] = answers(chunk_rows, threads, slots);
        assert_eq!(alone, expected, "chunks of {chunk_rows}, {threads} threads");
        assert_eq!(
            together, expected,
            "{slots} at once, chunks of {chunk_rows}, {threads} threads"
        );
    }
}
