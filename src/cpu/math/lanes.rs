//! Sixteen f32 at a time, one type per instruction level, and [`per_isa!`], which makes a version of a function for each.
//!
//! A body is written once, generic over [`Lanes`] and `#[inline(always)]`. `per_isa!` puts it into functions that are compiled
//! with the level's instructions, where the bodies' intrinsics become single instructions. A closure is not inlined for certain,
//! so no vector may pass through one.

use crate::cpu::isa::Isa;
use std::ops::{Add, Div, Mul, Sub};

/// Elements of a vector.
pub(crate) const LANES: usize = 16;

/// What elementary functions are made of: one f32, or [`LANES`] of them with the same bits.
pub(crate) trait Real:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// `x` everywhere.
    fn splat(x: f32) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self` where it is greater than `other`, else `other`: a NaN in `other` stays.
    fn greater(self, other: Self) -> Self;
    /// `self` where it is less than `other`, else `other`: a NaN in `other` stays.
    fn less(self, other: Self) -> Self;
    /// `f32::from_bits((self.to_bits() << 23) + 0x3f80_0000)`: two to the power of the integer in the lowest bits.
    fn pow2(self) -> Self;
    /// Zero where `x < limit`, else `self`.
    fn zero_below(self, x: Self, limit: f32) -> Self;
}

/// A vector of [`LANES`] f32.
pub(crate) trait Lanes: Real {
    /// The level that the type is for.
    const ISA: Isa;
    /// Whether a vector is one register and there are 32 of them; else it is two and there are 16.
    const WIDE: bool;

    /// Lane `i` from element `i`.
    fn load(from: &[f32; LANES]) -> Self;
    /// Lane `i` to element `i`.
    fn store(self, to: &mut [f32; LANES]);
    /// From half-precision bits, exact.
    fn load_f16(from: &[u16; LANES]) -> Self;
    /// To half-precision bits, rounded to nearest even.
    fn store_f16(self, to: &mut [u16; LANES]);
    /// One number everywhere, from half-precision bits, exact.
    fn splat_f16(bits: u16) -> Self;
    /// From signed bytes, exact.
    fn load_i8(from: &[i8; LANES]) -> Self;

    /// Asks for the cache lines of `row`, where the machine can be asked.
    #[inline(always)]
    fn prefetch(row: &[f32]) {
        let _ = row;
    }

    /// As `load`, with zeros for what is missing.
    #[inline(always)]
    fn load_part(from: &[f32]) -> Self {
        if let Ok(whole) = from.try_into() {
            return Self::load(whole);
        }
        let mut whole = [0.0; LANES];
        whole[..from.len()].copy_from_slice(from);
        Self::load(&whole)
    }

    /// As `store`, as far as `to` goes.
    #[inline(always)]
    fn store_part(self, to: &mut [f32]) {
        if let Ok(whole) = to.try_into() {
            return self.store(whole);
        }
        let mut whole = [0.0; LANES];
        self.store(&mut whole);
        to.copy_from_slice(&whole[..to.len()]);
    }

    /// The sum of all lanes, joined by halves.
    #[inline(always)]
    fn sum(self) -> f32 {
        fold(self, |a, b| a + b)
    }

    /// The greatest lane.
    #[inline(always)]
    fn greatest(self) -> f32 {
        fold(self, f32::greater)
    }
}

#[inline(always)]
fn fold<L: Lanes>(lanes: L, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut p = [0.0; LANES];
    lanes.store(&mut p);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            p[i] = join(p[i], p[i + half]);
        }
    }
    p[0]
}

impl Real for f32 {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        f32::mul_add(self, b, c)
    }
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    #[inline(always)]
    fn less(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        f32::from_bits((self.to_bits() << 23).wrapping_add(0x3f80_0000))
    }
    #[inline(always)]
    fn zero_below(self, x: Self, limit: f32) -> Self {
        if x < limit { 0.0 } else { self }
    }
}

/// Plain arrays: what the compiler makes of them for the build's target.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| op(self.0[i], other.0[i])))
    }
}

impl Real for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    // without the instruction, which x86-64 need not have, this is 16 calls: too much to repeat in every loop
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn greater(self, other: Self) -> Self {
        self.zip(other, f32::greater)
    }
    #[inline(always)]
    fn less(self, other: Self) -> Self {
        self.zip(other, f32::less)
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        Self(self.0.map(f32::pow2))
    }
    #[inline(always)]
    fn zero_below(self, x: Self, limit: f32) -> Self {
        self.zip(x, |kept, x| kept.zero_below(x, limit))
    }
}

impl Lanes for Portable {
    const ISA: Isa = Isa::Portable;
    const WIDE: bool = false;

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        Self(from.map(|bits| half::f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        *to = self.0.map(|x| half::f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn splat_f16(bits: u16) -> Self {
        Self([half::f16::from_bits(bits).to_f32(); LANES])
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        Self(from.map(f32::from))
    }
}

/// The four operators of a lane type, from an expression each.
macro_rules! operators {
    ($type:ty: $($trait:ident $method:ident |$a:ident, $b:ident| $result:expr;)*) => {
        $(impl $trait for $type {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $result
            }
        })*
    };
}

operators! { Portable:
    Add add |a, b| a.zip(b, |a, b| a + b);
    Sub sub |a, b| a.zip(b, |a, b| a - b);
    Mul mul |a, b| a.zip(b, |a, b| a * b);
    Div div |a, b| a.zip(b, |a, b| a / b);
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[path = "lanes_x86.rs"]
mod x86;

/// Defines `fn name(isa: Isa, arguments..)`, which runs a body in the version for `isa`, or for the machine's highest level where
/// that is lower. The body is an `#[inline(always)]` function whose first type parameter is [`Lanes`]; more type arguments may
/// follow in `body::<_, More>`.
macro_rules! per_isa {
    ($(
        $(#[$attribute:meta])*
        $visible:vis fn $name:ident $(<$($life:lifetime),+>)? ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?
            = $body:ident $(::<_, $($more:ty),+>)?;
    )*) => { $(
        $(#[$attribute])*
        $visible fn $name $(<$($life),+>)? (isa: $crate::cpu::isa::Isa, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::cpu::{isa::Isa, math::lanes::{Avx2, Avx512}};
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
                fn avx512 $(<$($life),+>)? ($($argument: $type),*) $(-> $result)? {
                    $body::<Avx512 $(, $($more),+)?>($($argument),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2 $(<$($life),+>)? ($($argument: $type),*) $(-> $result)? {
                    $body::<Avx2 $(, $($more),+)?>($($argument),*)
                }
                match isa.usable() {
                    // SAFETY: `usable` gives levels that this machine has.
                    Isa::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2($($argument),*) },
                    Isa::Portable => {}
                }
            }
            let _ = isa;
            $body::<$crate::cpu::math::lanes::Portable $(, $($more),+)?>($($argument),*)
        }
    )* };
}
pub(crate) use per_isa;
