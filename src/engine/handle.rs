//! The async side's view of the engine: submit a request, read its tokens, look at the numbers.
//!
//! Knows nothing of windows or of the model; whatever can be checked or prepared is, on the caller's thread, before the
//! engine hears of it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use futures::{Stream, stream::FusedStream};
use tokio::sync::{mpsc, watch};
use tracing::{field::Empty, info_span};

use super::{
    drafts::Drafts,
    event::{Admission, Inbox},
    executor::Capacity,
    outbox::{Item, outbox},
    request::{EngineError, Output, Request},
    sequence::Sequence,
    stats::{Board, Health, Stats},
};
use crate::sampler::Sampler;

/// A way to the engine; cheap to clone. The engine ends when its stopper says so, or after the last handle is gone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) inbox: Inbox,
    pub(super) board: Arc<Board>,
}

impl Handle {
    pub(super) fn new(inbox: Inbox, board: Arc<Board>) -> Self {
        Self { inbox, board }
    }

    /// Puts a request into the queue and returns the stream of its outputs. Does not wait.
    ///
    /// **Errors** A request that could never be served, a full queue, or a stopped engine.
    pub fn submit(&self, request: Request) -> Result<Tokens, EngineError> {
        self.check(&request)?;
        let sequence = Sequence::new(&request, self.board.context);
        let sampler = Sampler::new(&request.sampling, &request.prompt);
        let drafts = (request.drafts && self.board.depth_max > 0).then(|| {
            let frequent = self.board.capacity.frequent;
            let (prompt, stops) = (&request.prompt, &request.stop_tokens);
            Drafts::new(prompt, stops, sequence.positions_max(), frequent)
        });
        let (outbox, tokens) = outbox(self.board.outbox_tokens);
        let (place, queue_place) = watch::channel(0);
        let id = self.board.enter().ok_or_else(|| self.queue_full())?;
        let span = info_span!(
            "sequence",
            id,
            prompt_tokens = request.prompt.len(),
            generated_tokens = Empty,
            reason = Empty,
        );
        let admission = Admission {
            id,
            sequence,
            sampler,
            drafts,
            logprobs: request.logprobs,
            outbox,
            submitted: Instant::now(),
            deadline: request.deadline,
            due: None,
            place,
            span,
        };
        if self.inbox.admit(Box::new(admission)).is_err() {
            self.board.leave();
            return Err(stopped(&self.board));
        }
        Ok(Tokens {
            tokens,
            queue_place,
            handle: self.clone(),
            ended: false,
        })
    }

    /// What the model can hold.
    pub fn capacity(&self) -> Capacity {
        self.board.capacity
    }

    /// Positions a sequence may have: the prompt and what is generated.
    pub fn context(&self) -> usize {
        self.board.context
    }

    /// The engine's numbers now. Answers whatever the engine is doing.
    pub fn stats(&self) -> Stats {
        self.board.stats()
    }

    /// Whether the engine is getting on. Answers whatever the engine is doing.
    pub fn health(&self) -> Health {
        self.board.health()
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let (prompt, context) = (&request.prompt, self.board.context);
        let vocab = self.board.capacity.vocab;
        if self.board.stopped().is_some() {
            return Err(stopped(&self.board));
        }
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(EngineError::NothingToGenerate);
        }
        if prompt.len() >= context {
            return Err(EngineError::PromptTooLong {
                prompt_tokens: prompt.len(),
                context_tokens: context,
            });
        }
        let biased = request.sampling.logit_bias.iter().map(|(token, _)| token);
        match prompt.iter().chain(biased).find(|t| **t as usize >= vocab) {
            Some(&token) => Err(EngineError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    fn queue_full(&self) -> EngineError {
        let limit = self.board.queue;
        EngineError::QueueFull {
            // Those about to be given a free slot do not count.
            queued: self.board.queued().min(limit),
            limit,
            retry_after: self.board.slot_frees_in(),
        }
    }
}

fn stopped(board: &Board) -> EngineError {
    EngineError::Stopped(board.stopped().cloned().flatten())
}

/// The outputs of one sequence: tokens, then one `Finished` or one error, then nothing.
///
/// Taking an output frees a credit. A reader who stops reading parks this sequence and no other. Dropping this cancels the
/// sequence: while it is computed, at the next layer boundary; while it waits, before it starts.
#[derive(Debug)]
pub struct Tokens {
    tokens: mpsc::Receiver<Item>,
    queue_place: watch::Receiver<usize>,
    handle: Handle,
    ended: bool,
}

impl Tokens {
    /// Its place in the queue, counted from 1, as it changes; 0 once it waits no longer.
    pub fn queue_place(&self) -> watch::Receiver<usize> {
        self.queue_place.clone()
    }
}

impl Stream for Tokens {
    type Item = Result<Output, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let item = match ready!(self.tokens.poll_recv(cx)) {
            Some(item) => item,
            // Only an engine that has ended leaves a sequence without an end of its own.
            None => Err(stopped(&self.handle.board)),
        };
        self.ended = !matches!(item, Ok(Output::Token { .. }));
        if !self.ended {
            self.handle.inbox.wake();
        }
        Poll::Ready(Some(item))
    }
}

impl FusedStream for Tokens {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        // Close before the wake-up, so that the engine sees the cancel when it looks.
        self.tokens.close();
        if !self.ended {
            self.handle.inbox.wake();
        }
    }
}
