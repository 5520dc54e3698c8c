//! Random weights written straight in block form: random codes and group scales, and a block scale that gives the wanted spread.

use half::{bf16, f16};

use super::random::Random;
use crate::quant::{BlockType, LengthMismatch, dequantise};

/// Writes blocks of one type whose values have mean 0 and a given standard deviation.
#[derive(Clone, Debug)]
pub(super) struct BlockWriter {
    ty: BlockType,
    /// Standard deviation of random blocks whose block scale is 1.
    unit_std: f32,
}

/// Where a type keeps its block scales.
enum Scales {
    /// No blocks.
    None,
    /// An f16 at this byte. Its sign is random, so that the mean is 0 where codes lean to one side.
    Signed(usize),
    /// Scale and minimum as f16 at these bytes; the minimum is `mean` times the scale, the codes' mean.
    WithMinimum { d: usize, dmin: usize, mean: f32 },
    /// A power of two in the first byte.
    Exponent,
}

fn scales(ty: BlockType) -> Scales {
    match ty {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => Scales::None,
        BlockType::Q5_1 => Scales::WithMinimum {
            d: 0,
            dmin: 2,
            mean: -15.5,
        },
        BlockType::Q2_K => Scales::WithMinimum {
            d: 80,
            dmin: 82,
            mean: 1.5,
        },
        BlockType::Q4_K => Scales::WithMinimum {
            d: 0,
            dmin: 2,
            mean: 7.5,
        },
        BlockType::Q5_K => Scales::WithMinimum {
            d: 0,
            dmin: 2,
            mean: 15.5,
        },
        BlockType::Q3_K => Scales::Signed(108),
        BlockType::Q6_K => Scales::Signed(208),
        BlockType::MXFP4 => Scales::Exponent,
        // All other types of the mixtures start with their scale.
        _ => Scales::Signed(0),
    }
}

impl BlockWriter {
    /// A writer for a type that a [`Mix`](super::Mix) uses.
    pub(super) fn new(ty: BlockType) -> Result<Self, LengthMismatch> {
        let mut writer = Self { ty, unit_std: 1.0 };
        if !matches!(scales(ty), Scales::None) {
            // A million values pin the spread to half a percent.
            let blocks = (1 << 20) / ty.block_values();
            let mut bytes = vec![0; blocks * ty.block_bytes()];
            let mut values = vec![0.0; blocks * ty.block_values()];
            writer.fill(&mut Random::new(0, ty as u64), 1.0, &mut bytes);
            dequantise(ty, &bytes, &mut values)?;
            let squares: f64 = values.iter().map(|&x| f64::from(x * x)).sum();
            writer.unit_std = (squares / values.len() as f64).sqrt() as f32;
        }
        Ok(writer)
    }

    /// Fills `out`, whole blocks, with random ones whose values spread by `std`.
    pub(super) fn fill(&self, random: &mut Random, std: f32, out: &mut [u8]) {
        let width = self.ty.block_bytes();
        match scales(self.ty) {
            Scales::None => match self.ty {
                BlockType::F16 => plain(random, std, out, |x| f16::from_f32(x).to_le_bytes()),
                BlockType::BF16 => plain(random, std, out, |x| bf16::from_f32(x).to_le_bytes()),
                _ => plain(random, std, out, f32::to_le_bytes),
            },
            Scales::Signed(at) => {
                random.fill(out);
                let d = f16::from_f32(std / self.unit_std).to_le_bytes();
                for block in out.chunks_exact_mut(width) {
                    let sign = block[at + 1] & 0x80;
                    block[at..at + 2].copy_from_slice(&[d[0], d[1] | sign]);
                }
            }
            Scales::WithMinimum {
                d: at,
                dmin: min_at,
                mean,
            } => {
                random.fill(out);
                let scale = std / self.unit_std;
                let (d, dmin) = (
                    f16::from_f32(scale).to_le_bytes(),
                    f16::from_f32(scale * mean).to_le_bytes(),
                );
                for block in out.chunks_exact_mut(width) {
                    block[at..at + 2].copy_from_slice(&d);
                    block[min_at..min_at + 2].copy_from_slice(&dmin);
                    mirror_minima(self.ty, block);
                }
            }
            Scales::Exponent => {
                random.fill(out);
                // Two neighbouring powers of two, mixed so that the variance is right.
                let log2 = (std / self.unit_std).log2();
                let upper = (4f32.powf(log2 - log2.floor()) - 1.0) / 3.0;
                let exponent = (log2.floor() as i32 + 127).clamp(0, 253) as u8;
                for block in out.chunks_exact_mut(width) {
                    block[0] = exponent + u8::from(f32::from(block[0]) < upper * 256.0);
                }
            }
        }
    }
}

/// Values without blocks.
fn plain<const N: usize>(
    random: &mut Random,
    std: f32,
    out: &mut [u8],
    bytes: impl Fn(f32) -> [u8; N],
) {
    for out in out.as_chunks_mut().0 {
        *out = bytes(random.centred(std));
    }
}

/// Makes every group's minimum equal its scale, so that with codes of mean `m` and `dmin = m * d` each group has mean 0.
fn mirror_minima(ty: BlockType, block: &mut [u8]) {
    match ty {
        BlockType::Q2_K => block[..16]
            .iter_mut()
            .for_each(|byte| *byte = *byte & 15 | *byte << 4),
        BlockType::Q4_K | BlockType::Q5_K => {
            // Bytes 4 to 7 hold the scales of groups 0 to 3, 8 to 11 their minima, 12 to 15 the low nibbles of both for groups 4 to 7, whose
            // upper bits lie in the former.
            block.copy_within(4..8, 8);
            block[12..16]
                .iter_mut()
                .for_each(|byte| *byte = *byte & 15 | *byte << 4);
        }
        // One group: nothing to mirror.
        _ => {}
    }
}
