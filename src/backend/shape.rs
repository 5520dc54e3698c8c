//! Shapes of the parts of a layer: checked numbers and closed choices, filled from a file's metadata.

use super::CUT_ROWS;
use crate::engine::executor::PAGE_TOKENS;

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
    /// Factor on cosine and sine: 1 but for YaRN.
    pub magnitude: f32,
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
    /// Values are normed head by head, without a weight.
    pub v_norm: bool,
    /// Epsilon of these norms.
    pub eps: f32,
    /// Factor on the scores.
    pub scale: f32,
    /// Queries come as `[query | gate]` a head, the output is multiplied by sigmoid(gate).
    pub gated: bool,
    /// Queries, keys and values are clamped to plus or minus this (`attention.clamp_kqv`).
    pub clamp: Option<f32>,
    /// Positions that a row sees, its own included; all before it if there is no window.
    pub window: Option<usize>,
    /// Each head has a logit of its own in the denominator of its softmax.
    pub sinks: bool,
    /// Past a budget of positions only the groups that an index scores best are seen.
    pub index: Option<IndexShape>,
}

/// How a row chooses the positions that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexShape {
    /// Heads of its queries; there is one key.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Positions that share a pooled key: a divisor of a page.
    pub group: usize,
    /// Groups that a row sees at most, beside the one that is not complete.
    pub budget: usize,
}

impl IndexShape {
    /// **Units**: bytes. Pooled keys of one page.
    pub fn page_bytes(&self) -> usize {
        PAGE_TOKENS / self.group * self.head_dim * size_of::<f32>()
    }
}

/// Rows that are found by the last few tokens, and added to every stream of the residual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramShape {
    /// Tokens of the longest n-gram; there are rows for those of 2, 3, .. tokens.
    pub tokens: usize,
    /// Rows for each length.
    pub heads: usize,
    /// Values of a row.
    pub width: usize,
    /// Taps of the convolution, which are `tokens` rows apart.
    pub taps: usize,
    /// A token's number is multiplied by this, by how far back it is: `[tokens]`.
    pub multipliers: Vec<u64>,
    /// Rows of the table that a head has: `[(tokens - 1) * heads]`.
    pub sizes: Vec<u64>,
    /// Where they begin.
    pub offsets: Vec<u64>,
    /// An n-gram reaches no further back than to this token.
    pub end: u32,
}

impl NgramShape {
    /// Tokens of an n-gram, at most.
    pub const TOKENS_MAX: usize = 8;
    /// Taps of the convolution, at most.
    pub const TAPS_MAX: usize = 4;
    /// Inputs of the convolution that are kept of a sequence: as far as it looks back, and those that can be taken back.
    pub const INPUTS_KEPT: usize = (Self::TAPS_MAX - 1) * Self::TOKENS_MAX + CUT_ROWS;

    /// Rows of the table for one row of a window.
    pub fn rows(&self) -> usize {
        self.sizes.len()
    }

    /// Which rows of the table: `last` are the token itself, the one before it and so on, none where the sequence begins.
    pub fn find(&self, last: &[Option<u32>], mut found: impl FnMut(u64)) {
        let mut cut = false;
        let mut mixed = 0u64;
        for (back, multiplier) in self.multipliers.iter().enumerate() {
            // an end at the token itself cuts nothing
            let token = last.get(back).copied().flatten();
            cut |= back > 0 && (token.is_none() || token == Some(self.end));
            let token = if cut {
                self.end
            } else {
                token.unwrap_or(self.end)
            };
            mixed ^= u64::from(token).wrapping_mul(*multiplier);
            if back > 0 {
                let heads = (back - 1) * self.heads..back * self.heads;
                for (size, offset) in self.sizes[heads.clone()].iter().zip(&self.offsets[heads]) {
                    found(mixed % size + offset);
                }
            }
        }
    }
}

