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
    /// What only some models have.
    pub more: More,
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

/// What only some models have besides attention, norms and experts.
#[derive(Clone, Copy, Debug)]
pub struct More {
    /// Biases of queries, keys and values.
    pub qkv_bias: bool,
    /// Biases of everything else: the attention's output, the router and the experts.
    pub all_bias: bool,
    /// Logits that only a softmax's denominator has.
    pub sinks: bool,
    /// The norm before the feed-forward block is named after the attention.
    pub post_attention_norm: bool,
    /// Layers at the start that have a dense block of `feed_forward` channels.
    pub leading_dense: usize,
    /// Shared experts without a gate, as one of so many times the width.
    pub shared_experts: usize,
    /// A bias on what experts are chosen by; then their gates are sigmoids.
    pub choice_bias: bool,
    /// Factor on the experts' weights.
    pub weights_scale: f32,
    /// Layers that see a window.
    pub window: Option<Windows>,
    /// YaRN: factor and original context.
    pub yarn: Option<(f32, usize)>,
    /// Blocks between two norms, a dense block beside the experts, capped logits.
    pub sandwich: bool,
    /// A residual of several streams, an index, and a table of n-grams.
    pub streams: Option<Streams>,
}

/// Layers that see a window.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Positions.
    pub positions: usize,
    /// All layers but every so manieth.
    pub period: usize,
    /// Heads that differ from those of the other layers.
    pub own_heads: Option<WindowHeads>,
}

/// Heads of layers that see a window.
#[derive(Clone, Copy, Debug)]
pub struct WindowHeads {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head, all of it rotated.
    pub head_width: usize,
    /// Base of the rotation.
    pub rope_base: f32,
}

/// A residual of several streams, an index, and a table of n-grams.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// How many.
    pub count: usize,
    /// Channels between them and their gates.
    pub rank: usize,
    /// Heads of the index's queries.
    pub index_heads: usize,
    /// Their width.
    pub index_width: usize,
    /// Positions that a row sees at most.
    pub index_positions: usize,
    /// Positions that share a key.
    pub index_group: usize,
    /// The layer that n-grams are added in.
    pub ngram_layer: usize,
    /// Rows of the table.
    pub ngram_rows: usize,
    /// Their width.
    pub ngram_width: usize,
    /// Tokens of the longest n-gram, rows for each length, and taps of the convolution.
    pub ngram: [usize; 3],
}

