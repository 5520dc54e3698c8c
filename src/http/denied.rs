//! Why a client is not served at all, or not now: whatever was in the request, it is not its contents. Knows statuses and headers, no handler.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

/// **Units**: seconds. When it cannot be known, what a client waits before it asks again: requests end within seconds and not minutes.
const RETRY_AFTER_S: u64 = 2;

/// Why a client is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Keys are needed here, and the request brings none.
    #[error("an API key is needed: send 'Authorization: Bearer KEY'")]
    NoKey,
    /// It brings one that is none of ours. Which one is nobody's business, not even the log's.
    #[error("this API key is not known here")]
    WrongKey,
    /// The key has used up its requests.
    #[error(
        "this key may make {per_minute} requests a minute; the next one in {} s",
        seconds(*wait)
    )]
    Requests {
        /// Allowed.
        per_minute: u32,
        /// Until there is one again.
        wait: Duration,
    },
    /// The key has used up its tokens.
    #[error(
        "this key may use {per_minute} tokens a minute and has used more; go on in {} s",
        seconds(*wait)
    )]
    Tokens {
        /// Allowed.
        per_minute: u32,
        /// Until what was used beyond the limit is made up for.
        wait: Duration,
    },
    /// The key's answers that run leave no room for those asked for.
    #[error("this key may have {limit} answers running at once; {asked} more are too many now")]
    Streams {
        /// Allowed.
        limit: u32,
        /// Wanted by this request.
        asked: usize,
    },
    /// Too many requests are in flight, of all clients together.
    #[error("the server has {limit} requests in flight, as many as it takes")]
    Overloaded {
        /// Allowed.
        limit: usize,
    },
    /// The client took too long over its request.
    #[error("the request was not complete after {} s", .within.as_secs_f32())]
    Late {
        /// Allowed.
        within: Duration,
    },
}

impl Denied {
    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoKey | Self::WrongKey => StatusCode::UNAUTHORIZED,
            Self::Requests { .. } | Self::Tokens { .. } | Self::Streams { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Overloaded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Late { .. } => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// OpenAI's machine-readable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoKey | Self::WrongKey => "invalid_api_key",
            Self::Requests { .. } | Self::Tokens { .. } | Self::Streams { .. } => {
                "rate_limit_exceeded"
            }
            Self::Overloaded { .. } => "overloaded",
            Self::Late { .. } => "request_timeout",
        }
    }

    /// Which of the key's limits it is; its name in metrics.
    pub fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Requests { .. } => Some("requests"),
            Self::Tokens { .. } => Some("tokens"),
            Self::Streams { .. } => Some("streams"),
            _ => None,
        }
    }

    /// Adds what a client goes by: when to ask again, what to send, that the connection is not to be used again.
    pub fn head(&self, headers: &mut HeaderMap) {
        match self {
            Self::NoKey | Self::WrongKey => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Requests { wait, .. } | Self::Tokens { wait, .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(*wait)));
            }
            Self::Streams { .. } | Self::Overloaded { .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
            }
            // the rest of its body would be taken for a request
            Self::Late { .. } => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
    }
}

/// **Units**: whole seconds, not fewer than the wait.
pub(super) fn seconds(wait: Duration) -> u64 {
    let part = u64::from(wait.subsec_nanos() > 0);
    (wait.as_secs() + part).max(1)
}
