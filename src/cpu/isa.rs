//! Which vector instructions may be used, found once at run time.
//!
//! Knows the processor only. Every level computes the same bits; a level is a matter of speed.

use std::sync::OnceLock;

/// A level of vector instructions. A higher level contains the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// What the compiler emits for the build's target; the only level outside x86-64.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ, on top of [`Isa::Avx2`].
    Avx512,
}

impl Isa {
    /// Every level, lowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The highest level of this machine. Asked of the processor once, afterwards one load.
    pub fn detect() -> Self {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(Self::ask)
    }

    /// This level, or the machine's highest where that is lower: always safe to run.
    #[inline]
    pub fn usable(self) -> Self {
        self.min(Self::detect())
    }

    /// The levels that this machine can run, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(|level| *level <= Self::detect())
    }

    #[cfg(target_arch = "x86_64")]
    fn ask() -> Self {
        use std::arch::is_x86_feature_detected as has;
        if !(has!("avx2") && has!("fma") && has!("f16c")) {
            return Self::Portable;
        }
        if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
            return Self::Avx512;
        }
        Self::Avx2
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ask() -> Self {
        Self::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_never_exceeds_the_machine() {
        for level in Isa::ALL {
            assert!(level.usable() <= Isa::detect());
            assert!(level.usable() <= level);
        }
        assert_eq!(Isa::available().last(), Some(Isa::detect()));
        assert_eq!(Isa::available().next(), Some(Isa::Portable));
    }
}
