//! The router: which experts a row uses, and how much each counts.

use super::{Normed, Op, Pass, Routed};
use crate::{
    backend::{Act, Backend, RouteShape, RouteWeights, shape::Gating},
    model::loader::{LoadError, Loader},
};

/// `ffn_gate_inp`, gating, top-k.
pub struct Route<B: Backend> {
    router: B::Matrix,
    shared_gate: Option<B::Matrix>,
    weights: RouteWeights<B>,
}

impl<B: Backend> Route<B> {
    /// Tensors `{at}.ffn_gate_inp.weight`; where the shared expert is gated `{at}.ffn_gate_inp_shexp.weight`; where the file has them
    /// `{at}.ffn_gate_inp.bias`, `{at}.exp_probs_b.bias` (it counts for the choice only) and `{at}.ffn_down_exps.scale`.
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
        let mut vector = |name: &str| from.optional_vector(&format!("{at}.{name}"), shape.experts);
        let weights = RouteWeights {
            shape,
            bias: vector("ffn_gate_inp.bias")?,
            choice_bias: vector("exp_probs_b.bias")?,
            expert_scale: vector("ffn_down_exps.scale")?,
        };
        from.routes(&router, &weights);
        Ok(Self {
            router,
            shared_gate,
            weights,
        })
    }

    /// How rows are routed, for the ops after this one.
    pub(crate) fn shape(&self) -> RouteShape {
        self.weights.shape
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
        pass.backend.route(count, &self.weights)?;
        Ok(Routed(()))
    }
}
