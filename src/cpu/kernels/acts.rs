//! Activations as the kernels read them: quantised in blocks for the integer types, or plain floats.
//!
//! Knows rows of numbers; not what they mean or which weights they will meet.

use super::target::{self, Target};
use crate::cpu::isa::Isa;
use crate::quant::BlockType;
use std::marker::PhantomData;

/// Values of a [`Unit`].
pub(super) const UNIT: usize = 256;

/// How a weight type wants its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActKind {
    /// `i8` codes, one scale per 256 values (K and IQ types).
    Blocks256,
    /// `i8` codes, one scale per 32 values (32-wide types).
    Blocks32,
    /// `f32` as they are.
    Float,
}

impl ActKind {
    /// What the kernels for weights of this type read.
    pub const fn of(ty: BlockType) -> Self {
        use BlockType as T;
        match ty {
            T::Q4_0 | T::Q4_1 | T::Q5_0 | T::Q5_1 | T::Q8_0 | T::IQ4_NL | T::MXFP4 => {
                Self::Blocks32
            }
            T::Q2_K | T::Q3_K | T::Q4_K | T::Q5_K | T::Q6_K => Self::Blocks256,
            T::IQ4_XS | T::IQ3_XXS | T::IQ3_S | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => {
                Self::Blocks256
            }
            _ => Self::Float,
        }
    }

    /// Values that share a scale; a row is a whole number of them.
    const fn block(self) -> usize {
        match self {
            Self::Blocks256 => 256,
            Self::Blocks32 => 32,
            Self::Float => 1,
        }
    }
}

/// 256 quantised values of a row with all that a product needs of them: five cache lines, read together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Unit {
    /// `[64, 4] i8`: codes in row order, little endian in a word. None is -128.
    pub(super) codes: [u32; 64],
    /// `[4, 2] i16`: sums of 32 codes.
    pub(super) sums32: [u32; 4],
    /// [`ActKind::Blocks256`]: `[8, 2] i16`, sums of 16 codes. [`ActKind::Blocks32`]: `[8] f32` as bits, a scale per 32 codes.
    side: [u32; 8],
    /// [`ActKind::Blocks256`]: the scale.
    pub(super) scale: f32,
}

impl Unit {
    const ZERO: Self = Self {
        codes: [0; 64],
        sums32: [0; 4],
        side: [0; 8],
        scale: 0.0,
    };

    /// `[8, 2] i16`: sums of 16 codes. Of [`ActKind::Blocks256`] only.
    #[inline(always)]
    pub(super) fn sums16(&self) -> &[u32; 8] {
        &self.side
    }

    /// The scale of the codes `32 block ..`. Of [`ActKind::Blocks32`] only.
    #[inline(always)]
    pub(super) fn scale32(&self, block: usize) -> f32 {
        f32::from_bits(self.side[block])
    }

    /// Quantises 256 values with one scale.
    #[inline(always)]
    pub(super) fn fill256(&mut self, values: &[f32; 256]) {
        let mut sums = [0; 16];
        self.scale = quantise(values, &mut self.codes, &mut sums);
        self.side = std::array::from_fn(|i| pair(sums[2 * i], sums[2 * i + 1]));
        let sums: [i32; 8] = std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1]);
        self.sums32 = std::array::from_fn(|i| pair(sums[2 * i], sums[2 * i + 1]));
    }

    /// Quantises up to 8 blocks of 32 values, a scale each.
    #[inline(always)]
    pub(super) fn fill32(&mut self, values: &[f32]) {
        let mut sums = [0; 8];
        for (b, block) in values.as_chunks::<32>().0.iter().enumerate() {
            let mut halves = [0; 2];
            let codes: &mut [u32; 8] = &mut self.codes.as_chunks_mut().0[b];
            self.side[b] = quantise(block, codes, &mut halves).to_bits();
            sums[b] = halves[0] + halves[1];
        }
        self.sums32 = std::array::from_fn(|i| pair(sums[2 * i], sums[2 * i + 1]));
    }
}

/// Two sums in one word.
#[inline(always)]
fn pair(low: i32, high: i32) -> u32 {
    (low as u32 & 0xffff) | (high as u32) << 16
}

/// `d = amax / 127`, `code = round_half_even(x * (127 / amax))`: returns `d`, writes codes and the sums of every 16.
/// A block without a finite, normal `127 / amax` has codes 0; NaN and infinities stay visible in `d`.
#[inline(always)]
fn quantise<const N: usize, const WORDS: usize, const SUMS: usize>(
    values: &[f32; N],
    codes: &mut [u32; WORDS],
    sums: &mut [i32; SUMS],
) -> f32 {
    const { assert!(N == 4 * WORDS && N == 16 * SUMS) };
    // of non-negative floats the bits order like the values, NaN above all
    let top = values
        .iter()
        .fold(0, |top, x| top.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(top);
    let inverse = 127.0 / amax;
    if !inverse.is_normal() {
        codes.fill(0);
        sums.fill(0);
        return amax / 127.0;
    }
    // |x * inverse| <= 127.00002: adding 1.5 * 2^23 rounds half to even and leaves the code in the low byte
    let mut bytes = [0u8; N];
    for (byte, x) in bytes.iter_mut().zip(values) {
        *byte = (x * inverse + 12_582_912.0).to_bits() as u8;
    }
    for (word, four) in codes.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*four);
    }
    for (sum, part) in sums.iter_mut().zip(bytes.as_chunks::<16>().0) {
        *sum = part.iter().map(|x| i32::from(*x as i8)).sum();
    }
    amax / 127.0
}

