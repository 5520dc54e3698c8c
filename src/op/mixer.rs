//! What mixes the positions of a sequence, in two halves: a pass may be left between them.

use std::rc::Rc;

use super::{Branch, Normed, Op, Pass, Projected};
use crate::backend::Backend;

/// Attention and its like.
pub trait Mixer<B: Backend>: 'static {
    /// From `Act::Normed` to buffers of its own.
    fn project(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error>;

    /// From these and what it remembers of earlier positions to `Act::Branch`.
    fn mix(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error>;
}

/// The two halves of a mixer.
pub fn halves<M>(mixer: &Rc<M>) -> (Project<M>, Mix<M>) {
    (Project(mixer.clone()), Mix(mixer.clone()))
}

/// The first half.
pub struct Project<M>(Rc<M>);

impl<B: Backend, M: Mixer<B>> Op<B> for Project<M> {
    type In = Normed;
    type Out = Projected;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Projected, B::Error> {
        self.0.project(pass).map(Projected)
    }
}

/// The second half.
pub struct Mix<M>(Rc<M>);

impl<B: Backend, M: Mixer<B>> Op<B> for Mix<M> {
    type In = Projected;
    type Out = Branch;

    fn enqueue(
        &self,
        pass: &mut Pass<'_, B>,
        Projected(()): Projected,
    ) -> Result<Branch, B::Error> {
        self.0.mix(pass).map(Branch)
    }
}
