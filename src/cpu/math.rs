//! The arithmetic of rows: elementary functions, sums, norms and rotations, with the same bits on every instruction set.
//!
//! Knows slices of f32; knows no head, page or model. What fixes the bits:
//!
//! - Every operation is an IEEE f32 operation, rounded to nearest even; a product that is added is one fused multiply-add.
//! - A sum over a row keeps 64 partial sums, and element `i` goes to partial sum `i mod 64`, in ascending order. They are joined by
//!   halves: `p[i] += p[i + 32]` for `i < 32`, then 16, 8, 4, 2, 1.
//! - [`exp`], and what is made of it, is a polynomial of ours, not a library's.
//!
//! A row's result never depends on other rows.

mod functions;
pub(crate) mod lanes;
mod rope;
mod rows;

pub use functions::{exp, sigmoid, silu, softplus};
pub(crate) use functions::{exp_of, sigmoid_of, silu_of, softplus_of};
pub use rope::{Rope, RopeRows};
pub use rows::{
    activate, add, axpy, clamped_swiglu, dot, gated_mean, geglu, l2_norm, mul_sigmoid, rms_norm,
    rms_norm_into, softcap, softmax, swiglu,
};
pub(crate) use rows::{add_body, l2_norm_body, rms_norm_body, softmax_body};
