//! Which block type each tensor of a quantised model gets.
//!
//! **Source**: the rules of llama.cpp's quantizer (`llama-quant.cpp`) as files with an importance matrix show them.

use std::str::FromStr;

use super::SynthError;
use crate::quant::BlockType;

/// A mixture of block types under the name that file names carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All F32.
    F32,
    /// F16.
    F16,
    /// BF16.
    Bf16,
    /// Q8_0.
    Q8_0,
    /// Q4_0, output Q6_K.
    Q4_0,
    /// Q2_K with Q3_K and Q4_K where it hurts.
    Q2K,
    /// Q3_K with Q4_K and Q5_K where it hurts.
    Q3KM,
    /// Q4_K with Q5_K in the first layers.
    Q4KS,
    /// Q4_K with Q6_K in half of the layers' value and down projections.
    Q4KM,
    /// Q5_K with Q6_K in half of the layers' value and down projections.
    Q5KM,
    /// Q6_K.
    Q6K,
    /// IQ4_XS.
    Iq4Xs,
    /// IQ3_XXS.
    Iq3Xxs,
    /// IQ2_XS.
    Iq2Xs,
    /// IQ2_XXS.
    Iq2Xxs,
    /// Experts MXFP4, all else Q8_0.
    Mxfp4Moe,
}

/// Where a tensor stands in a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    /// The tensor's name without layer and `.weight`, for example `attn_v`.
    pub(super) role: &'a str,
    /// Its layer.
    pub(super) layer: usize,
    /// Layers in all.
    pub(super) layers: usize,
    /// Experts of a layer.
    pub(super) experts: usize,
    /// Query heads that share a key head.
    pub(super) heads_per_kv: usize,
}

