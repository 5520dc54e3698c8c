//! A generation request as the client wrote it: types are checked here, ranges and combinations in [`super::checked`].
//!
//! One struct serves both endpoints, because they share almost every field. Unknown fields are skipped without being stored, `null` means
//! absent, and the containers that a template sees are [`Tree`]s, so that a body cannot claim more memory than its size suggests.

use serde::Deserialize;

use super::{
    forms::{LogprobsWanted, OneOrMany, Prompts, Seed},
    tree::Tree,
};
use crate::http::error::ApiError;

/// The fields of `/v1/chat/completions` and `/v1/completions`.
///
/// **Source**: OpenAI's API reference; `top_k`, `min_p`, `repetition_penalty`, `repeat_penalty`, `ignore_eos`, `min_tokens` and
/// `chat_template_kwargs` as in vLLM and llama.cpp; `deadline_ms` and `drafts` are our own.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Body {
    /// Served id, its alias, or absent.
    pub model: Option<String>,
    /// The conversation (chat).
    pub messages: Option<Tree>,
    /// What to continue (completions).
    pub prompt: Option<Prompts>,
    /// Tokens to generate at most.
    pub max_tokens: Option<usize>,
    /// The same under its newer name, which wins.
    pub max_completion_tokens: Option<usize>,
    /// Strings that end the answer.
    pub stop: Option<OneOrMany>,
    /// Answers wanted for each prompt.
    pub n: Option<usize>,
    /// Server-sent events instead of one object.
    pub stream: Option<bool>,
    /// What else a stream carries.
    pub stream_options: Option<Tree>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Candidates kept; -1 and 0 keep all.
    pub top_k: Option<i64>,
    /// Share of the likeliest token's probability.
    pub min_p: Option<f32>,
    /// 1 is off.
    pub repetition_penalty: Option<f32>,
    /// The same under llama.cpp's name.
    pub repeat_penalty: Option<f32>,
    /// 0 is off.
    pub presence_penalty: Option<f32>,
    /// 0 is off.
    pub frequency_penalty: Option<f32>,
    /// Equal seeds give equal answers.
    pub seed: Option<Seed>,
    /// Added to the logits, by token id.
    pub logit_bias: Option<Tree>,
    /// A flag (chat) or a count (completions).
    pub logprobs: Option<LogprobsWanted>,
    /// Alternatives a token (chat).
    pub top_logprobs: Option<usize>,
    /// The prompt stands before the answer (completions).
    pub echo: Option<bool>,
    /// Go on where the model would end.
    pub ignore_eos: Option<bool>,
    /// Milliseconds that the answer may take.
    pub deadline_ms: Option<usize>,
    /// `false`: no token is guessed ahead.
    pub drafts: Option<bool>,
    /// Tokens to generate at least; only `max_tokens` itself is a promise this server can keep.
    pub min_tokens: Option<usize>,
    /// Passed to the template.
    pub tools: Option<Tree>,
    /// How much the model shall think: for the template.
    pub reasoning_effort: Option<String>,
    /// Whether it shall think at all: for the template.
    pub enable_thinking: Option<bool>,
    /// Variables for the template.
    pub chat_template_kwargs: Option<Tree>,
}

impl Body {
    /// Reads a body.
    ///
    /// **Errors**: [`ApiError::BadJson`] where the text is not JSON, [`ApiError::BadField`] with the field's path where a type does not fit.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        parse(bytes)
    }
}

/// Reads any wire type, with the path of the field in its error.
///
/// **Errors**: as in [`Body::parse`].
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ApiError> {
    // Serde would also take a list for a struct, its fields in order.
    if let Some(first @ (b'[' | b'"' | b'0'..=b'9' | b'-' | b't' | b'f' | b'n')) =
        bytes.iter().find(|byte| !byte.is_ascii_whitespace())
    {
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(|error| {
            ApiError::BadJson {
                reason: error.to_string(),
            }
        })?;
        return Err(ApiError::field(
            "body",
            format!("must be an object, it begins with '{}'", char::from(*first)),
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let param = error.path().to_string();
        let cause = error.inner();
        match cause.classify() {
            serde_json::error::Category::Data if param != "." => {
                ApiError::field(param, plain(cause))
            }
            serde_json::error::Category::Data => ApiError::field("body", plain(cause)),
            _ => ApiError::BadJson {
                reason: cause.to_string(),
            },
        }
    })?;
    json.end().map_err(|error| ApiError::BadJson {
        reason: error.to_string(),
    })?;
    Ok(value)
}

/// A type error in words that are not Rust's.
fn plain(error: &serde_json::Error) -> String {
    const NAMES: [(&str, &str); 4] = [
        ("expected usize", "expected a whole number"),
        ("expected u32", "expected a token id"),
        ("expected i64", "expected an integer"),
        ("expected f32", "expected a number"),
    ];
    NAMES.iter().fold(error.to_string(), |text, (rust, name)| {
        text.replace(rust, name)
    })
}
