//! How reading an expert fails.

use std::{io, path::PathBuf};

use crate::ledger::bytes;

/// An expert that cannot be read. Ends the requests that wait for it, and nothing else.
#[derive(Debug, thiserror::Error)]
#[error("expert {expert} of the model's expert layer {layer} cannot be read at byte {offset} of {}: {fault}", path.display())]
pub struct ReadError {
    /// The expert's layer, of those that have experts.
    pub layer: usize,
    /// Its number in the layer.
    pub expert: u16,
    /// The file.
    pub path: PathBuf,
    /// **Units**: bytes. Where in the file.
    pub offset: u64,
    /// Why.
    pub fault: Fault,
}

/// Why bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// What the system says.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The file was longer when it was opened.
    #[error("the file ends there, {} too early; it must not be changed while it is served", bytes(*missing))]
    Truncated {
        /// **Units**: bytes. What is missing.
        missing: u64,
    },
    /// Only in simulations.
    #[error("a simulated failure")]
    Simulated,
}