/// Rows of activations in the form one [`ActKind`] asks for. Buffers grow when needed and are kept.
pub struct Acts {
    kind: ActKind,
    rows: usize,
    k: usize,
    /// `[rows, ceil(k / 256)]`
    units: Vec<Unit>,
    /// `[rows, k]`
    floats: Vec<f32>,
}

impl Default for Acts {
    fn default() -> Self {
        Self {
            kind: ActKind::Float,
            rows: 0,
            k: 0,
            units: Vec::new(),
            floats: Vec::new(),
        }
    }
}

impl Acts {
    /// Makes room for `rows` rows of `k` values. What was in them is unspecified until they are written. Allocates only
    /// where more room is asked for than ever before.
    ///
    /// # Panics
    /// If `k` is not a whole number of the kind's blocks.
    pub fn reserve(&mut self, kind: ActKind, rows: usize, k: usize) {
        assert!(
            k.is_multiple_of(kind.block()),
            "{k} values are not a whole number of blocks of {}",
            kind.block()
        );
        (self.kind, self.rows, self.k) = (kind, rows, k);
        match kind {
            ActKind::Float => self.floats.resize(self.floats.len().max(rows * k), 0.0),
            _ => self
                .units
                .resize(self.units.len().max(rows * k.div_ceil(UNIT)), Unit::ZERO),
        }
    }

    /// The form the rows are in.
    pub fn kind(&self) -> ActKind {
        self.kind
    }

    /// Rows there is room for.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Writes a row: `values [k] f32`.
    pub fn write(&mut self, isa: Isa, row: usize, values: &[f32]) {
        // SAFETY: the writer borrows `self` for this call only, so nobody else writes.
        unsafe { self.writer().write(isa, row, values) }
    }

    /// A handle with which several threads write different rows.
    pub fn writer(&mut self) -> ActsWriter<'_> {
        ActsWriter {
            kind: self.kind,
            rows: self.rows,
            k: self.k,
            units: self.units.as_mut_ptr(),
            floats: self.floats.as_mut_ptr(),
            owner: PhantomData,
        }
    }

    /// The quantised row: `[ceil(k / 256)]` units.
    #[inline]
    pub(super) fn units(&self, row: usize) -> &[Unit] {
        let width = self.k.div_ceil(UNIT);
        &self.units[row * width..][..width]
    }

    /// The float row `[k] f32`.
    #[inline]
    pub(super) fn floats(&self, row: usize) -> &[f32] {
        &self.floats[row * self.k..][..self.k]
    }
}

/// Writes rows of an [`Acts`] from several threads.
#[derive(Clone, Copy)]
pub struct ActsWriter<'a> {
    kind: ActKind,
    rows: usize,
    k: usize,
    units: *mut Unit,
    floats: *mut f32,
    owner: PhantomData<&'a mut Acts>,
}

// SAFETY: the pointers lead into an `Acts` that is borrowed exclusively; `write` asks its callers for disjoint rows.
unsafe impl Send for ActsWriter<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActsWriter<'_> {}

impl ActsWriter<'_> {
    /// Writes a row: `values [k] f32`.
    ///
    /// # Safety
    /// No two threads write the same row at the same time.
    ///
    /// # Panics
    /// If there is no such row or `values` has another length than `k`.
    pub unsafe fn write(&self, isa: Isa, row: usize, values: &[f32]) {
        assert_eq!(values.len(), self.k, "values of a row");
        // SAFETY: the caller's promise covers the whole row.
        unsafe { self.write_part(isa, row, 0, values) };
    }

    /// Writes the values `first ..` of a row.
    ///
    /// # Safety
    /// No two threads write the same part of a row at the same time.
    ///
    /// # Panics
    /// If the part leaves the row, does not begin at a multiple of 256, or ends inside a unit of 256 and before the row's end.
    pub unsafe fn write_part(&self, isa: Isa, row: usize, first: usize, values: &[f32]) {
        let end = first + values.len();
        assert!(
            row < self.rows && end <= self.k,
            "row {row} of {}, values {first}..{end} of {}",
            self.rows,
            self.k
        );
        assert!(
            first.is_multiple_of(UNIT) && (end == self.k || end.is_multiple_of(UNIT)),
            "{first}..{end} cuts a unit"
        );
        if self.kind == ActKind::Float {
            // SAFETY: `reserve` made room for `rows * k` floats, this part among them; the caller keeps other threads away.
            unsafe {
                self.floats
                    .add(row * self.k + first)
                    .copy_from_nonoverlapping(values.as_ptr(), values.len())
            };
            return;
        }
        let width = self.k.div_ceil(UNIT);
        let (start, count) = (row * width + first / UNIT, values.len().div_ceil(UNIT));
        // SAFETY: `reserve` made room for `rows * width` units, these among them; the caller keeps other threads away.
        let units = unsafe { std::slice::from_raw_parts_mut(self.units.add(start), count) };
        target::with(
            isa,
            Write {
                kind: self.kind,
                values,
                units,
            },
        );
    }
}

/// The work of [`ActsWriter::write`], compiled once for every instruction set.
struct Write<'a> {
    kind: ActKind,
    values: &'a [f32],
    units: &'a mut [Unit],
}

impl target::Work for Write<'_> {
    fn run<T: Target>(self, target: T) {
        for (unit, values) in self.units.iter_mut().zip(self.values.chunks(UNIT)) {
            target.quantise(self.kind, unit, values);
        }
    }
}
