//! [`Simd`] with AVX-512, sixteen lanes.

use super::{Book, Simd};
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, VL, DQ, VNNI and VBMI.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512(());

impl Avx512 {
    /// The token.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL, DQ, VNNI and VBMI.
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

impl Avx512 {
    /// `tables[high][low]` for every byte; `high` wraps at the number of tables, 1, 2 or 4.
    #[inline(always)]
    fn permute<const TABLES: usize>(
        self,
        tables: &[[u8; 256]; TABLES],
        low: __m512i,
        high: __m512i,
    ) -> __m512i {
        const { assert!(matches!(TABLES, 1 | 2 | 4)) };
        op!({
            let upper_half = _mm512_movepi8_mask(low);
            let mut found = [low; TABLES];
            for i in 0..TABLES {
                let quarter = tables[i].as_ptr().cast::<__m512i>();
                let [a, b, c, d] = [
                    _mm512_loadu_si512(quarter),
                    _mm512_loadu_si512(quarter.add(1)),
                    _mm512_loadu_si512(quarter.add(2)),
                    _mm512_loadu_si512(quarter.add(3)),
                ];
                let (lower, upper) = (
                    _mm512_permutex2var_epi8(a, low, b),
                    _mm512_permutex2var_epi8(c, low, d),
                );
                found[i] = _mm512_mask_blend_epi8(upper_half, lower, upper);
            }
            let mut tables = TABLES;
            while tables > 1 {
                tables /= 2;
                let choice = _mm512_test_epi8_mask(high, _mm512_set1_epi8(tables as i8));
                for i in 0..tables {
                    found[i] = _mm512_mask_blend_epi8(choice, found[i], found[i + tables]);
                }
            }
            found[0]
        })
    }
}

impl Simd for Avx512 {
    type I = __m512i;
    type F = __m512;
    type Floats = [f32; 16];
    const LANES: usize = 16;
    const WIDE_BIAS: i32 = 128;
    const SHORT: bool = false;

