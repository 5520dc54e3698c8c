//! Linear attention by the gated delta rule.

use super::{Pass, mixer::Mixer};
use crate::{
    backend::{
        Act, Backend, DeltaWeights,
        shape::{BetaDecay, DeltaShape, HeadMap, OutGate},
    },
    model::loader::{LoadError, Loader},
};

/// Projections, causal convolution, gated delta rule, gated norm, `ssm_out`.
pub struct DeltaNet<B: Backend> {
    qkv: B::Matrix,
    gate: B::Matrix,
    beta: B::Matrix,
    decay: Option<B::Matrix>,
    output: B::Matrix,
    weights: DeltaWeights<B>,
}

impl<B: Backend> DeltaNet<B> {
    /// Tensors `{at}.attn_qkv`, `{at}.attn_gate`, `{at}.ssm_*`. Whether beta and decay come in one projection (`ssm_ba`) is read from
    /// the file; the head map is the family's.
    ///
    /// **Source**: keys `ssm.{group_count, time_step_rank, state_size, inner_size, conv_kernel}`.
    pub fn load(
        from: &mut Loader<'_, B>,
        at: &str,
        head_map: HeadMap,
        out_gate: OutGate,
    ) -> Result<Self, LoadError> {
        let interleaved = format!("{at}.ssm_ba.weight");
        let shape = shape(
            from,
            (head_map, out_gate),
            if from.has(&interleaved) {
                BetaDecay::Interleaved
            } else {
                BetaDecay::Separate
            },
        )?;
        let (residual, heads) = (from.residual(), shape.v_heads);
        let (beta, decay) = match shape.beta_decay {
            BetaDecay::Interleaved => (from.matrix(&interleaved, residual, 2 * heads)?, None),
            BetaDecay::Separate => (
                from.matrix(&format!("{at}.ssm_beta.weight"), residual, heads)?,
                Some(from.matrix(&format!("{at}.ssm_alpha.weight"), residual, heads)?),
            ),
        };
        let loaded = Self {
            qkv: from.matrix(&format!("{at}.attn_qkv.weight"), residual, shape.channels())?,
            gate: from.matrix(&format!("{at}.attn_gate.weight"), residual, shape.inner())?,
            beta,
            decay,
            output: from.matrix(&format!("{at}.ssm_out.weight"), shape.inner(), residual)?,
            weights: DeltaWeights {
                shape,
                state: from.delta(shape),
                conv: from.turned(
                    &format!("{at}.ssm_conv1d.weight"),
                    shape.conv_taps,
                    shape.channels(),
                )?,
                decay: from.vector(&format!("{at}.ssm_a"), heads)?,
                decay_bias: from.vector(&format!("{at}.ssm_dt.bias"), heads)?,
                norm: from.vector(&format!("{at}.ssm_norm.weight"), shape.v_dim)?,
            },
        };
        for (act, width) in [
            (Act::DeltaQkv, shape.channels()),
            (Act::DeltaZ, shape.inner()),
            (Act::DeltaBeta, 2 * heads),
            (Act::DeltaDecay, heads),
            (Act::Mixed, shape.inner()),
        ] {
            from.need(act, width);
        }
        Ok(loaded)
    }
}

fn shape<B: Backend>(
    from: &Loader<'_, B>,
    (head_map, out_gate): (HeadMap, OutGate),
    beta_decay: BetaDecay,
) -> Result<DeltaShape, LoadError> {
    let k_heads = from.count("ssm.group_count")?;
    let v_heads = from.count("ssm.time_step_rank")?;
    let inner = from.count("ssm.inner_size")?;
    from.multiple("ssm.time_step_rank", v_heads, k_heads)?;
    from.multiple("ssm.inner_size", inner, v_heads)?;
    let conv_taps = from.count("ssm.conv_kernel")?;
    from.equal("ssm.conv_kernel", conv_taps, 4)?;
    let shape = DeltaShape {
        k_heads,
        v_heads,
        k_dim: from.count("ssm.state_size")?,
        v_dim: inner / v_heads,
        conv_taps,
        head_map,
        beta_decay,
        out_gate,
        eps: from.rms_eps()?,
    };
    from.multiple("ssm.state_size", shape.k_dim, 8)?;
    from.multiple("ssm.inner_size / ssm.time_step_rank", shape.v_dim, 8)?;
    Ok(shape)
}

impl<B: Backend> Mixer<B> for DeltaNet<B> {
    fn project(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        let count = pass.window.rows().count();
        let projections = [
            (&self.qkv, Act::DeltaQkv),
            (&self.gate, Act::DeltaZ),
            (&self.beta, Act::DeltaBeta),
        ];
        match &self.decay {
            None => pass.backend.matmul(count, Act::Normed, &projections),
            Some(decay) => pass.backend.matmul(
                count,
                Act::Normed,
                &[
                    projections[0],
                    projections[1],
                    projections[2],
                    (decay, Act::DeltaDecay),
                ],
            ),
        }
    }

    fn mix(&self, pass: &mut Pass<'_, B>) -> Result<(), B::Error> {
        let rows = pass.window.rows();
        pass.backend.delta_net(rows, &self.weights)?;
        let (backend, count) = (&mut *pass.backend, rows.count());
        backend.matmul(count, Act::Mixed, &[(&self.output, Act::Branch)])
    }
}
