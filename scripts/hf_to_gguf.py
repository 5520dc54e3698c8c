"""Tensor and key mapping from Hugging Face model classes to GGUF, shared by the fixture scripts.

`tensors` turns a state dict into GGUF tensors (numpy, torch order: output dimension first), `keys` the
model's config into metadata, `write` puts both and a tokenizer into a file. Families: llama, mixtral,
qwen2, qwen3, qwen3moe, olmoe, qwen3next, qwen35moe, glm4moe, gpt-oss, minimax-m2, gemma4,
qwen4exp.

What changes on the way: zero-centred norm weights get their 1, `A_log` becomes -exp(A_log), llama and
mixtral query/key rows go from half-split to adjacent rotary pairs, qwen3next's interleaved projection is
taken apart, and qwen35moe's V heads go from grouped order (each key head serves consecutive value heads)
to tiled order (value head j belongs to key head j mod Hk).
"""

from collections.abc import Iterator

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ARCHITECTURES = {"mixtral": "llama"}
"""GGUF architecture of a family, where it has another name."""
ZERO_CENTRED = ("qwen3next", "qwen35moe", "qwen4exp")
DELTA_NET = ("qwen3next", "qwen35moe", "qwen4exp")
TILED = ("qwen35moe", "qwen4exp")
"""Families whose files have V heads in tiled order."""
POST_ATTENTION_NORM = (*DELTA_NET, "glm4moe", "gpt-oss")
"""Families in whose files the norm before the feed-forward block is called after what it follows."""


NEXTN = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
"""What a prediction block has beside an ordinary one, where checkpoints keep it among the layers."""


def architecture(family: str) -> str:
    return ARCHITECTURES.get(family, family)


def adjacent_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of every head from half-split rotary order to adjacent pairs."""
    shape = weight.shape
    return weight.reshape(heads, 2, -1, *shape[1:]).swapaxes(1, 2).reshape(shape)


def tile_heads(weight: np.ndarray, key_heads: int, value_heads: int, axis: int = 0) -> np.ndarray:
    """V heads along `axis` from grouped to tiled order: head kh*r+i moves to i*Hk+kh."""
    axis %= weight.ndim
    r = value_heads // key_heads
    shape = weight.shape
    split = weight.reshape(*shape[:axis], key_heads, r, shape[axis] // value_heads, *shape[axis + 1 :])
    return split.swapaxes(axis, axis + 1).reshape(shape)


def delta_net(name: str, w: np.ndarray, family: str, config) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one `linear_attn.*` entry; `name` is what follows that prefix."""
    hk, hv = config.linear_num_key_heads, config.linear_num_value_heads
    dk, dv = config.linear_key_head_dim, config.linear_value_head_dim
    r, key_rows = hv // hk, 2 * hk * dk

    def tile(x: np.ndarray, axis: int = 0) -> np.ndarray:
        return tile_heads(x, hk, hv, axis) if family in TILED else x

    def tile_v(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:key_rows], tile(x[key_rows:])])

    match name:
        case "in_proj_qkvz.weight":
            parts = w.reshape(hk, 2 * dk + 2 * r * dv, -1)
            q, k, v, z = np.split(parts, [dk, 2 * dk, 2 * dk + r * dv], axis=1)
            yield "attn_qkv.weight", np.concatenate([x.reshape(-1, w.shape[1]) for x in (q, k, v)])
            yield "attn_gate.weight", z.reshape(-1, w.shape[1])
        case "in_proj_ba.weight":
            yield "ssm_ba.weight", w
        case "in_proj_qkv.weight":
            yield "attn_qkv.weight", tile_v(w)
        case "in_proj_z.weight":
            yield "attn_gate.weight", tile(w)
        case "in_proj_a.weight":
            yield "ssm_alpha.weight", tile(w)
        case "in_proj_b.weight":
            yield "ssm_beta.weight", tile(w)
        case "conv1d.weight":
            yield "ssm_conv1d.weight", tile_v(w[:, 0, :])
        case "dt_bias":
            yield "ssm_dt.bias", tile(w)
        case "A_log":
            yield "ssm_a", tile(-np.exp(w))
        case "norm.weight":
            yield "ssm_norm.weight", w
        case "out_proj.weight":
            yield "ssm_out.weight", tile(w, axis=1)
        case _:
            raise ValueError(f"unknown tensor linear_attn.{name}")


