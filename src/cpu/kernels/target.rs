//! The hot functions, compiled once for each instruction set, and the choice between them at run time.
//!
//! Everything hot is inlined into the functions that [`Target`] names here; they carry the instruction set's features. What
//! is above them (loops over tiles and rows) is ordinary code, generic over the target.

use super::acts::{ActKind, Unit};
use super::ahead::Ahead;
use super::codec::{Codec, Flow, Form, Rows, Tile};
use super::float::{self, Element};
use super::job::{KernelScratch, Matmul, OutRows};
use super::panel;
use super::product;
use super::simd::{Simd, portable::Portable};
use crate::cpu::isa::Isa;
use std::ops::Range;

/// Something to run with the instructions of a target.
pub(super) trait Work {
    /// Runs it.
    fn run<T: Target>(self, target: T);
}

/// The hot functions of one instruction set.
pub(super) trait Target: Simd {
    /// Quantises up to 256 values.
    fn quantise(self, kind: ActKind, unit: &mut Unit, values: &[f32]);

    /// Unpacks a unit of `LANES` weight rows into a tile, or its first half: what there is of it in its first `bytes` bytes.
    ///
    /// # Safety
    /// For every row `r < LANES`, `bytes` at `base + r * stride` can be read: `C::UNIT_BYTES`, or half of them of a 32-wide type.
    unsafe fn unpack<C: Codec>(
        self,
        base: *const u8,
        stride: usize,
        bytes: usize,
        next: Ahead,
        tile: &mut Tile<Self>,
    );

    /// See [`product::multiply`].
    fn multiply<F: Form, const M: usize, const N: usize>(
        self,
        tiles: &[Tile<Self>; M],
        units: [&Unit; N],
        bias: i32,
        blocks: usize,
        ahead: Ahead,
        sums: &mut [Self::F],
    );

    /// See [`product::flow`].
    ///
    /// # Safety
    /// As for `unpack`, of a whole unit.
    unsafe fn flow<C: Flow, const N: usize>(
        self,
        base: *const u8,
        stride: usize,
        next: *const u8,
        tile: &mut [Tile<Self>; 1],
        units: [&Unit; N],
        sums: &mut [Self::F],
    );

    /// See [`product::finish`].
    fn finish<F: Form, const M: usize>(
        self,
        sums: &[Self::F],
        out: &OutRows<'_>,
        row: usize,
        outputs: Range<usize>,
    );

    /// See [`float::dots`].
    ///
    /// # Safety
    /// As there.
    unsafe fn dots<E: Element, const O: usize, const N: usize>(
        self,
        weights: *const u8,
        stride: usize,
        acts: [&[f32]; N],
    ) -> [[f32; O]; N];

