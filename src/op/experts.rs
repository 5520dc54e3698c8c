//! The experts of a layer, in two halves: a pass may be left between them.

use std::rc::Rc;

use super::{Begun, Branch, Op, Pass, Resident};
use crate::{
    backend::{Backend, ExpertShare, ExpertWeights, SharedExpert, shape::Activation},
    model::loader::{LoadError, Loader},
};

/// Weighted sum of experts in the order of their rank, the shared expert last.
pub struct Experts<B: Backend>(ExpertWeights<B>);

impl<B: Backend> Experts<B> {
    /// Some of the experts, and then the others and the sum.
    pub fn halves(self) -> (FirstExperts<B>, OtherExperts<B>) {
        let weights = Rc::new(self.0);
        (FirstExperts(weights.clone()), OtherExperts(weights))
    }

    /// Tensors `{at}.ffn_{gate,up,down}_exps.weight` (or fused `ffn_gate_up_exps`, or one tensor an expert) and, where the file has them,
    /// `{at}.ffn_{gate,up,down}_shexp.weight`, `{at}.ffn_{gate,up,down}_exps.bias`.
    ///
    /// **Source**: width from `expert_feed_forward_length`, else `feed_forward_length`; the shared expert's from
    /// `expert_shared_feed_forward_length`, else `expert_shared_count` times the width.
    pub fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        experts: usize,
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let residual = from.residual();
        let width = match from.optional_count("expert_feed_forward_length")? {
            Some(width) => width,
            None => from.layer_count("feed_forward_length")?,
        };
        let (gate, up) = from.gate_up_experts(at, residual, width, experts)?;
        let down = from.experts(at, "down", width, residual, experts)?;
        from.routed_width(width);
        from.activates(activation);
        let bias = if from.has(&format!("{at}.ffn_gate_exps.bias")) {
            let mut of = |part, width| {
                from.expert_biases(&format!("{at}.ffn_{part}_exps.bias"), width, experts)
            };
            Some([of("gate", width)?, of("up", width)?, of("down", residual)?])
        } else {
            None
        };
        let shared = if from.has(&format!("{at}.ffn_up_shexp.weight")) {
            Some(shared(from, at, width)?)
        } else {
            None
        };
        Ok(Self(ExpertWeights {
            gate,
            up,
            down,
            width,
            activation,
            bias,
            shared,
        }))
    }
}

fn shared<B: Backend>(
    from: &mut Loader<'_, B>,
    at: &str,
    expert_width: usize,
) -> Result<SharedExpert<B>, LoadError> {
    let residual = from.residual();
    let count = from.count_or("expert_shared_count", 1)?;
    let width = from.count_or("expert_shared_feed_forward_length", count * expert_width)?;
    from.shared_width(width);
    Ok(SharedExpert {
        gate: from.matrix(&format!("{at}.ffn_gate_shexp.weight"), residual, width)?,
        up: from.matrix(&format!("{at}.ffn_up_shexp.weight"), residual, width)?,
        down: from.matrix(&format!("{at}.ffn_down_shexp.weight"), width, residual)?,
        width,
        gated: from.has(&format!("{at}.ffn_gate_inp_shexp.weight")),
    })
}

/// Half of the experts, if a pass may be left behind them; none if it may not.
pub struct FirstExperts<B: Backend>(Rc<ExpertWeights<B>>);

impl<B: Backend> Op<B> for FirstExperts<B> {
    type In = Resident;
    type Out = Begun;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Resident(()): Resident) -> Result<Begun, B::Error> {
        if pass.is_parted() {
            let rows = pass.window.rows().count();
            pass.backend
                .run_experts(rows, &self.0, ExpertShare::First)?;
        }
        Ok(Begun(()))
    }
}

/// All experts that have not been computed, and the sum.
pub struct OtherExperts<B: Backend>(Rc<ExpertWeights<B>>);

impl<B: Backend> Op<B> for OtherExperts<B> {
    type In = Begun;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Begun(()): Begun) -> Result<Branch, B::Error> {
        let share = match pass.is_parted() {
            true => ExpertShare::Others,
            false => ExpertShare::All,
        };
        let rows = pass.window.rows().count();
        pass.backend.run_experts(rows, &self.0, share)?;
        Ok(Branch(()))
    }
}
