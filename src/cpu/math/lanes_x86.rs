//! [`Lanes`] in AVX-512 registers, and in pairs of AVX2 registers.
//!
//! The intrinsics need their instructions. [`per_isa!`](super::per_isa) alone names these types, in functions that are compiled with
//! the instructions and run where the machine has them; that is what every `SAFETY` line below means by "`per_isa!`".

use super::{LANES, Lanes, Real};
use crate::cpu::isa::Isa;
use std::{
    arch::x86_64::*,
    ops::{Add, Div, Mul, Sub},
};

/// One AVX-512 register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Two AVX2 registers: lanes 0 to 7, lanes 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

#[inline(always)]
fn prefetch(row: &[f32]) {
    for line in row.chunks(LANES) {
        // SAFETY: part of SSE, which every x86-64 has; a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}

operators! { Avx512:
    // SAFETY: `per_isa!`.
    Add add |a, b| Self(unsafe { _mm512_add_ps(a.0, b.0) });
    // SAFETY: `per_isa!`.
    Sub sub |a, b| Self(unsafe { _mm512_sub_ps(a.0, b.0) });
    // SAFETY: `per_isa!`.
    Mul mul |a, b| Self(unsafe { _mm512_mul_ps(a.0, b.0) });
    // SAFETY: `per_isa!`.
    Div div |a, b| Self(unsafe { _mm512_div_ps(a.0, b.0) });
}

operators! { Avx2:
    // SAFETY: `per_isa!`.
    Add add |a, b| unsafe { Self(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) };
    // SAFETY: `per_isa!`.
    Sub sub |a, b| unsafe { Self(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) };
    // SAFETY: `per_isa!`.
    Mul mul |a, b| unsafe { Self(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) };
    // SAFETY: `per_isa!`.
    Div div |a, b| unsafe { Self(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) };
}

impl Real for Avx512 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: `per_isa!`.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `per_isa!`.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        // SAFETY: `per_isa!`.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn less(self, other: Self) -> Self {
        // SAFETY: `per_isa!`.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(
                shifted,
                _mm512_set1_epi32(0x3f80_0000),
            )))
        }
    }
    #[inline(always)]
    fn zero_below(self, x: Self, limit: f32) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, _mm512_set1_ps(limit));
            Self(_mm512_maskz_mov_ps(kept, self.0))
        }
    }
}

impl Lanes for Avx512 {
    const ISA: Isa = Isa::Avx512;
    const WIDE: bool = true;

    #[inline(always)]
    fn prefetch(row: &[f32]) {
        prefetch(row);
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: `per_isa!`; the array holds what is written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) })
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        // SAFETY: `per_isa!`; the array holds what is written.
        unsafe {
            _mm256_storeu_si256(
                to.as_mut_ptr().cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            )
        }
    }
    #[inline(always)]
    fn splat_f16(bits: u16) -> Self {
        // SAFETY: `per_isa!`.
        Self(unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits.cast_signed())) })
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        Self(unsafe {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())))
        })
    }
}

impl Real for Avx2 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: `per_isa!`.
        let half = unsafe { _mm256_set1_ps(x) };
        Self(half, half)
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, b.0, c.0),
                _mm256_fmadd_ps(self.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            Self(
                _mm256_max_ps(self.0, other.0),
                _mm256_max_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn less(self, other: Self) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            Self(
                _mm256_min_ps(self.0, other.0),
                _mm256_min_ps(self.1, other.1),
            )
        }
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            let one = _mm256_set1_epi32(0x3f80_0000);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(self.1));
            Self(
                _mm256_castsi256_ps(_mm256_add_epi32(low, one)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, one)),
            )
        }
    }
    #[inline(always)]
    fn zero_below(self, x: Self, limit: f32) -> Self {
        // SAFETY: `per_isa!`.
        unsafe {
            let limit = _mm256_set1_ps(limit);
            let (low, high) = (
                _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit),
                _mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, limit),
            );
            Self(_mm256_and_ps(self.0, low), _mm256_and_ps(self.1, high))
        }
    }
}

impl Lanes for Avx2 {
    const ISA: Isa = Isa::Avx2;
    const WIDE: bool = false;

    #[inline(always)]
    fn prefetch(row: &[f32]) {
        prefetch(row);
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        unsafe {
            Self(
                _mm256_loadu_ps(from.as_ptr()),
                _mm256_loadu_ps(from.as_ptr().add(8)),
            )
        }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        // SAFETY: `per_isa!`; the array holds what is written.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
        }
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        unsafe {
            let at = from.as_ptr();
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(at.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        // SAFETY: `per_isa!`; the array holds what is written.
        unsafe {
            let at = to.as_mut_ptr();
            _mm_storeu_si128(
                at.cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            );
            _mm_storeu_si128(
                at.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1),
            );
        }
    }
    #[inline(always)]
    fn splat_f16(bits: u16) -> Self {
        // SAFETY: `per_isa!`.
        let half = unsafe { _mm256_cvtph_ps(_mm_set1_epi16(bits.cast_signed())) };
        Self(half, half)
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        // SAFETY: `per_isa!`; the array holds what is read.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let (low, high) = (
                _mm256_cvtepi8_epi32(bytes),
                _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)),
            );
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
}
