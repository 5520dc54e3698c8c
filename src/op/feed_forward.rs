//! A dense feed-forward block.

use super::{Branch, Normed, Op, Pass};
use crate::{
    backend::{Act, Backend, shape::Activation},
    model::loader::{LoadError, Loader},
};

/// `ffn_down(activation(ffn_gate x, ffn_up x))`.
pub struct FeedForward<B: Backend> {
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
    width: usize,
    activation: Activation,
}

impl<B: Backend> FeedForward<B> {
    /// Tensors `{at}.ffn_{gate,up,down}.weight`, width from `feed_forward_length`.
    pub fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let (residual, width) = (from.residual(), from.layer_count("feed_forward_length")?);
        from.need(Act::Gate, width);
        from.need(Act::Up, width);
        from.activates(activation);
        Ok(Self {
            gate: from.matrix(&format!("{at}.ffn_gate.weight"), residual, width)?,
            up: from.matrix(&format!("{at}.ffn_up.weight"), residual, width)?,
            down: from.matrix(&format!("{at}.ffn_down.weight"), width, residual)?,
            width,
            activation,
        })
    }
}

impl<B: Backend> Op<B> for FeedForward<B> {
    type In = Normed;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Branch, B::Error> {
        let count = pass.window.rows().count();
        pass.backend.matmul(
            count,
            Act::Normed,
            &[(&self.gate, Act::Gate), (&self.up, Act::Up)],
        )?;
        pass.backend.activate(count, self.width, self.activation)?;
        pass.backend
            .matmul(count, Act::Gate, &[(&self.down, Act::Branch)])?;
        Ok(Branch(()))
    }
}
