//! IQ2_XXS, IQ2_XS and IQ2_S: vectors of 8 magnitudes from a code book, with signs.
//!
//! `value = d * (s + 1/2) / 4 * grid * sign`, kept in integers as `d/8 * (2 s + 1) * (grid * sign)`.

use super::float::f16_at;
use super::{Block, BlockType, Unpacked, grids};

/// `d`; for 32 values each: 4 index bytes, a word of 4 sign codes and a scale.
#[derive(Clone, Copy, Debug)]
pub struct Iq2Xxs;
/// `d`, 32 words of index and sign code, scales for 16 values each.
#[derive(Clone, Copy, Debug)]
pub struct Iq2Xs;
/// `d`, 32 low index bytes, 32 sign bytes, high index bits, scales for 16 values each.
#[derive(Clone, Copy, Debug)]
pub struct Iq2S;

impl Block<66, 256, 8> for Iq2Xxs {
    const TYPE: BlockType = BlockType::IQ2_XXS;

    fn unpack(block: &[u8; 66]) -> Unpacked<256, 8> {
        let groups = block[2..].as_chunks::<8>().0;
        let word =
            |g: usize| u32::from_le_bytes([groups[g][4], groups[g][5], groups[g][6], groups[g][7]]);
        let codes = signed(|eight| {
            let (g, l) = (eight / 4, eight % 4);
            let signs = grids::sign_bits((word(g) >> (7 * l) & 127) as u8);
            (grids::IQ2_XXS[usize::from(groups[g][l])], signs)
        });
        Unpacked::new(
            f16_at(block, 0) / 8.0,
            std::array::from_fn(|g| 2 * (word(g) >> 28) as i32 + 1),
            codes,
        )
    }
}

impl Block<74, 256, 16> for Iq2Xs {
    const TYPE: BlockType = BlockType::IQ2_XS;

    fn unpack(block: &[u8; 74]) -> Unpacked<256, 16> {
        let codes = signed(|eight| {
            let word = u16::from_le_bytes([block[2 + 2 * eight], block[3 + 2 * eight]]);
            (
                grids::IQ2_XS[usize::from(word & 511)],
                grids::sign_bits((word >> 9) as u8),
            )
        });
        Unpacked::new(f16_at(block, 0) / 8.0, nibble_scales(&block[66..]), codes)
    }
}

impl Block<82, 256, 16> for Iq2S {
    const TYPE: BlockType = BlockType::IQ2_S;

    fn unpack(block: &[u8; 82]) -> Unpacked<256, 16> {
        let (low, signs, high) = (&block[2..34], &block[34..66], &block[66..74]);
        let codes = signed(|eight| {
            let top = high[eight / 4] >> (2 * (eight % 4)) & 3;
            (
                grids::IQ2_S[usize::from(low[eight]) | usize::from(top) << 8],
                signs[eight],
            )
        });
        Unpacked::new(f16_at(block, 0) / 8.0, nibble_scales(&block[74..]), codes)
    }
}

/// Odd multipliers of 16 groups, a nibble each.
fn nibble_scales(bytes: &[u8]) -> [i32; 16] {
    std::array::from_fn(|g| 2 * i32::from(bytes[g / 2] >> (4 * (g % 2)) & 15) + 1)
}

/// Codes of 32 vectors of 8, given each one's magnitudes and sign bits.
fn signed(vector: impl Fn(usize) -> (u64, u8)) -> [i8; 256] {
    let mut codes = [0; 256];
    for (eight, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (magnitudes, signs) = vector(eight);
        let magnitudes = magnitudes.to_le_bytes();
        *codes = std::array::from_fn(|e| {
            if signs >> e & 1 == 1 {
                -(magnitudes[e] as i8)
            } else {
                magnitudes[e] as i8
            }
        });
    }
    codes
}