impl Mix {
    /// Every mixture.
    pub const ALL: [Mix; 16] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q2K,
        Self::Q3KM,
        Self::Q4KS,
        Self::Q4KM,
        Self::Q5KM,
        Self::Q6K,
        Self::Iq4Xs,
        Self::Iq3Xxs,
        Self::Iq2Xs,
        Self::Iq2Xxs,
        Self::Mxfp4Moe,
    ];

    /// Name, type of most tensors, and `general.file_type`.
    const fn facts(self) -> (&'static str, BlockType, u32) {
        match self {
            Self::F32 => ("f32", BlockType::F32, 0),
            Self::F16 => ("f16", BlockType::F16, 1),
            Self::Bf16 => ("bf16", BlockType::BF16, 32),
            Self::Q8_0 => ("q8_0", BlockType::Q8_0, 7),
            Self::Q4_0 => ("q4_0", BlockType::Q4_0, 2),
            Self::Q2K => ("q2_k", BlockType::Q2_K, 10),
            Self::Q3KM => ("q3_k_m", BlockType::Q3_K, 12),
            Self::Q4KS => ("q4_k_s", BlockType::Q4_K, 14),
            Self::Q4KM => ("q4_k_m", BlockType::Q4_K, 15),
            Self::Q5KM => ("q5_k_m", BlockType::Q5_K, 17),
            Self::Q6K => ("q6_k", BlockType::Q6_K, 18),
            Self::Iq4Xs => ("iq4_xs", BlockType::IQ4_XS, 30),
            Self::Iq3Xxs => ("iq3_xxs", BlockType::IQ3_XXS, 23),
            Self::Iq2Xs => ("iq2_xs", BlockType::IQ2_XS, 20),
            Self::Iq2Xxs => ("iq2_xxs", BlockType::IQ2_XXS, 19),
            Self::Mxfp4Moe => ("mxfp4", BlockType::Q8_0, 38),
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// The value of `general.file_type`.
    pub(super) const fn file_type(self) -> u32 {
        self.facts().2
    }

    /// The type of a matrix whose rows have `row` values.
    pub(super) fn type_of(self, site: Site<'_>, row: usize) -> BlockType {
        fit(self.wish(site), row)
    }

    /// The type a tensor gets if its rows allow it.
    fn wish(self, site: Site<'_>) -> BlockType {
        let Site {
            role,
            layer,
            layers,
            ..
        } = site;
        let base = self.facts().1;
        let low = matches!(self, Self::Iq2Xxs | Self::Iq2Xs | Self::Iq3Xxs);
        let eighth = layer < layers / 8;
        match (self, role) {
            (Self::F32 | Self::F16 | Self::Bf16 | Self::Q8_0, _) => base,
            (Self::Mxfp4Moe, role) if role.ends_with("_exps") => BlockType::MXFP4,
            (Self::Mxfp4Moe, _) => base,
            (_, "output") if low => BlockType::Q5_K,
            (_, "output") => BlockType::Q6_K,
            (Self::Iq2Xxs | Self::Iq2Xs, "token_embd") => BlockType::Q2_K,
            (Self::Iq3Xxs, "token_embd") => BlockType::IQ3_S,
            (Self::Iq2Xxs | Self::Iq2Xs, "attn_v" | "attn_qkv") => BlockType::Q4_K,
            (_, "attn_v" | "attn_k") if site.experts == 8 => BlockType::Q8_0,
            (_, "attn_output")
                if site.experts == 8 && base != BlockType::Q5_K && base != BlockType::Q6_K =>
            {
                BlockType::Q5_K
            }
            (Self::Q2K | Self::Iq3Xxs, "attn_v") if site.heads_per_kv >= 4 => BlockType::Q4_K,
            (Self::Q2K, "attn_v" | "attn_output") => BlockType::Q3_K,
            (Self::Q3KM, "attn_v") => {
                if layer < 2 {
                    BlockType::Q5_K
                } else {
                    BlockType::Q4_K
                }
            }
            (Self::Q3KM, "attn_output" | "attn_qkv") => BlockType::Q4_K,
            (Self::Iq4Xs, "attn_v") if site.heads_per_kv >= 4 => BlockType::Q5_K,
            (Self::Iq3Xxs, "attn_q" | "attn_k") => BlockType::IQ2_S,
            (Self::Iq3Xxs, "attn_output") => BlockType::IQ3_S,
            (Self::Q4KS, "attn_v") if layer < 4 => BlockType::Q5_K,
            (Self::Q4KM, "attn_qkv") => BlockType::Q5_K,
            (Self::Q5KM, "attn_qkv") => BlockType::Q6_K,
            (Self::Q4KM | Self::Q5KM, "attn_v") if more_bits(layer, layers) => BlockType::Q6_K,
            (_, role) if role.starts_with("ffn_down") => self.down(base, layer, layers, eighth),
            _ => base,
        }
    }

    fn down(self, base: BlockType, layer: usize, layers: usize, eighth: bool) -> BlockType {
        match self {
            Self::Q2K => BlockType::Q3_K,
            Self::Q3KM => {
                if layer < layers / 16 {
                    BlockType::Q5_K
                } else {
                    BlockType::Q4_K
                }
            }
            Self::Q4KS if eighth => BlockType::Q5_K,
            Self::Q4KM | Self::Q5KM if more_bits(layer, layers) => BlockType::Q6_K,
            Self::Iq2Xxs | Self::Iq2Xs if eighth => BlockType::Q2_K,
            _ => base,
        }
    }
}

/// The first eighth of the layers, the last, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The nearest type whose blocks divide a row.
fn fit(ty: BlockType, row: usize) -> BlockType {
    if row.is_multiple_of(ty.block_values()) {
        return ty;
    }
    let narrow = match ty {
        BlockType::Q2_K | BlockType::Q3_K => BlockType::Q4_0,
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        _ => BlockType::IQ4_NL,
    };
    if row.is_multiple_of(narrow.block_values()) {
        narrow
    } else {
        BlockType::F16
    }
}

impl FromStr for Mix {
    type Err = SynthError;

    fn from_str(name: &str) -> Result<Self, SynthError> {
        let found = Self::ALL
            .into_iter()
            .find(|mix| mix.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| SynthError::Mix {
            got: name.to_owned(),
            allowed: Self::ALL.map(Self::name).join(", "),
        })
    }
}