/// What an output gate goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutGate {
    /// `z * sigmoid(z)`.
    #[default]
    Silu,
    /// `sigmoid(z)`.
    Sigmoid,
}

impl AttentionShape {
    /// Pages in which a slot keeps the keys and values of this layer where windows bring up to `rows` rows: as many as a sequence has if it sees all
    /// of them, else a ring that its positions go round. What a row replaces there nobody needs any more, not even after [`CUT_ROWS`] rows were taken back.
    pub fn ring_pages(&self, rows: usize) -> Option<usize> {
        self.window
            .map(|window| (window + rows + CUT_ROWS).div_ceil(PAGE_TOKENS) + 1)
    }
}

/// What becomes of a gate and an up projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) * up`.
    #[default]
    SwiGlu,
    /// `(clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g)`, `g = min(gate, 7)`.
    ClampedSwiGlu,
    /// `gelu(gate) * up`, gelu by its tanh form.
    GeGlu,
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
    /// What the output gate goes through.
    pub out_gate: OutGate,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: &[Option<u32>]) -> Vec<u64> {
        let shape = NgramShape {
            tokens: 3,
            heads: 1,
            width: 8,
            taps: 4,
            multipliers: vec![3, u64::MAX / 2, 0x9e37_79b9_7f4a_7c15],
            sizes: vec![1009, 1013],
            offsets: vec![0, 1009],
            end: 7,
        };
        let mut rows = Vec::new();
        shape.find(last, |row| rows.push(row));
        rows
    }

    /// By hand, in 64 bits that wrap: products of each token and its multiplier, joined by exclusive or.
    fn expected(tokens: [u64; 3]) -> Vec<u64> {
        let products = [3, u128::from(u64::MAX / 2), 0x9e37_79b9_7f4a_7c15];
        let wrapped = |at: usize| (u128::from(tokens[at]) * products[at] % (1 << 64)) as u64;
        let two = wrapped(0) ^ wrapped(1);
        vec![two % 1009, (two ^ wrapped(2)) % 1013 + 1009]
    }

    #[test]
    fn trap_16_ngrams_wrap_and_end_at_an_end_of_text() {
        let check = |last: &[Option<u32>], tokens| assert_eq!(found(last), expected(tokens));
        check(&[Some(5), Some(6), Some(9)], [5, 6, 9]);
        check(&[Some(5), Some(6), None], [5, 6, 7]);
        check(&[Some(5), None, None], [5, 7, 7]);
        // an end cuts what is before it, not itself
        check(&[Some(7), Some(6), Some(9)], [7, 6, 9]);
        check(&[Some(5), Some(7), Some(9)], [5, 7, 7]);
        check(&[Some(5), Some(6), Some(7)], [5, 6, 7]);
    }

    #[test]
    fn rings_hold_a_window_and_what_it_sees() {
        let mut shape = AttentionShape {
            heads: 1,
            kv: KvShape {
                heads: 1,
                head_dim: 8,
            },
            rope: Rope {
                pairs: RopePairs::Halves,
                frequencies: Vec::new(),
                magnitude: 1.0,
            },
            qk_norm: None,
            v_norm: false,
            eps: 1e-6,
            scale: 1.0,
            gated: false,
            clamp: None,
            window: None,
            sinks: false,
            index: None,
        };
        assert_eq!(shape.ring_pages(128), None);
        for (window, rows) in [(1, 1), (64, 1), (128, 128), (1000, 37)] {
            shape.window = Some(window);
            let pages = shape.ring_pages(rows).expect("a ring");
            // wherever a window's rows lie in their page, and after rows were taken back
            for first in 0..PAGE_TOKENS {
                let oldest = first + 10 * PAGE_TOKENS * pages - window + 1;
                let newest = first + 10 * PAGE_TOKENS * pages + rows - 1 + CUT_ROWS;
                assert!(newest / PAGE_TOKENS - oldest / PAGE_TOKENS < pages);
            }
        }
    }
}
