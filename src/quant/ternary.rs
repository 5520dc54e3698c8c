//! Types of one or two bits under a single scale: ternary, binary, and the four-valued Q2_0.

use super::float::f16_at;
use super::k::pairs;
use super::{Block, BlockType, Unpacked};

/// Ternary digits in base 3, five (at the end four) a byte, `d`; `value = d * (digit - 1)`.
#[derive(Clone, Copy, Debug)]
pub struct Tq1_0;
/// Codes of 2 bits, `d`; `value = d * (q - 1)`.
#[derive(Clone, Copy, Debug)]
pub struct Tq2_0;
/// `d`, 128 bits; `value = d` for 1, `-d` for 0.
#[derive(Clone, Copy, Debug)]
pub struct Q1_0;
/// `d`, 64 codes of 2 bits in order; `value = d * (q - 1)`.
#[derive(Clone, Copy, Debug)]
pub struct Q2_0;

impl Block<54, 256, 1> for Tq1_0 {
    const TYPE: BlockType = BlockType::TQ1_0;

    fn unpack(block: &[u8; 54]) -> Unpacked<256, 1> {
        let codes = std::array::from_fn(|e| match e {
            0..160 => trit(block[e % 32], e / 32),
            160..240 => trit(block[32 + e % 16], (e - 160) / 16),
            _ => trit(block[48 + e % 4], (e - 240) / 4),
        });
        Unpacked::new(f16_at(block, 52), [1], codes)
    }
}

impl Block<66, 256, 1> for Tq2_0 {
    const TYPE: BlockType = BlockType::TQ2_0;

    fn unpack(block: &[u8; 66]) -> Unpacked<256, 1> {
        Unpacked::new(
            f16_at(block, 64),
            [1],
            pairs(&block[..64]).map(|q| q as i8 - 1),
        )
    }
}

impl Block<18, 128, 1> for Q1_0 {
    const TYPE: BlockType = BlockType::Q1_0;

    fn unpack(block: &[u8; 18]) -> Unpacked<128, 1> {
        let bit = |e: usize| block[2 + e / 8] >> (e % 8) & 1;
        Unpacked::new(
            f16_at(block, 0),
            [1],
            std::array::from_fn(|e| 2 * bit(e) as i8 - 1),
        )
    }
}

impl Block<18, 64, 1> for Q2_0 {
    const TYPE: BlockType = BlockType::Q2_0;

    fn unpack(block: &[u8; 18]) -> Unpacked<64, 1> {
        let code = |e: usize| block[2 + e / 4] >> (2 * (e % 4)) & 3;
        Unpacked::new(
            f16_at(block, 0),
            [1],
            std::array::from_fn(|e| code(e) as i8 - 1),
        )
    }
}

/// Digit `k` of a byte that holds a fraction in base 3, scaled to 256: shift it to the front, then take the integer part of three times it.
fn trit(byte: u8, k: usize) -> i8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let front = byte.wrapping_mul(POWERS[k]);
    ((u16::from(front) * 3) >> 8) as i8 - 1
}
