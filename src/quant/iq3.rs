//! IQ3_XXS and IQ3_S: vectors of 4 magnitudes from a code book, with signs.

use super::float::f16_at;
use super::{Block, BlockType, Unpacked, grids};

/// `d`, 64 index bytes, for 32 values each a word of 4 sign codes and a scale; `value = d * (s + 1/2) / 2 * grid * sign`.
#[derive(Clone, Copy, Debug)]
pub struct Iq3Xxs;
/// `d`, 64 low index bytes, high index bits, 32 sign bytes, scales for 32 values each; `value = d * (2 s + 1) * grid * sign`.
#[derive(Clone, Copy, Debug)]
pub struct Iq3S;

impl Block<98, 256, 8> for Iq3Xxs {
    const TYPE: BlockType = BlockType::IQ3_XXS;

    fn unpack(block: &[u8; 98]) -> Unpacked<256, 8> {
        let (indices, words) = (&block[2..66], block[66..].as_chunks::<4>().0);
        let word = |g: usize| u32::from_le_bytes(words[g]);
        let codes = signed(|four| {
            let (g, l) = (four / 8, four % 8);
            let signs = grids::sign_bits((word(g) >> (7 * (l / 2)) & 127) as u8);
            (
                grids::IQ3_XXS[usize::from(indices[four])],
                signs >> (4 * (l % 2)),
            )
        });
        Unpacked::new(
            f16_at(block, 0) / 4.0,
            std::array::from_fn(|g| 2 * (word(g) >> 28) as i32 + 1),
            codes,
        )
    }
}

impl Block<110, 256, 8> for Iq3S {
    const TYPE: BlockType = BlockType::IQ3_S;

    fn unpack(block: &[u8; 110]) -> Unpacked<256, 8> {
        let (low, high, signs, scales) = (
            &block[2..66],
            &block[66..74],
            &block[74..106],
            &block[106..],
        );
        let codes = signed(|four| {
            let top = high[four / 8] >> (four % 8) & 1;
            (
                grids::IQ3_S[usize::from(low[four]) | usize::from(top) << 8],
                signs[four / 2] >> (4 * (four % 2)),
            )
        });
        let scales =
            std::array::from_fn(|g| 2 * i32::from(scales[g / 2] >> (4 * (g % 2)) & 15) + 1);
        Unpacked::new(f16_at(block, 0), scales, codes)
    }
}

/// Codes of 64 vectors of 4, given each one's magnitudes and (in the low bits) signs.
fn signed(vector: impl Fn(usize) -> (u32, u8)) -> [i8; 256] {
    let mut codes = [0; 256];
    for (four, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (magnitudes, signs) = vector(four);
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
