//! What stands around blocks in some families: norms of what a block gives, branches side by side, and a factor on the whole residual.

use super::{Branch, Hidden, Normed, Op, Pass, Routed, norm::Norm};
use crate::{
    backend::{Act, Backend},
    model::loader::{LoadError, Loader},
};

/// `Branch` = norm of `Branch`.
pub struct PostNorm<B: Backend>(Norm<B>);

impl<B: Backend> PostNorm<B> {
    /// As [`Norm::load`].
    pub fn load(from: &mut Loader<'_, B>, name: &str) -> Result<Self, LoadError> {
        from.sandwich();
        Norm::load(from, name).map(Self)
    }
}

impl<B: Backend> Op<B> for PostNorm<B> {
    type In = Branch;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, branch: Branch) -> Result<Branch, B::Error> {
        let (weight, eps) = self.0.parts();
        let rows = pass.window.rows().count();
        pass.backend.norm_branch(rows, weight, eps)?;
        Ok(branch)
    }
}

/// A norm without a weight of its own, but with factors `{name}.scale` for its channels, over the root of the width: what a router reads.
pub struct ScaledNorm<B: Backend> {
    weight: B::Vector,
    eps: f32,
}

impl<B: Backend> ScaledNorm<B> {
    /// Factors `{name}.scale`, as wide as the residual.
    pub fn load(from: &mut Loader<'_, B>, name: &str) -> Result<Self, LoadError> {
        let width = from.residual();
        let root = (width as f32).sqrt().recip();
        Ok(Self {
            weight: from.scaled_vector(&format!("{name}.scale"), width, root)?,
            eps: from.rms_eps()?,
        })
    }
}

impl<B: Backend> Op<B> for ScaledNorm<B> {
    type In = Hidden;
    type Out = Normed;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Hidden(()): Hidden) -> Result<Normed, B::Error> {
        pass.backend.norm(pass.window, &self.weight, self.eps)?;
        Ok(Normed(()))
    }
}

/// Experts read another norm than the router did.
pub struct Renorm<B: Backend>(pub Norm<B>);

impl<B: Backend> Op<B> for Renorm<B> {
    type In = Routed;
    type Out = Routed;

    fn enqueue(&self, pass: &mut Pass<'_, B>, routed: Routed) -> Result<Routed, B::Error> {
        let Normed(()) = self.0.enqueue(pass, Hidden(()))?;
        Ok(routed)
    }
}

/// A branch waits while another one is computed of the same residual.
pub struct SetAside(());

impl SetAside {
    /// Makes room for it.
    pub fn new<B: Backend>(from: &mut Loader<'_, B>) -> Self {
        from.sandwich();
        from.need(Act::Aside, from.residual());
        Self(())
    }
}

impl<B: Backend> Op<B> for SetAside {
    type In = Branch;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Branch(()): Branch) -> Result<Hidden, B::Error> {
        pass.backend.set_aside(pass.window.rows().count())?;
        Ok(Hidden(()))
    }
}

/// The branch that was set aside joins this one.
pub struct AddAside;

impl<B: Backend> Op<B> for AddAside {
    type In = Branch;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, branch: Branch) -> Result<Branch, B::Error> {
        pass.backend.add_aside(pass.window.rows().count())?;
        Ok(branch)
    }
}

/// A factor on the residual.
pub struct Scale(f32);

impl Scale {
    /// The factor `{name}.weight`, one value; 1 where the file has none.
    pub fn load<B: Backend>(from: &mut Loader<'_, B>, name: &str) -> Result<Self, LoadError> {
        from.sandwich();
        Ok(Self(from.scalar(&format!("{name}.weight"))?.unwrap_or(1.0)))
    }
}

impl<B: Backend> Op<B> for Scale {
    type In = Hidden;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, hidden: Hidden) -> Result<Hidden, B::Error> {
        pass.backend.scale(pass.window, self.0)?;
        Ok(hidden)
    }
}
