//! MXFP4 and NVFP4: four-bit floats (E2M1) under small float scales. Codes are twice the E2M1 value, so scales are half.

use super::legacy::nibbles;
use super::{Block, BlockType, Unpacked};

/// Twice the value of each E2M1 code.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// An exponent byte (e8m0), 16 bytes of nibbles; `value = 2^(e - 127) * E2M1`.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4;
/// Four scales (unsigned e4m3) for 16 values each, 32 bytes of nibbles; `value = scale * E2M1`.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4;

impl Block<17, 32, 1> for Mxfp4 {
    const TYPE: BlockType = BlockType::MXFP4;

    fn unpack(block: &[u8; 17]) -> Unpacked<32, 1> {
        // Half of 2^(e - 127): the two smallest are subnormal in f32, where one more halving moves the only bit.
        let half = match block[0] {
            e @ 0..2 => 0x0020_0000 << e,
            e => u32::from(e - 1) << 23,
        };
        Unpacked::new(
            f32::from_bits(half),
            [1],
            nibbles(&block[1..]).map(e2m1_doubled),
        )
    }
}

impl Block<36, 64, 4> for Nvfp4 {
    const TYPE: BlockType = BlockType::NVFP4;

    fn unpack(block: &[u8; 36]) -> Unpacked<64, 4> {
        let mut codes = [0; 64];
        for (group, codes) in block[4..]
            .chunks_exact(8)
            .zip(codes.as_chunks_mut::<16>().0)
        {
            *codes = std::array::from_fn(|e| {
                e2m1_doubled(if e < 8 {
                    group[e] & 15
                } else {
                    group[e - 8] >> 4
                })
            });
        }
        // Scales in units of 2^-9, the smallest subnormal; halved once more for the doubled codes.
        Unpacked::new(
            1.0 / 1024.0,
            std::array::from_fn(|g| ue4m3(block[g])),
            codes,
        )
    }
}

fn e2m1_doubled(q: u8) -> i8 {
    E2M1_DOUBLED[usize::from(q)]
}

/// An unsigned e4m3 number (bias 7) in units of 2^-9. The code for "not a number" reads as 0, the sign bit is ignored.
fn ue4m3(code: u8) -> i32 {
    let (exponent, mantissa) = (code >> 3 & 15, i32::from(code & 7));
    match (code, exponent) {
        (0x7f, _) => 0,
        (_, 0) => mantissa,
        (_, exponent) => (8 + mantissa) << (exponent - 1),
    }
}
