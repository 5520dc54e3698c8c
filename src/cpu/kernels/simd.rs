//! Vectors of 32-bit lanes, one output a lane: the vocabulary in which codecs and products are written once for all
//! instruction sets.
//!
//! A value that implements [`Simd`] is a token: whoever holds it runs on a processor that has the instructions, so the
//! operations need no promise of their own. Tokens are made by the dispatcher only, after it has asked the processor. All
//! operations give the same bits on every set. Knows no block type.

use super::codec::Book;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

/// Vector operations on `LANES` lanes. `I` holds `[LANES] u32`, also seen as `i32`, `[LANES, 2] i16` or `[LANES, 4] u8/i8` (little
/// endian inside a lane); `F` holds `[LANES] f32`.
pub(super) trait Simd: Copy {
    /// Integer lanes.
    type I: Copy;
    /// Float lanes.
    type F: Copy;
    /// Float lanes as an array.
    type Floats: AsRef<[f32]> + AsMut<[f32]>;
    /// Lanes in a vector.
    const LANES: usize;
    /// What [`Simd::signed`] leaves of the bias 128 of wide codes: 128 if it keeps it, 0 if it takes it out.
    const WIDE_BIAS: i32;
    /// Whether part sums have 16 bits: then [`Simd::scaled`] has to take them in before they overflow.
    const SHORT: bool;

