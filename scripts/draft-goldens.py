#!/usr/bin/env python3
"""Write fixtures/tales/drafts.json: what the multi-token-prediction block of a qwen35moe file guesses along given texts.

A reference in PyTorch, in float32, from the file's dequantised weights: the trunk is the numpy forward pass of check-tales.py, the block and its chain
of guesses are here. Texts are the prompts and greedy continuations of goldens.json. At every position of a continuation the block is given the
true next token and guesses three more, its own normed output fed back as the hidden state and its keys and values appended, as a decoder would.
"""

import argparse
import importlib.util
import json
import pathlib

import torch
import torch.nn.functional as F

spec = importlib.util.spec_from_file_location("check_tales", pathlib.Path(__file__).with_name("check-tales.py"))
check_tales = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_tales)
GUESSES = 3


class Predictor:
    """The block, one row at a time, with keys and values of its own."""

    def __init__(self, model: check_tales.Model):
        self.model, self.at = model, f"blk.{model.trunk}."
        self.w = {name: torch.from_numpy(value.copy()) for name, value in model.w.items() if name.startswith(self.at) or "blk." not in name}

    def rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w[name]

    def mul(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.w[self.at + name + ".weight"])

    def rotate(self, x: torch.Tensor, position: int) -> torch.Tensor:
        n = self.model.key("rope.dimension_count")
        angle = position * self.model.key("rope.freq_base") ** (-2 * torch.arange(n // 2, dtype=torch.float64) / n)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., n:]], -1)

    def row(self, hidden: torch.Tensor, token: int, position: int, past: list) -> torch.Tensor:
        """The normed output for (hidden of a position, token after it). Appends the row's key and value to `past`, one entry a position."""
        at, key = self.at, self.model.key
        heads, kv, width = key("attention.head_count"), key("attention.head_count_kv"), key("attention.key_length")
        pair = [self.rms(self.w["token_embd.weight"][token], at + "nextn.enorm.weight"), self.rms(hidden, at + "nextn.hnorm.weight")]
        x = self.mul(torch.cat(pair), "nextn.eh_proj")
        h = self.rms(x, at + "attn_norm.weight")
        q, gate = self.mul(h, "attn_q").view(heads, 2, width).unbind(1)
        q = self.rotate(self.rms(q, at + "attn_q_norm.weight"), position)
        k = self.rotate(self.rms(self.mul(h, "attn_k").view(kv, width), at + "attn_k_norm.weight"), position)
        past.append((k, self.mul(h, "attn_v").view(kv, width)))
        keys, values = (torch.stack(part).repeat_interleave(heads // kv, 1) for part in zip(*past))
        out = F.scaled_dot_product_attention(q[:, None], keys.transpose(0, 1), values.transpose(0, 1))[:, 0]
        x = x + self.mul((out * gate.sigmoid()).flatten(), "attn_output")
        return self.rms(x + self.experts(self.rms(x, at + "post_attention_norm.weight")), at + "nextn.shared_head_norm.weight")

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        weight, picks = self.mul(x, "ffn_gate_inp").softmax(-1).topk(self.model.key("expert_used_count"))
        gate, up, down = (self.w[f"{self.at}ffn_{part}_exps.weight"][picks] for part in ("gate", "up", "down"))
        routed = torch.einsum("edf,ef->ed", down, F.silu(gate @ x) * (up @ x))
        shared = self.mul(F.silu(self.mul(x, "ffn_gate_shexp")) * self.mul(x, "ffn_up_shexp"), "ffn_down_shexp")
        return (weight / weight.sum()) @ routed + (self.w[self.at + "ffn_gate_inp_shexp.weight"] @ x).sigmoid() * shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, nargs="?", default=pathlib.Path("fixtures/tales/tales.gguf"))
    parser.add_argument("--goldens", type=pathlib.Path, default=pathlib.Path("fixtures/tales/goldens.json"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fixtures/tales/drafts.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = check_tales.Model(args.model)
    predictor = Predictor(model)
    items, right, tried = [], [0] * GUESSES, [0] * GUESSES
    for item in json.loads(args.goldens.read_text())["items"]:
        first, tokens = len(item["prompt_ids"]) - 1, item["prompt_ids"] + item["greedy_ids"]
        hidden = torch.from_numpy(model.hidden(tokens))
        greedy = (hidden[first:-1] @ predictor.w["output.weight"].T).argmax(-1).tolist()
        past, drafts = [], []
        for at in range(len(tokens) - 1):
            out = predictor.row(hidden[at], tokens[at + 1], at, past)
            if at < first:
                continue
            chain, guesses = list(past), []
            for step in range(1, GUESSES + 1):
                guesses.append(int((predictor.w["output.weight"] @ out).argmax()))
                if step < GUESSES:
                    out = predictor.row(out, guesses[-1], at + step, chain)
            drafts.append(guesses)
        for at, guesses in enumerate(drafts):
            for step, (guess, truth) in enumerate(zip(guesses, greedy[at + 1 :])):
                tried[step] += 1
                if guess != truth:
                    break
                right[step] += 1
        items.append({"first": first, "tokens": tokens, "greedy": greedy, "drafts": drafts})
    args.out.write_text("[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]\n")
    for step, (a, b) in enumerate(zip(right, tried), 1):
        print(f"guess {step}: {a}/{b} right where those before it were ({100 * a / b:.1f} %)")


if __name__ == "__main__":
    main()
