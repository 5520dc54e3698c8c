//! The CPU backend: vector code chosen at run time, a pool of pinned workers, and the arithmetic of every op.
//!
//! Knows rows, heads, pages and slots; knows no model family, no sequence and no file. Whatever the instruction set, the
//! number of workers or the rows that share a window, a row's result has the same bits.

pub mod attention;
pub mod backend;
pub mod cores;
pub mod delta_net;
pub mod index;
pub mod isa;
pub mod kernels;
pub mod kv;
pub mod math;
pub mod pool;
pub mod route;
pub mod store;
#[cfg(test)]
pub(crate) mod test_numbers;
pub(crate) mod tile;
pub(crate) mod zeroed;
