//! Generation requests: as written ([`written`]), then as checked ([`checked`]). Knows nothing of sockets.

pub mod checked;
pub mod forms;
pub mod message;
mod ranges;
mod sampling;
pub mod tree;
pub mod written;

pub use checked::Generation;
pub(crate) use ranges::shortened;
pub use written::Body;

#[cfg(test)]
mod tests;
