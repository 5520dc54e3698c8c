//! The router: which experts a row uses, and how much each counts.

use super::{Normed, Op, Pass, Routed};
use crate::{
    backend::{Act, Backend, RouteShape, shape::Gating},
    model::loader::{LoadError, Loader},
};

/// `ffn_gate_inp`, gating, top-k.
pub struct Route<B: Backend> {
    router: B::Matrix,
    shared_gate: Option<B::Matrix>,
    shape: RouteShape,
}

impl<B: Backend> Route<B> {
    /// Tensors `{at}.ffn_gate_inp.weight` and, where the shared expert is gated, `{at}.ffn_gate_inp_shexp.weight`.
    ///
    /// **Source**: keys `expert_count`, `expert_used_count`, `expert_weights_scale`; gating and normalisation are the family's.
    pub fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        gating: Gating,
        normalise: bool,
    ) -> Result<Self, LoadError> {
        let (residual, shape) = (from.residual(), shape(from, gating, normalise)?);
        let router = from.matrix(
            &format!("{at}.ffn_gate_inp.weight"),
            residual,
            shape.experts,
        )?;
        let gate = format!("{at}.ffn_gate_inp_shexp.weight");
        let shared_gate = if from.has(&gate) {
            Some(from.row(&gate, residual)?)
        } else {
            None
        };
        from.need(Act::Router, shape.experts);
        from.need(Act::SharedGate, 1);
        from.routes(shape, &router);
        Ok(Self {
            router,
            shared_gate,
            shape,
        })
    }

    /// How rows are routed, for the ops after this one.
    pub(crate) fn shape(&self) -> RouteShape {
        self.shape
    }
}

fn shape<B: Backend>(
    from: &Loader<'_, B>,
    gating: Gating,
    normalise: bool,
) -> Result<RouteShape, LoadError> {
    let experts = from.count("expert_count")?;
    let used = from.count("expert_used_count")?;
    from.at_most("expert_used_count", used, experts)?;
    from.at_most("expert_count", experts, usize::from(u16::MAX))?;
    let scale = from
        .float("expert_weights_scale")?
        .filter(|scale| *scale != 0.0)
        .unwrap_or(1.0);
    Ok(RouteShape {
        experts,
        used,
        gating,
        normalise,
        scale,
    })
}

impl<B: Backend> Op<B> for Route<B> {
    type In = Normed;
    type Out = Routed;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Normed(()): Normed) -> Result<Routed, B::Error> {
        let count = pass.window.rows().count();
        match &self.shared_gate {
            None => pass
                .backend
                .matmul(count, Act::Normed, &[(&self.router, Act::Router)])?,
            Some(gate) => pass.backend.matmul(
                count,
                Act::Normed,
                &[(&self.router, Act::Router), (gate, Act::SharedGate)],
            )?,
        }
        pass.backend.route(count, &self.shape)?;
        Ok(Routed(()))
    }
}
