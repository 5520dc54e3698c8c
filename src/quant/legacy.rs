//! The 32-wide types with one scale and, for `_1`, one offset a block.

use super::float::f16_at;
use super::{Block, BlockType, Unpacked};

/// `d`, 16 bytes of nibbles; `value = d * (q - 8)`.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0;
/// `d`, `m`, 16 bytes of nibbles; `value = d * q + m`.
#[derive(Clone, Copy, Debug)]
pub struct Q4_1;
/// `d`, 32 fifth bits, 16 bytes of nibbles; `value = d * (q - 16)`.
#[derive(Clone, Copy, Debug)]
pub struct Q5_0;
/// `d`, `m`, 32 fifth bits, 16 bytes of nibbles; `value = d * q + m`.
#[derive(Clone, Copy, Debug)]
pub struct Q5_1;
/// `d`, 32 signed bytes; `value = d * q`.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;
/// As [`Q8_0`], with `d` times the sum of the codes stored before them. Activations only.
#[derive(Clone, Copy, Debug)]
pub struct Q8_1;

impl Block<18, 32, 1> for Q4_0 {
    const TYPE: BlockType = BlockType::Q4_0;

    fn unpack(block: &[u8; 18]) -> Unpacked<32, 1> {
        Unpacked::new(
            f16_at(block, 0),
            [1],
            nibbles(&block[2..]).map(|q| q as i8 - 8),
        )
    }
}

impl Block<20, 32, 1> for Q4_1 {
    const TYPE: BlockType = BlockType::Q4_1;

    fn unpack(block: &[u8; 20]) -> Unpacked<32, 1> {
        offset(block, nibbles(&block[4..]))
    }
}

impl Block<22, 32, 1> for Q5_0 {
    const TYPE: BlockType = BlockType::Q5_0;

    fn unpack(block: &[u8; 22]) -> Unpacked<32, 1> {
        let codes = with_fifth_bit(nibbles(&block[6..]), &block[2..6]);
        Unpacked::new(f16_at(block, 0), [1], codes.map(|q| q as i8 - 16))
    }
}

impl Block<24, 32, 1> for Q5_1 {
    const TYPE: BlockType = BlockType::Q5_1;

    fn unpack(block: &[u8; 24]) -> Unpacked<32, 1> {
        offset(block, with_fifth_bit(nibbles(&block[8..]), &block[4..8]))
    }
}

impl Block<34, 32, 1> for Q8_0 {
    const TYPE: BlockType = BlockType::Q8_0;

    fn unpack(block: &[u8; 34]) -> Unpacked<32, 1> {
        Unpacked::new(
            f16_at(block, 0),
            [1],
            std::array::from_fn(|e| block[2 + e] as i8),
        )
    }
}

impl Block<36, 32, 1> for Q8_1 {
    const TYPE: BlockType = BlockType::Q8_1;

    fn unpack(block: &[u8; 36]) -> Unpacked<32, 1> {
        Unpacked::new(
            f16_at(block, 0),
            [1],
            std::array::from_fn(|e| block[4 + e] as i8),
        )
    }
}

/// Codes of a 32-wide group: low nibbles first, then high ones.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|e| {
        if e < 16 {
            bytes[e] & 15
        } else {
            bytes[e - 16] >> 4
        }
    })
}

/// Adds bit `e` of `bits` to code `e` as its fifth bit.
fn with_fifth_bit(codes: [u8; 32], bits: &[u8]) -> [u8; 32] {
    std::array::from_fn(|e| codes[e] | (bits[e / 8] >> (e % 8) & 1) << 4)
}

/// A block of `d`, `m` and unsigned codes: the offset is a minimum with the other sign.
fn offset(block: &[u8], codes: [u8; 32]) -> Unpacked<32, 1> {
    let codes = codes.map(|q| q as i8);
    Unpacked {
        d: f16_at(block, 0),
        dmin: -f16_at(block, 2),
        scales: [1],
        mins: [1],
        codes,
    }
}
