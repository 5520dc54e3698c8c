//! [`Simd`] with AVX2, FMA and F16C, eight lanes.

use super::Simd;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    /// The token.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    pub(in super::super) unsafe fn assume() -> Self {
        Self(())
    }
}

/// Body of an operation: intrinsics under the token's promise.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a token exists, so the processor has the features (see `assume`).
        unsafe { $e }
    };
}

impl Simd for Avx2 {
    type I = __m256i;
    type F = __m256;
    type Floats = [f32; 8];
    const LANES: usize = 8;
    const WIDE_BIAS: i32 = 0;
    const SHORT: bool = true;

    #[inline(always)]
    fn splat(self, word: u32) -> Self::I {
        op!(_mm256_set1_epi32(word as i32))
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn add(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_low(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn shl(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm256_sllv_epi32(a, _mm256_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn shr(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm256_srlv_epi32(a, _mm256_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn sar(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm256_srav_epi32(a, _mm256_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_add_epi8(a, b))
    }
    #[inline(always)]
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_sub_epi8(a, b))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I {
        op!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, index)
        })
    }
    #[inline(always)]
    fn gather(self, table: &[u32], index: Self::I) -> Self::I {
        debug_assert!(table.len().is_power_of_two());
        let index = self.and(index, self.splat(table.len() as u32 - 1));
        op!(_mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index))
    }
    #[inline(always)]
    fn signed(self, codes: Self::I) -> Self::I {
        self.xor(codes, self.splat(0x8080_8080))
    }

    // Codes are at most 127, so a pair's sum stays below 127 * 127 * 2 < 2^15: `maddubs` cannot saturate.
    #[inline(always)]
    fn dot(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I {
        op!(_mm256_add_epi16(part, _mm256_maddubs_epi16(codes, acts)))
    }
    // Signed codes: |code| <= 128 unsigned times the activation with the code's sign; 128 * 127 * 2 < 2^15.
    #[inline(always)]
    fn dot_wide(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I {
        op!({
            let acts = _mm256_sign_epi8(acts, codes);
            _mm256_add_epi16(part, _mm256_maddubs_epi16(_mm256_abs_epi8(codes), acts))
        })
    }
    #[inline(always)]
    fn scaled(self, total: Self::I, part: Self::I, scale: Self::I) -> Self::I {
        self.dot_pairs(total, part, scale)
    }
    #[inline(always)]
    fn factor(self, scale: Self::I) -> Self::I {
        op!({
            let twice = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
            _mm256_shuffle_epi8(scale, _mm256_broadcastsi128_si256(twice))
        })
    }
    #[inline(always)]
    fn factor_pair(self, low: Self::I, high: Self::I) -> Self::I {
        op!(_mm256_blend_epi16::<0b1010_1010>(low, high))
    }
    #[inline(always)]
    fn dot_pairs(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm256_add_epi32(acc, _mm256_madd_epi16(a, b)))
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        op!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn half(self, a: Self::I) -> Self::F {
        op!({
            let low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(low, low));
            _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
        })
    }
    #[inline(always)]
    fn bits_as_float(self, a: Self::I) -> Self::F {
        op!(_mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn splat_float(self, value: f32) -> Self::F {
        op!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        op!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn floats(self, a: Self::F) -> Self::Floats {
        let mut lanes = [0.0; 8];
        op!(_mm256_storeu_ps(lanes.as_mut_ptr(), a));
        lanes
    }

    #[inline(always)]
    unsafe fn columns(
        self,
        base: *const u8,
        stride: usize,
        mut between: impl FnMut(usize),
    ) -> [Self::I; 4] {
        // SAFETY: the caller promises 16 readable bytes in every row; the token the features.
        unsafe {
            // 128-bit lane j of quad i: row 4 j + i, so that the 4 x 4 transposes below leave the rows in order
            let row = |r: usize| _mm_loadu_si128(base.add(r * stride).cast());
            let mut quad = |i: usize| {
                between(i);
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(i)), row(4 + i))
            };
            let (a, b, c, d) = (quad(0), quad(1), quad(2), quad(3));
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ef, gh),
                _mm256_unpackhi_epi64(ef, gh),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 32 readable bytes; the token the features.
        unsafe { _mm256_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 16 readable bytes; the token the features.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 16 readable bytes; the token the features.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
    }
}
