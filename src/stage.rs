//! The outer level: a request is a chain of async stages, and the chain is a type.
//!
//! A [`Stage`] pulls its input when its output is polled and holds no queue. [`Then`] is the one way in which stages (and,
//! inside the engine, ops) are joined; a wrong order is a compile error at the stage that does not fit.

pub mod admit;
pub mod detokenize;
pub mod generate;
pub mod reason;
pub mod stop;
pub mod text;
pub mod tokenize;

use futures::{Stream, stream};

/// An async step of a request.
pub trait Stage: Sized + Send {
    /// What it takes.
    type In: Send;
    /// What it gives.
    type Out: Send;
    /// How it fails. An error ends the stream.
    type Error: Send;

    /// The stream of outputs for a stream of inputs. Dropping it drops the input, so a cancel travels upstream.
    fn attach(
        self,
        input: impl Stream<Item = Result<Self::In, Self::Error>> + Send,
    ) -> impl Stream<Item = Result<Self::Out, Self::Error>> + Send;
}

/// `A`, then `B`.
#[derive(Clone, Copy, Debug)]
pub struct Then<A, B>(pub A, pub B);

impl<A: Stage, B: Stage<In = A::Out, Error = A::Error>> Stage for Then<A, B> {
    type In = A::In;
    type Out = B::Out;
    type Error = A::Error;

    fn attach(
        self,
        input: impl Stream<Item = Result<A::In, A::Error>> + Send,
    ) -> impl Stream<Item = Result<B::Out, A::Error>> + Send {
        self.1.attach(self.0.attach(input))
    }
}

/// A chain of stages under construction.
#[derive(Clone, Debug)]
pub struct Pipeline<S>(S);

impl<S: Stage> Pipeline<S> {
    /// Starts with `first`.
    pub fn new(first: S) -> Self {
        Self(first)
    }

    /// Adds `next`, which must take what the chain gives.
    pub fn then<N: Stage<In = S::Out, Error = S::Error>>(self, next: N) -> Pipeline<Then<S, N>> {
        Pipeline(Then(self.0, next))
    }

    /// Runs one request through the chain.
    pub fn run(self, request: S::In) -> impl Stream<Item = Result<S::Out, S::Error>> + Send {
        self.0.attach(stream::iter([Ok(request)]))
    }
}
