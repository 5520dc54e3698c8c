//! The 256-wide K types: a float scale over integer scales of 16 or 32 values each.

use super::float::f16_at;
use super::{Block, BlockType, Unpacked};

/// Scales and minima of 4 bits for 16 values each, codes of 2 bits, `d`, `dmin`.
#[derive(Clone, Copy, Debug)]
pub struct Q2K;
/// High bits, codes of 2 bits, scales of 6 bits for 16 values each, `d`.
#[derive(Clone, Copy, Debug)]
pub struct Q3K;
/// `d`, `dmin`, scales and minima of 6 bits for 32 values each, codes of 4 bits.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;
/// As [`Q4K`], with fifth bits before the nibbles.
#[derive(Clone, Copy, Debug)]
pub struct Q5K;
/// Low nibbles, high bit pairs, signed scales of 8 bits for 16 values each, `d`.
#[derive(Clone, Copy, Debug)]
pub struct Q6K;
/// An f32 scale, 256 signed bytes and their sums per 16. Activations only.
#[derive(Clone, Copy, Debug)]
pub struct Q8K;

impl Block<84, 256, 16> for Q2K {
    const TYPE: BlockType = BlockType::Q2_K;

    fn unpack(block: &[u8; 84]) -> Unpacked<256, 16> {
        let scales = &block[..16];
        Unpacked {
            d: f16_at(block, 80),
            dmin: f16_at(block, 82),
            scales: std::array::from_fn(|g| i32::from(scales[g] & 15)),
            mins: std::array::from_fn(|g| i32::from(scales[g] >> 4)),
            codes: pairs(&block[16..80]).map(|q| q as i8),
        }
    }
}

impl Block<110, 256, 16> for Q3K {
    const TYPE: BlockType = BlockType::Q3_K;

    fn unpack(block: &[u8; 110]) -> Unpacked<256, 16> {
        let (high, packed) = (&block[..32], &block[96..108]);
        let low = pairs(&block[32..96]);
        let codes = std::array::from_fn(|e| low[e] as i8 - if bit(high, e) == 1 { 0 } else { 4 });
        let scales = std::array::from_fn(|g| {
            let nibble = packed[g % 8] >> (4 * (g / 8)) & 15;
            let top = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
            i32::from(nibble | top << 4) - 32
        });
        Unpacked::new(f16_at(block, 108), scales, codes)
    }
}

impl Block<144, 256, 8> for Q4K {
    const TYPE: BlockType = BlockType::Q4_K;

    fn unpack(block: &[u8; 144]) -> Unpacked<256, 8> {
        six_bit_scales(block, nibbles(&block[16..]))
    }
}

impl Block<176, 256, 8> for Q5K {
    const TYPE: BlockType = BlockType::Q5_K;

    fn unpack(block: &[u8; 176]) -> Unpacked<256, 8> {
        let (high, low) = (&block[16..48], nibbles(&block[48..]));
        six_bit_scales(block, std::array::from_fn(|e| low[e] | bit(high, e) << 4))
    }
}

impl Block<210, 256, 16> for Q6K {
    const TYPE: BlockType = BlockType::Q6_K;

    fn unpack(block: &[u8; 210]) -> Unpacked<256, 16> {
        let (low, high, scales) = (&block[..128], pairs(&block[128..192]), &block[192..208]);
        let codes = std::array::from_fn(|e| {
            // Halves of 128: 64 bytes hold values 0 to 63 in their low nibbles, 64 to 127 in their high ones.
            let nibble = low[64 * (e / 128) + e % 64] >> (4 * (e / 64 % 2)) & 15;
            (nibble | high[e] << 4) as i8 - 32
        });
        Unpacked::new(
            f16_at(block, 208),
            std::array::from_fn(|g| i32::from(scales[g] as i8)),
            codes,
        )
    }
}

impl Block<292, 256, 1> for Q8K {
    const TYPE: BlockType = BlockType::Q8_K;

    fn unpack(block: &[u8; 292]) -> Unpacked<256, 1> {
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        Unpacked::new(d, [1], std::array::from_fn(|e| block[4 + e] as i8))
    }
}

/// Scale and minimum of group `g` (0 to 7) of Q4_K and Q5_K: 6 bits each, the upper two of the last four groups apart.
pub fn scale_and_min(packed: &[u8; 12], g: usize) -> (u8, u8) {
    if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let (low, high) = (packed[g + 4] & 15, packed[g + 4] >> 4);
        (low | packed[g - 4] >> 6 << 4, high | packed[g] >> 6 << 4)
    }
}

fn six_bit_scales(block: &[u8], codes: [u8; 256]) -> Unpacked<256, 8> {
    let packed = &std::array::from_fn(|byte| block[4 + byte]);
    Unpacked {
        d: f16_at(block, 0),
        dmin: f16_at(block, 2),
        scales: std::array::from_fn(|g| i32::from(scale_and_min(packed, g).0)),
        mins: std::array::from_fn(|g| i32::from(scale_and_min(packed, g).1)),
        codes: codes.map(|q| q as i8),
    }
}

/// Codes of 2 bits: halves of 128 values in 32 bytes, each byte holding values `l`, `32 + l`, `64 + l` and `96 + l`.
pub(super) fn pairs(bytes: &[u8]) -> [u8; 256] {
    std::array::from_fn(|e| bytes[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4)) & 3)
}

/// Codes of 4 bits: groups of 64 values in 32 bytes, low nibbles first, then high ones.
fn nibbles(bytes: &[u8]) -> [u8; 256] {
    std::array::from_fn(|e| bytes[32 * (e / 64) + e % 32] >> (4 * (e / 32 % 2)) & 15)
}

/// The extra bit of value `e`: bit `e / 32` of byte `e mod 32`.
fn bit(bytes: &[u8], e: usize) -> u8 {
    bytes[e % 32] >> (e / 32) & 1
}
