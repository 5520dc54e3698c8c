//! Shapes of the parts of a layer: checked numbers and closed choices, filled from a file's metadata.

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE binary32, 4 bytes: as exact as a model file of f32 weights.
    F32,
    /// IEEE binary16, 2 bytes.
    #[default]
    F16,
    /// Signed bytes with an f16 scale per 32 channels of a head, 1.0625 bytes.
    Q8_0,
}

/// Keys and values of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub heads: usize,
    /// Values of a head, the same for keys and values.
    pub head_dim: usize,
}

/// Which channels of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Channels `2i` and `2i + 1` (llama).
    Adjacent,
    /// Channels `i` and `i + n/2` (NeoX).
    Halves,
}

/// Rotary position embedding. All scaling variants reduce to the frequency vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which channels are pairs.
    pub pairs: RopePairs,
    /// Radians a position, one a pair: `[n_rot / 2]`. Channels past `n_rot` are not rotated.
    pub frequencies: Vec<f64>,
}

/// Over what queries and keys are normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself, weights `[head_dim]`.
    PerHead,
    /// The whole projection, weights as wide.
    FullWidth,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv: KvShape,
    /// Rotation of queries and keys.
    pub rope: Rope,
    /// Norm of queries and keys, if any.
    pub qk_norm: Option<QkNorm>,
    /// Epsilon of that norm.
    pub eps: f32,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries come as `[query | gate]` a head, the output is multiplied by sigmoid(gate).
    pub gated: bool,
    /// Queries, keys and values are clamped to plus or minus this (`attention.clamp_kqv`).
    pub clamp: Option<f32>,
}

/// Which k head serves a v head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// v head `j` uses k head `j / (Hv / Hk)` (qwen3next files).
    Grouped,
    /// v head `j` uses k head `j % Hk` (qwen35moe files).
    Tiled,
}

/// How the inputs of beta and of the decay are projected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetaDecay {
    /// Two projections.
    Separate,
    /// One projection, per k head `[beta x r | decay x r]`, r = Hv / Hk.
    Interleaved,
}

/// Gated delta net of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub v_heads: usize,
    /// Values of a key head.
    pub k_dim: usize,
    /// Values of a value head.
    pub v_dim: usize,
    /// Taps of the causal convolution.
    pub conv_taps: usize,
    /// Which k head serves a v head.
    pub head_map: HeadMap,
    /// How the inputs of beta and decay come.
    pub beta_decay: BetaDecay,
    /// Epsilon of the output norm.
    pub eps: f32,
}

impl DeltaShape {
    /// Channels of the convolution: `q | k | v`.
    pub fn channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
    }

    /// Width of the mixer's output and of its gate.
    pub fn inner(&self) -> usize {
        self.v_heads * self.v_dim
    }
}

/// From router logits to weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Each expert's sigmoid.
    Sigmoid,
    /// Softmax over the chosen experts.
    SoftmaxOfChosen,
    /// The root of each expert's softplus.
    SqrtSoftplus,
}
