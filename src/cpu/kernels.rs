//! Matrix kernels: products of weights, as they lie in the model file, with a window's rows of activations.
//!
//! # Canonical arithmetic
//! Every instruction set, number of rows and split of the outputs gives the same bits, because this is what is computed:
//! - **Activations** of integer types are quantised per block of 256 values (K and IQ types) or 32 (32-wide types) with
//!   `d_a = amax / 127` and `code = round_half_even(x * (127 / amax))`, IEEE f32. Where `127 / amax` is not a normal number
//!   the codes are 0. A NaN or an infinity makes `d_a`, and so the outputs, NaN or infinite.
//! - **256-wide types**: one exact i32 sum a block, sub-scales included, then `acc = fma(d_w * d_a, f32(sum), acc)` over the
//!   blocks in ascending order from 0. Minima have a chain of their own, `fma(dmin_w * d_a, f32(minima sum), acc)`, which is
//!   subtracted at the end.
//! - **32-wide types**: one exact i32 sum a block, then `fma(d_w * d_a, f32(sum), chain)`: block `b` goes to chain `b mod 8`;
//!   chains are joined as `((0+4) + (2+6)) + ((1+5) + (3+7))`. Minima (Q4_1, Q5_1) have eight chains of their own,
//!   `fma(m_w * d_a, f32(sum of codes), chain)`, joined likewise and added.
//! - `d_w` is the block's scale. MXFP4 counts in halves (`d_w = 2^(e - 128)`), IQ2 in eighths, IQ3_XXS in quarters, so that
//!   codes and sub-scales are whole numbers.
//! - **Float types** F32, F16, BF16, and every other type after dequantising its rows to f32: sixteen chains, see `float`.
//!
//! # Shape of the code
//! Outputs sit in the lanes of a vector, so nothing is summed across lanes, and a row's numbers do not depend on how many there are.
//! A tile of codes is unpacked once for many rows; for few rows, where unpacking would cost more than multiplying, some types
//! hand over their codes while they are in registers.
//! `simd` is the vocabulary of vector operations; `codec` says, in that vocabulary, what a type's bytes mean; `product` is the
//! inner loop; `panel` and `float` loop over a job, `ahead` asks for the weights that come next; `target` compiles the hot
//! parts for each instruction set and picks one. A thread works on a job: the caller splits the outputs. Must not know
//! experts, layers or threads.

#![expect(
    clippy::needless_range_loop,
    reason = "loops with constant bounds over several arrays become registers; closures are not inlined across target features"
)]

mod acts;
mod ahead;
mod codec;
mod float;
mod job;
mod panel;
mod product;
mod simd;
mod target;
#[cfg(test)]
mod tests;

pub use acts::{ActKind, Acts, ActsWriter};
pub use job::{KernelScratch, Matmul, OUTPUT_STEP, OutRows, matmul};
