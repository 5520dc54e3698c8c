//! IQ4_NL and IQ4_XS: nibbles that name one of 16 uneven steps.

use super::float::f16_at;
use super::legacy::nibbles;
use super::{Block, BlockType, Unpacked};

/// The steps.
pub const IQ4_STEPS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// `d`, 16 bytes of nibbles; `value = d * step[q]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Nl;
/// `d`, scales of 6 bits for 32 values each (high bit pairs, then low nibbles), nibbles; `value = d * (s - 32) * step[q]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq4Xs;

impl Block<18, 32, 1> for Iq4Nl {
    const TYPE: BlockType = BlockType::IQ4_NL;

    fn unpack(block: &[u8; 18]) -> Unpacked<32, 1> {
        Unpacked::new(f16_at(block, 0), [1], nibbles(&block[2..]).map(step))
    }
}

impl Block<136, 256, 8> for Iq4Xs {
    const TYPE: BlockType = BlockType::IQ4_XS;

    fn unpack(block: &[u8; 136]) -> Unpacked<256, 8> {
        let (high, low) = (u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
        let scales = std::array::from_fn(|g| {
            let nibble = low[g / 2] >> (4 * (g % 2)) & 15;
            i32::from(nibble) + i32::from(high >> (2 * g) & 3) * 16 - 32
        });
        let mut codes = [0; 256];
        for (group, codes) in block[8..].chunks_exact(16).zip(codes.as_chunks_mut().0) {
            *codes = nibbles(group).map(step);
        }
        Unpacked::new(f16_at(block, 0), scales, codes)
    }
}

fn step(q: u8) -> i8 {
    IQ4_STEPS[usize::from(q)]
}
