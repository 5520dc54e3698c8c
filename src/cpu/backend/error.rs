//! How the CPU backend fails: only where experts are kept in memory of their own.

use crate::cpu::store::StoreError;

/// What can go wrong on the CPU.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// Experts cannot be kept as the settings ask.
    #[error(transparent)]
    Store(#[from] StoreError),
}
