#!/usr/bin/env python3
"""Write fixtures/tiny: a tiny random float32 model of every family as GGUF, with reference logits.

Each model is a transformers class with three or four layers, random weights and 96 tokens, run once in float32
without a cache over 150 tokens or more (so blocks of 64 of the delta net are crossed twice). Names that end in
`-2` are a second model of a family, of another shape. The seed of each
family is the first one where no routing decision is a near tie, so a different order of summation
cannot change the experts. `--check` loads the files in llama.cpp (scripts/peer-llama.py) and compares.
"""

import argparse
import importlib.util
import pathlib
import sys

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader
from transformers.modeling_layers import MtpLayer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hf_to_gguf

VOCAB, TOKENS = 96, 150
ROUTER_GAP = 2e-4
"""Smallest allowed distance between the last expert taken and the first one left, in probability."""

DENSE = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "rms_norm_eps": 1e-6,
}  # fmt: skip
MOE = DENSE | {"num_experts": 8, "num_experts_per_tok": 2}
DELTA = MOE | {
    "head_dim": 32, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_experts_per_tok": 3,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
SECTIONS = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
SMALL = DENSE | {"hidden_size": 32, "head_dim": 16}
GLM = {"moe_intermediate_size": 32, "intermediate_size": 64, "n_routed_experts": 8, "attention_bias": True, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}
INDEXED = DELTA | {
    "hidden_size": 32, "head_dim": 16, "num_experts_per_tok": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32,
    "hc_count": 4, "hc_lowrank": 32, "ple_layer_ids": [2], "ple_embed_dim": 64, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 100,
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4, "eos_token_id": 5,
    "output_gate_type": "sigmoid", "rope_parameters": PARTIAL | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
GEMMA = SMALL | {
    "global_head_dim": 32, "intermediate_size": 64, "moe_intermediate_size": 32, "enable_moe_block": True, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True, "final_logit_softcapping": 5.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64}
# family -> (config class, its arguments, pre-tokenizer)
FAMILIES = {
    "llama": ("LlamaConfig", DENSE | {"intermediate_size": 96, "rope_parameters": ROPE}, "llama-bpe"),
    "qwen2": ("Qwen2Config", DENSE | {"intermediate_size": 96, "tie_word_embeddings": True, "rope_parameters": ROPE}, "qwen2"),
    "qwen3": ("Qwen3Config", DENSE | {"intermediate_size": 96, "head_dim": 32, "rope_parameters": ROPE}, "qwen2"),
    "qwen3moe": ("Qwen3MoeConfig", MOE | {"head_dim": 32, "moe_intermediate_size": 32, "norm_topk_prob": True, "rope_parameters": ROPE}, "qwen2"),
    "olmoe": ("OlmoeConfig", MOE | {"intermediate_size": 32, "num_key_value_heads": 4, "norm_topk_prob": False, "rope_parameters": ROPE}, "olmo"),
    "mixtral": ("MixtralConfig", DENSE | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "rope_parameters": ROPE}, "llama-bpe"),
    "qwen3next": ("Qwen3NextConfig", DELTA | {"rope_parameters": PARTIAL}, "qwen2"),
    "qwen35moe": ("Qwen3_5MoeTextConfig", DELTA | {"rope_parameters": PARTIAL | SECTIONS}, "qwen35"),
    "glm4moe": ("Glm4MoeConfig", SMALL | GLM | {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 1}, "glm4"),
    "glm4moe-2": ("Glm4MoeConfig", SMALL | GLM | {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 32, "num_experts_per_tok": 3, "first_k_dense_replace": 2,
        "n_routed_experts": 6, "n_shared_experts": 2, "use_qk_norm": True, "routed_scaling_factor": 2.5}, "glm4"),
    "gpt-oss": ("GptOssConfig", SMALL | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8, "rope_parameters": YARN}, "gpt-4o"),
    "gpt-oss-2": ("GptOssConfig", SMALL | {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 32, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 32,
        "sliding_window": 70, "rope_parameters": YARN | {"factor": 4.0, "original_max_position_embeddings": 128}}, "gpt-4o"),
    "minimax-m2": ("MiniMaxM2Config", SMALL | {
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "minimax-m2"),
    "minimax-m2-2": ("MiniMaxM2Config", SMALL | {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32,
        "rope_parameters": PARTIAL}, "minimax-m2"),
    "gemma4": ("Gemma4TextConfig", GEMMA | {
        "num_hidden_layers": 4, "sliding_window": 8, "num_experts": 8, "top_k_experts": 2, "num_global_key_value_heads": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2}, "gemma4"),
    "gemma4-2": ("Gemma4TextConfig", GEMMA | {
        "hidden_size": 64, "num_hidden_layers": 3, "sliding_window": 70, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "global_head_dim": 64,
        "num_experts": 6, "top_k_experts": 3, "num_global_key_value_heads": 2, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}, "gemma4"),
    "qwen4exp": ("Qwen4ExpTextConfig", INDEXED | {"layer_types": ["linear_attention", "linear_attention", "indexed_attention", "indexed_attention"]}, "qwen35"),
    "qwen4exp-2": ("Qwen4ExpTextConfig", INDEXED | {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6, "num_experts": 6, "num_experts_per_tok": 2, "hc_count": 3, "linear_num_value_heads": 6,
        "linear_num_key_heads": 2, "indexer_budget": 24, "ple_embed_dim": 96, "heads_per_ngram": 3, "ple_layer_ids": [1],
        "layer_types": ["linear_attention", "indexed_attention", "indexed_attention"]}, "qwen35"),
}
FAMILIES["glm4moe-mtp"] = FAMILIES["glm4moe"]
HYBRID = DELTA | {
    "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
HALF = PARTIAL | {"partial_rotary_factor": 0.5}
FAMILIES["qwen3next-mtp"] = ("Qwen3NextConfig", HYBRID | {"rope_parameters": HALF}, "qwen2")
FAMILIES["qwen35moe-mtp"] = ("Qwen3_5MoeTextConfig", HYBRID | {"rope_parameters": HALF | SECTIONS}, "qwen35")
FAMILIES["qwen4exp-mtp"] = ("Qwen4ExpTextConfig", INDEXED | {
    "num_hidden_layers": 2, "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "hc_lowrank": 8, "indexer_n_heads": 2,
    "ple_embed_dim": 32, "ple_layer_ids": [1], "layer_types": ["linear_attention", "indexed_attention"]}, "qwen35")
PREDICTS = {"glm4moe-mtp", "qwen3next-mtp", "qwen35moe-mtp", "qwen4exp-mtp"}
"""Models with a block that predicts one more token. `<family>.predictions` holds what it says at every position, given the token after it."""
CHAIN = 4
"""Tokens that the block then predicts one after the other: `<family>.chain` holds them and the logits that each is chosen from."""
LONG = {"gpt-oss-2": 330, "qwen4exp-2": 110, "qwen4exp-mtp": 130}
"""Golden tokens where they are more or fewer than usual: windows go round their pages, an index comes near ties."""
FUSED = {"qwen3moe": "qwen3moe-fused"}
"""Families with a second file whose experts keep gate and up in one tensor."""


def tokenizer(pre: str) -> dict[str, object]:
    """Metadata of a byte-level tokenizer with 96 tokens; it covers letters, digits, space and newline only."""
    tokens = ["<|endoftext|>", "<|im_end|>", "\u0120", "\u010a", *map(chr, range(33, 123)), "th", "the"]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "ggml.merges": ["t h", "th e"],
        "ggml.eos_token_id": 0,
        "ggml.padding_token_id": 0,
        "ggml.add_bos_token": False,
    }


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Random parameters of ordinary size; norms stay near their start, decay rates positive."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and parameter.dim() == 1:
                parameter.add_(0.3 * noise)
            elif name.endswith("per_expert_scale"):
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith("router.scale"):
                parameter.copy_(8 * (1 + 0.3 * noise))
            elif name.endswith("A_log"):
                parameter.copy_(torch.log(torch.rand(parameter.shape, generator=generator) * 4 + 0.1))
            else:
                parameter.copy_(0.2 * noise)


def run(family: str, seed: int):
    """The model, ids [tokens], logits [tokens, vocab], and how narrow its decisions were, to which later ones are added."""
    name, arguments, _ = FAMILIES[family]
    config = getattr(transformers, name)(**arguments)
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=torch.Generator().manual_seed(seed + 2000)))
        if name.endswith("layer_scalar"):
            buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=torch.Generator().manual_seed(seed + 3000)))
    gaps = []
    watch_routers(model, config, gaps)
    tokens = LONG.get(family, TOKENS)
    ids = torch.randint(0, VOCAB, (1, tokens), generator=torch.Generator().manual_seed(seed + 1000))
    if getattr(config, "ple_layer_ids", None):
        ids[0, [20, 40, 41, 43]] = config.eos_token_id  # ends that cut n-grams, also two in a row and one between others
    index_gaps(model, gaps)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0]
    return model, ids[0].numpy(), logits.numpy(), gaps


