//! Server-sent events. Order: a comment at once, comments with the place in the queue while it moves, role deltas, text deltas, a finish reason for every choice, the usage chunk when asked,
//! `[DONE]`. Comments keep the connection alive while a prompt is read. A failure is an `error` object among the events.

use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};

use async_stream::stream;
use axum::{
    http::{HeaderName, HeaderValue, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::Stream;

use super::{
    answer::{Answers, Happening},
    app::App,
    format::{Endpoint, Format, logprobs},
};
use crate::stage::text::TextEvent;

/// Proxies give up after 30 to 60 seconds of silence.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The response that streams `answers`. A client that goes away drops the stream and with it the answers.
pub fn response(app: Arc<App>, format: Format, answers: Answers, echoes: Vec<String>) -> Response {
    let events = Sse::new(events(app, format, answers, echoes))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("reading"));
    // Buffering proxies would hold tokens back.
    let unbuffered = (
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    (
        [
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            unbuffered,
        ],
        events,
    )
        .into_response()
}

fn events(
    app: Arc<App>,
    format: Format,
    mut answers: Answers,
    mut echoes: Vec<String>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream! {
        yield Ok(Event::default().comment("accepted"));
        let mut begun = HashSet::new();
        let mut offsets = vec![0; echoes.len()];
        while let Some(happening) = answers.next_happening().await {
            let (index, event) = match happening {
                Ok(Happening::Event(index, event)) => (index, event),
                Ok(Happening::QueuePlace(place)) => {
                    yield Ok(Event::default().comment(queue_comment(place)));
                    continue;
                }
                Err(error) => {
                    yield data(error.object().to_string());
                    break;
                }
            };
            if begun.insert(index) {
                match format.endpoint {
                    Endpoint::Chat => yield data(format.role_chunk(index)),
                    Endpoint::Completion if !echoes[index].is_empty() => {
                        yield data(format.text_chunk(index, &std::mem::take(&mut echoes[index]), None));
                    }
                    Endpoint::Completion => {}
                }
            }
            match event {
                TextEvent::Piece { text, sampled } => {
                    let scores = logprobs(format.endpoint, &app.served.tokenizer, sampled.as_slice(), &mut offsets[index]);
                    // also for a token whose bytes wait for the rest of a character: whoever watches sees that it gets on
                    if !text.is_empty() || sampled.is_some() {
                        yield data(format.text_chunk(index, &text, scores));
                    }
                }
                TextEvent::Thought { text, .. } => yield data(format.reasoning_chunk(index, &text)),
                TextEvent::Finished { reason, .. } => {
                    let timings = (answers.done() && !format.include_usage).then(|| answers.timings());
                    yield data(format.finish_chunk(index, reason, timings));
                    if answers.done() && format.include_usage {
                        yield data(format.usage_chunk(answers.usage(), answers.timings()));
                    }
                }
            }
        }
        yield Ok(Event::default().data("[DONE]"));
    }
}

fn queue_comment(place: usize) -> String {
    match place {
        0 => "admitted".into(),
        place => format!("queue position {place}"),
    }
}

fn data(object: String) -> Result<Event, Infallible> {
    Ok(Event::default().data(object))
}
