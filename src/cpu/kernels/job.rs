//! A job of the matrix kernels: some outputs of one matrix for some rows of activations.
//!
//! Knows where numbers lie and checks that they lie inside their slices; the arithmetic is in the modules beside it.

use super::acts::{ActKind, Acts};
use super::codec::{
    IQ4_NL, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, MXFP4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1,
    Q5K, Q6K, Q8_0, Tile,
};
use super::float::{Bf16, F16, F32};
use super::simd::Simd;
use super::target::{self, Target};
use crate::cpu::isa::Isa;
use crate::quant::BlockType;
use std::marker::PhantomData;
use std::ops::Range;

/// Outputs are computed in groups of this size on the widest instruction set: a caller that splits them over threads does
/// well to cut at multiples.
pub const OUTPUT_STEP: usize = 32;

/// A part of a matrix product: `out[r][o] = weights[o] . acts[rows[r]]` for `o` in `outputs`.
pub struct Matmul<'a> {
    /// The weights' type.
    pub ty: BlockType,
    /// The whole matrix, row after row: `[outputs of the matrix, k]`, `ty.row_bytes(k)` bytes a row.
    pub weights: &'a [u8],
    /// Values of a row.
    pub k: usize,
    /// Which of the matrix's rows are wanted.
    pub outputs: Range<usize>,
    /// Activations in the kind that [`ActKind::of`] names for `ty`.
    pub acts: &'a Acts,
    /// Which rows of `acts`; any order, repetitions allowed.
    pub rows: &'a [u32],
    /// Where the results go: row `r` of it takes those of `rows[r]`.
    pub out: OutRows<'a>,
}

impl Matmul<'_> {
    /// Bytes of a row of weights.
    pub(super) fn row_bytes(&self) -> usize {
        self.k / self.ty.block_values() * self.ty.block_bytes()
    }

    /// Checks that all that will be read and written exists.
    fn check(&self) {
        assert!(
            self.k.is_multiple_of(self.ty.block_values()),
            "{} values are no row of {}",
            self.k,
            self.ty
        );
        assert!(
            self.outputs.end * self.row_bytes() <= self.weights.len(),
            "outputs {:?} outside the weights",
            self.outputs
        );
        assert!(
            self.acts.kind() == ActKind::of(self.ty) && self.acts.k() == self.k,
            "activations do not fit {}",
            self.ty
        );
        assert!(
            self.rows
                .iter()
                .all(|row| (*row as usize) < self.acts.rows()),
            "rows outside the activations"
        );
        assert!(
            self.out.holds(self.rows.len(), self.outputs.end),
            "results do not fit"
        );
    }
}

/// Rows of results that several jobs may fill at the same time, each its own part.
pub struct OutRows<'a> {
    base: *mut f32,
    len: usize,
    stride: usize,
    /// Where a job's rows go, if not in order.
    places: Option<&'a [u32]>,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: an exclusive borrow of floats; `share` asks its callers for disjoint parts.
unsafe impl Send for OutRows<'_> {}
// SAFETY: as above; writing needs no more than `&self`.
unsafe impl Sync for OutRows<'_> {}

impl<'a> OutRows<'a> {
    /// Rows `stride` values apart: element `(r, o)` is `out[r * stride + o]`.
    pub fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self {
            base: out.as_mut_ptr(),
            len: out.len(),
            stride,
            places: None,
            owner: PhantomData,
        }
    }

    /// A second handle to the same rows.
    ///
    /// # Safety
    /// Jobs that run at the same time write different elements (other outputs, or other rows).
    pub unsafe fn share(&self) -> OutRows<'a> {
        Self {
            owner: PhantomData,
            ..*self
        }
    }

    /// The same with row `r` of a job being row `places[r]` here.
    pub fn placed(self, places: &'a [u32]) -> OutRows<'a> {
        Self {
            places: Some(places),
            ..self
        }
    }

    /// Whether `outputs` elements exist in each of a job's rows and no row overlaps the next.
    fn holds(&self, rows: usize, outputs: usize) -> bool {
        let last = match self.places {
            None => rows.checked_sub(1),
            Some(places) if places.len() < rows => return false,
            Some(places) => places[..rows].iter().max().map(|place| *place as usize),
        };
        last.is_none_or(|last| {
            last * self.stride + outputs <= self.len && (last == 0 || outputs <= self.stride)
        })
    }

    /// Writes results of one row, from output `first` on.
    #[inline]
    pub(super) fn write(&self, row: usize, first: usize, values: &[f32]) {
        let row = self.places.map_or(row, |places| places[row] as usize);
        let at = row * self.stride + first;
        assert!(at + values.len() <= self.len);
        // SAFETY: inside, see above; other jobs write other elements (`share`).
        unsafe {
            self.base
                .add(at)
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        };
    }
}

