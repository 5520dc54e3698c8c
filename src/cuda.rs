//! A CUDA device as a backend: found at run time, everything resident in its memory.
//!
//! The driver and the kernel compiler are libraries that are looked for when the program runs; without them everything else works. Kernels
//! (`kernels/*.cu`) are compiled for the device found and the model's shape when a model is loaded, and kept on disk. All work goes to one
//! stream in order. Windows of few rows run as captured graphs; those of many rows are enqueued a layer at a time, so that the engine can let others
//! pass between two layers. A row's arithmetic is the CPU's wherever products of weights are concerned, and never depends on its neighbours.
//!
//! Knows shapes and block types; knows no family and no sequence.

mod backend;
mod compile;
mod device;
mod error;
mod forms;
mod kernels;
mod launch;
mod layout;
mod measure;
mod memory;
mod set;
mod sources;
mod tables;
mod upload;
mod watch;
mod weights;

pub use backend::Cuda;
pub use compile::default_cache;
pub use device::{Device, has_driver};
pub use error::CudaError;
pub use launch::Reads;
pub use measure::{Limits, Mark};
pub use watch::Launch;
pub use weights::{Experts, Matrix, Vector, device_bytes};