def indexer(name: str, w: np.ndarray, config) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one `indexer.*` entry."""
    if name == "index_qk_proj.weight":
        queries = config.indexer_n_heads * config.indexer_head_dim
        yield "indexer.q_proj.weight", w[:queries]
        yield "indexer.k_proj.weight", w[queries:]
    else:
        yield {"q_layernorm.weight": "indexer.q_norm.weight", "k_layernorm.weight": "indexer.k_norm.weight"}[name], w + 1


HYPER = {
    "hc_norm.weight": "norm",
    "input_mix_weight_down.weight": "down",
    "input_mix_weight_up.weight": "up",
    "block_inject_weight.weight": "inject",
}


def hyper(prefix: str, name: str, w: np.ndarray) -> tuple[str, np.ndarray]:
    """One tensor of a mixer between streams."""
    return f"{prefix}_{HYPER[name]}.weight", w + 1 if name == "hc_norm.weight" else w


def ngram(name: str, w: np.ndarray, config) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one `ple.*` entry; hash constants are keys."""
    match name:
        case "key_proj.weight" | "value_proj.weight":
            yield f"ple_{name.removesuffix('_proj.weight')}.weight", w
        case "norm_key.weight" | "norm_query.weight" | "norm_conv.weight":
            yield f"ple_{name}", (w + 1).reshape(config.hc_count, -1)
        case "conv1d.weight":
            yield "ple_conv1d.weight", w[:, 0, :]
        case "ple_embedding.ngram_embedding.weight":
            yield "GLOBAL.per_layer_token_embd.weight", w


def qwen4exp_keys(config, mtp_layers: int) -> dict[str, object]:
    """What qwen4exp has besides the keys of its predecessors; the hash constants are added by who has the model."""
    full = [kind != "linear_attention" for kind in config.layer_types] + [True] * mtp_layers
    return {
        "hyper_connection.count": config.hc_count,
        "hyper_connection.low_rank": config.hc_lowrank,
        "attention.indexer.head_count": config.indexer_n_heads,
        "attention.indexer.key_length": config.indexer_head_dim,
        "attention.indexer.top_k": config.indexer_budget,
        "attention.compress_ratios": [config.indexer_compress_ratio if is_full else 0 for is_full in full],
        "attention.recurrent_layers": [not is_full for is_full in full],
        "embedding_length_per_layer_input": config.ple_embed_dim // ((config.ngram_size - 1) * config.heads_per_ngram),
        "ple.layers": [layer - 1 for layer in config.ple_layer_ids],
        "ple.ngram_size": config.ngram_size,
        "ple.heads_per_ngram": config.heads_per_ngram,
        "ple.conv_kernel": config.ple_conv_kernel_size,
        "ple.eos_token_id": config.eos_token_id,
    }


def hash_keys(model) -> dict[str, list[int]]:
    """The 64-bit constants of an n-gram embedding."""
    for name, buffer in model.named_buffers():
        if name.endswith("layer_multipliers"):
            of = model.get_submodule(name.rsplit(".", 1)[0])
            return {
                "ple.layer_multipliers": of.layer_multipliers.tolist(),
                "ple.head_vocab_sizes": of.ngram_heads_vocab_sizes.tolist(),
                "ple.head_offsets": of.ngram_heads_offsets.tolist(),
            }
    return {}