impl More {
    /// Nothing of it.
    pub const NONE: Self = Self {
        qkv_bias: false,
        all_bias: false,
        sinks: false,
        post_attention_norm: false,
        leading_dense: 0,
        shared_experts: 0,
        choice_bias: false,
        weights_scale: 1.0,
        window: None,
        yarn: None,
        sandwich: false,
        streams: None,
    };
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
    more: More::NONE,
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

/// The hybrid part of the larger Qwen3.5.
const LARGER_HYBRID: Hybrid = Hybrid {
    interval: 4,
    k_heads: 16,
    v_heads: 64,
    head_width: 128,
    conv: 4,
    shared_width: 1024,
    fused_ba: false,
};

const QWEN35_122B_A10B: Blueprint = Blueprint {
    name: "qwen3.5-122b-a10b",
    layers: 48,
    width: 3072,
    heads: 32,
    expert_width: 1024,
    hybrid: Some(LARGER_HYBRID),
    ..QWEN35_35B_A3B
};

const QWEN35_397B_A17B: Blueprint = Blueprint {
    name: "qwen3.5-397b-a17b",
    layers: 60,
    width: 4096,
    heads: 32,
    experts: 512,
    used: 10,
    expert_width: 1024,
    hybrid: Some(LARGER_HYBRID),
    ..QWEN35_35B_A3B
};

const QWEN38_FLASH_NEXT: Blueprint = Blueprint {
    name: "qwen3.8-flash-next",
    architecture: "qwen4exp",
    layers: 48,
    width: 2560,
    heads: 24,
    experts: 512,
    used: 10,
    expert_width: 640,
    hybrid: Some(Hybrid {
        interval: 4,
        k_heads: 16,
        v_heads: 48,
        head_width: 128,
        conv: 4,
        shared_width: 640,
        fused_ba: false,
    }),
    more: More {
        streams: Some(Streams {
            count: 4,
            rank: 320,
            index_heads: 4,
            index_width: 128,
            index_positions: 2048,
            index_group: 4,
            ngram_layer: 1,
            ngram_rows: 320_001_536,
            ngram_width: 160,
            ngram: [3, 8, 4],
        }),
        ..More::NONE
    },
    ..QWEN35_35B_A3B
};

const GPT_OSS_20B: Blueprint = Blueprint {
    name: "gpt-oss-20b",
    architecture: "gpt-oss",
    layers: 24,
    width: 2880,
    heads: 64,
    kv_heads: 8,
    head_width: 64,
    rotated: 64,
    rope_base: 150_000.0,
    eps: 1e-5,
    qk_norm: QkNorm::None,
    experts: 32,
    used: 4,
    expert_width: 2880,
    feed_forward: Some(2880),
    more: More {
        qkv_bias: true,
        all_bias: true,
        sinks: true,
        post_attention_norm: true,
        window: Some(Windows {
            positions: 128,
            period: 2,
            own_heads: None,
        }),
        yarn: Some((32.0, 4096)),
        ..More::NONE
    },
    vocabulary: 201_088,
    context: 131_072,
    tokenizer: Tokenizer::Bpe("gpt-4o"),
    ..QWEN3_30B_A3B
};

const GPT_OSS_120B: Blueprint = Blueprint {
    name: "gpt-oss-120b",
    layers: 36,
    experts: 128,
    ..GPT_OSS_20B
};

const GLM_45_AIR: Blueprint = Blueprint {
    name: "glm-4.5-air",
    architecture: "glm4moe",
    layers: 46,
    width: 4096,
    heads: 96,
    kv_heads: 8,
    rotated: 64,
    eps: 1e-5,
    qk_norm: QkNorm::None,
    expert_width: 1408,
    feed_forward: Some(10_944),
    more: More {
        qkv_bias: true,
        post_attention_norm: true,
        leading_dense: 1,
        shared_experts: 1,
        choice_bias: true,
        ..More::NONE
    },
    vocabulary: 151_552,
    context: 131_072,
    tokenizer: Tokenizer::Bpe("glm4"),
    ..QWEN3_30B_A3B
};

const MINIMAX_M2: Blueprint = Blueprint {
    name: "minimax-m2",
    architecture: "minimax-m2",
    layers: 62,
    width: 3072,
    heads: 48,
    kv_heads: 8,
    rotated: 64,
    rope_base: 5e6,
    qk_norm: QkNorm::Projection,
    experts: 256,
    expert_width: 1536,
    feed_forward: Some(1536),
    more: More {
        choice_bias: true,
        ..More::NONE
    },
    vocabulary: 200_064,
    context: 196_608,
    tokenizer: Tokenizer::Bpe("minimax-m2"),
    ..QWEN3_30B_A3B
};

const GEMMA_4_26B_A4B: Blueprint = Blueprint {
    name: "gemma-4-26b-a4b",
    architecture: "gemma4",
    layers: 30,
    width: 2816,
    heads: 16,
    kv_heads: 2,
    head_width: 512,
    rotated: 512,
    rope_base: 1e6,
    expert_width: 704,
    feed_forward: Some(2112),
    more: More {
        window: Some(Windows {
            positions: 1024,
            period: 6,
            own_heads: Some(WindowHeads {
                kv_heads: 8,
                head_width: 256,
                rope_base: 1e4,
            }),
        }),
        sandwich: true,
        ..More::NONE
    },
    vocabulary: 262_144,
    context: 262_144,
    tokenizer: Tokenizer::Spm,
    ..QWEN3_30B_A3B
};

impl Blueprint {
    /// Every model that can be imitated.
    pub const ALL: [Blueprint; 13] = [
        QWEN3_30B_A3B,
        QWEN3_NEXT_80B_A3B,
        QWEN35_35B_A3B,
        QWEN35_122B_A10B,
        QWEN35_397B_A17B,
        QWEN38_FLASH_NEXT,
        GPT_OSS_20B,
        GPT_OSS_120B,
        GLM_45_AIR,
        MINIMAX_M2,
        GEMMA_4_26B_A4B,
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
        all.extend(self.global_tensors());
        for layer in 0..layers {
            let mut block = self.mixer(layer);
            block.extend(self.feed_forward_tensors(layer));
            block.extend(self.more_tensors(layer));
            all.extend(
                block
                    .into_iter()
                    .map(|(name, dims)| (format!("blk.{layer}.{name}"), dims)),
            );
        }
        if self.more.streams.is_none() {
            all.push(("output_norm.weight".to_owned(), vec![self.width]));
        }
        if !self.more.sandwich {
            let output = vec![self.width, self.vocabulary];
            all.push(("output.weight".to_owned(), output));
        }
        all
    }

    /// Whether a file of it can have a prediction block.
    pub(super) fn predicts(&self) -> bool {
        ["qwen3next", "qwen35moe", "glm4moe", "qwen4exp"].contains(&self.architecture)
    }