/// Space that a thread reuses from job to job. It grows to what the largest job needed, about 130 KB.
#[derive(Default)]
pub struct KernelScratch {
    lines: Vec<Line>,
    floats: Vec<f32>,
}

/// A cache line, for its alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl KernelScratch {
    /// Room for `M` tiles and for `count` vectors of chains, contents unspecified.
    pub(super) fn panel<S: Simd, const M: usize>(
        &mut self,
        _s: S,
        count: usize,
    ) -> (&mut [Tile<S>; M], &mut [S::F]) {
        const { assert!(align_of::<Tile<S>>() <= 64 && size_of::<Tile<S>>().is_multiple_of(64)) };
        let tiles = size_of::<[Tile<S>; M]>() / 64;
        let lines = tiles + (count * size_of::<S::F>()).div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        let (tiles, chains) = self.lines.split_at_mut(tiles);
        // SAFETY: enough initialised bytes, aligned to 64; vectors of integers and floats may hold any bits.
        unsafe {
            (
                &mut *tiles.as_mut_ptr().cast(),
                std::slice::from_raw_parts_mut(chains.as_mut_ptr().cast(), count),
            )
        }
    }

    /// Room for `count` floats, contents unspecified.
    pub(super) fn floats(&mut self, count: usize) -> &mut [f32] {
        self.floats.resize(self.floats.len().max(count), 0.0);
        &mut self.floats[..count]
    }
}

/// Computes a job on the calling thread. The bits of the result depend on neither `isa` nor how the work was split.
///
/// # Panics
/// If the job's parts do not fit each other: weights shorter than its outputs, activations of another kind or width, rows or
/// results outside their buffers.
pub fn matmul(isa: Isa, job: &Matmul<'_>, scratch: &mut KernelScratch) {
    job.check();
    if !job.outputs.is_empty() {
        target::with(isa, Run { job, scratch });
    }
}

/// The work of [`matmul`], compiled once for every instruction set.
struct Run<'a> {
    job: &'a Matmul<'a>,
    scratch: &'a mut KernelScratch,
}

impl target::Work for Run<'_> {
    fn run<T: Target>(self, t: T) {
        let Self { job, scratch } = self;
        match job.ty {
            BlockType::Q4_0 => t.panels::<Q4_0>(job, scratch),
            BlockType::Q4_1 => t.panels::<Q4_1>(job, scratch),
            BlockType::Q5_0 => t.panels::<Q5_0>(job, scratch),
            BlockType::Q5_1 => t.panels::<Q5_1>(job, scratch),
            BlockType::Q8_0 => t.panels::<Q8_0>(job, scratch),
            BlockType::IQ4_NL => t.panels::<IQ4_NL>(job, scratch),
            BlockType::MXFP4 => t.panels::<MXFP4>(job, scratch),
            BlockType::Q2_K => t.panels::<Q2K>(job, scratch),
            BlockType::Q3_K => t.panels::<Q3K>(job, scratch),
            BlockType::Q4_K => t.flows::<Q4K>(job, scratch),
            BlockType::Q5_K => t.panels::<Q5K>(job, scratch),
            BlockType::Q6_K => t.flows::<Q6K>(job, scratch),
            BlockType::IQ4_XS => t.panels::<Iq4Xs>(job, scratch),
            BlockType::IQ3_XXS => t.panels::<Iq3Xxs>(job, scratch),
            BlockType::IQ3_S => t.panels::<Iq3S>(job, scratch),
            BlockType::IQ2_XXS => t.panels::<Iq2Xxs>(job, scratch),
            BlockType::IQ2_XS => t.panels::<Iq2Xs>(job, scratch),
            BlockType::IQ2_S => t.panels::<Iq2S>(job, scratch),
            BlockType::F32 => t.float::<F32>(job),
            BlockType::F16 => t.float::<F16>(job),
            BlockType::BF16 => t.float::<Bf16>(job),
            _ => t.dequantised(job, scratch),
        }
    }
}
