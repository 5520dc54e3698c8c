//! Errors as clients see them: a status and OpenAI's error object. Knows no handler and no engine internals beyond
//! [`RequestError`].

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::denied::{Denied, seconds};
use crate::{engine::request::EngineError, stage::tokenize::RequestError};

/// Why a request got an error instead of an answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {reason}")]
    BadJson {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// A field has the wrong type or a value that is not allowed.
    #[error("'{param}': {reason}")]
    BadField {
        /// Path of the field, as in `messages[2].content`.
        param: String,
        /// Got and allowed.
        reason: String,
    },
    /// The body is longer than the server reads.
    #[error("the body is longer than {limit_bytes} bytes")]
    BodyTooLarge {
        /// Longest body that is read.
        limit_bytes: usize,
    },
    /// The body ended early or could not be read.
    #[error("the body could not be read")]
    BodyUnreadable,
    /// The request names a model that is not served.
    #[error("model '{asked}' is not served here; served: {}", .served.join(", "))]
    UnknownModel {
        /// What the request names.
        asked: String,
        /// What it could name.
        served: Vec<String>,
    },
    /// No such path.
    #[error("{method} {path} does not exist")]
    UnknownPath {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The path exists, the method does not.
    #[error("{path} does not answer {method}")]
    WrongMethod {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The client is not served, or not now.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The request was not admitted.
    #[error("{error}")]
    Refused {
        /// Why.
        error: RequestError,
        /// The field that holds the prompt.
        param: &'static str,
    },
    /// An admitted request's answer ended early.
    #[error(transparent)]
    Broken(EngineError),
    /// The server ends before the answer does.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A handler failed in a way that it should not.
    #[error("internal error")]
    Internal,
}

impl ApiError {
    /// A field's error.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadField {
            param: param.into(),
            reason: reason.into(),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadJson { .. } | Self::BadField { .. } | Self::BodyUnreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownModel { .. } | Self::UnknownPath { .. } => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Denied(denied) => denied.status(),
            Self::Refused {
                error: RequestError::Template(_),
                ..
            } => StatusCode::BAD_REQUEST,
            Self::Refused {
                error: RequestError::Engine(error),
                ..
            }
            | Self::Broken(error) => engine_status(error),
            Self::Refused { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's machine-readable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadJson { .. } => "invalid_json",
            Self::BadField { .. } => "invalid_value",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyUnreadable => "invalid_body",
            Self::UnknownModel { .. } => "model_not_found",
            Self::UnknownPath { .. } => "not_found",
            Self::WrongMethod { .. } => "method_not_allowed",
            Self::Denied(denied) => denied.code(),
            Self::Refused {
                error: RequestError::Template(_),
                ..
            } => "template_error",
            Self::Refused {
                error: RequestError::Engine(error),
                ..
            }
            | Self::Broken(error) => engine_code(error),
            Self::Refused { .. } => "internal_error",
            Self::ShuttingDown => "shutting_down",
            Self::Internal => "internal_error",
        }
    }

    /// The field that the error is about.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::BadField { param, .. } => Some(param),
            Self::UnknownModel { .. } => Some("model"),
            Self::Refused { param, .. } if self.status().is_client_error() => Some(param),
            _ => None,
        }
    }

    /// The error object: `{"error": {"message", "type", "param", "code"}}`.
    pub fn object(&self) -> Value {
        let kind = if self.status().is_client_error() {
            "invalid_request_error"
        } else {
            "server_error"
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": self.param(), "code": self.code()}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.object())).into_response();
        let headers = response.headers_mut();
        match &self {
            Self::Denied(denied) => denied.head(headers),
            Self::Refused {
                error: RequestError::Engine(EngineError::QueueFull { retry_after, .. }),
                ..
            } => {
                headers.insert(header::RETRY_AFTER, seconds(*retry_after).into());
            }
            Self::ShuttingDown => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

fn engine_status(error: &EngineError) -> StatusCode {
    match error {
        EngineError::PromptTooLong { .. }
        | EngineError::EmptyPrompt
        | EngineError::NothingToGenerate
        | EngineError::UnknownToken { .. } => StatusCode::BAD_REQUEST,
        EngineError::QueueFull { .. } | EngineError::Stopped(_) => StatusCode::SERVICE_UNAVAILABLE,
        EngineError::NotFinite { .. } | EngineError::Unreadable { .. } => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        EngineError::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
        EngineError::ReaderIdle { .. } => StatusCode::REQUEST_TIMEOUT,
    }
}

fn engine_code(error: &EngineError) -> &'static str {
    match error {
        EngineError::PromptTooLong { .. } => "context_length_exceeded",
        EngineError::EmptyPrompt => "empty_prompt",
        EngineError::NothingToGenerate => "invalid_value",
        EngineError::UnknownToken { .. } => "unknown_token",
        EngineError::QueueFull { .. } => "queue_full",
        EngineError::Stopped(_) => "engine_stopped",
        EngineError::NotFinite { .. } => "not_finite",
        EngineError::Unreadable { .. } => "model_unreadable",
        EngineError::DeadlineExceeded { .. } => "deadline_exceeded",
        EngineError::ReaderIdle { .. } => "reader_idle",
    }
}
