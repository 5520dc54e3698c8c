//! How the CPU backend fails: only where it reads from a disk itself, or experts are kept in memory of their own.

use crate::cpu::{store::StoreError, table::TableError};

/// What can go wrong on the CPU.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// Experts cannot be kept as the settings ask.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Rows of a table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}
