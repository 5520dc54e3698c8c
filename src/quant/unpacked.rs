//! The common form of all quantised blocks: integers under one or two floats.

use super::BlockType;

/// A block type of `BYTES` bytes that holds `VALUES` values, whose scales change every `VALUES / GROUPS` values.
pub trait Block<const BYTES: usize, const VALUES: usize, const GROUPS: usize> {
    /// The type in files.
    const TYPE: BlockType;

    /// Decodes a block. Any bytes are a valid block; scales that are not finite give values that are not finite.
    fn unpack(block: &[u8; BYTES]) -> Unpacked<VALUES, GROUPS>;
}

/// A decoded block: `value[e] = d * scales[g] * codes[e] - dmin * mins[g]`, with `g = e / (VALUES / GROUPS)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unpacked<const VALUES: usize, const GROUPS: usize> {
    /// Scale of the block, constant factors of the type included.
    pub d: f32,
    /// Scale of the minima; 0 for types without.
    pub dmin: f32,
    /// Scale of each group; 1 for types without groups.
    pub scales: [i32; GROUPS],
    /// Minimum of each group; 0 for types without.
    pub mins: [i32; GROUPS],
    /// Signed codes.
    pub codes: [i8; VALUES],
}

impl<const VALUES: usize, const GROUPS: usize> Unpacked<VALUES, GROUPS> {
    /// A block whose minima are 0.
    pub(super) fn new(d: f32, scales: [i32; GROUPS], codes: [i8; VALUES]) -> Self {
        Self {
            d,
            dmin: 0.0,
            scales,
            mins: [0; GROUPS],
            codes,
        }
    }

    /// Multiplies out.
    pub fn values(&self, out: &mut [f32; VALUES]) {
        let width = VALUES / GROUPS;
        let groups = out
            .chunks_exact_mut(width)
            .zip(self.codes.chunks_exact(width));
        for ((out, codes), (&scale, &min)) in groups.zip(self.scales.iter().zip(&self.mins)) {
            let scale = self.d * scale as f32;
            let min = self.dmin * min as f32;
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

/// Decodes blocks one after another. The lengths were compared by the caller.
pub(super) fn decode<B, const BYTES: usize, const VALUES: usize, const GROUPS: usize>(
    bytes: &[u8],
    out: &mut [f32],
) where
    B: Block<BYTES, VALUES, GROUPS>,
{
    const {
        assert!(
            B::TYPE.block_bytes() == BYTES
                && B::TYPE.block_values() == VALUES
                && VALUES.is_multiple_of(GROUPS)
        );
    }
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        B::unpack(block).values(out);
    }
}
