//! One bounded outbox a sequence: its free places are the sequence's credits.
//!
//! The engine asks for credit before it computes, so nothing it emits is ever refused and it never waits for a reader.

use tokio::sync::mpsc;

use super::request::{EngineError, FinishReason, Logprobs, Output, Timings, Token};

/// What an outbox carries.
pub(super) type Item = Result<Output, EngineError>;

/// The engine's end of a sequence's way out.
#[derive(Debug)]
pub(super) struct Outbox(mpsc::Sender<Item>);

/// An outbox for `tokens` unread tokens, with one more place kept for the end.
pub(super) fn outbox(tokens: usize) -> (Outbox, mpsc::Receiver<Item>) {
    let (sender, receiver) = mpsc::channel(tokens + 1);
    (Outbox(sender), receiver)
}

impl Outbox {
    /// Tokens that can be emitted now, the end's place not counted.
    pub(super) fn credit(&self) -> usize {
        self.0.capacity().saturating_sub(1)
    }

    /// Whether the reader has gone away.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.is_closed()
    }

    /// Emits a token for which there was credit.
    pub(super) fn token(&self, token: Token, logprobs: Option<Logprobs>) {
        debug_assert!(self.is_cancelled() || self.credit() > 0);
        self.put(Ok(Output::Token { token, logprobs }));
    }

    /// Emits the end.
    pub(super) fn finish(self, reason: FinishReason, timings: Timings) {
        self.put(Ok(Output::Finished { reason, timings }));
    }

    /// Ends with an error.
    pub(super) fn fail(self, error: EngineError) {
        self.put(Err(error));
    }

    fn put(&self, item: Item) {
        let _ = self.0.try_send(item); // refused only when the reader is gone: the sequence ends at the next look
    }
}