def watch_routers(model: torch.nn.Module, config, gaps: list[float]) -> None:
    """Watches how near routers come to choosing other experts: the last one taken and the first one left."""
    used = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)

    def watch(module, inputs, _):
        logits = inputs[0].reshape(-1, inputs[0].shape[-1]) @ module.weight.T
        if getattr(module, "bias", None) is not None:
            logits = logits + module.bias
        correction = getattr(module, "e_score_correction_bias", None)
        if hasattr(module, "correction"):
            correction = module.correction
        p = torch.softmax(logits, dim=-1) if correction is None else torch.sigmoid(logits) + correction
        p = p.sort(dim=-1, descending=True)[0]
        gaps.append(float((p[:, used - 1] - p[:, used]).min()))

    for path, module in model.named_modules():
        if path.endswith((".mlp.gate", ".mlp.router", ".router.proj")):
            if hasattr(model.get_submodule(path.rsplit(".", 1)[0]), "e_score_correction_bias"):
                object.__setattr__(module, "correction", model.get_submodule(path.rsplit(".", 1)[0]).e_score_correction_bias)
            module.register_forward_hook(watch)


class StreamsMtp(torch.nn.Module):
    """A prediction block where the residual has several streams: each is projected beside the embedding, and a mixer of the block's own makes one of them for the head."""

    def __init__(self, model) -> None:
        super().__init__()
        config, layers, mixer = model.config, model.model.layers, model.model.hyper_connection_mixer
        width, norm = config.hidden_size, type(mixer.hc_norm)
        self.streams = config.hc_count, width
        self.enorm = norm(width, eps=config.rms_norm_eps)
        self.hnorm = norm(config.hc_count * width, group_size=width, eps=config.rms_norm_eps)
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.mtp_block = type(layers[-1])(config, len(layers) - 1)
        self.hc_head = type(mixer)(config, use_combine=False)

    def forward(self, embedded, residual, turns, mask):
        hidden = self.hnorm(residual).unflatten(-1, self.streams)
        embedded = self.enorm(embedded).unsqueeze(-2).expand_as(hidden)
        inputs = self.eh_proj(torch.cat([embedded, hidden], dim=-1)).flatten(-2)
        return self.mtp_block(inputs, position_embeddings=turns, attention_mask=mask)


