//! How the CPU backend fails: only where it reads from a disk itself.

use crate::cpu::table::TableError;

/// What can go wrong on the CPU.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// Rows of a table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}
