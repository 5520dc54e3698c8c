//! The experts of a layer.

use super::{Branch, Op, Pass, Resident};
use crate::{
    backend::{Backend, ExpertWeights, SharedExpert},
    model::loader::{LoadError, Loader},
};

/// Weighted sum of SwiGLU experts in the order of their rank, the shared expert last.
pub struct Experts<B: Backend>(ExpertWeights<B>);

impl<B: Backend> Experts<B> {
    /// Tensors `{at}.ffn_{gate,up,down}_exps.weight` (or fused `ffn_gate_up_exps`, or one tensor an expert) and, where the file has them,
    /// `{at}.ffn_{gate,up,down}_shexp.weight`.
    ///
    /// **Source**: width from `expert_feed_forward_length`, else `feed_forward_length`; `expert_shared_feed_forward_length`.
    pub fn load(from: &mut Loader<'_, B>, at: &str, experts: usize) -> Result<Self, LoadError> {
        let residual = from.residual();
        let width = match from.optional_count("expert_feed_forward_length")? {
            Some(width) => width,
            None => from.layer_count("feed_forward_length")?,
        };
        let (gate, up) = from.gate_up_experts(at, residual, width, experts)?;
        let down = from.experts(at, "down", width, residual, experts)?;
        from.routed_width(width);
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
    let width = from.count_or("expert_shared_feed_forward_length", expert_width)?;
    from.shared_width(width);
    Ok(SharedExpert {
        gate: from.matrix(&format!("{at}.ffn_gate_shexp.weight"), residual, width)?,
        up: from.matrix(&format!("{at}.ffn_up_shexp.weight"), residual, width)?,
        down: from.matrix(&format!("{at}.ffn_down_shexp.weight"), width, residual)?,
        width,
        gated: from.has(&format!("{at}.ffn_gate_inp_shexp.weight")),
    })
}

impl<B: Backend> Op<B> for Experts<B> {
    type In = Resident;
    type Out = Branch;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Resident(()): Resident) -> Result<Branch, B::Error> {
        pass.backend
            .run_experts(pass.window.rows().count(), &self.0)?;
        Ok(Branch(()))
    }
}