    #[inline(always)]
    fn splat(self, word: u32) -> Self::I {
        op!(_mm512_set1_epi32(word as i32))
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn add(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_low(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn shl(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm512_sllv_epi32(a, _mm512_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn shr(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm512_srlv_epi32(a, _mm512_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn sar(self, a: Self::I, bits: u32) -> Self::I {
        op!(_mm512_srav_epi32(a, _mm512_set1_epi32(bits as i32)))
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_add_epi8(a, b))
    }
    #[inline(always)]
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_sub_epi8(a, b))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I {
        op!({
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, index)
        })
    }
    #[inline(always)]
    fn gather(self, table: &[u32], index: Self::I) -> Self::I {
        debug_assert!(table.len().is_power_of_two());
        let index = self.and(index, self.splat(table.len() as u32 - 1));
        op!(_mm512_i32gather_epi32::<4>(index, table.as_ptr().cast()))
    }
    #[inline(always)]
    fn entries<const TABLES: usize>(
        self,
        book: &Book<TABLES>,
        part: usize,
        low: Self::I,
        high: Self::I,
    ) -> [Self::I; 4] {
        let letters = book.letters(part);
        let mut packed = [low; 2];
        for i in 0..letters.len() {
            packed[i] = self.permute(&letters[i], low, high);
        }
        let mut words = [low; 4];
        for (i, word) in words.iter_mut().enumerate() {
            // fields of byte `i` of every lane: four of 2 bits, or two nibbles of each table
            let at = |field: u32, dword: u32| {
                32 * dword + 8 * i as u32 + 8 / book.fields() * (field % book.fields())
            };
            let offsets = |dword: u32| {
                at(0, dword) | at(1, dword) << 8 | at(2, dword) << 16 | at(3, dword) << 24
            };
            let offsets = u64::from(offsets(0)) | u64::from(offsets(1)) << 32;
            *word = op!({
                let offsets = _mm512_set1_epi64(offsets as i64);
                let first = _mm512_multishift_epi64_epi8(offsets, packed[0]);
                if letters.len() == 1 {
                    _mm512_and_si512(first, _mm512_set1_epi8(3))
                } else {
                    let second = _mm512_multishift_epi64_epi8(offsets, packed[1]);
                    let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second);
                    _mm512_and_si512(both, _mm512_set1_epi8(15))
                }
            });
            *word = self.lookup(book.alphabet(), *word);
        }
        words
    }
    #[inline(always)]
    fn with_signs(self, magnitudes: Self::I, signs: Self::I, shift: u32, bias: u8) -> Self::I {
        op!({
            // the byte with the signs to all bytes of its lane, then one bit of it for each
            let lane = 0x0101_0101_0101_0101_u64.wrapping_mul(u64::from(shift / 8));
            let low = _mm512_set_epi64(
                0,
                0,
                0,
                0,
                0,
                0,
                0x0c0c_0c0c_0808_0808,
                0x0404_0404_0000_0000,
            );
            let bytes = _mm512_add_epi8(
                _mm512_shuffle_i64x2::<0>(low, low),
                _mm512_set1_epi64(lane as i64),
            );
            let pattern = if shift.is_multiple_of(8) {
                0x0804_0201
            } else {
                0x8040_2010_u32
            };
            let signs = _mm512_shuffle_epi8(signs, bytes);
            let minus = _mm512_test_epi8_mask(signs, _mm512_set1_epi32(pattern as i32));
            let bias = _mm512_set1_epi8(bias as i8);
            _mm512_mask_sub_epi8(_mm512_add_epi8(bias, magnitudes), minus, bias, magnitudes)
        })
    }
    #[inline(always)]
    fn signed(self, codes: Self::I) -> Self::I {
        codes
    }

    #[inline(always)]
    fn dot(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I {
        op!(_mm512_dpbusd_epi32(part, codes, acts))
    }
    #[inline(always)]
    fn factor_pair(self, low: Self::I, high: Self::I) -> Self::I {
        op!(_mm512_mask_blend_epi16(
            0xaaaa_aaaa,
            low,
            _mm512_slli_epi32::<16>(high)
        ))
    }
    #[inline(always)]
    fn dot_pairs(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        op!(_mm512_dpwssd_epi32(acc, a, b))
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn half(self, a: Self::I) -> Self::F {
        op!(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)))
    }
    #[inline(always)]
    fn bits_as_float(self, a: Self::I) -> Self::F {
        op!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn splat_float(self, value: f32) -> Self::F {
        op!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn floats(self, a: Self::F) -> Self::Floats {
        let mut lanes = [0.0; 16];
        op!(_mm512_storeu_ps(lanes.as_mut_ptr(), a));
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
                let a = _mm512_castsi128_si512(row(i));
                let a = _mm512_mask_broadcast_i32x4(a, 0x00f0, row(4 + i));
                let a = _mm512_mask_broadcast_i32x4(a, 0x0f00, row(8 + i));
                _mm512_mask_broadcast_i32x4(a, 0xf000, row(12 + i))
            };
            let (a, b, c, d) = (quad(0), quad(1), quad(2), quad(3));
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ef, gh) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ef, gh),
                _mm512_unpackhi_epi64(ef, gh),
            ]
        }
    }
    #[inline(always)]
    unsafe fn wide_columns(
        self,
        base: *const u8,
        stride: usize,
        mut between: impl FnMut(usize),
    ) -> [Self::I; 8] {
        // SAFETY: the caller promises 32 readable bytes in every row; the token the features.
        unsafe {
            // two rows a vector, so that the transposes inside 128-bit lanes leave words w and w + 4 side by side
            let mut out = [_mm512_setzero_si512(); 8];
            let mut fours = [[_mm512_setzero_si512(); 4]; 2];
            for half in 0..2 {
                let mut pairs = [_mm512_setzero_si512(); 4];
                for i in 0..4 {
                    between(4 * half + i);
                    let row = base.add((8 * half + i) * stride);
                    let low = _mm256_loadu_si256(row.cast());
                    let high = _mm256_loadu_si256(row.add(4 * stride).cast());
                    pairs[i] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                }
                let [a, b, c, d] = pairs;
                let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
                let (ef, gh) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
                fours[half] = [
                    _mm512_unpacklo_epi64(ab, cd),
                    _mm512_unpackhi_epi64(ab, cd),
                    _mm512_unpacklo_epi64(ef, gh),
                    _mm512_unpackhi_epi64(ef, gh),
                ];
            }
            for i in 0..4 {
                out[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[0][i], fours[1][i]);
                out[i + 4] = _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[0][i], fours[1][i]);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 64 readable bytes; the token the features.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 32 readable bytes; the token the features.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Self::F {
        // SAFETY: the caller promises 32 readable bytes; the token the features.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
    }
}
