//! Types without blocks: floats and integers, one value at a time. Also the f16 that scales of all other types are stored in.

use half::{bf16, f16};

/// Decodes values of `N` bytes each. The lengths were compared by the caller.
pub(super) fn decode<const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    value: impl Fn([u8; N]) -> f32,
) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(*bytes);
    }
}

/// An IEEE binary16, exactly.
pub(super) fn f16(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// The upper half of a binary32, exactly.
pub(super) fn bf16(bytes: [u8; 2]) -> f32 {
    bf16::from_le_bytes(bytes).to_f32()
}

/// The scale at byte `at` of a block.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16([block[at], block[at + 1]])
}
