//! Products of float weights with float activations.
//!
//! Sixteen chains a dot product: value `i` goes to chain `i mod 16` by one fused multiply-add; chains are joined by adding the
//! upper half to the lower half, four times. Knows pointers to rows; the dequantising path brings rows of its own.

use super::job::{KernelScratch, Matmul};
use super::simd::Simd;
use super::target::Target;
use crate::quant::dequantise;
use std::ops::Range;

/// Rows of activations that stay in the second-level cache while all outputs pass.
const ROWS_MAX: usize = 48;

/// A float type that weights are stored in.
pub(super) trait Element {
    /// Bytes of a value.
    const BYTES: usize;

    /// `LANES` values.
    ///
    /// # Safety
    /// `LANES * BYTES` bytes at `from` can be read.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F;
}

macro_rules! elements {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {
        $(#[doc = concat!("Weights as ", stringify!($name), ".")]
        pub(super) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
                // SAFETY: the caller's promise is the same.
                unsafe { s.$load(from) }
            }
        })*
    };
}

elements! {
    F32, 4, load_f32;
    F16, 2, load_f16;
    Bf16, 2, load_bf16;
}

/// Dot products of `O` rows of weights with `N` rows of activations of equal length `k`; `P` vectors hold 16 values.
///
/// # Safety
/// For every `o < O`, `k * E::BYTES` bytes at `weights + o * stride` can be read.
#[inline(always)]
pub(super) unsafe fn dots<S: Simd, E: Element, const P: usize, const O: usize, const N: usize>(
    s: S,
    weights: *const u8,
    stride: usize,
    acts: [&[f32]; N],
) -> [[f32; O]; N] {
    let k = acts[0].len();
    assert!(acts.iter().all(|row| row.len() == k));
    let mut sums = [[[s.splat_float(0.0); P]; O]; N];
    for at in (0..k / 16 * 16).step_by(16) {
        for o in 0..O {
            s.prefetch(weights.wrapping_add((O + o) * stride + at * E::BYTES));
        }
        for p in 0..P {
            let at = at + p * S::LANES;
            let mut rows = [s.splat_float(0.0); O];
            for o in 0..O {
                // SAFETY: values `at .. at + LANES` of row `o` lie before `k`.
                rows[o] = unsafe { E::load(s, weights.add(o * stride + at * E::BYTES)) };
            }
            for n in 0..N {
                // SAFETY: as above, in row `n` of the activations.
                let act = unsafe { s.load_f32(acts[n].as_ptr().add(at).cast()) };
                for o in 0..O {
                    sums[n][o][p] = s.fma(rows[o], act, sums[n][o][p]);
                }
            }
        }
    }
    let (at, rest) = (k / 16 * 16, k % 16);
    let mut dots = [[0.0; O]; N];
    for n in 0..N {
        for o in 0..O {
            // SAFETY: values `at .. k` of row `o`.
            let tail = unsafe {
                std::slice::from_raw_parts(weights.add(o * stride + at * E::BYTES), rest * E::BYTES)
            };
            dots[n][o] = join(s, finish::<S, E, P>(s, sums[n][o], tail, &acts[n][at..]));
        }
    }
    dots
}

/// Adds the last values, fewer than 16; what is missing counts as zeros.
#[inline(always)]
fn finish<S: Simd, E: Element, const P: usize>(
    s: S,
    mut sums: [S::F; P],
    weights: &[u8],
    acts: &[f32],
) -> [S::F; P] {
    if acts.is_empty() {
        return sums;
    }
    let (mut row, mut act) = ([0u8; 64], [0f32; 16]);
    row[..weights.len()].copy_from_slice(weights);
    act[..acts.len()].copy_from_slice(acts);
    for p in 0..P {
        let at = p * S::LANES;
        // SAFETY: 16 values of at most 4 bytes each, `LANES` of them from `at`.
        sums[p] = unsafe {
            s.fma(
                E::load(s, row.as_ptr().add(at * E::BYTES)),
                s.load_f32(act.as_ptr().add(at).cast()),
                sums[p],
            )
        };
    }
    sums
}

