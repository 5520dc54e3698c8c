//! The addition after a block.

use super::{Branch, Hidden, Op, Pass};
use crate::backend::Backend;

/// residual += `Branch`.
pub struct Add;

impl<B: Backend> Op<B> for Add {
    type In = Branch;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Branch(()): Branch) -> Result<Hidden, B::Error> {
        pass.backend.add(pass.window)?;
        Ok(Hidden(()))
    }
}
