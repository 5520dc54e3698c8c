//! What a client sent to what the engine takes: template, then tokens, then one request for every answer wanted.
//!
//! Runs on a thread of its own, because a long prompt takes seconds and other clients must not notice. Dropping the stream abandons the
//! work; the thread finishes what it has begun and nobody looks at it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_stream::try_stream;
use futures::Stream;
use serde_json::{Map, Value};

use super::Stage;
use crate::{
    engine::request::{EngineError, Request, Sampling, Token},
    template::{ChatTemplate, Conversation, TemplateError},
    token::{Specials, Tokenizer},
};

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, for the model's template.
    Chat {
        /// As sent.
        messages: Vec<Value>,
        /// Tool definitions, as sent.
        tools: Vec<Value>,
        /// Further variables of the template.
        variables: Map<String, Value>,
    },
    /// Text to continue. Control tokens written out in it count.
    Text(String),
    /// Tokens to continue, as they are.
    Ids(Arc<[Token]>),
}

/// What a client wants: for every prompt, so many answers.
#[derive(Clone, Debug)]
pub struct Job {
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt. Answer `k` is drawn with the seed plus `k`.
    pub choices: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens of each answer at most; `None` is up to the context's end.
    pub max_tokens: Option<usize>,
    /// Go on where the model would end.
    pub ignore_eos: bool,
    /// With `Some(n)`: log-probabilities, and those of the `n` likeliest.
    pub logprobs: Option<usize>,
    /// What each answer may take.
    pub deadline: Option<Duration>,
    /// Whether tokens may be guessed ahead.
    pub drafts: bool,
}

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The template gave no prompt.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The engine refused it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Tokenising it failed in a way that it should not.
    #[error("the prompt could not be read")]
    Unreadable,
}

/// The stage.
#[derive(Clone)]
pub struct Tokenize {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
}

impl Tokenize {
    /// For a model with this vocabulary and template. Without a template there are no chats.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Arc<ChatTemplate>) -> Self {
        Self {
            tokenizer,
            template,
        }
    }

    /// The requests of a job, prompt by prompt.
    ///
    /// **Errors**: [`RequestError::Template`].
    fn requests(&self, job: &Job) -> Result<Vec<Request>, RequestError> {
        let stop_tokens = if job.ignore_eos {
            Arc::default()
        } else {
            self.tokenizer.stop_tokens()
        };
        let mut requests = Vec::new();
        for prompt in &job.prompts {
            let prompt = self.tokens(prompt)?;
            requests.extend((0..job.choices as u64).map(|choice| Request {
                prompt: prompt.clone(),
                sampling: Sampling {
                    seed: job.sampling.seed.wrapping_add(choice),
                    ..job.sampling.clone()
                },
                max_tokens: job.max_tokens.unwrap_or(usize::MAX),
                stop_tokens: stop_tokens.clone(),
                logprobs: job.logprobs,
                deadline: job.deadline,
                drafts: job.drafts,
            }));
        }
        Ok(requests)
    }

    /// The tokens of one prompt.
    ///
    /// **Errors**: the template's.
    pub fn tokens(&self, prompt: &Prompt) -> Result<Arc<[Token]>, TemplateError> {
        Ok(match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => self.tokenizer.encode_prompt(text, Specials::Parse).into(),
            Prompt::Chat {
                messages,
                tools,
                variables,
            } => {
                let template = &self.template;
                let rendered = template.render(&Conversation {
                    messages,
                    tools,
                    add_generation_prompt: true,
                    variables,
                    now: SystemTime::now(),
                })?;
                self.tokenizer
                    .encode_prompt(&rendered.text, Specials::Between(&rendered.breaks))
                    .into()
            }
        })
    }
}

impl Stage for Tokenize {
    type In = Job;
    type Out = Request;
    type Error = RequestError;

    fn attach(
        self,
        input: impl Stream<Item = Result<Job, RequestError>> + Send,
    ) -> impl Stream<Item = Result<Request, RequestError>> + Send {
        try_stream! {
            for await job in input {
                let (stage, job) = (self.clone(), job?);
                let read = tokio::task::spawn_blocking(move || stage.requests(&job)).await;
                for request in read.map_err(|_| RequestError::Unreadable)?? {
                    yield request;
                }
            }
        }
    }
}
