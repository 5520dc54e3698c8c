//! Where each chosen expert is read from.

use super::{Op, Pass, Resident, Routed};
use crate::backend::{Backend, RouteShape};

/// Groups the window's rows by expert. Every expert lies in the mapped file, which is the one place there is.
pub struct Place(pub RouteShape);

impl<B: Backend> Op<B> for Place {
    type In = Routed;
    type Out = Resident;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Routed(()): Routed) -> Result<Resident, B::Error> {
        pass.backend.place(pass.window.rows().count(), &self.0)?;
        Ok(Resident(()))
    }
}