    /// Name and shape of every tensor of a prediction block behind `layers` layers.
    pub(super) fn prediction_tensors(&self, layers: usize) -> Vec<(String, Vec<usize>)> {
        let d = self.width;
        let mut block = self.attention(layers);
        block.extend(self.feed_forward_tensors(layers));
        block.extend([
            ("nextn.eh_proj.weight", vec![2 * d, d]),
            ("nextn.enorm.weight", vec![d]),
            ("nextn.embed_tokens.weight", vec![d, self.vocabulary]),
        ]);
        match &self.more.streams {
            Some(streams) => {
                block.extend(streams.layer(d, false, false));
                block.push(("nextn.hnorm.weight", vec![d, streams.count]));
                block.extend(streams.mixer(
                    d,
                    [
                        "nextn.hc_head_norm.weight",
                        "nextn.hc_head_down.weight",
                        "nextn.hc_head_up.weight",
                    ],
                ));
            }
            None => block.extend([
                ("attn_norm.weight", vec![d]),
                ("nextn.hnorm.weight", vec![d]),
                ("nextn.shared_head_norm.weight", vec![d]),
            ]),
        }
        let named = |(name, dims)| (format!("blk.{layers}.{name}"), dims);
        block.into_iter().map(named).collect()
    }

    fn mixer(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let mut tensors = Vec::new();
        if self.more.streams.is_none() {
            tensors.push(("attn_norm.weight", vec![self.width]));
        }
        match self.hybrid {
            Some(hybrid) if !self.full_attention(layer) => {
                tensors.extend(hybrid.delta_net(self.width))
            }
            _ => tensors.extend(self.attention(layer)),
        }
        tensors
    }

    /// Whether a layer sees a window.
    pub(super) fn windowed(&self, layer: usize) -> bool {
        let windows = self.more.window;
        windows.is_some_and(|windows| layer % windows.period + 1 < windows.period)
    }

    /// Key and value heads of a layer, and their width.
    pub(super) fn kv_heads(&self, layer: usize) -> (usize, usize) {
        let own = self.more.window.and_then(|windows| windows.own_heads);
        match own.filter(|_| self.windowed(layer)) {
            Some(own) => (own.kv_heads, own.head_width),
            None => (self.kv_heads, self.head_width),
        }
    }

    fn attention(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let (kv_heads, head_width) = self.kv_heads(layer);
        let (d, q, kv) = (self.width, self.heads * head_width, kv_heads * head_width);
        // Gated attention has a gate for every query channel in the same projection.
        let q_rows = if self.hybrid.is_some() { 2 * q } else { q };
        let mut tensors = vec![
            ("attn_q.weight", vec![d, q_rows]),
            ("attn_k.weight", vec![d, kv]),
            ("attn_v.weight", vec![d, kv]),
            ("attn_output.weight", vec![q, d]),
        ];
        if self.more.sandwich && !self.windowed(layer) {
            tensors.retain(|(name, _)| *name != "attn_v.weight"); // values are keys there
        }
        if self.more.qkv_bias {
            let biases = ["attn_q.bias", "attn_k.bias", "attn_v.bias"];
            tensors.extend(biases.into_iter().zip([vec![q_rows], vec![kv], vec![kv]]));
        }
        if self.more.all_bias {
            tensors.push(("attn_output.bias", vec![d]));
        }
        if self.more.sinks {
            tensors.push(("attn_sinks.weight", vec![self.heads]));
        }
        let norms = match self.qk_norm {
            QkNorm::None => return tensors,
            QkNorm::Head => [head_width; 2],
            QkNorm::Projection => [q, kv],
        };
        tensors.extend([
            ("attn_q_norm.weight", vec![norms[0]]),
            ("attn_k_norm.weight", vec![norms[1]]),
        ]);
        tensors
    }

    fn feed_forward_tensors(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let (d, e, ff) = (self.width, self.experts, self.expert_width);
        let more = &self.more;
        let norm = if self.hybrid.is_some() || more.post_attention_norm {
            "post_attention_norm.weight"
        } else {
            "ffn_norm.weight"
        };
        let mut tensors = Vec::new();
        if more.streams.is_none() {
            tensors.push((norm, vec![d]));
        }
        let dense = self.feed_forward.unwrap_or(ff);
        let dense = [
            ("ffn_gate.weight", vec![d, dense]),
            ("ffn_up.weight", vec![d, dense]),
            ("ffn_down.weight", vec![dense, d]),
        ];
        if layer < more.leading_dense {
            tensors.extend(dense);
            return tensors;
        }
        if more.sandwich {
            tensors.extend(dense);
        }
        tensors.extend([
            ("ffn_gate_inp.weight", vec![d, e]),
            ("ffn_gate_exps.weight", vec![d, ff, e]),
            ("ffn_up_exps.weight", vec![d, ff, e]),
            ("ffn_down_exps.weight", vec![ff, d, e]),
        ]);
        if more.all_bias {
            tensors.extend([
                ("ffn_gate_inp.bias", vec![e]),
                ("ffn_gate_exps.bias", vec![ff, e]),
                ("ffn_up_exps.bias", vec![ff, e]),
                ("ffn_down_exps.bias", vec![d, e]),
            ]);
        }
        if more.choice_bias {
            tensors.push(("exp_probs_b.bias", vec![e]));
        }
        let shared = match self.hybrid {
            Some(hybrid) => hybrid.shared_width,
            None => more.shared_experts * ff,
        };
        if self.hybrid.is_some() {
            tensors.push(("ffn_gate_inp_shexp.weight", vec![d]));
        }
        if shared > 0 {
            tensors.extend([
                ("ffn_gate_shexp.weight", vec![d, shared]),
                ("ffn_up_shexp.weight", vec![d, shared]),
                ("ffn_down_shexp.weight", vec![shared, d]),
            ]);
        }
        tensors
    }

