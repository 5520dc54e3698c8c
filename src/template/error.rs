//! What can go wrong between a conversation and its prompt.

use minijinja::ErrorKind;
use std::{error::Error, fmt};

/// Why there is no template, or no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The file has no template, and its vocabulary none of the tokens of ChatML.
    #[error("this model has no chat template; ask for a completion of a text instead")]
    Missing,
    /// A template that does not compile.
    #[error("tokenizer.chat_template, line {line}: {reason}")]
    Syntax {
        /// Where.
        line: usize,
        /// Why.
        reason: String,
    },
    /// More control tokens than can be looked for.
    #[error("{count} control tokens are too many")]
    TooManyControls {
        /// How many.
        count: usize,
    },
    /// The template refused the conversation, in its own words.
    #[error("{message}")]
    Refused {
        /// What the template passed to `raise_exception`.
        message: String,
    },
    /// The template does not know what to do with the conversation.
    #[error("the chat template cannot render this conversation (line {line}): {reason}")]
    Failed {
        /// Where in the template.
        line: usize,
        /// Why.
        reason: String,
    },
    /// Rendering takes too many steps.
    #[error("the chat template needs more than {steps} steps for this conversation")]
    TooCostly {
        /// At most.
        steps: u64,
    },
    /// A part of a message that is not text.
    #[error("message {message} has a part of type {kind:?}; only \"text\" is supported")]
    UnsupportedPart {
        /// Its place in the conversation.
        message: usize,
        /// As the client wrote it.
        kind: String,
    },
    /// Words that spell a control token, in a place where the template would read it as one.
    #[error("a message spells a control token that the chat template interprets")]
    SpelledControl,
}

impl TemplateError {
    /// Whether another request could be answered: not if it is the file that is at fault.
    pub fn is_clients_fault(&self) -> bool {
        !matches!(self, Self::Syntax { .. } | Self::TooManyControls { .. })
    }
}

/// What a template raised; travels inside the engine's error.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Raised {}

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(Raised(message)) = cause.downcast_ref() {
                return Self::Refused {
                    message: message.clone(),
                };
            }
            source = cause.source();
        }
        let line = error.line().unwrap_or(0);
        match error.kind() {
            ErrorKind::OutOfFuel => Self::TooCostly {
                steps: super::environment::STEPS_MAX,
            },
            ErrorKind::SyntaxError => Self::Syntax {
                line,
                reason: reason(&error),
            },
            _ => Self::Failed {
                line,
                reason: reason(&error),
            },
        }
    }
}

fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