def last_residual(model, tokens: torch.Tensor) -> torch.Tensor:
    """The streams behind the last layer, before the mixer that makes one of them."""
    seen = []
    hook = model.model.hyper_connection_mixer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.model(tokens, use_cache=False)
    hook.remove()
    return seen[0]


def predictions(model, ids: np.ndarray, seed: int, gaps: list[float]):
    """A prediction block, its tensors as checkpoints name them, its logits [tokens - 1, vocab], and after the last a chain of tokens with logits [CHAIN, vocab]."""
    layer = model.config.num_hidden_layers
    streams = hasattr(model.model, "hyper_connection_mixer")
    if streams:
        block = StreamsMtp(model).float().eval()
    else:
        kinds = type(model.model.layers[-1]), type(model.model.norm)
        block = MtpLayer(model.config, *kinds, layer - 1).float().eval()  # the last layer's kind: attention and experts
    randomise(block, seed + 4000)
    if hasattr(block.mtp_block.mlp.gate, "e_score_correction_bias"):
        correction = block.mtp_block.mlp.gate.e_score_correction_bias
        correction.copy_(0.2 * torch.randn(correction.shape, generator=torch.Generator().manual_seed(seed + 5000)))
    watch_routers(block, model.config, gaps)
    tokens = torch.from_numpy(ids)[None]

    def says(following: torch.Tensor, hidden: torch.Tensor):
        """What stands for the hidden state after each position, and logits."""
        count = following.shape[1]
        places = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        embedded = model.model.embed_tokens(following)
        turns = model.model.rotary_emb(embedded, position_ids=places)
        out = block(embedded, hidden, turns, mask) if streams else block(embedded, hidden, turns, mask, places, None)
        return out, model.lm_head(block.hc_head(out) if streams else out)[0]

    with torch.no_grad():
        hidden = last_residual(model, tokens) if streams else model.model(tokens, use_cache=False).last_hidden_state
        following, hidden, rows = tokens[:, 1:], hidden[:, :-1], []
        _, logits = said = says(following, hidden)
        for _ in range(CHAIN):
            out, row = said[0], said[1][-1]
            rows.append(row)
            following = torch.cat([following, row.argmax()[None, None]], dim=1)
            hidden = torch.cat([hidden, out[:, -1:]], dim=1)
            said = says(following, hidden)
    rows = torch.stack(rows)
    parts = {"mtp_block.": "", "post_norm": "shared_head.norm"}
    state = {}
    for name, value in block.state_dict().items():
        for part, target in parts.items():
            name = target + name.removeprefix(part) if name.startswith(part) else name
        state[f"model.layers.{layer}.{name}"] = value
    return state, logits.numpy(), (rows.argmax(dim=1).numpy(), rows.numpy())


