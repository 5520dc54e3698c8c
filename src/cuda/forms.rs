//! Quantised activations on the device: the forms that products read.

use super::memory::Plan;
use crate::cpu::kernels::ActKind;

/// Which forms a kernel writes, as `kernels/quantise.cuh` and `kernels/rows.cuh` number them.
pub(super) mod mask {
    pub(in crate::cuda) const WIDE: u32 = 1;
    pub(in crate::cuda) const NARROW: u32 = 2;
    pub(in crate::cuda) const FLOAT: u32 = 4;
}

/// `struct Acts256` or `struct Acts32`: addresses.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Acts {
    /// `[rows, K] i8`
    pub(super) codes: u64,
    /// `[rows, K / 256]` or `[rows, K / 32] f32`
    pub(super) scales: u64,
    /// `[rows, K / 16]` or `[rows, K / 32] i16`
    pub(super) sums: u64,
    /// `[rows, K / 16] f16`, the same sums, the even ones of every 16 first; or none.
    pub(super) halves: u64,
}

/// Both forms of one set of rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forms {
    pub(super) wide: Acts,
    pub(super) narrow: Acts,
}

/// Where forms lie in a plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FormPlan {
    wide: [usize; 4],
    narrow: [usize; 4],
}

impl FormPlan {
    /// Room for `rows` rows of up to `k` values in the forms of `forms`.
    pub(super) fn new(plan: &mut Plan, rows: usize, k: usize, forms: u32) -> Self {
        let k = k.next_multiple_of(256);
        let mut four = |wanted: bool, block: usize, sums: usize, halves: usize| {
            if !wanted {
                return [0; 4];
            }
            [
                rows * k,
                4 * rows * (k / block),
                2 * rows * (k / sums),
                2 * rows * halves,
            ]
            .map(|bytes| plan.take(bytes))
        };
        Self {
            wide: four(forms & mask::WIDE != 0, 256, 16, k / 16),
            narrow: four(forms & mask::NARROW != 0, 32, 32, 0),
        }
    }

    /// The forms in memory that begins at `base`.
    pub(super) fn at(self, base: u64) -> Forms {
        let acts = |[codes, scales, sums, halves]: [usize; 4]| Acts {
            codes: base + codes as u64,
            scales: base + scales as u64,
            sums: base + sums as u64,
            halves: base + halves as u64,
        };
        Forms {
            wide: acts(self.wide),
            narrow: acts(self.narrow),
        }
    }
}

/// The form that products of this kind read.
pub(super) fn form_of(kind: ActKind) -> u32 {
    match kind {
        ActKind::Blocks256 => mask::WIDE,
        ActKind::Blocks32 => mask::NARROW,
        ActKind::Float => mask::FLOAT,
    }
}
