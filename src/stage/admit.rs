//! The door of the engine: a request gets its place, or is refused while its client can still be told with a status.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use tokio::sync::watch;

use super::{Stage, tokenize::RequestError};
use crate::engine::{
    Handle, Tokens,
    request::{Request, Token},
};

/// A request that has its place in the engine. Only this stage makes one, so nothing is generated that was not admitted.
///
/// Dropping it frees the place.
pub struct Admitted {
    prompt: Arc<[Token]>,
    tokens: Tokens,
}

impl Admitted {
    /// The prompt.
    pub fn prompt(&self) -> &Arc<[Token]> {
        &self.prompt
    }

    /// Its place in the engine's queue, as [`Tokens::queue_place`] tells it.
    pub fn queue_place(&self) -> watch::Receiver<usize> {
        self.tokens.queue_place()
    }

    pub(super) fn into_tokens(self) -> Tokens {
        self.tokens
    }
}

/// The stage.
#[derive(Clone)]
pub struct Admit {
    engine: Handle,
}

impl Admit {
    /// Into this engine.
    pub fn new(engine: Handle) -> Self {
        Self { engine }
    }
}

impl Stage for Admit {
    type In = Request;
    type Out = Admitted;
    type Error = RequestError;

    fn attach(
        self,
        input: impl Stream<Item = Result<Request, RequestError>> + Send,
    ) -> impl Stream<Item = Result<Admitted, RequestError>> + Send {
        input.map(move |request| {
            let request = request?;
            Ok(Admitted {
                prompt: request.prompt.clone(),
                tokens: self.engine.submit(request)?,
            })
        })
    }
}
