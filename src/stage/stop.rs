//! Cuts an answer at the first stop string and cancels its sequence.
//!
//! Knows text; knows nothing of how it was made.

mod matcher;

pub use matcher::{Found, StopMatcher};

use super::{
    Stage,
    text::{Sampled, TextEvent},
};
use crate::engine::request::{EngineError, FinishReason, Timings};
use futures::{Stream, StreamExt};
use std::{collections::VecDeque, time::Instant};

/// The stage. One per sequence.
#[derive(Clone, Debug)]
pub struct Stop {
    stops: Vec<String>,
    prompt_tokens: usize,
}

impl Stop {
    /// Ends the text before the first of `stops` (empty ones never match). The sequence's prompt has `prompt_tokens`.
    pub fn new(stops: Vec<String>, prompt_tokens: usize) -> Self {
        Self {
            stops,
            prompt_tokens,
        }
    }
}

impl Stage for Stop {
    type In = TextEvent;
    type Out = TextEvent;
    type Error = EngineError;

    /// Text that may be the beginning of a stop string waits until it is certain. At a match the input is dropped, which cancels the
    /// sequence, and a `Finished` follows whose timings are measured here: waiting for a slot counts as prefill.
    fn attach(
        self,
        input: impl Stream<Item = Result<TextEvent, EngineError>> + Send,
    ) -> impl Stream<Item = Result<TextEvent, EngineError>> + Send {
        async_stream::try_stream! {
            let mut input = Box::pin(input);
            let mut matcher = StopMatcher::new(&self.stops);
            let mut queue = Queue::default();
            let mut clock = Clock::new(self.prompt_tokens);
            while let Some(event) = input.next().await {
                match event? {
                    TextEvent::Piece { text, sampled } => {
                        clock.tick(sampled.is_some());
                        let found = matcher.push(&text);
                        queue.push(text, sampled);
                        for event in queue.release(found.certain(), found.is_match()) {
                            yield event;
                        }
                        if found.is_match() {
                            drop(input);
                            yield TextEvent::Finished { reason: FinishReason::Stop, timings: clock.timings };
                            return;
                        }
                    }
                    // no text of the answer: stop strings are not looked for
                    thought @ TextEvent::Thought { .. } => yield thought,
                    finished @ TextEvent::Finished { .. } => {
                        for event in queue.release(matcher.end(), false) {
                            yield event;
                        }
                        yield finished;
                    }
                }
            }
        }
    }
}

/// Pieces that wait.
#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<(String, Option<Sampled>)>,
    /// Bytes of text released so far.
    released: usize,
}

impl Queue {
    fn push(&mut self, text: String, sampled: Option<Sampled>) {
        self.pieces.push_back((text, sampled));
    }

    /// The pieces of the text before `end`, of which a part may have been released before. A piece that crosses `end` is split; its
    /// token goes with the first part. At a match, tokens whose text starts at `end` are part of the stop string and stay.
    fn release(&mut self, end: usize, at_match: bool) -> Vec<TextEvent> {
        let mut events = Vec::new();
        while let Some((text, sampled)) = self.pieces.front_mut() {
            let room = end - self.released;
            if text.len() <= room && !(at_match && room == 0) {
                self.released += text.len();
                events.extend(
                    self.pieces
                        .pop_front()
                        .map(|(text, sampled)| TextEvent::Piece { text, sampled }),
                );
                continue;
            }
            if room > 0 {
                let rest = text.split_off(room);
                let text = std::mem::replace(text, rest);
                self.released += room;
                events.push(TextEvent::Piece {
                    text,
                    sampled: sampled.take(),
                });
            }
            break;
        }
        events
    }
}

/// Counts and times what passes.
struct Clock {
    started: Instant,
    first: Option<Instant>,
    timings: Timings,
}

impl Clock {
    fn new(prompt_tokens: usize) -> Self {
        Self {
            started: Instant::now(),
            first: None,
            timings: Timings {
                prompt_tokens,
                ..Timings::default()
            },
        }
    }

    fn tick(&mut self, token: bool) {
        if !token {
            return;
        }
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        self.timings.prefill = first - self.started;
        self.timings.decode = now - first;
        self.timings.generated_tokens += 1;
    }
}

#[cfg(test)]
mod tests;