    /// What belongs to no layer, beside the embedding and the head.
    fn global_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Vec::new();
        if self.more.sandwich {
            tensors.push(("rope_freqs.weight", vec![self.rotated / 2]));
        }
        if let Some(streams) = self.more.streams {
            tensors.extend(streams.mixer(
                self.width,
                [
                    "output_hc_norm.weight",
                    "output_hc_down.weight",
                    "output_hc_up.weight",
                ],
            ));
            let table = vec![streams.ngram_width, streams.ngram_rows];
            tensors.push(("per_layer_token_embd.weight", table));
        }
        let owned = |(name, dims): (&str, Vec<usize>)| (name.to_owned(), dims);
        tensors.into_iter().map(owned).collect()
    }

    /// What a layer has besides its mixer and its experts.
    fn more_tensors(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let (d, mut tensors) = (self.width, Vec::new());
        if self.more.sandwich {
            let norms = [
                "post_attention_norm.weight",
                "post_ffw_norm.weight",
                "post_ffw_norm_1.weight",
                "pre_ffw_norm_2.weight",
                "post_ffw_norm_2.weight",
            ];
            tensors.extend(norms.map(|name| (name, vec![d])));
            tensors.extend([
                ("ffn_gate_inp.scale", vec![d]),
                ("ffn_down_exps.scale", vec![self.experts]),
                ("layer_output_scale.weight", vec![1]),
            ]);
        }
        if let Some(streams) = self.more.streams {
            let ngrams = layer == streams.ngram_layer;
            tensors.extend(streams.layer(d, self.full_attention(layer), ngrams));
        }
        tensors
    }
}

impl Streams {
    fn mixer(&self, d: usize, names: [&'static str; 3]) -> [(&'static str, Vec<usize>); 3] {
        let all = self.count * d;
        let [norm, down, up] = names;
        [
            (norm, vec![d, self.count]),
            (down, vec![all, self.rank]),
            (up, vec![self.rank, all]),
        ]
    }

    /// With an index or not, with n-grams or not.
    fn layer(&self, d: usize, indexed: bool, ngrams: bool) -> Vec<(&'static str, Vec<usize>)> {
        let all = self.count * d;
        let mut tensors = Vec::new();
        tensors.extend(self.mixer(
            d,
            [
                "hc_attn_norm.weight",
                "hc_attn_down.weight",
                "hc_attn_up.weight",
            ],
        ));
        tensors.push(("hc_attn_inject.weight", vec![all, self.count]));
        tensors.extend(self.mixer(
            d,
            [
                "hc_ffn_norm.weight",
                "hc_ffn_down.weight",
                "hc_ffn_up.weight",
            ],
        ));
        tensors.push(("hc_ffn_inject.weight", vec![all, self.count]));
        if indexed {
            tensors.extend([
                (
                    "indexer.q_proj.weight",
                    vec![d, self.index_heads * self.index_width],
                ),
                ("indexer.k_proj.weight", vec![d, self.index_width]),
                ("indexer.q_norm.weight", vec![self.index_width]),
                ("indexer.k_norm.weight", vec![self.index_width]),
            ]);
        }
        if ngrams {
            let [tokens, heads, taps] = self.ngram;
            let found = (tokens - 1) * heads * self.ngram_width;
            tensors.extend([
                ("ple_key.weight", vec![found, all]),
                ("ple_value.weight", vec![found, d]),
                ("ple_norm_key.weight", vec![d, self.count]),
                ("ple_norm_query.weight", vec![d, self.count]),
                ("ple_norm_conv.weight", vec![d, self.count]),
                ("ple_conv1d.weight", vec![taps, all]),
            ]);
        }
        tensors
    }

    /// Rows of each head's part of the table: successive primes that share it out.
    pub(super) fn head_rows(&self) -> Vec<u64> {
        let [tokens, heads, _] = self.ngram;
        let count = (tokens - 1) * heads;
        let mut next = (self.ngram_rows / count / 1000 * 1000) as u64;
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            if (2..)
                .take_while(|n| n * n <= next)
                .all(|n| !next.is_multiple_of(n))
            {
                rows.push(next);
            }
            next += 1;
        }
        rows
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
