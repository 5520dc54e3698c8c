//! Eight requests for the bundled model behind a real engine, one after another and all at once.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use crate::reference::tales_file;
use futures::StreamExt;
use tidegate::{
    engine::{
        EngineSettings, Handle, Stopper,
        request::{EngineError, Output, Request, Sampling, Token},
    },
    gguf::Gguf,
    settings::{BackendChoice, CudaSettings, ModelSettings},
};

/// Requests for the bundled model.
pub(crate) fn requests(tokens: usize) -> Vec<Request> {
    requests_among(tokens, 8000)
}

/// Prompts of 1 to 90 tokens, so many of which there are past the first three, greedy and seeded in turn, one of these with top-p alone.
pub(crate) fn requests_among(tokens: usize, vocab: u32) -> Vec<Request> {
    let request = |index: u32| {
        let length = [1, 90, 7, 64, 33, 65, 2, 50][index as usize];
        let sampled = Sampling {
            temperature: 0.9,
            top_p: 0.95,
            repetition_penalty: if index == 3 { 1.0 } else { 1.1 },
            seed: u64::from(index),
            ..Sampling::default()
        };
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        Request {
            prompt: (0..length)
                .map(|at| 3 + (at * 131 + index * 977) % vocab)
                .collect(),
            sampling: if index.is_multiple_of(2) {
                greedy
            } else {
                sampled
            },
            max_tokens: tokens,
            stop_tokens: Arc::from([]),
            logprobs: None,
            deadline: None,
            drafts: true,
        }
    };
    (0..8).map(request).collect()
}

/// The bundled model's file.
pub(crate) fn bundled() -> Arc<Gguf> {
    Arc::new(Gguf::open(tales_file()).expect("the bundled model"))
}

/// Settings for sequences of up to 256 tokens.
pub(crate) fn settings(chunk_rows: usize, threads: Option<usize>, slots: usize) -> ModelSettings {
    ModelSettings {
        backend: BackendChoice::Auto,
        cuda: CudaSettings::default(),
        threads: threads.and_then(NonZeroUsize::new),
        slots,
        context_tokens: Some(256),
        kv: None,
        engine: EngineSettings {
            chunk_rows: Some(chunk_rows),
            ..EngineSettings::default()
        },
        trace: None,
        experts: None,
    }
}

pub(crate) async fn answer(handle: &Handle, request: Request) -> Vec<Token> {
    try_answer(handle, request).await.expect("an answer")
}

pub(crate) async fn try_answer(
    handle: &Handle,
    request: Request,
) -> Result<Vec<Token>, EngineError> {
    let mut tokens = handle.submit(request).expect("a place in the queue");
    let mut out = Vec::new();
    while let Some(output) = tokens.next().await {
        if let Output::Token { token, .. } = output? {
            out.push(token);
        }
    }
    Ok(out)
}

/// Answers one after another, then all at once. Ends the engine.
pub(crate) fn answers(
    (handle, stopper): (Handle, Stopper),
    requests: &[Request],
) -> [Vec<Vec<Token>>; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let both = runtime.block_on(async {
        let mut alone = Vec::new();
        for request in requests {
            alone.push(answer(&handle, request.clone()).await);
        }
        let together = requests
            .iter()
            .map(|request| answer(&handle, request.clone()));
        [alone, futures::future::join_all(together).await]
    });
    drop(handle);
    stopper
        .stop(Duration::from_secs(10))
        .expect("the engine ends");
    both
}
