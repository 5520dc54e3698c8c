//! The kernels' sources, which are part of the program.

/// A file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

macro_rules! sources {
    ($($constant:ident = $file:literal;)*) => {
        $(pub(super) const $constant: Source = Source {
            name: $file,
            text: include_str!(concat!("../../kernels/", $file)),
        };)*
    };
}

macro_rules! headers {
    ($($file:literal)*) => {
        /// What sources include.
        pub(super) const HEADERS: &[Source] = &[$(Source {
            name: $file,
            text: include_str!(concat!("../../kernels/", $file)),
        }),*];
    };
}

headers! {
    "device.cuh" "functions.cuh" "quantise.cuh" "rows.cuh" "norm.cuh" "choice.cuh" "codec.cuh" "matrices.cuh" "matvec.cuh" "matvec_tile.cuh" "grids.cuh" "mma_tile.cuh" "mma_direct.cuh" "mma_group.cuh" "mma_minima.cuh" "mma_multiply.cuh" "mma_pipeline.cuh" "mma_shape.cuh" "mma_unpack.cuh" "group.cuh" "kv.cuh" "attention.cuh" "attention_group.cuh" "attention_tile.cuh" "delta.cuh"
}

sources! {
    ATTENTION_DECODE = "attention_decode.cu";
    ATTENTION_PREPARE = "attention_prepare.cu";
    ATTENTION_PROMPT = "attention_prompt.cu";
    BIAS = "bias.cu";
    CHOOSE = "choose.cu";
    DELTA_NET = "delta_net.cu";
    DELTA_PROMPT = "delta_prompt.cu";
    DRAW = "draw.cu";
    EMBED = "embed.cu";
    EXPERT_MATMUL = "expert_matmul.cu";
    EXPERT_MATVEC = "expert_matvec.cu";
    FLOAT_MATVEC = "float_matvec.cu";
    FLOAT_MATMUL = "float_matmul.cu";
    INDEX = "index.cu";
    LIMITS = "limits.cu";
    MATMUL = "matmul.cu";
    MATVEC = "matvec.cu";
    NGRAM = "ngram.cu";
    NORM = "norm.cu";
    QUANTISE = "quantise.cu";
    ROUTE = "route.cu";
    SOFTCAP = "softcap.cu";
    STREAMS = "streams.cu";
    SWIGLU = "swiglu.cu";
}
