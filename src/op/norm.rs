//! The norm before a block.

use super::{Hidden, Normed, Op, Pass};
use crate::{
    backend::Backend,
    model::loader::{LoadError, Loader},
};

/// `Normed` = x / sqrt(mean(x^2) + eps) * weight.
pub struct Norm<B: Backend> {
    weight: B::Vector,
    eps: f32,
}

impl<B: Backend> Norm<B> {
    /// Weight `{name}.weight`, as wide as the residual; epsilon from `attention.layer_norm_rms_epsilon`.
    pub fn load(from: &mut Loader<'_, B>, name: &str) -> Result<Self, LoadError> {
        let width = from.residual();
        Ok(Self {
            weight: from.vector(&format!("{name}.weight"), width)?,
            eps: from.rms_eps()?,
        })
    }

    /// The weight and the epsilon, for the norm before the head.
    pub(crate) fn parts(&self) -> (&B::Vector, f32) {
        (&self.weight, self.eps)
    }
}

impl<B: Backend> Op<B> for Norm<B> {
    type In = Hidden;
    type Out = Normed;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Hidden(()): Hidden) -> Result<Normed, B::Error> {
        pass.backend.norm(pass.window, &self.weight, self.eps)?;
        Ok(Normed(()))
    }
}