def index_gaps(model, gaps: list[float]) -> None:
    """Watches how near an index comes to choosing other groups: topk's last score and the next."""
    inside = torch.topk
    if not any(type(module).__name__.endswith("Indexer") for module in model.modules()):
        return

    def watched(scores, k, dim=-1, **rest):
        chosen = inside(scores, k, dim=dim, **rest)
        if scores.dim() == 1 and k < len(scores):
            ordered = scores.sort(descending=True)[0]
            gaps.append(50 * float(ordered[k - 1] - ordered[k]))  # scores are sums of few products: their noise is less
        return chosen

    torch.Tensor.topk = lambda self, k, dim=-1, **rest: watched(self, k, dim, **rest)


def write(family: str, out: pathlib.Path) -> None:
    predicts = family in PREDICTS
    for seed in range(100):
        model, ids, logits, gaps = run(family, seed)
        if predicts:
            block, predicted, chain = predictions(model, ids, seed, gaps)
        gap = min(gaps, default=1.0)
        if gap > ROUTER_GAP:
            break
    else:
        raise SystemExit(f"{family}: no seed without near ties")
    kind = family.removesuffix("-2").removesuffix("-mtp")
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    if predicts:
        state |= {name: value.numpy() for name, value in block.items()}
        put(out / f"{family}.predictions", ids[1:], predicted)
        put(out / f"{family}.chain", *chain)
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    arch = hf_to_gguf.architecture(kind)
    pre = FAMILIES[family][2]
    for name in [family] + ([FUSED[family]] if family in FUSED else []):
        items = ((n, v, T.F32) for n, v in hf_to_gguf.tensors(state, kind, model.config, fused=name != family))
        general = {"type": "model", "name": f"tiny random {name}", "file_type": 0, "quantization_version": 2}
        hf_to_gguf.write(out / f"{name}.gguf", arch, general, hf_to_gguf.keys(kind, model.config, int(predicts)) | hf_to_gguf.hash_keys(model), tokenizer(pre), items)
    put(out / f"{family}.golden", ids, logits)
    size = (out / f"{family}.gguf").stat().st_size
    print(f"{family}: seed {seed}, router gap {gap:.2g}, logits to {abs(logits).max():.1f}, {size} bytes")


def put(path: pathlib.Path, ids: np.ndarray, logits: np.ndarray) -> None:
    header = np.array([len(ids), VOCAB], dtype="<u4").tobytes()
    path.write_bytes(header + ids.astype("<u4").tobytes() + logits.astype("<f4").tobytes())


def read_golden(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    raw = path.read_bytes()
    tokens, vocab = np.frombuffer(raw, "<u4", 2)
    ids = np.frombuffer(raw, "<u4", tokens, 8)
    return ids, np.frombuffer(raw, "<f4", offset=8 + 4 * tokens).reshape(tokens, vocab)


def check(out: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location("peer_llama", pathlib.Path(__file__).with_name("peer-llama.py"))
    peer_llama = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer_llama)
    for family in FAMILIES:
        path = out / f"{family}.gguf"
        ids, logits = read_golden(path.with_suffix(".golden"))
        peer = peer_llama.Peer(str(path), threads=1, n_ctx=512, n_batch=len(ids), exact_kv=True)
        difference = abs(peer.prefill(ids.tolist()) - logits)
        print(f"{path.name}: largest difference to llama.cpp {difference.max():.2g}, median {np.median(difference.max(axis=1)):.2g}")
    for family, name in FUSED.items():  # llama.cpp does not read this form for every family, so compare the tensors
        plain, fused = ({t.name: t.data for t in GGUFReader(out / f"{stem}.gguf").tensors} for stem in (family, name))
        for tensor, value in fused.items():
            if tensor.endswith("ffn_gate_up_exps.weight"):
                parts = [plain[tensor.replace("gate_up", part)] for part in ("gate", "up")]
                assert (value == np.concatenate(parts, axis=1)).all(), tensor
            else:
                assert (value == plain[tensor]).all(), tensor
        print(f"{name}.gguf: same values as {family}.gguf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fixtures/tiny"))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--check", action="store_true", help="compare the files with llama.cpp instead of writing them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.check:
        check(args.out)
    else:
        for family in args.families:
            write(family, args.out)


if __name__ == "__main__":
    main()
