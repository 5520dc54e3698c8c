//! A generation request as checked: every number in its range, every combination one that can be answered.

use std::time::Duration;

use serde_json::Value;

use super::{
    forms::{LogprobsWanted, OneOrMany, Prompts},
    message::{kind, messages},
    ranges::{list, object, up_to},
    sampling::sampling,
    tree::Tree,
    written::Body,
};
use crate::{
    engine::request::Sampling,
    http::error::ApiError,
    stage::tokenize::{Job, Prompt},
};

/// Stop strings in one request at most (OpenAI: 4).
pub const STOPS_MAX: usize = 16;
/// Alternatives with log-probabilities at one position at most, as OpenAI's chat endpoint has it.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Answers to one prompt at most, as OpenAI has it.
pub const CHOICES_MAX: usize = 128;
/// What `/v1/completions` generates when `max_tokens` is absent, as OpenAI has it.
const COMPLETION_TOKENS: usize = 16;
/// **Units**: milliseconds. A longer deadline than a day is none.
const DEADLINE_MAX: usize = 24 * 3600 * 1000;

/// A request that can be answered.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The model it names.
    pub model: Option<String>,
    /// What goes into the request expression.
    pub job: Job,
    /// Strings that end an answer.
    pub stops: Vec<String>,
    /// Server-sent events instead of one object.
    pub stream: bool,
    /// A last chunk with the token counts.
    pub include_usage: bool,
    /// Put the prompt before the answer.
    pub echo: bool,
}

impl Generation {
    /// Checks a body for `/v1/chat/completions`.
    ///
    /// **Errors**: [`ApiError::BadField`].
    pub fn chat(mut body: Body, defaults: &Sampling) -> Result<Self, ApiError> {
        let mut variables = object("chat_template_kwargs", body.chat_template_kwargs.take())?;
        // what the request says of the template itself wins
        if let Some(effort) = body.reasoning_effort.take() {
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        if let Some(thinking) = body.enable_thinking {
            variables
                .entry("enable_thinking")
                .or_insert(thinking.into());
        }
        let prompt = Prompt::Chat {
            messages: messages(body.messages.take())?,
            tools: list("tools", body.tools.take())?,
            variables,
        };
        let wanted = match body.logprobs {
            Some(LogprobsWanted::Count(_)) => {
                return Err(ApiError::field(
                    "logprobs",
                    "must be a boolean, got a number",
                ));
            }
            Some(LogprobsWanted::Flag(true)) => true,
            _ => false,
        };
        let top = up_to("top_logprobs", body.top_logprobs, 0..=TOP_LOGPROBS_MAX)?;
        if top.is_some_and(|top| top > 0) && !wanted {
            return Err(ApiError::field(
                "top_logprobs",
                "needs 'logprobs' to be true",
            ));
        }
        Self::checked(
            body,
            vec![prompt],
            wanted.then_some(top.unwrap_or(0)),
            None,
            defaults,
        )
    }

    /// Checks a body for `/v1/completions`.
    ///
    /// **Errors**: [`ApiError::BadField`].
    pub fn completion(mut body: Body, defaults: &Sampling) -> Result<Self, ApiError> {
        let prompts = match body.prompt.take() {
            None => return Err(ApiError::field("prompt", "is missing")),
            Some(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Some(Prompts::Ids(lists)) => lists
                .into_iter()
                .map(|ids| Prompt::Ids(ids.into()))
                .collect::<Vec<_>>(),
        };
        let logprobs = match body.logprobs {
            Some(LogprobsWanted::Flag(true)) => {
                return Err(ApiError::field(
                    "logprobs",
                    "must be a count, got a boolean",
                ));
            }
            Some(LogprobsWanted::Flag(false)) | None => None,
            Some(LogprobsWanted::Count(count)) => {
                up_to("logprobs", Some(count), 0..=TOP_LOGPROBS_MAX)?
            }
        };
        if body.echo == Some(true) && logprobs.is_some() {
            return Err(ApiError::field(
                "echo",
                "cannot be combined with 'logprobs': prompts are not scored",
            ));
        }
        Self::checked(body, prompts, logprobs, Some(COMPLETION_TOKENS), defaults)
    }

    fn checked(
        mut body: Body,
        prompts: Vec<Prompt>,
        logprobs: Option<usize>,
        max_tokens_default: Option<usize>,
        defaults: &Sampling,
    ) -> Result<Self, ApiError> {
        let choices = up_to("n", body.n, 1..=CHOICES_MAX)?.unwrap_or(1);
        if prompts.len().saturating_mul(choices) > CHOICES_MAX {
            let reason = format!(
                "holds {} prompts, times n = {choices}; at most {CHOICES_MAX} answers",
                prompts.len()
            );
            return Err(ApiError::field("prompt", reason));
        }
        let (limit_name, limit) = match body.max_completion_tokens {
            Some(limit) => ("max_completion_tokens", Some(limit)),
            None => ("max_tokens", body.max_tokens),
        };
        let max_tokens = up_to(limit_name, limit, 1..=usize::MAX)?.or(max_tokens_default);
        let fills_up =
            matches!((body.min_tokens, max_tokens), (Some(min), Some(max)) if min >= max);
        Ok(Self {
            stops: stops(body.stop.as_ref())?,
            stream: body.stream.unwrap_or(false),
            include_usage: include_usage(body.stream_options.take())?,
            echo: body.echo.unwrap_or(false),
            job: Job {
                prompts,
                choices,
                sampling: sampling(&mut body, defaults)?,
                max_tokens,
                ignore_eos: body.ignore_eos.unwrap_or(false) || fills_up,
                logprobs,
                deadline: up_to("deadline_ms", body.deadline_ms, 1..=DEADLINE_MAX)?
                    .map(|ms| Duration::from_millis(ms as u64)),
                drafts: body.drafts.unwrap_or(true),
            },
            model: body.model,
        })
    }
}

fn include_usage(written: Option<Tree>) -> Result<bool, ApiError> {
    match object("stream_options", written)?.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(other) => {
            let reason = format!("must be a boolean, got {}", kind(other));
            Err(ApiError::field("stream_options.include_usage", reason))
        }
    }
}

fn stops(written: Option<&OneOrMany>) -> Result<Vec<String>, ApiError> {
    let stops: Vec<String> = written
        .map_or(&[][..], |stops| &stops.0)
        .iter()
        .filter(|stop| !stop.is_empty())
        .cloned()
        .collect();
    if stops.len() > STOPS_MAX {
        return Err(ApiError::field(
            "stop",
            format!("holds {} strings, at most {STOPS_MAX}", stops.len()),
        ));
    }
    Ok(stops)
}
