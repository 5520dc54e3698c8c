//! The running answers of one request, as one stream of events with the request's numbers beside it.

use std::{pin::Pin, sync::Arc};

use futures::{
    Stream, StreamExt, future,
    stream::{BoxStream, SelectAll},
};
use tokio::sync::watch;
use tracing::{Span, info};

use super::{app::App, error::ApiError, format::reason_name, metrics::Meter, usage::Usage};
use crate::{
    engine::request::EngineError,
    expression,
    stage::{admit::Admitted, reason::Markup, text::TextEvent},
};

/// An event and the index of the choice that it belongs to.
type Indexed = (usize, Result<TextEvent, EngineError>);

/// The answers to one request. Dropping this cancels those that still run.
pub struct Answers {
    running: SelectAll<BoxStream<'static, Indexed>>,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    unfinished: usize,
    /// Of the first answer, which the client sees first.
    queue_place: Option<watch::Receiver<usize>>,
    usage: Usage,
    meter: Meter,
    span: Span,
}

/// What happens to a request's answers.
pub enum Happening {
    /// An event of the choice with this index.
    Event(usize, TextEvent),
    /// The first answer's new place in the queue, counted from 1; 0 once it waits no longer.
    QueuePlace(usize),
}

impl Answers {
    /// Runs the second half of the request expression for every admitted answer. `choices` of them share a prompt; `markup` says what of them is reasoning.
    pub fn new(
        app: &App,
        admitted: Vec<Admitted>,
        choices: usize,
        (stops, markup): (&[String], Markup),
        mut meter: Meter,
    ) -> Self {
        let prompts = admitted.iter().step_by(choices.max(1));
        let usage = Usage::new(prompts.map(|admitted| admitted.prompt().len()).sum());
        meter.admitted(usage.prompt_tokens);
        let span = Span::current();
        span.record("prompt_tokens", usage.prompt_tokens);
        Self {
            unfinished: admitted.len(),
            queue_place: admitted.first().map(Admitted::queue_place),
            running: admitted
                .into_iter()
                .enumerate()
                .map(|(index, admitted)| run(app, stops, markup, index, admitted))
                .collect(),
            closed: Box::pin(app.closed()),
            usage,
            meter,
            span,
        }
    }

    /// The next event of any choice, or the next move in the queue; none after the last choice has finished, or after an error.
    ///
    /// **Errors**: as [`next`](Self::next).
    pub async fn next_happening(&mut self) -> Option<Result<Happening, ApiError>> {
        let mut place = self.queue_place.take();
        let happening = tokio::select! {
            biased; // what comes from the queue is old news once there are events
            event = self.next() => event.map(|event| {
                event.map(|(index, event)| Happening::Event(index, event))
            }),
            place = moved(&mut place) => Some(Ok(Happening::QueuePlace(place))),
        };
        self.queue_place = place;
        happening
    }

    /// The next event of any choice; none after the last choice has finished, or after an error.
    ///
    /// **Errors**: what ended the request early. Nothing follows.
    pub async fn next(&mut self) -> Option<Result<(usize, TextEvent), ApiError>> {
        if self.unfinished == 0 {
            return None;
        }
        let (index, event) = tokio::select! {
            next = self.running.next() => next?,
            () = &mut self.closed => return Some(Err(self.fail(ApiError::ShuttingDown))),
        };
        match event {
            Err(error) => Some(Err(self.fail(ApiError::Broken(error)))),
            Ok(
                event @ (TextEvent::Piece {
                    sampled: Some(_), ..
                }
                | TextEvent::Thought {
                    sampled: Some(_), ..
                }),
            ) => {
                self.meter.token();
                Some(Ok((index, event)))
            }
            Ok(TextEvent::Finished { reason, timings }) => {
                self.usage.add(&timings);
                self.unfinished -= 1;
                if self.unfinished == 0 {
                    self.end(reason_name(reason));
                }
                Some(Ok((index, TextEvent::Finished { reason, timings })))
            }
            Ok(event) => Some(Ok((index, event))),
        }
    }

    /// Whether the last choice has finished.
    pub fn done(&self) -> bool {
        self.unfinished == 0
    }

    /// The counts so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The `timings` object so far.
    pub fn timings(&self) -> serde_json::Value {
        self.usage.timings(self.meter.ttft())
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.unfinished = 0;
        self.running.clear();
        self.end("error");
        error
    }

    fn end(&mut self, outcome: &'static str) {
        self.meter.finish(outcome);
        self.span
            .record("generated_tokens", self.usage.generated_tokens);
        info!(parent: &self.span, outcome, ttft_ms = self.meter.ttft().map(|ttft| ttft.as_millis() as u64), "answered");
    }
}

/// Completes with the next place in the queue; never, once there is none to come.
async fn moved(place: &mut Option<watch::Receiver<usize>>) -> usize {
    if let Some(receiver) = place
        && receiver.changed().await.is_ok()
    {
        return *receiver.borrow_and_update();
    }
    future::pending().await
}

/// The one place where the type of the expression is erased.
fn run(
    app: &App,
    stops: &[String],
    markup: Markup,
    index: usize,
    admitted: Admitted,
) -> BoxStream<'static, Indexed> {
    let answer = expression::answer(
        Arc::clone(&app.served.tokenizer),
        stops.to_vec(),
        markup,
        admitted.prompt(),
    );
    indexed(index, answer.run(admitted)).boxed()
}

fn indexed(
    index: usize,
    events: impl Stream<Item = Result<TextEvent, EngineError>> + Send + 'static,
) -> impl Stream<Item = Indexed> + Send + 'static {
    events.map(move |event| (index, event))
}
