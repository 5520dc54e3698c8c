//! What flows between the stages that turn tokens into an answer's text.

use crate::engine::request::{FinishReason, Logprobs, Timings, Token};

/// A token with its log-probabilities, if the request asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub token: Token,
    /// Of it and of the likeliest.
    pub logprobs: Option<Logprobs>,
}

/// Text of an answer, in order: pieces, thoughts among them where the model marks its reasoning, then one `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum TextEvent {
    /// More text.
    Piece {
        /// May be empty: a token's bytes may wait for the rest of a character.
        text: String,
        /// The token that brought it. Text of one token that comes in two pieces has it in the first only.
        sampled: Option<Sampled>,
    },
    /// More of the model's reasoning, which is no part of the answer's text.
    Thought {
        /// May be empty, as a piece's.
        text: String,
        /// The token that brought it, as a piece's.
        sampled: Option<Sampled>,
    },
    /// The end. Nothing follows.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Where the time went.
        timings: Timings,
    },
}
