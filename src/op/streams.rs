//! A residual of several streams: one input is made of them for every block, and its output is spread over them.

use super::{Branch, Hidden, Normed, Op, Pass};
use crate::{
    backend::{Act, Backend, StreamWeights},
    model::loader::{LoadError, Loader},
};

/// `Normed` = mean over the streams of sigmoid(gate) * norm(stream); the gates are projected from all streams through few channels.
pub struct ReadStreams<B: Backend>(StreamWeights<B>);

impl<B: Backend> ReadStreams<B> {
    /// Tensors `{name}_{norm,down,up}.weight` and, where a block follows, `{name}_inject.weight`.
    ///
    /// **Source**: keys `hyper_connection.{count, low_rank}`.
    pub fn load(from: &mut Loader<'_, B>, name: &str, inject: bool) -> Result<Self, LoadError> {
        let streams = from.streams()?;
        let (width, rank) = (from.residual(), from.count("hyper_connection.low_rank")?);
        let all = streams * width;
        for (act, width) in [
            (Act::Streams, all),
            (Act::StreamGate, all),
            (Act::StreamLow, rank),
            (Act::Inject, streams),
        ] {
            from.need(act, width);
        }
        Ok(Self(StreamWeights {
            norm: from.flat_vector(&format!("{name}_norm.weight"), width, streams)?,
            eps: from.rms_eps()?,
            down: from.matrix(&format!("{name}_down.weight"), all, rank)?,
            up: from.matrix(&format!("{name}_up.weight"), rank, all)?,
            inject: if inject {
                Some(from.matrix(&format!("{name}_inject.weight"), all, streams)?)
            } else {
                None
            },
        }))
    }

    /// The weights, for what comes before the head.
    pub(crate) fn weights(&self) -> &StreamWeights<B> {
        &self.0
    }
}

impl<B: Backend> Op<B> for ReadStreams<B> {
    type In = Hidden;
    type Out = Normed;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Hidden(()): Hidden) -> Result<Normed, B::Error> {
        pass.backend.read_streams(pass.window, &self.0)?;
        Ok(Normed(()))
    }
}

/// Every stream += 2 sigmoid(its weight) * `Branch`, weights as the last [`ReadStreams`] has left them.
pub struct AddToStreams;

impl<B: Backend> Op<B> for AddToStreams {
    type In = Branch;
    type Out = Hidden;

    fn enqueue(&self, pass: &mut Pass<'_, B>, Branch(()): Branch) -> Result<Hidden, B::Error> {
        pass.backend.add_to_streams(pass.window)?;
        Ok(Hidden(()))
    }
}