    /// See [`panel::run`]. With many rows as many vectors of outputs as suit the registers; with few, when memory is what
    /// limits, one, because fewer rows of weights at a time suit the memory better.
    fn panels<C: Codec>(self, job: &Matmul<'_>, scratch: &mut KernelScratch);

    /// Whether there are registers enough for [`panel::run_flow`] of a row.
    const FLOWS: bool;

    /// [`Target::panels`] of a type whose codes can be multiplied as they come.
    fn flows<C: Flow>(self, job: &Matmul<'_>, scratch: &mut KernelScratch) {
        // where `FLOWS` is false nothing is compiled for them
        match job.rows.len() {
            1 if Self::FLOWS => panel::run_flow::<Self, C, 1>(self, job, scratch),
            2..=5 if Self::FLOWS && Self::LANES == 16 && C::SEVERAL => {
                panel::run_flows::<Self, C>(self, job, scratch);
            }
            _ => self.panels::<C>(job, scratch),
        }
    }

    /// Rows of float activations at once, at most 6.
    const FLOAT_ROWS: usize;

    /// See [`float::run`], with as many outputs at once as suit the registers.
    fn float<E: Element>(self, job: &Matmul<'_>);

    /// See [`float::run_dequantised`].
    fn dequantised(self, job: &Matmul<'_>, scratch: &mut KernelScratch);
}

/// Runs `work` with the best instructions that `isa` allows and the processor has.
pub(super) fn with<W: Work>(isa: Isa, work: W) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::simd::{avx2::Avx2, avx512::Avx512};
        let isa = isa.usable();
        if isa == Isa::Avx512 && has_byte_instructions() {
            // SAFETY: `usable` and the line above have asked the processor.
            return work.run(unsafe { Avx512::assume() });
        }
        if isa >= Isa::Avx2 {
            // SAFETY: `usable` has asked the processor.
            return work.run(unsafe { Avx2::assume() });
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    work.run(Portable);
}

/// Whether AVX-512 has what the kernels are built on: 8-bit dot products and permutes. It has since Ice Lake and Zen 4; older
/// processors do better with AVX2.
#[cfg(target_arch = "x86_64")]
fn has_byte_instructions() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512vnni") && has!("avx512vbmi")
}

macro_rules! target {
    ($token:ty, $vectors:literal, $flows:literal, $float_outputs:literal x $float_rows:literal, $(#[$features:meta])?) => {
        impl Target for $token {
            fn quantise(self, kind: ActKind, unit: &mut Unit, values: &[f32]) {
                $(#[$features])?
                fn compiled(kind: ActKind, unit: &mut Unit, values: &[f32]) {
                    match (kind, values.first_chunk()) {
                        (ActKind::Blocks256, Some(values)) => unit.fill256(values),
                        _ => unit.fill32(values),
                    }
                }
                // SAFETY: the token proves the features.
                #[allow(unused_unsafe)]
                unsafe { compiled(kind, unit, values) }
            }

            unsafe fn unpack<C: Codec>(self, base: *const u8, stride: usize, bytes: usize, next: Ahead, tile: &mut Tile<Self>) {
                $(#[$features])?
                unsafe fn compiled<C: Codec>(
                    s: $token, base: *const u8, stride: usize, bytes: usize, next: Ahead, tile: &mut Tile<$token>,
                ) {
                    // several times, so that each knows how many there are and whether to ask for more
                    if bytes == C::UNIT_BYTES {
                        // SAFETY: the caller's promise is the same.
                        let rows = unsafe { Rows::new(s, base, stride, C::UNIT_BYTES) };
                        match next.start() {
                            Some(next) => C::unpack(s, &rows.asking(next), tile),
                            None => C::unpack(s, &rows, tile),
                        }
                    } else if !C::Form::SCALED {
                        // SAFETY: the same.
                        let rows = unsafe { Rows::new(s, base, stride, C::UNIT_BYTES / 2) };
                        C::unpack(s, &rows, tile);
                    }
                }
                // SAFETY: the token proves the features; the rest is the caller's promise.
                unsafe { compiled::<C>(self, base, stride, bytes, next, tile) }
            }

            fn multiply<F: Form, const M: usize, const N: usize>(
                self, tiles: &[Tile<Self>; M], units: [&Unit; N], bias: i32, blocks: usize, ahead: Ahead, sums: &mut [Self::F],
            ) {
                $(#[$features])?
                fn compiled<F: Form, const M: usize, const N: usize>(
                    s: $token, tiles: &[Tile<$token>; M], units: [&Unit; N], bias: i32, blocks: usize, ahead: Ahead, sums: &mut [<$token as Simd>::F],
                ) {
                    product::multiply::<$token, F, M, N>(s, tiles, units, bias, blocks, ahead, sums);
                }
                // SAFETY: the token proves the features.
                #[allow(unused_unsafe)]
                unsafe { compiled::<F, M, N>(self, tiles, units, bias, blocks, ahead, sums) }
            }

            unsafe fn flow<C: Flow, const N: usize>(
                self, base: *const u8, stride: usize, next: *const u8, tile: &mut [Tile<Self>; 1], units: [&Unit; N], sums: &mut [Self::F],
            ) {
                $(#[$features])?
                unsafe fn compiled<C: Flow, const N: usize>(
                    s: $token, base: *const u8, stride: usize, next: *const u8, tile: &mut [Tile<$token>; 1], units: [&Unit; N], sums: &mut [<$token as Simd>::F],
                ) {
                    // SAFETY: the caller's promise is the same.
                    let rows = unsafe { Rows::new(s, base, stride, C::UNIT_BYTES) };
                    product::flow::<$token, C, N>(s, rows, next, tile, units, sums);
                }
                // SAFETY: the token proves the features; the rest is the caller's promise.
                unsafe { compiled::<C, N>(self, base, stride, next, tile, units, sums) }
            }

            fn finish<F: Form, const M: usize>(self, sums: &[Self::F], out: &OutRows<'_>, row: usize, outputs: Range<usize>) {
                $(#[$features])?
                fn compiled<F: Form, const M: usize>(
                    s: $token, sums: &[<$token as Simd>::F], out: &OutRows<'_>, row: usize, outputs: Range<usize>,
                ) {
                    product::finish::<$token, F, M>(s, sums, out, row, outputs);
                }
                // SAFETY: the token proves the features.
                #[allow(unused_unsafe)]
                unsafe { compiled::<F, M>(self, sums, out, row, outputs) }
            }

            unsafe fn dots<E: Element, const O: usize, const N: usize>(
                self, weights: *const u8, stride: usize, acts: [&[f32]; N],
            ) -> [[f32; O]; N] {
                $(#[$features])?
                unsafe fn compiled<E: Element, const O: usize, const N: usize>(
                    s: $token, weights: *const u8, stride: usize, acts: [&[f32]; N],
                ) -> [[f32; O]; N] {
                    // SAFETY: the caller's promise is the same.
                    unsafe { float::dots::<$token, E, { 16 / <$token as Simd>::LANES }, O, N>(s, weights, stride, acts) }
                }
                // SAFETY: the token proves the features; the rest is the caller's promise.
                unsafe { compiled::<E, O, N>(self, weights, stride, acts) }
            }

            const FLOWS: bool = $flows;
            const FLOAT_ROWS: usize = $float_rows;

            fn float<E: Element>(self, job: &Matmul<'_>) {
                float::run::<Self, E, $float_outputs>(self, job);
            }

            fn dequantised(self, job: &Matmul<'_>, scratch: &mut KernelScratch) {
                float::run_dequantised::<Self, $float_outputs>(self, job, scratch);
            }

            fn panels<C: Codec>(self, job: &Matmul<'_>, scratch: &mut KernelScratch) {
                if job.rows.len() <= product::ROWS {
                    panel::run::<Self, C, 1>(self, job, scratch);
                } else {
                    panel::run::<Self, C, $vectors>(self, job, scratch);
                }
            }
        }
    };
}

target!(Portable, 1, false, 2 x 2,);
#[cfg(target_arch = "x86_64")]
target!(super::simd::avx2::Avx2, 1, true, 2 x 3, #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(target_arch = "x86_64")]
target!(super::simd::avx512::Avx512, 2, true, 4 x 6, #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]);
