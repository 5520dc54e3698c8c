//! [`Simd`] in plain Rust, eight lanes: for processors without AVX2 and as the reference the others are tested against.

use super::Simd;
use half::f16;

/// No instructions beyond the build's target.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

/// Lanes of a portable vector.
const LANES: usize = 8;

/// Eight lanes of one kind.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(in super::super) struct Lanes<T>([T; LANES]);

#[inline(always)]
fn each<A: Copy, B>(f: impl Fn(usize) -> A, mut put: impl FnMut(usize, A) -> B) {
    for lane in 0..LANES {
        put(lane, f(lane));
    }
}

#[inline(always)]
fn from<T: Copy + Default>(f: impl Fn(usize) -> T) -> Lanes<T> {
    let mut lanes = [T::default(); LANES];
    each(f, |lane, value| lanes[lane] = value);
    Lanes(lanes)
}

#[inline(always)]
fn bytes(word: u32, f: impl Fn(usize, u8) -> u8) -> u32 {
    let from = word.to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|i| f(i, from[i])))
}

#[inline(always)]
fn dot4(codes: [i32; 4], acts: u32) -> i32 {
    let acts = acts.to_le_bytes();
    (0..4).map(|i| codes[i] * i32::from(acts[i] as i8)).sum()
}

impl Simd for Portable {
    type I = Lanes<u32>;
    type F = Lanes<f32>;
    type Floats = [f32; LANES];
    const LANES: usize = LANES;
    const WIDE_BIAS: i32 = 128;
    const SHORT: bool = false;

    #[inline(always)]
    fn splat(self, word: u32) -> Self::I {
        Lanes([word; LANES])
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i] & b.0[i])
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i] | b.0[i])
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i] ^ b.0[i])
    }
    #[inline(always)]
    fn add(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i].wrapping_add(b.0[i]))
    }
    #[inline(always)]
    fn sub(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i].wrapping_sub(b.0[i]))
    }
    #[inline(always)]
    fn mul_low(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| a.0[i].wrapping_mul(b.0[i]))
    }
    #[inline(always)]
    fn shl(self, a: Self::I, bits: u32) -> Self::I {
        from(|i| a.0[i] << bits)
    }
    #[inline(always)]
    fn shr(self, a: Self::I, bits: u32) -> Self::I {
        from(|i| a.0[i] >> bits)
    }
    #[inline(always)]
    fn sar(self, a: Self::I, bits: u32) -> Self::I {
        from(|i| (a.0[i] as i32 >> bits) as u32)
    }
    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| bytes(a.0[i], |j, x| x.wrapping_add(b.0[i].to_le_bytes()[j])))
    }
    #[inline(always)]
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        from(|i| bytes(a.0[i], |j, x| x.wrapping_sub(b.0[i].to_le_bytes()[j])))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I {
        from(|i| bytes(index.0[i], |_, x| table[usize::from(x & 15)]))
    }
    #[inline(always)]
    fn gather(self, table: &[u32], index: Self::I) -> Self::I {
        from(|i| table[index.0[i] as usize & (table.len() - 1)])
    }
    #[inline(always)]
    fn signed(self, codes: Self::I) -> Self::I {
        codes
    }

    #[inline(always)]
    fn dot(self, part: Self::I, codes: Self::I, acts: Self::I) -> Self::I {
        from(|i| {
            (part.0[i] as i32 + dot4(codes.0[i].to_le_bytes().map(i32::from), acts.0[i])) as u32
        })
    }
    #[inline(always)]
    fn factor_pair(self, low: Self::I, high: Self::I) -> Self::I {
        from(|i| low.0[i] & 0xffff | high.0[i] << 16)
    }
    #[inline(always)]
    fn dot_pairs(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let product = |a: u32, b: u32| i32::from(a as i16) * i32::from(b as i16);
        from(|i| {
            let (a, b) = (a.0[i], b.0[i]);
            (acc.0[i] as i32 + product(a, b) + product(a >> 16, b >> 16)) as u32
        })
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        from(|i| a.0[i] as i32 as f32)
    }
    #[inline(always)]
    fn half(self, a: Self::I) -> Self::F {
        from(|i| f16::from_bits(a.0[i] as u16).to_f32())
    }
    #[inline(always)]
    fn bits_as_float(self, a: Self::I) -> Self::F {
        from(|i| f32::from_bits(a.0[i]))
    }
    #[inline(always)]
    fn splat_float(self, value: f32) -> Self::F {
        Lanes([value; LANES])
    }
    #[inline(always)]
    fn add_float(self, a: Self::F, b: Self::F) -> Self::F {
        from(|i| a.0[i] + b.0[i])
    }
    #[inline(always)]
    fn sub_float(self, a: Self::F, b: Self::F) -> Self::F {
        from(|i| a.0[i] - b.0[i])
    }
    #[inline(always)]
    fn mul_float(self, a: Self::F, b: Self::F) -> Self::F {
        from(|i| a.0[i] * b.0[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from(|i| a.0[i].mul_add(b.0[i], c.0[i]))
    }
    #[inline(always)]
    fn floats(self, a: Self::F) -> Self::Floats {
        a.0
    }

    #[inline(always)]
    unsafe fn columns(
        self,
        base: *const u8,
        stride: usize,
        between: impl FnMut(usize),
    ) -> [Self::I; 4] {
        (0..4).for_each(between);
        std::array::from_fn(|column| {
            from(|row| {
                // SAFETY: the caller promises 16 readable bytes in every row.
                u32::from_le_bytes(unsafe {
                    base.add(row * stride + 4 * column).cast::<[u8; 4]>().read()
                })
            })
        })
    }
    #[inline(always)]
    unsafe fn load_f32(self, at: *const u8) -> Self::F {
        // SAFETY: the caller promises LANES readable values; bytes have no alignment.
        from(|i| f32::from_le_bytes(unsafe { at.add(4 * i).cast::<[u8; 4]>().read() }))
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> Self::F {
        // SAFETY: the caller promises LANES readable values; bytes have no alignment.
        from(|i| f16::from_le_bytes(unsafe { at.add(2 * i).cast::<[u8; 2]>().read() }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> Self::F {
        from(|i| {
            // SAFETY: the caller promises LANES readable values; bytes have no alignment.
            let bits = u16::from_le_bytes(unsafe { at.add(2 * i).cast::<[u8; 2]>().read() });
            f32::from_bits(u32::from(bits) << 16)
        })
    }
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}
