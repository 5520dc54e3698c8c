//! What every handler shares: the served model, the way to the engine, and the limits.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

use super::{
    body::Bounds, error::ApiError, flight::Flights, keys::Keys, metrics::Metrics,
    request::shortened,
};
use crate::{
    engine::{Handle, request::Sampling},
    settings::{ServerSettings, cors::Cors},
    stage::reason::Markup,
    template::ChatTemplate,
    token::Tokenizer,
};

/// What the server needs of a loaded model.
pub struct Served {
    /// Its id.
    pub id: String,
    /// Another name for it.
    pub alias: Option<String>,
    /// The way to the engine.
    pub engine: Handle,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, if it was made for chats.
    pub template: Arc<ChatTemplate>,
    /// How it marks its reasoning.
    pub markup: Markup,
    /// How tokens are chosen where a request says nothing.
    pub sampling: Sampling,
}

/// The state of the server.
pub struct App {
    /// The model.
    pub served: Served,
    /// What a request's body may be; its head may take as long.
    pub bounds: Bounds,
    /// Who may use it.
    pub keys: Keys,
    /// The places for requests in flight.
    pub flights: Flights,
    /// Web pages that may use it.
    pub cors: Cors,
    /// The numbers behind `/metrics`.
    pub metrics: Metrics,
    /// **Units**: seconds since 1970. When the model was loaded.
    pub created: u64,
    /// What an answer may take, unless its request allows it less.
    pub deadline: Option<Duration>,
    /// How long a client may leave an answer unread.
    pub idle_timeout: Duration,
    life: watch::Sender<Life>,
}

/// How far the server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Takes requests.
    Serving,
    /// Takes none, and lets the answers end that run.
    Draining,
    /// The answers that still run must end.
    Closing,
}

impl App {
    /// The state of a server for this model.
    pub fn new(served: Served, settings: &ServerSettings, metrics: Metrics) -> Self {
        Self {
            served,
            bounds: Bounds {
                bytes: settings.max_body_bytes,
                within: settings.receive_timeout,
            },
            keys: Keys::new(&settings.keys),
            flights: Flights::new(settings.max_requests),
            cors: settings.cors.clone(),
            metrics,
            created: now(),
            deadline: settings.deadline,
            idle_timeout: settings.idle_timeout,
            life: watch::Sender::new(Life::Serving),
        }
    }

    /// Checks the model that a request names: the id, the alias, or none.
    ///
    /// **Errors**: [`ApiError::UnknownModel`].
    pub fn accept_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            None | Some("") => Ok(()),
            Some(name) if name == self.served.id || Some(name) == self.served.alias.as_deref() => {
                Ok(())
            }
            Some(name) => Err(ApiError::UnknownModel {
                asked: shortened(name),
                served: self.names(),
            }),
        }
    }

    /// The names that requests may use.
    pub fn names(&self) -> Vec<String> {
        [Some(self.served.id.clone()), self.served.alias.clone()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.life.send_replace(Life::Draining);
    }

    /// Whether no new requests are taken.
    pub fn is_draining(&self) -> bool {
        *self.life.borrow() != Life::Serving
    }

    /// Ends the answers that still run.
    pub fn close(&self) {
        self.life.send_replace(Life::Closing);
    }

    /// Completes when the answers that still run must end.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut life = self.life.subscribe();
        async move {
            let _ = life.wait_for(|life| *life == Life::Closing).await; // an error means that the server is gone: closed as well
        }
    }
}

/// **Units**: seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
