//! IQ1_S and IQ1_M: ternary vectors of 8 from a code book of 2048, shifted by an eighth up or down.
//!
//! `value = d * (2 s + 1) * (grid +- 1/8)`, kept in integers as `d/8 * (2 s + 1) * (8 grid +- 1)`.

use super::float::{f16, f16_at};
use super::{Block, BlockType, Unpacked, grids};

/// `d`, 32 low index bytes, 8 words of high index bits, scale and shift for 32 values each.
#[derive(Clone, Copy, Debug)]
pub struct Iq1S;
/// 32 low index bytes, a nibble of high index bits and shift for 8 values each, scales for 16 values each; `d` is spread over these.
#[derive(Clone, Copy, Debug)]
pub struct Iq1M;

impl Block<50, 256, 8> for Iq1S {
    const TYPE: BlockType = BlockType::IQ1_S;

    fn unpack(block: &[u8; 50]) -> Unpacked<256, 8> {
        let low = &block[2..34];
        let word = |g: usize| u16::from_le_bytes([block[34 + 2 * g], block[35 + 2 * g]]);
        let codes = shifted(|eight| {
            let word = word(eight / 4);
            (
                usize::from(low[eight]) | usize::from(word >> (3 * (eight % 4)) & 7) << 8,
                word >> 15 == 1,
            )
        });
        Unpacked::new(
            f16_at(block, 0) / 8.0,
            std::array::from_fn(|g| 2 * i32::from(word(g) >> 12 & 7) + 1),
            codes,
        )
    }
}

impl Block<56, 256, 16> for Iq1M {
    const TYPE: BlockType = BlockType::IQ1_M;

    fn unpack(block: &[u8; 56]) -> Unpacked<256, 16> {
        let (low, high) = (&block[..32], &block[32..48]);
        let words: [u16; 4] =
            std::array::from_fn(|w| u16::from_le_bytes([block[48 + 2 * w], block[49 + 2 * w]]));
        let d = (0..4).fold(0, |d, w| d | words[w] >> 12 << (4 * w));
        let codes = shifted(|eight| {
            let nibble = high[eight / 2] >> (4 * (eight % 2)) & 15;
            (
                usize::from(low[eight]) | usize::from(nibble & 7) << 8,
                nibble & 8 != 0,
            )
        });
        let scales = std::array::from_fn(|g| 2 * i32::from(words[g / 4] >> (3 * (g % 4)) & 7) + 1);
        Unpacked::new(f16(d.to_le_bytes()) / 8.0, scales, codes)
    }
}

/// Codes of 32 vectors of 8, given each one's grid index and whether it is shifted down.
fn shifted(vector: impl Fn(usize) -> (usize, bool)) -> [i8; 256] {
    let mut codes = [0; 256];
    for (eight, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (index, down) = vector(eight);
        let shift = if down { -1 } else { 1 };
        *codes = grids::IQ1[index].to_le_bytes().map(|t| 8 * t as i8 + shift);
    }
    codes
}
