//! The dimensions of public models, and the tensors they consist of.

use super::SynthError;

/// What is needed to make a file with the tensors and keys of a public model.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint {
    /// How people call the model.
    pub name: &'static str,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Layers.
    pub layers: usize,
    /// Width of the residual.
    pub width: usize,
    /// Query heads of full attention.
    pub heads: usize,
    /// Key and value heads of full attention.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Channels of a head that are rotated.
    pub rotated: usize,
    /// Base of the rotation.
    pub rope_base: f32,
    /// Epsilon of every norm.
    pub eps: f32,
    /// What is normed between projection and rotation.
    pub qk_norm: QkNorm,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a token uses.
    pub used: usize,
    /// Width of an expert.
    pub expert_width: usize,
    /// `feed_forward_length`, where the model's configuration has one.
    pub feed_forward: Option<usize>,
    /// Layers without full attention, and the gates that come with them.
    pub hybrid: Option<Hybrid>,
    /// Tokens.
    pub vocabulary: usize,
    /// Longest context.
    pub context: usize,
    /// How text becomes tokens.
    pub tokenizer: Tokenizer,
}

/// Which part of queries and keys is normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Nothing.
    None,
    /// Each head, with common weights.
    Head,
    /// The whole projection.
    Projection,
}

/// Delta-net layers between the full ones, gated attention and a gated shared expert.
#[derive(Clone, Copy, Debug)]
pub struct Hybrid {
    /// Layer `i` is full attention where `(i + 1) % interval == 0`.
    pub interval: usize,
    /// Key heads of a delta net.
    pub k_heads: usize,
    /// Value heads of a delta net.
    pub v_heads: usize,
    /// Width of a key or value head.
    pub head_width: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Width of the shared expert.
    pub shared_width: usize,
    /// Whether decay and beta come from one projection (`ssm_ba`) or two.
    pub fused_ba: bool,
}

/// A kind of vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// Byte-level BPE with this `tokenizer.ggml.pre`.
    Bpe(&'static str),
    /// SentencePiece with byte fallback.
    Spm,
}

const QWEN3_30B_A3B: Blueprint = Blueprint {
    name: "qwen3-30b-a3b",
    architecture: "qwen3moe",
    layers: 48,
    width: 2048,
    heads: 32,
    kv_heads: 4,
    head_width: 128,
    rotated: 128,
    rope_base: 1e6,
    eps: 1e-6,
    qk_norm: QkNorm::Head,
    experts: 128,
    used: 8,
    expert_width: 768,
    feed_forward: Some(6144),
    hybrid: None,
    vocabulary: 151_936,
    context: 40_960,
    tokenizer: Tokenizer::Bpe("qwen2"),
};

const QWEN3_NEXT_80B_A3B: Blueprint = Blueprint {
    name: "qwen3-next-80b-a3b",
    architecture: "qwen3next",
    heads: 16,
    kv_heads: 2,
    head_width: 256,
    rotated: 64,
    rope_base: 1e7,
    experts: 512,
    used: 10,
    expert_width: 512,
    feed_forward: Some(5120),
    hybrid: Some(Hybrid {
        interval: 4,
        k_heads: 16,
        v_heads: 32,
        head_width: 128,
        conv: 4,
        shared_width: 512,
        fused_ba: true,
    }),
    context: 262_144,
    ..QWEN3_30B_A3B
};

const QWEN35_35B_A3B: Blueprint = Blueprint {
    name: "qwen3.5-35b-a3b",
    architecture: "qwen35moe",
    layers: 40,
    experts: 256,
    used: 8,
    feed_forward: None,
    hybrid: Some(Hybrid {
        interval: 4,
        k_heads: 16,
        v_heads: 32,
        head_width: 128,
        conv: 4,
        shared_width: 512,
        fused_ba: false,
    }),
    vocabulary: 248_320,
    tokenizer: Tokenizer::Bpe("qwen35"),
    ..QWEN3_NEXT_80B_A3B
};

const OLMOE_1B_7B: Blueprint = Blueprint {
    name: "olmoe-1b-7b",
    architecture: "olmoe",
    layers: 16,
    heads: 16,
    kv_heads: 16,
    rope_base: 1e4,
    eps: 1e-5,
    qk_norm: QkNorm::Projection,
    experts: 64,
    expert_width: 1024,
    feed_forward: Some(1024),
    vocabulary: 50_304,
    context: 4096,
    tokenizer: Tokenizer::Bpe("olmo"),
    ..QWEN3_30B_A3B
};

const MIXTRAL_8X7B: Blueprint = Blueprint {
    name: "mixtral-8x7b",
    architecture: "llama",
    layers: 32,
    width: 4096,
    kv_heads: 8,
    eps: 1e-5,
    qk_norm: QkNorm::None,
    experts: 8,
    used: 2,
    expert_width: 14_336,
    feed_forward: Some(14_336),
    vocabulary: 32_000,
    context: 32_768,
    tokenizer: Tokenizer::Spm,
    ..QWEN3_30B_A3B
};

impl Blueprint {
    /// Every model that can be imitated.
    pub const ALL: [Blueprint; 5] = [
        QWEN3_30B_A3B,
        QWEN3_NEXT_80B_A3B,
        QWEN35_35B_A3B,
        OLMOE_1B_7B,
        MIXTRAL_8X7B,
    ];