/// Sixteen chains to one number.
#[inline(always)]
fn join<S: Simd, const P: usize>(s: S, vectors: [S::F; P]) -> f32 {
    let mut chains = [0.0f32; 16];
    for (to, vector) in chains.chunks_exact_mut(S::LANES).zip(vectors) {
        to.copy_from_slice(s.floats(vector).as_ref());
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            chains[i] += chains[i + half];
        }
    }
    chains[0]
}

/// Multiplies all rows of `job` with its outputs, `O` outputs at once.
pub(super) fn run<T: Target, E: Element, const O: usize>(t: T, job: &Matmul<'_>) {
    for (block, rows) in job.rows.chunks(ROWS_MAX).enumerate() {
        for first in job.outputs.clone().step_by(O) {
            let outputs = first..job.outputs.end.min(first + O);
            let weights = &job.weights[first * job.row_bytes()..];
            multiply::<T, E, O>(t, job, weights, outputs, block * ROWS_MAX, rows);
        }
    }
}

/// The same for types without a kernel of their own: `O` rows of weights at a time are multiplied out first.
pub(super) fn run_dequantised<T: Target, const O: usize>(
    t: T,
    job: &Matmul<'_>,
    scratch: &mut KernelScratch,
) {
    let row_bytes = job.row_bytes();
    let weights = scratch.floats(O * job.k);
    for first in job.outputs.clone().step_by(O) {
        let outputs = first..job.outputs.end.min(first + O);
        let weights = &mut weights[..outputs.len() * job.k];
        let bytes = &job.weights[first * row_bytes..outputs.end * row_bytes];
        dequantise(job.ty, bytes, weights).expect("whole rows on both sides");
        // SAFETY: floats seen as bytes.
        let weights =
            unsafe { std::slice::from_raw_parts(weights.as_ptr().cast(), size_of_val(weights)) };
        multiply::<T, F32, O>(t, job, weights, outputs, 0, job.rows);
    }
}

/// Up to `O` outputs with the rows `rows` of the activations, which are the job's rows `to ..`. `weights` begin with the first output.
pub(super) fn multiply<T: Target, E: Element, const O: usize>(
    t: T,
    job: &Matmul<'_>,
    weights: &[u8],
    outputs: Range<usize>,
    to: usize,
    rows: &[u32],
) {
    let row_bytes = job.k * E::BYTES;
    assert!(outputs.len() * row_bytes <= weights.len());
    macro_rules! rows {
        ($o:expr, $n:literal, $from:expr, $to:expr, $rows:expr) => {{
            let acts: [&[f32]; $n] = std::array::from_fn(|i| job.acts.floats($rows[i] as usize));
            // SAFETY: rows of `job.k` values; their bytes were counted above.
            let dots = unsafe {
                t.dots::<E, $o, $n>(weights[$from * row_bytes..].as_ptr(), row_bytes, acts)
            };
            for (i, dots) in dots.iter().enumerate() {
                job.out.write($to + i, outputs.start + $from, dots);
            }
        }};
    }
    for (i, rows) in rows.chunks(T::FLOAT_ROWS).enumerate() {
        let to = to + i * T::FLOAT_ROWS;
        if outputs.len() < O {
            for (i, row) in rows.iter().enumerate() {
                for o in 0..outputs.len() {
                    rows!(1, 1, o, to + i, [*row]);
                }
            }
            continue;
        }
        match rows.len() {
            1 => rows!(O, 1, 0, to, rows),
            2 => rows!(O, 2, 0, to, rows),
            3 => rows!(O, 3, 0, to, rows),
            4 => rows!(O, 4, 0, to, rows),
            5 => rows!(O, 5, 0, to, rows),
            _ => rows!(O, 6, 0, to, rows),
        }
    }
}
