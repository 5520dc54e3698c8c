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

use std::{marker::PhantomData, rc::Rc};

use crate::{backend::Backend, engine::executor::Lane, model::window::Window, stage::Then};

pub mod attention;
pub mod delta_net;
pub mod experts;
pub mod feed_forward;
pub mod mixer;
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

impl<B: Backend> Pass<'_, B> {
    /// Whether it may be left between the parts of a block.
    pub fn is_parted(&self) -> bool {
        B::PARTED && self.window.lane() == Lane::Prompt
    }
}

/// A step of a layer. Runs on the engine thread only.
pub trait Op<B: Backend> {
    /// What must be there.
    type In: HandOver;
    /// What is there afterwards.
    type Out: HandOver;

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

/// A part of a block, its type erased.
struct Part<B: Backend> {
    run: Box<dyn Run<B>>,
    /// Whether all that it needs of its rows is their residual.
    by_residual: bool,
}

/// An op that goes on where another one, whose type fitted, has ended.
trait Run<B: Backend> {
    fn run(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error>;
}

impl<B: Backend, O: Op<B>> Run<B> for O {
    fn run(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        // what came before has left it in the buffers of the lane, which are still as they were
        self.enqueue(pass, <O::In as again::Again>::again())
            .map(|_| ())
    }
}

/// The first parts of a block, the last of which hands over `Out`.
pub struct Parts<B: Backend, Out> {
    parts: Vec<Part<B>>,
    out: PhantomData<Out>,
}

impl<B: Backend, Out: HandOver> Parts<B, Out> {
    /// Adds a part: a pass may be left before it.
    pub fn then<O>(mut self, next: Layer<O>) -> Parts<B, O::Out>
    where
        O: Op<B, In = Out> + 'static,
    {
        self.parts.push(Part {
            run: Box::new(next.0),
            by_residual: Out::IS_RESIDUAL,
        });
        Parts {
            parts: self.parts,
            out: PhantomData,
        }
    }
}

impl<B: Backend> Parts<B, Hidden> {
    /// Closes the block.
    pub fn block(self) -> Block<B> {
        Block {
            parts: self.parts,
            remembers: None,
        }
    }
}

/// A whole layer, its type erased: families differ inside, the trunk is a loop.
pub struct Block<B: Backend> {
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

    /// Into how many parts a pass can be cut here.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Whether all that a part needs of its rows is their residual, so that rows may leave before it.
    pub fn by_residual(&self, part: usize) -> bool {
        self.parts[part].by_residual
    }

    /// Puts one part of the block on the backend.
    pub fn enqueue_part(&self, part: usize, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        self.parts[part].run.run(pass)
    }

    /// Puts the block on the backend.
    pub fn enqueue(&self, pass: &mut Pass<'_, B>, Hidden(()): Hidden) -> Result<Hidden, B::Error> {
        self.parts.iter().try_for_each(|part| part.run.run(pass))?;
        Ok(Hidden(()))
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

    /// Closes the first part of a block.
    pub fn part<B: Backend>(self) -> Parts<B, O::Out>
    where
        O: Op<B, In = Hidden> + 'static,
    {
        let first = Parts {
            parts: Vec::new(),
            out: PhantomData,
        };
        first.then(self)
    }
}

/// What ops hand to each other: a proof that their data are there.
pub trait HandOver: again::Again {
    /// Whether the residual is all of it.
    const IS_RESIDUAL: bool;
}

mod again {
    /// A proof that was had before, when a pass that was left goes on.
    pub trait Again {
        fn again() -> Self;
    }
}

macro_rules! hand_overs {
    ($($(#[$doc:meta])* $name:ident $is_residual:literal)*) => {
        $(
            $(#[$doc])*
            pub struct $name(pub(crate) ());

            impl HandOver for $name {
                const IS_RESIDUAL: bool = $is_residual;
            }

            impl again::Again for $name {
                fn again() -> Self {
                    Self(())
                }
            }
        )*
    };
}

hand_overs! {
    /// The residual holds the rows, `[rows, width] f32`.
    Hidden true
    /// `Act::Normed` holds the normed residual.
    Normed false
    /// What a mixer reads is projected into its buffers.
    Projected false
    /// `Act::Branch` holds what is to be added to the residual.
    Branch false
    /// The rows' keys and values are in the cache.
    Remembered false
    /// Every row's experts are chosen, and `Act::Normed` still holds their input.
    Routed false
    /// Every chosen expert's weights have a place to be read from.
    Resident false
    /// A share of the experts has been computed.
    Begun false
}