    /// The model of that name.
    ///
    /// **Errors**: [`SynthError::Model`].
    pub fn named(name: &str) -> Result<Blueprint, SynthError> {
        let found = Self::ALL
            .into_iter()
            .find(|model| model.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| SynthError::Model {
            got: name.to_owned(),
            allowed: Self::ALL.map(|model| model.name).join(", "),
        })
    }

    /// Whether a layer uses full attention.
    pub(super) fn full_attention(&self, layer: usize) -> bool {
        self.hybrid
            .is_none_or(|hybrid| (layer + 1).is_multiple_of(hybrid.interval))
    }

    /// Name and shape of every tensor of a model of `layers` layers, in file order.
    pub(super) fn tensors(&self, layers: usize) -> Vec<(String, Vec<usize>)> {
        let mut all = vec![(
            "token_embd.weight".to_owned(),
            vec![self.width, self.vocabulary],
        )];
        for layer in 0..layers {
            let mut block = self.mixer(layer);
            block.extend(self.feed_forward_tensors());
            all.extend(
                block
                    .into_iter()
                    .map(|(name, dims)| (format!("blk.{layer}.{name}"), dims)),
            );
        }
        all.push(("output_norm.weight".to_owned(), vec![self.width]));
        all.push((
            "output.weight".to_owned(),
            vec![self.width, self.vocabulary],
        ));
        all
    }

    /// The same of a prediction block behind `layers` layers.
    pub(super) fn prediction_tensors(&self, layers: usize) -> Vec<(String, Vec<usize>)> {
        let d = self.width;
        let mut block = vec![("attn_norm.weight", vec![d])];
        block.extend(self.attention());
        block.extend(self.feed_forward_tensors());
        block.extend([
            ("nextn.eh_proj.weight", vec![2 * d, d]),
            ("nextn.enorm.weight", vec![d]),
            ("nextn.hnorm.weight", vec![d]),
            ("nextn.shared_head_norm.weight", vec![d]),
            ("nextn.embed_tokens.weight", vec![d, self.vocabulary]),
        ]);
        block
            .into_iter()
            .map(|(name, dims)| (format!("blk.{layers}.{name}"), dims))
            .collect()
    }

    fn mixer(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let mut tensors = vec![("attn_norm.weight", vec![self.width])];
        match self.hybrid {
            Some(hybrid) if !self.full_attention(layer) => {
                tensors.extend(hybrid.delta_net(self.width))
            }
            _ => tensors.extend(self.attention()),
        }
        tensors
    }

    fn attention(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (d, q, kv) = (
            self.width,
            self.heads * self.head_width,
            self.kv_heads * self.head_width,
        );
        // Gated attention has a gate for every query channel in the same projection.
        let q_rows = if self.hybrid.is_some() { 2 * q } else { q };
        let mut tensors = vec![
            ("attn_q.weight", vec![d, q_rows]),
            ("attn_k.weight", vec![d, kv]),
            ("attn_v.weight", vec![d, kv]),
            ("attn_output.weight", vec![q, d]),
        ];
        let norms = match self.qk_norm {
            QkNorm::None => return tensors,
            QkNorm::Head => [self.head_width; 2],
            QkNorm::Projection => [q, kv],
        };
        tensors.extend([
            ("attn_q_norm.weight", vec![norms[0]]),
            ("attn_k_norm.weight", vec![norms[1]]),
        ]);
        tensors
    }

    fn feed_forward_tensors(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (d, e, ff) = (self.width, self.experts, self.expert_width);
        let norm = if self.hybrid.is_some() {
            "post_attention_norm.weight"
        } else {
            "ffn_norm.weight"
        };
        let mut tensors = vec![
            (norm, vec![d]),
            ("ffn_gate_inp.weight", vec![d, e]),
            ("ffn_gate_exps.weight", vec![d, ff, e]),
            ("ffn_up_exps.weight", vec![d, ff, e]),
            ("ffn_down_exps.weight", vec![ff, d, e]),
        ];
        if let Some(Hybrid { shared_width, .. }) = self.hybrid {
            tensors.extend([
                ("ffn_gate_inp_shexp.weight", vec![d]),
                ("ffn_gate_shexp.weight", vec![d, shared_width]),
                ("ffn_up_shexp.weight", vec![d, shared_width]),
                ("ffn_down_shexp.weight", vec![shared_width, d]),
            ]);
        }
        tensors
    }
}

impl Hybrid {
    fn delta_net(&self, d: usize) -> Vec<(&'static str, Vec<usize>)> {
        let inner = self.v_heads * self.head_width;
        let channels = 2 * self.k_heads * self.head_width + inner;
        let mut tensors = vec![
            ("attn_qkv.weight", vec![d, channels]),
            ("attn_gate.weight", vec![d, inner]),
            ("ssm_conv1d.weight", vec![self.conv, channels]),
            ("ssm_dt.bias", vec![self.v_heads]),
            ("ssm_a", vec![self.v_heads]),
            ("ssm_norm.weight", vec![self.head_width]),
            ("ssm_out.weight", vec![inner, d]),
        ];
        if self.fused_ba {
            tensors.push(("ssm_ba.weight", vec![d, 2 * self.v_heads]));
        } else {
            tensors.extend([
                ("ssm_beta.weight", vec![d, self.v_heads]),
                ("ssm_alpha.weight", vec![d, self.v_heads]),
            ]);
        }
        tensors
    }
}
