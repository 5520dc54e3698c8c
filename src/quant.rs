//! Block types: how a GGUF tensor's rows are cut into blocks, and what a block's bytes mean.
//!
//! Every quantised type is decoded to integers first ([`Unpacked`]): codes, sub-block scales, minima, and one or two floats a block. Kernels that
//! multiply integers take it from there; [`dequantise`] multiplies it out. Since scales are f16 and codes are short, every product is exact
//! in f32, so a value has one possible result, whatever the order of operations.
//!
//! Knows bytes and numbers only: no file, no tensor names, no backend.

mod block_type;
mod float;
pub mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k;
mod legacy;
mod mx;
mod ternary;
mod unpacked;

pub use block_type::BlockType;
pub use iq1::{Iq1M, Iq1S};
pub use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub use iq3::{Iq3S, Iq3Xxs};
pub use iq4::{IQ4_STEPS, Iq4Nl, Iq4Xs};
pub use k::{Q2K, Q3K, Q4K, Q5K, Q6K, Q8K, scale_and_min};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1};
pub use mx::{E2M1_DOUBLED, Mxfp4, Nvfp4};
pub use ternary::{Q1_0, Q2_0, Tq1_0, Tq2_0};
pub use unpacked::{Block, Unpacked};

/// Bytes and values that do not belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of {ty} cannot be decoded to {values} values: a block has {} bytes and {} values", ty.block_bytes(), ty.block_values())]
pub struct LengthMismatch {
    /// The type.
    pub ty: BlockType,
    /// Bytes given.
    pub bytes: usize,
    /// Values asked for.
    pub values: usize,
}

/// Decodes whole blocks to floats. Integers wider than f32 are rounded.
///
/// **Shapes**: `bytes [blocks * block_bytes] -> out [blocks * block_values] f32`.
///
/// **Errors**: [`LengthMismatch`] if that is not so; `out` is then untouched.
pub fn dequantise(ty: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), LengthMismatch> {
    if ty.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(LengthMismatch {
            ty,
            bytes: bytes.len(),
            values: out.len(),
        });
    }
    match ty {
        BlockType::F32 => float::decode(bytes, out, f32::from_le_bytes),
        BlockType::F16 => float::decode(bytes, out, float::f16),
        BlockType::BF16 => float::decode(bytes, out, float::bf16),
        BlockType::F64 => float::decode(bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
        BlockType::I8 => float::decode(bytes, out, |bytes| i8::from_le_bytes(bytes).into()),
        BlockType::I16 => float::decode(bytes, out, |bytes| i16::from_le_bytes(bytes).into()),
        BlockType::I32 => float::decode(bytes, out, |bytes| i32::from_le_bytes(bytes) as f32),
        BlockType::I64 => float::decode(bytes, out, |bytes| i64::from_le_bytes(bytes) as f32),
        BlockType::Q4_0 => unpacked::decode::<Q4_0, _, _, _>(bytes, out),
        BlockType::Q4_1 => unpacked::decode::<Q4_1, _, _, _>(bytes, out),
        BlockType::Q5_0 => unpacked::decode::<Q5_0, _, _, _>(bytes, out),
        BlockType::Q5_1 => unpacked::decode::<Q5_1, _, _, _>(bytes, out),
        BlockType::Q8_0 => unpacked::decode::<Q8_0, _, _, _>(bytes, out),
        BlockType::Q8_1 => unpacked::decode::<Q8_1, _, _, _>(bytes, out),
        BlockType::Q2_K => unpacked::decode::<Q2K, _, _, _>(bytes, out),
        BlockType::Q3_K => unpacked::decode::<Q3K, _, _, _>(bytes, out),
        BlockType::Q4_K => unpacked::decode::<Q4K, _, _, _>(bytes, out),
        BlockType::Q5_K => unpacked::decode::<Q5K, _, _, _>(bytes, out),
        BlockType::Q6_K => unpacked::decode::<Q6K, _, _, _>(bytes, out),
        BlockType::Q8_K => unpacked::decode::<Q8K, _, _, _>(bytes, out),
        BlockType::IQ1_S => unpacked::decode::<Iq1S, _, _, _>(bytes, out),
        BlockType::IQ1_M => unpacked::decode::<Iq1M, _, _, _>(bytes, out),
        BlockType::IQ2_XXS => unpacked::decode::<Iq2Xxs, _, _, _>(bytes, out),
        BlockType::IQ2_XS => unpacked::decode::<Iq2Xs, _, _, _>(bytes, out),
        BlockType::IQ2_S => unpacked::decode::<Iq2S, _, _, _>(bytes, out),
        BlockType::IQ3_XXS => unpacked::decode::<Iq3Xxs, _, _, _>(bytes, out),
        BlockType::IQ3_S => unpacked::decode::<Iq3S, _, _, _>(bytes, out),
        BlockType::IQ4_NL => unpacked::decode::<Iq4Nl, _, _, _>(bytes, out),
        BlockType::IQ4_XS => unpacked::decode::<Iq4Xs, _, _, _>(bytes, out),
        BlockType::TQ1_0 => unpacked::decode::<Tq1_0, _, _, _>(bytes, out),
        BlockType::TQ2_0 => unpacked::decode::<Tq2_0, _, _, _>(bytes, out),
        BlockType::MXFP4 => unpacked::decode::<Mxfp4, _, _, _>(bytes, out),
        BlockType::NVFP4 => unpacked::decode::<Nvfp4, _, _, _>(bytes, out),
        BlockType::Q1_0 => unpacked::decode::<Q1_0, _, _, _>(bytes, out),
        BlockType::Q2_0 => unpacked::decode::<Q2_0, _, _, _>(bytes, out),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
