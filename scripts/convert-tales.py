#!/usr/bin/env python3
"""Convert the `tales` model from its safetensors folder to GGUF (architecture qwen35moe).

`--type mixed` writes the bundled file fixtures/tales/tales.gguf: experts at 4 to 5 bits, everything else
at 8, within 26 MB. `--type f32` and `--type bf16` write twins with the published weights unchanged; tests
that need one make it on the spot (about a second).
"""

import argparse
import json
import pathlib
import re
import sys
from types import SimpleNamespace

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import block_quantise
import hf_to_gguf

ARCH = "qwen35moe"
FILE_TYPES = {"f32": 0, "bf16": 32, "mixed": 15}
# First match decides. Rows of the down projections are 64 wide, so only 32-wide types fit there.
MIXED = [
    (r"ffn_(gate|up)_exps", "Q4_K"),
    (r"ffn_down_exps", "Q5_0"),
    (r".", "Q8_0"),
]


def config_of(folder: pathlib.Path) -> SimpleNamespace:
    return SimpleNamespace(**json.loads((folder / "config.json").read_text()))


def state_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Every tensor of the folder as float32 (bf16 widens without loss). Read here: numpy knows no bf16."""
    data = np.fromfile(folder / "model.safetensors", np.uint8)
    header = int(data[:8].view("<u8")[0])
    state = {}
    for name, tensor in json.loads(data[8 : 8 + header].tobytes()).items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "BF16":
            sys.exit(f"{name} is {tensor['dtype']}, expected BF16")
        first, last = (8 + header + at for at in tensor["data_offsets"])
        widened = data[first:last].view("<u2").astype(np.uint32) << 16
        state[name] = widened.view(np.float32).reshape(tensor["shape"])
    return state


def type_of(name: str, value: np.ndarray, kind: str) -> str:
    """The block type a tensor gets."""
    if kind == "f32" or hf_to_gguf.stays_f32(name, value):
        return "F32"
    if kind == "bf16":
        return "BF16"
    return next(block for pattern, block in MIXED if re.search(pattern, name))


def encode(value: np.ndarray, block: str) -> np.ndarray:
    if block == "F32":
        return value
    if block == "BF16":
        return gguf.quants.quantize(value, T.BF16)
    return block_quantise.quantise(value, block)


def tokenizer_of(folder: pathlib.Path) -> dict[str, object]:
    """`tokenizer.*` metadata from tokenizer.json and tokenizer_config.json."""
    table = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    control = {token["id"]: token["content"] for token in table["added_tokens"]}
    tokens = {index: token for token, index in table["model"]["vocab"].items()} | control
    return {
        "ggml.model": "gpt2",
        "ggml.pre": "qwen35",
        "ggml.tokens": [tokens[index] for index in range(len(tokens))],
        "ggml.token_type": [3 if index in control else 1 for index in range(len(tokens))],
        "ggml.merges": [" ".join(pair) for pair in table["model"]["merges"]],
        "ggml.eos_token_id": 2,
        "ggml.eot_token_id": 2,
        "ggml.padding_token_id": 0,
        "ggml.add_bos_token": False,
        "chat_template": settings["chat_template"],
    }


def general_of(folder: pathlib.Path, kind: str) -> dict[str, object]:
    sampling = json.loads((folder / "generation_config.json").read_text())
    return {
        "type": "model",
        "name": "tales",
        "description": "A very small trained mixture-of-experts chat model for demonstrations and tests",
        "size_label": "36M-A8M",
        "license": "other",
        "license.name": "see fixtures/tales/README.md",
        "file_type": FILE_TYPES[kind],
        "quantization_version": 2,
        "sampling.temp": sampling["temperature"],
        "sampling.top_p": sampling["top_p"],
        "sampling.top_k": sampling["top_k"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="folder with model.safetensors, config.json, tokenizer.json, ...")
    parser.add_argument("out", type=pathlib.Path, nargs="?", default=pathlib.Path("fixtures/tales/tales.gguf"))
    parser.add_argument("--type", choices=FILE_TYPES, default="mixed")
    parser.add_argument("--no-mtp", action="store_true", help="leave the multi-token-prediction block out, for engines that do not know it")
    args = parser.parse_args()
    config = config_of(args.source)
    mtp_layers = 0 if args.no_mtp else config.mtp_num_hidden_layers
    sizes: dict[str, int] = {}

    def items():
        state = {n: w for n, w in state_of(args.source).items() if mtp_layers or not n.startswith("mtp.")}
        for name, value in hf_to_gguf.tensors(state, ARCH, config):
            block = type_of(name, value, args.type)
            raw = encode(value, block)
            sizes[block] = sizes.get(block, 0) + raw.nbytes
            yield name, raw, T[block]

    keys = hf_to_gguf.keys(ARCH, config, mtp_layers)
    hf_to_gguf.write(args.out, ARCH, general_of(args.source, args.type), keys, tokenizer_of(args.source), items())
    print(f"{args.out}: {args.out.stat().st_size} bytes; " + ", ".join(f"{k} {v}" for k, v in sizes.items()))


if __name__ == "__main__":
    main()
