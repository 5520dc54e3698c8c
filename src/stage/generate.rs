//! Where an admitted request's tokens come out of the engine.

use futures::{Stream, StreamExt, TryStreamExt};

use super::{Stage, admit::Admitted};
use crate::engine::request::{EngineError, Output};

/// The stage. Pulling a token frees a credit of its sequence; dropping the stream cancels it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Generate;

impl Stage for Generate {
    type In = Admitted;
    type Out = Output;
    type Error = EngineError;

    fn attach(
        self,
        input: impl Stream<Item = Result<Admitted, EngineError>> + Send,
    ) -> impl Stream<Item = Result<Output, EngineError>> + Send {
        input
            .map(|admitted| admitted.map(Admitted::into_tokens))
            .try_flatten()
    }
}
