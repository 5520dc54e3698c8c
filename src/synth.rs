//! Synthetic model files: the true dimensions, keys and block types of a public model, with random weights.
//!
//! They measure a machine before anybody downloads 100 GB. Weights are written straight as blocks of the right spread, so activations stay
//! finite; routers prefer some experts as trained ones do. What such a model says is noise, unless its guesses shall be right with a chosen chance. Knows the
//! container and block types, no engine.

mod blocks;
mod blueprint;
mod metadata;
mod mix;
mod plan;
mod planted;
pub(crate) mod random;
mod router;
mod vocabulary;
mod write;

use std::io;
use std::path::PathBuf;

pub use blueprint::{Blueprint, Hybrid, More, QkNorm, Streams, Tokenizer, WindowHeads, Windows};
pub use mix::Mix;
pub use plan::Plan;

use crate::quant::LengthMismatch;

/// Why a synthetic file was not written.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// No model of that name.
    #[error("there is no model `{got}` to imitate; known are {allowed}")]
    Model {
        /// The name.
        got: String,
        /// The names that are known.
        allowed: String,
    },
    /// No mixture of that name.
    #[error("there is no quantisation `{got}`; known are {allowed}")]
    Mix {
        /// The name.
        got: String,
        /// The names that are known.
        allowed: String,
    },
    /// Too few layers, or more than the model has.
    #[error("{model} cannot be cut to {got} layers; it has {allowed}, and 1 is the least")]
    Layers {
        /// The model.
        model: &'static str,
        /// Layers asked for.
        got: usize,
        /// Layers it has.
        allowed: usize,
    },
    /// A chance that is none.
    #[error("guesses cannot be right with a chance of {got}; 0 to 1 is possible")]
    Acceptance {
        /// As asked for.
        got: f32,
    },
    /// A prediction block for a model that has none, or whose family's is not computed.
    #[error("{model} is not written with a prediction block; {allowed} are")]
    NoPrediction {
        /// The model.
        model: &'static str,
        /// Models that are.
        allowed: String,
    },
    /// A tensor's blocks and values do not agree.
    #[error(transparent)]
    Blocks(#[from] LengthMismatch),
    /// The system refused to write.
    #[error("{}: {reason} (the file needs {bytes} bytes)", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the system said.
        reason: io::Error,
    },
}

#[cfg(test)]
mod tests;
