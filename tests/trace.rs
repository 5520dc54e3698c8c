//! What a request leaves in the traces. A process of its own, because the cache of trace interests is one a process.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
};

use tidegate::engine::{
    Engine, EngineSettings, Turn,
    executor::{Capacity, Executor, Lane, Progress, Slot, Span},
    request::{Request, Sampling},
};
use tracing_subscriber::fmt::format::FmtSpan;

/// A model of one layer that likes all tokens alike.
struct Indifferent;

impl Executor for Indifferent {
    type Pass = ();
    type Error = Infallible;

    fn capacity(&self) -> Capacity {
        Capacity {
            slots: 1,
            pages: 1,
            rows: 64,
            decode_rows: 64,
            logits_rows: 1,
            layers: 1,
            vocab: 3,
            context: 64,
            slices_ahead: 0,
            lanes_alike: false,
            candidates: 0,
            drafts: 0,
            predicts: false,
            frequent: 0,
        }
    }

    fn reset(&mut self, _: Slot) {}

    fn begin(&mut self, _: Lane, _: &[Span<'_>]) -> Result<(), Infallible> {
        Ok(())
    }

    fn advance(&mut self, (): &mut ()) -> Result<Progress, Infallible> {
        Ok(Progress::Done)
    }

    fn withdraw(&mut self, (): &mut (), _: Slot) {}

    fn finish(&mut self, (): ()) -> Result<(), Infallible> {
        Ok(())
    }

    fn logits(&mut self, _: usize) -> Result<&[f32], Infallible> {
        Ok(&[0.0; 3])
    }
}

/// What is written to it, kept.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_request_leaves_a_trace_without_contents() {
    let paper = Paper::default();
    let writer = paper.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let (mut engine, handle) = Engine::new(Indifferent, &EngineSettings::default()).unwrap();
        let request = Request {
            prompt: [2; 20].into(),
            sampling: Sampling::default(),
            max_tokens: 3,
            stop_tokens: [].into(),
            logprobs: None,
            deadline: None,
            drafts: true,
        };
        let _tokens = handle.submit(request.clone()).unwrap();
        drop(handle.submit(request).unwrap());
        while engine.turn() != Ok(Turn::Idle) {}
    });
    let written = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    let lines = written
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let spans: Vec<_> = lines
        .map(|line: serde_json::Value| line["span"].clone())
        .collect();
    let cancelled = serde_json::json!({
        "name": "sequence", "id": 1, "prompt_tokens": 20, "generated_tokens": 0, "reason": "cancelled",
    });
    let answered = serde_json::json!({
        "name": "sequence", "id": 0, "prompt_tokens": 20, "generated_tokens": 3, "reason": "length",
    });
    assert_eq!(spans, [cancelled, answered], "{written}");
}
