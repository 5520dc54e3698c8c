//! What stands between the last layer and a head.

use crate::{
    backend::{Backend, HeadNorm},
    model::loader::{LoadError, Loader},
    op::{norm::Norm, streams::ReadStreams},
};

/// What makes a head's input of the residual.
pub(super) enum Last<B: Backend> {
    Norm(Norm<B>),
    Streams(ReadStreams<B>),
}

impl<B: Backend> Last<B> {
    /// Of a residual with several streams or of one, its tensors called so.
    pub(super) fn load(
        from: &mut Loader<'_, B>,
        name: &str,
        streams: bool,
    ) -> Result<Self, LoadError> {
        Ok(if streams {
            Self::Streams(ReadStreams::load(from, name, false)?)
        } else {
            Self::Norm(Norm::load(from, name)?)
        })
    }

    /// For the head.
    pub(super) fn of_head(&self) -> HeadNorm<'_, B> {
        match self {
            Self::Norm(norm) => {
                let (weight, eps) = norm.parts();
                HeadNorm::Rms(weight, eps)
            }
            Self::Streams(read) => HeadNorm::Streams(read.weights()),
        }
    }

    /// For who reads hidden states: what gives them, if they are not the residual as it is. Several streams are read before they become one.
    pub(super) fn of_state(&self) -> Option<(&B::Vector, f32)> {
        match self {
            Self::Norm(norm) => Some(norm.parts()),
            Self::Streams(_) => None,
        }
    }
}