def attention(name: str, w: np.ndarray, family: str, config) -> Iterator[tuple[str, np.ndarray]]:
    """The tensor of one `self_attn.*` entry."""
    if name == "sinks":
        yield "attn_sinks.weight", w
        return
    if name.startswith("indexer."):
        yield from indexer(name.removeprefix("indexer."), w, config)
        return
    module, kind = name.rsplit(".", 1)
    if architecture(family) == "llama" and module in ("q_proj", "k_proj"):
        w = adjacent_pairs(w, config.num_attention_heads if module == "q_proj" else config.num_key_value_heads)
    if module.endswith("_norm") and family in ZERO_CENTRED:
        w = w + 1
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    names |= {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    yield f"{names[module]}.{kind}", w


def feed_forward(name: str, w: np.ndarray, family: str, fused: bool) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one `mlp.*` entry; `fused` keeps gate and up of the experts in one tensor."""
    name = name.replace("shared_experts.", "shared_expert.")
    if family == "gpt-oss" and name.startswith("experts.gate_up_proj"):
        # input-major, gate in even columns, up in odd ones
        kind = "bias" if name.endswith("_bias") else "weight"
        rows = w if kind == "bias" else w.swapaxes(1, 2)
        yield f"ffn_gate_exps.{kind}", rows[:, 0::2]
        yield f"ffn_up_exps.{kind}", rows[:, 1::2]
        return
    if family == "gpt-oss" and name == "experts.down_proj":
        w = w.swapaxes(1, 2)
    names = {
        "gate_proj.weight": "ffn_gate.weight",
        "up_proj.weight": "ffn_up.weight",
        "down_proj.weight": "ffn_down.weight",
        "gate.weight": "ffn_gate_inp.weight",
        "gate.e_score_correction_bias": "exp_probs_b.bias",
        "e_score_correction_bias": "exp_probs_b.bias",
        "router.weight": "ffn_gate_inp.weight",
        "router.bias": "ffn_gate_inp.bias",
        "experts.down_proj_bias": "ffn_down_exps.bias",
        "experts.down_proj": "ffn_down_exps.weight",
        "shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
        "shared_expert.up_proj.weight": "ffn_up_shexp.weight",
        "shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    }
    if name == "experts.gate_up_proj":
        if fused:
            yield "ffn_gate_up_exps.weight", w
        else:
            gate, up = np.split(w, 2, axis=1)
            yield "ffn_gate_exps.weight", gate
            yield "ffn_up_exps.weight", up
    elif name == "shared_expert_gate.weight":
        yield "ffn_gate_inp_shexp.weight", w[0]
    else:
        yield names[name], w


SANDWICH = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
"""What gemma4 has besides attention and a dense block."""


def block(name: str, w: np.ndarray, family: str, config, fused: bool) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of one entry of a decoder layer, without the `blk.N.` prefix."""
    kind, _, rest = name.partition(".")
    if family == "gemma4" and name in SANDWICH:
        yield SANDWICH[name], w
        return
    if kind in ("attn_hyper_connection", "mlp_hyper_connection"):
        yield hyper("hc_attn" if kind.startswith("attn") else "hc_ffn", rest, w)
    elif kind == "ple":
        yield from ngram(rest, w, config)
    elif kind == "linear_attn":
        yield from delta_net(rest, w, family, config)
    elif kind == "self_attn":
        yield from attention(rest, w, family, config)
    elif kind == "mlp":
        yield from feed_forward(rest, w, family, fused)
    else:
        post = "post_attention_norm" if family in POST_ATTENTION_NORM else "ffn_norm"
        target = {"input_layernorm": "attn_norm", "post_attention_layernorm": post}[kind]
        yield f"{target}.{rest}", w + 1 if family in ZERO_CENTRED else w


def tensors(state: dict[str, np.ndarray], family: str, config, fused: bool = False) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF names and float32 values of a whole model, the multi-token-prediction block included."""
    if family == "gemma4":
        yield "rope_freqs.weight", proportional(config)
    norm_one = 1 if family in ZERO_CENTRED else 0
    trunk = config.num_hidden_layers
    for name, w in state.items():
        w = np.asarray(w, dtype=np.float32)
        head, _, rest = name.removeprefix("model.").partition(".")
        match head:
            case "embed_tokens":
                yield "token_embd.weight", w
            case "lm_head":
                yield "output.weight", w
            case "norm":
                yield "output_norm.weight", w + norm_one
            case "layers":
                layer, _, rest = rest.partition(".")
                if target := NEXTN.get(rest.removesuffix(".weight")):
                    if target == "hnorm" and family == "qwen4exp":
                        w = w.reshape(config.hc_count, -1)
                    yield f"blk.{layer}.nextn.{target}.weight", w if target == "eh_proj" else w + norm_one
                    continue
                if rest.startswith("hc_head."):
                    yield hyper(f"blk.{layer}.nextn.hc_head", rest.removeprefix("hc_head."), w)
                    continue
                for target, value in block(rest, w, family, config, fused):
                    yield target.removeprefix("GLOBAL.") if target.startswith("GLOBAL.") else f"blk.{layer}.{target}", value
            case "hyper_connection_mixer":
                yield hyper("output_hc", rest, w)
            case "mtp" if rest.startswith("layers."):
                layer, _, rest = rest.removeprefix("layers.").partition(".")
                for target, value in block(rest, w, family, config, fused):
                    yield f"blk.{trunk + int(layer)}.{target}", value
            case "mtp":
                names = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm"}
                target = (names | {"norm": "shared_head_norm"})[rest.removesuffix(".weight")]
                yield f"blk.{trunk}.nextn.{target}.weight", w if target == "eh_proj" else w + norm_one
            case _:
                raise ValueError(f"unknown tensor {name}")


def stays_f32(name: str, value: np.ndarray) -> bool:
    """Whether a tensor keeps full precision in every file: vectors, norms, routers, the convolution."""
    parts = ("_norm.", "ffn_gate_inp", "ssm_conv1d", ".nextn.enorm", ".nextn.hnorm")
    return value.ndim == 1 or not name.endswith(".weight") or any(part in name for part in parts)


def keys(family: str, config, mtp_layers: int = 0) -> dict[str, object]:
    """Architecture metadata (without its prefix) from a Hugging Face config."""
    if family == "gemma4":
        return gemma4_keys(config)
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_width = getattr(config, "head_dim", None) or hidden // heads
    rope = config.rope_parameters
    rotated = int(head_width * rope.get("partial_rotary_factor", 1.0))
    out: dict[str, object] = {
        "block_count": config.num_hidden_layers + mtp_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": hidden,
        "vocab_size": config.vocab_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_width,
        "attention.value_length": head_width,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": rotated,
    }
    if not hasattr(config, "moe_intermediate_size") or family == "glm4moe":
        out["feed_forward_length"] = config.intermediate_size
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None)
    if experts:
        out["expert_count"] = experts
        out["expert_used_count"] = config.num_experts_per_tok
        if hasattr(config, "moe_intermediate_size"):
            out["expert_feed_forward_length"] = config.moe_intermediate_size
        elif family in ("gpt-oss", "minimax-m2"):
            out["expert_feed_forward_length"] = config.intermediate_size
    if family in ("glm4moe", "minimax-m2"):
        out["expert_gating_func"] = 2
        out["expert_weights_norm"] = True
    if family == "glm4moe":
        out["leading_dense_block_count"] = config.first_k_dense_replace
        out["expert_shared_count"] = config.n_shared_experts
        out["expert_weights_scale"] = float(config.routed_scaling_factor)
    if family == "gpt-oss":
        out["attention.sliding_window"] = config.sliding_window
        out["rope.scaling.type"] = "yarn"
        out["rope.scaling.factor"] = float(rope["factor"])
        out["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        out["rope.scaling.yarn_beta_fast"] = float(rope["beta_fast"])
        out["rope.scaling.yarn_beta_slow"] = float(rope["beta_slow"])
    if family in DELTA_NET:
        out["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
        out["ssm.conv_kernel"] = config.linear_conv_kernel_dim
        out["ssm.state_size"] = config.linear_key_head_dim
        out["ssm.group_count"] = config.linear_num_key_heads
        out["ssm.time_step_rank"] = config.linear_num_value_heads
        out["ssm.inner_size"] = config.linear_num_value_heads * config.linear_value_head_dim
        full = "full_attention"
        out["full_attention_interval"] = 1 + config.layer_types.index(full) if full in config.layer_types else 4
    if family == "qwen4exp":
        out |= qwen4exp_keys(config, mtp_layers)
    if family in TILED:
        out["rope.dimension_sections"] = [*rope["mrope_section"], 0]
    if mtp_layers:
        out["nextn_predict_layers"] = mtp_layers
    return out


def gemma4_keys(config) -> dict[str, object]:
    """Metadata of gemma4: full layers have the plain keys, windowed ones those that end in `_swa`."""
    windowed = [kind == "sliding_attention" for kind in config.layer_types]
    layers = config.per_layer_config
    full, swa, rope = layers[windowed.index(False)], layers[windowed.index(True)], config.rope_parameters
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [layers[i].num_key_value_heads for i in range(config.num_hidden_layers)],
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": swa.head_dim,
        "attention.value_length_swa": swa.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windowed,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": swa.head_dim,
        "final_logit_softcapping": float(config.final_logit_softcapping),
        "embedding_length_per_layer_input": 0,
        "expert_count": config.num_experts,
        "expert_used_count": config.top_k_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def proportional(config) -> np.ndarray:
    """`rope_freqs` of gemma4's full layers: frequencies past the rotated part are divided by so much that nothing turns."""
    full = config.per_layer_config[config.layer_types.index("full_attention")].head_dim
    turned = int(full * config.rope_parameters["full_attention"]["partial_rotary_factor"]) // 2
    return np.array([1.0] * turned + [1e30] * (full // 2 - turned), dtype=np.float32)


def add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """One metadata entry, its type from the Python type (integers become u32)."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list() if value and not isinstance(value[0], bool) and isinstance(value[0], int) and max(value) >= 2**31:
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64)
        case list():
            writer.add_array(key, value)
        case _:
            raise TypeError(f"{key}: {type(value)}")


def write(path, arch: str, general: dict, model: dict, tokenizer: dict, items) -> None:
    """A GGUF file; `items` yields (name, value, type), values of quantised types as raw bytes [.., row bytes]."""
    writer = gguf.GGUFWriter(path, arch)
    for prefix, table in (("general.", general), (f"{arch}.", model), ("tokenizer.", tokenizer)):
        for key, value in table.items():
            add(writer, prefix + key, value)
    for name, value, kind in items:
        value = np.ascontiguousarray(value)
        if kind in (T.F32, T.F16):
            writer.add_tensor(name, value.astype(np.float32 if kind == T.F32 else np.float16))
        else:
            writer.add_tensor(name, value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