    /// The same word in every lane.
    fn splat(self, word: u32) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping sum of 32-bit lanes.
    fn add(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping difference of 32-bit lanes.
    fn sub(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low half of the product of 32-bit lanes.
    fn mul_low(self, a: Self::I, b: Self::I) -> Self::I;
    /// Lanes shifted left by `bits` < 32.
    fn shl(self, a: Self::I, bits: u32) -> Self::I;
    /// Lanes shifted right by `bits` < 32, zeros in.
    fn shr(self, a: Self::I, bits: u32) -> Self::I;
    /// Lanes shifted right by `bits` < 32, sign bits in.
    fn sar(self, a: Self::I, bits: u32) -> Self::I;
    /// Wrapping sum of bytes.
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping difference of bytes.
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// `table[index]` for every byte; all indices are below 16.
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I;
    /// `table[index]` for every lane; indices wrap at the table's length, a power of two.
    fn gather(self, table: &[u32], index: Self::I) -> Self::I;
    /// Entries of a code book: word `i` of the result is part `part` of entry `low[i] + 256 high[i]`, bytes of each lane.
    #[inline(always)]
    fn entries<const TABLES: usize>(
        self,
        book: &Book<TABLES>,
        part: usize,
        low: Self::I,
        high: Self::I,
    ) -> [Self::I; 4] {
        let mut words = [low; 4];
        for (i, word) in words.iter_mut().enumerate() {
            let (low, high) = (
                self.shr(low, 8 * i as u32),
                self.shl(self.shr(high, 8 * i as u32), 8),
            );
            let index = self.or(
                self.and(low, self.splat(0xff)),
                self.and(high, self.splat(0x300)),
            );
            *word = self.gather(book.words(part), index);
        }
        words
    }
    /// Magnitudes with the signs that bits `shift ..` (a multiple of 4) of each lane give to its bytes, above `bias`.
    #[inline(always)]
    fn with_signs(self, magnitudes: Self::I, signs: Self::I, shift: u32, bias: u8) -> Self::I {
        let four = self.and(self.shr(signs, shift), self.splat(15));
        // bit j of the four goes to bit 0 of byte j
        let one = self.mul_low(four, self.splat(1 | 1 << 7 | 1 << 14 | 1 << 21));
        let one = self.and(one, self.splat(0x0101_0101));
        let minus = self.sub_bytes(self.splat(0), one);
        let bias = self.splat(u32::from_le_bytes([bias; 4]));
        self.add_bytes(self.xor(magnitudes, minus), self.add_bytes(one, bias))
    }
    /// Wide codes as [`Simd::dot_wide`] wants them: from bytes with bias 128 to bytes with bias [`Simd::WIDE_BIAS`].
    fn signed(self, codes: Self::I) -> Self::I;

    /// `part + 4 products` of unsigned codes, at most 127, with signed activations. Part sums begin at 0. Where they are [`Simd::SHORT`],
    /// either half takes two of the four, and the caller sees to it that no sum leaves 16 bits.
    fn dot(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I;
    /// The same of codes out of [`Simd::signed`] with signed activations, none of which is -128. Short sums hold no more than one.
    #[inline(always)]
    fn dot_wide(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I {
        self.dot(part, codes, acts)
    }
    /// `total + scale * part` of a part sum and a scale out of [`Simd::factor`].
    #[inline(always)]
    fn scaled(self, total: Self::I, part: Self::I, scale: Self::I) -> Self::I {
        self.add(total, self.mul_low(part, scale))
    }
    /// Signed 16-bit lanes as [`Simd::scaled`] wants them.
    #[inline(always)]
    fn factor(self, scale: Self::I) -> Self::I {
        scale
    }
    /// Two of [`Simd::factor`] as 16-bit halves, `low` first.
    fn factor_pair(self, low: Self::I, high: Self::I) -> Self::I;
    /// `acc + sum of 2 products` of signed 16-bit halves.
    fn dot_pairs(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// Signed lanes to the nearest float, ties to even.
    fn to_float(self, a: Self::I) -> Self::F;
    /// The low 16 bits of every lane as an IEEE binary16.
    fn half(self, a: Self::I) -> Self::F;
    /// Lanes as the bits of floats.
    fn bits_as_float(self, a: Self::I) -> Self::F;
    /// The same float in every lane.
    fn splat_float(self, value: f32) -> Self::F;
    /// Sum of floats.
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F;
    /// Difference of floats.
    fn sub_float(self, a: Self::F, b: Self::F) -> Self::F;
    /// Product of floats.
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lane 0 first.
    fn floats(self, a: Self::F) -> Self::Floats;

    /// 16 bytes of each of `LANES` rows, as four vectors of one word a row. `between` is called for each quarter of the rows, 0 to 3, beside their loads.
    ///
    /// # Safety
    /// For every row `r < LANES`, 16 bytes at `base + r * stride` can be read.
    unsafe fn columns(
        self,
        base: *const u8,
        stride: usize,
        between: impl FnMut(usize),
    ) -> [Self::I; 4];
    /// 32 bytes of each of `LANES` rows, as eight vectors of one word a row. `between` is called eight times, with 0 to 7.
    ///
    /// # Safety
    /// For every row `r < LANES`, 32 bytes at `base + r * stride` can be read.
    #[inline(always)]
    unsafe fn wide_columns(
        self,
        base: *const u8,
        stride: usize,
        mut between: impl FnMut(usize),
    ) -> [Self::I; 8] {
        // SAFETY: two halves of what the caller promises.
        let [[a, b, c, d], [e, f, g, h]] = unsafe {
            [
                self.columns(base, stride, &mut between),
                self.columns(base.add(16), stride, |i| between(4 + i)),
            ]
        };
        [a, b, c, d, e, f, g, h]
    }
    /// `LANES` consecutive f32.
    ///
    /// # Safety
    /// `4 * LANES` bytes at `from` can be read; no alignment is needed.
    unsafe fn load_f32(self, from: *const u8) -> Self::F;
    /// `LANES` consecutive IEEE binary16.
    ///
    /// # Safety
    /// `2 * LANES` bytes at `from` can be read; no alignment is needed.
    unsafe fn load_f16(self, from: *const u8) -> Self::F;
    /// `LANES` consecutive bfloat16.
    ///
    /// # Safety
    /// `2 * LANES` bytes at `from` can be read; no alignment is needed.
    unsafe fn load_bf16(self, from: *const u8) -> Self::F;
    /// Asks for the cache line at `at`, for use within some microseconds, into the second-level cache: with those in use,
    /// the rows asked for do not fit the first (2026-11-30, Zen 4: one row of Q6_K goes from 8.5 to 16-20 GB/s a core).
    fn prefetch(self, at: *const u8);
}
