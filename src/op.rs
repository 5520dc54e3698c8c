//! The inner level: a layer is a chain of ops with typed hand-overs.
//!
//! An [`Op`] puts work on the backend and returns; the data lies in the backend's named buffers and in the pass's residual. What ops hand to
//! each other is a proof that the data is there: experts that nobody placed cannot be run, because the types do not fit.
//! Knows no model family and no instruction set.
//!
//! ```compile_fail
//! # use tidegate::{backend::Backend, op::{Layer, Op, Hidden, experts::Experts, route::Route}};
//! fn experts_before_place<B: Backend>(route: Route<B>, experts: Experts<B>) -> impl Op<B, In = tidegate::op::Normed, Out = tidegate::op::Branch> {
//!     Layer::new(route).then(experts).0 // `Experts` takes `Resident`, `Route` gives `Routed`
//! }
//! ```

use std::rc::Rc;

use crate::{backend::Backend, model::window::Window, stage::Then};

pub mod attention;
pub mod delta_net;
pub mod experts;
pub mod feed_forward;
pub mod ngram;
pub mod norm;
pub mod place;
pub mod residual;
pub mod route;
pub mod sandwich;
pub mod streams;

/// A window on its way through the layers, and the backend it runs on.
pub struct Pass<'a, B: Backend> {
    /// Where work is put.
    pub backend: &'a mut B,
    /// The rows and their residual.
    pub window: &'a mut Window<B>,
}

/// A step of a layer. Runs on the engine thread only.
pub trait Op<B: Backend> {
    /// What must be there.
    type In;
    /// What is there afterwards.
    type Out;

    /// Puts the work on the backend.
    fn enqueue(&self, pass: &mut Pass<'_, B>, input: Self::In) -> Result<Self::Out, B::Error>;
}

impl<B: Backend, X: Op<B>, Y: Op<B, In = X::Out>> Op<B> for Then<X, Y> {
    type In = X::In;
    type Out = Y::Out;

    fn enqueue(&self, pass: &mut Pass<'_, B>, input: X::In) -> Result<Y::Out, B::Error> {
        let between = self.0.enqueue(pass, input)?;
        self.1.enqueue(pass, between)
    }
}

/// The same weights in two chains.
impl<B: Backend, O: Op<B>> Op<B> for Rc<O> {
    type In = O::In;
    type Out = O::Out;

    fn enqueue(&self, pass: &mut Pass<'_, B>, input: O::In) -> Result<O::Out, B::Error> {
        O::enqueue(self, pass, input)
    }
}

/// A chain from residual to residual, its type erased.
type Part<B> = Box<dyn Op<B, In = Hidden, Out = Hidden>>;

/// A whole layer, its type erased: families differ inside, the trunk is a loop.
pub struct Block<B: Backend> {
    /// One after the other. Between two of them nothing but the residual is needed, so that a pass may be left there.
    parts: Vec<Part<B>>,
    remembers: Option<Box<dyn Op<B, In = Hidden, Out = Remembered>>>,
}

impl<B: Backend> Block<B> {
    /// The same block, of which rows can also do no more than what `remembers` does: leave behind what later rows need of them.
    pub fn remembering<O>(self, remembers: Layer<O>) -> Self
    where
        O: Op<B, In = Hidden, Out = Remembered> + 'static,
    {
        Self {
            remembers: Some(Box::new(remembers.0)),
            ..self
        }
    }

    /// The same block, and behind it `next`.
    pub fn then<O>(mut self, next: Layer<O>) -> Self
    where
        O: Op<B, In = Hidden, Out = Hidden> + 'static,
    {
        self.parts.push(Box::new(next.0));
        self
    }

    /// Into how many parts a pass can be cut here.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Puts one part of the block on the backend.
    pub fn enqueue_part(
        &self,
        part: usize,
        pass: &mut Pass<'_, B>,
        input: Hidden,
    ) -> Result<Hidden, B::Error> {
        self.parts[part].enqueue(pass, input)
    }

    /// Puts the block on the backend.
    pub fn enqueue(&self, pass: &mut Pass<'_, B>, input: Hidden) -> Result<Hidden, B::Error> {
        let mut parts = self.parts.iter();
        parts.try_fold(input, |input, part| part.enqueue(pass, input))
    }

    /// Leaves behind what later rows need of these; all of the block where it knows no shorter way.
    pub fn remember(&self, pass: &mut Pass<'_, B>, input: Hidden) -> Result<(), B::Error> {
        match &self.remembers {
            Some(remembers) => remembers.enqueue(pass, input).map(|Remembered(())| ()),
            None => self.enqueue(pass, input).map(|Hidden(())| ()),
        }
    }
}

/// A layer under construction.
pub struct Layer<O>(pub O);

impl<O> Layer<O> {
    /// Starts with `first`.
    pub fn new(first: O) -> Self {
        Self(first)
    }

    /// Adds `next`. That it fits is checked where the chain is used as an [`Op`].
    pub fn then<N>(self, next: N) -> Layer<Then<O, N>> {
        Layer(Then(self.0, next))
    }

    /// Closes the layer, or the first part of it.
    pub fn block<B: Backend>(self) -> Block<B>
    where
        O: Op<B, In = Hidden, Out = Hidden> + 'static,
    {
        Block {
            parts: vec![Box::new(self.0)],
            remembers: None,
        }
    }
}

/// The residual holds the rows, `[rows, width] f32`.
pub struct Hidden(pub(crate) ());
/// `Act::Normed` holds the normed residual.
pub struct Normed(pub(crate) ());
/// `Act::Branch` holds what is to be added to the residual.
pub struct Branch(pub(crate) ());
/// The rows' keys and values are in the cache.
pub struct Remembered(pub(crate) ());
/// Every row's experts are chosen, and `Act::Normed` still holds their input.
pub struct Routed(pub(crate) ());
/// Every chosen expert's weights have a place to be read from.
pub struct Resident(pub(crate) ());
