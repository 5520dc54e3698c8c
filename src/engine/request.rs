//! What crosses between the async side and the engine thread: a request in, outputs back.

use std::{sync::Arc, time::Duration};

/// A token id.
pub type Token = u32;

/// How the next token is chosen from the logits.
///
/// Defaults are neutral (greedy off, nothing cut); who builds it fills in the file's or the project's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens with this probability mass; 1 keeps all.
    pub top_p: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Divides (multiplies, if negative) the logits of tokens already there; 1 is off. Counts prompt and output.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens already in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once for every time the token is already in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// Draws are a function of (seed, position) alone.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Arc<[Token]>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most; the context's end limits it too.
    pub max_tokens: usize,
    /// Tokens that end the sequence. They are not emitted. Empty with `ignore_eos`.
    pub stop_tokens: Arc<[Token]>,
    /// With `Some(n)`: each token comes with its log-probability and those of the `n` likeliest.
    pub logprobs: Option<usize>,
    /// What the answer may take, from the submission to its last token.
    pub deadline: Option<Duration>,
    /// Whether tokens may be guessed ahead. Changes how fast they come, never which.
    pub drafts: bool,
}

/// Log-probabilities at one position, from the raw logits (before temperature, penalties and cuts).
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// Of the likeliest tokens, likeliest first.
    pub top: Vec<(Token, f32)>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// `max_tokens`, or the context's end.
    Length,
}

/// Where a finished sequence's time went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From the submission to the first prompt row.
    pub queued: Duration,
    /// From the first prompt row to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Prompt tokens computed.
    pub prompt_tokens: usize,
    /// Tokens generated (a stop token counts).
    pub generated_tokens: usize,
    /// Tokens guessed ahead.
    pub drafted_tokens: usize,
    /// Of these, those that were right.
    pub accepted_tokens: usize,
}

/// What a sequence emits, in order: tokens, then one `Finished` or one error.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The next token.
    Token {
        /// Its id.
        token: Token,
        /// If the request asked.
        logprobs: Option<Logprobs>,
    },
    /// The end. Nothing follows.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Where the time went.
        timings: Timings,
    },
}

/// Why a request got no (further) answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The prompt leaves no room for one token.
    #[error(
        "prompt is {prompt_tokens} tokens, the context of {context_tokens} tokens has no room left for an answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens that the context holds, the answer's included.
        context_tokens: usize,
    },
    /// A request without a prompt.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A request for no tokens.
    #[error("max_tokens is 0, at least 1 is needed")]
    NothingToGenerate,
    /// A token id outside the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        token: Token,
        /// Ids are below this.
        vocab: usize,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting, the queue holds {limit}")]
    QueueFull {
        /// Waiting now.
        queued: usize,
        /// At most.
        limit: usize,
        /// When to try again: what a slot takes, on average, to become free.
        retry_after: Duration,
    },
    /// The answer was not complete in the time that the request gave it.
    #[error("the answer is not complete after {} ms, its deadline", .after.as_millis())]
    DeadlineExceeded {
        /// The deadline, counted from the submission.
        after: Duration,
    },
    /// The reader took nothing for so long that the place was given up.
    #[error("nothing was read for {} s", .after.as_secs())]
    ReaderIdle {
        /// How long a reader may be idle.
        after: Duration,
    },
    /// The model produced a NaN or an infinity for this sequence.
    #[error("the model's output is not finite at position {position}")]
    NotFinite {
        /// Position of the row.
        position: usize,
    },
    /// A part of the model that this sequence needs could not be read.
    #[error("{why}")]
    Unreadable {
        /// What could not be read, and why.
        why: String,
    },
    /// The engine thread has ended.
    #[error("the engine has stopped{}", .0.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    Stopped(Option<String>),
}
