use std::fmt;

macro_rules! block_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $label:literal, $values:literal, $bytes:literal;)*) => {
        /// The element type of a GGUF tensor (`ggml_type`).
        ///
        /// **Source**: ids, widths and sizes as in gguf-py `constants.py`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum BlockType { $($(#[$doc])* $name = $id,)* }

        impl BlockType {
            /// Every type, in id order.
            pub const ALL: &'static [BlockType] = &[$(BlockType::$name,)*];

            /// The type with this `ggml_type` id, if it is known.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The name the field uses, for example `Q4_K`.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }

            /// Values a block holds. A row is a whole number of blocks.
            pub const fn block_values(self) -> usize {
                match self { $(Self::$name => $values,)* }
            }

            /// Bytes a block takes.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

block_types! {
    #[doc = "IEEE binary32."] F32 = 0, "F32", 1, 4;
    #[doc = "IEEE binary16."] F16 = 1, "F16", 1, 2;
    #[doc = "4 bit, scale."] Q4_0 = 2, "Q4_0", 32, 18;
    #[doc = "4 bit, scale and minimum."] Q4_1 = 3, "Q4_1", 32, 20;
    #[doc = "5 bit, scale."] Q5_0 = 6, "Q5_0", 32, 22;
    #[doc = "5 bit, scale and minimum."] Q5_1 = 7, "Q5_1", 32, 24;
    #[doc = "8 bit, scale."] Q8_0 = 8, "Q8_0", 32, 34;
    #[doc = "8 bit, scale and sum: activations only."] Q8_1 = 9, "Q8_1", 32, 36;
    #[doc = "2 bit, 16 sub-blocks with scales and minima."] Q2_K = 10, "Q2_K", 256, 84;
    #[doc = "3 bit, 16 sub-blocks with scales."] Q3_K = 11, "Q3_K", 256, 110;
    #[doc = "4 bit, 8 sub-blocks with scales and minima."] Q4_K = 12, "Q4_K", 256, 144;
    #[doc = "5 bit, 8 sub-blocks with scales and minima."] Q5_K = 13, "Q5_K", 256, 176;
    #[doc = "6 bit, 16 sub-blocks with scales."] Q6_K = 14, "Q6_K", 256, 210;
    #[doc = "8 bit with sums: activations only."] Q8_K = 15, "Q8_K", 256, 292;
    #[doc = "2.06 bit, grid of 256."] IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    #[doc = "2.31 bit, grid of 512."] IQ2_XS = 17, "IQ2_XS", 256, 74;
    #[doc = "3.06 bit, grid of 256."] IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    #[doc = "1.56 bit, ternary grid of 2048."] IQ1_S = 19, "IQ1_S", 256, 50;
    #[doc = "4 bit, uneven steps."] IQ4_NL = 20, "IQ4_NL", 32, 18;
    #[doc = "3.44 bit, grid of 512."] IQ3_S = 21, "IQ3_S", 256, 110;
    #[doc = "2.56 bit, grid of 1024."] IQ2_S = 22, "IQ2_S", 256, 82;
    #[doc = "4.25 bit, uneven steps, 8 sub-blocks."] IQ4_XS = 23, "IQ4_XS", 256, 136;
    #[doc = "8-bit integer."] I8 = 24, "I8", 1, 1;
    #[doc = "16-bit integer."] I16 = 25, "I16", 1, 2;
    #[doc = "32-bit integer."] I32 = 26, "I32", 1, 4;
    #[doc = "64-bit integer."] I64 = 27, "I64", 1, 8;
    #[doc = "IEEE binary64."] F64 = 28, "F64", 1, 8;
    #[doc = "1.75 bit, ternary grid of 2048."] IQ1_M = 29, "IQ1_M", 256, 56;
    #[doc = "The upper half of a binary32."] BF16 = 30, "BF16", 1, 2;
    #[doc = "Ternary, base-3 digits."] TQ1_0 = 34, "TQ1_0", 256, 54;
    #[doc = "Ternary, 2 bit."] TQ2_0 = 35, "TQ2_0", 256, 66;
    #[doc = "E2M1 with an e8m0 scale."] MXFP4 = 39, "MXFP4", 32, 17;
    #[doc = "E2M1 with four ue4m3 scales."] NVFP4 = 40, "NVFP4", 64, 36;
    #[doc = "1 bit, scale."] Q1_0 = 41, "Q1_0", 128, 18;
    #[doc = "2 bit, scale."] Q2_0 = 42, "Q2_0", 64, 18;
}

impl BlockType {
    /// Bytes of a row of `values` values; `None` if it is not a whole number of blocks or overflows.
    pub const fn row_bytes(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_values()) {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
