#!/usr/bin/env python3
"""Evaluate a qwen35moe GGUF file with a small numpy forward pass and compare it with the tales goldens.

Weights of any type are dequantised and everything is computed in float32 from the file's own metadata,
trunk and multi-token-prediction block, teacher-forced over prompt and greedy ids. For an unquantised twin
every number must agree; for the bundled file the result says what quantising the weights costs.
"""

import argparse
import json
import pathlib

import numpy as np
from gguf import GGUFReader, quants
from gguf import GGMLQuantizationType as T


def rms(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


class Model:
    """The weights of a file by name, and the layers as functions of rows [tokens, width]."""

    def __init__(self, path: pathlib.Path):
        reader = GGUFReader(path)
        self.w = {t.name: t.data if t.tensor_type == T.F32 else quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self.key = lambda name: reader.get_field(f"qwen35moe.{name}").contents()
        self.trunk = self.key("block_count") - self.key("nextn_predict_layers")

    def mul(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name + ".weight"].T

    def rotate(self, x: np.ndarray, start: int) -> np.ndarray:
        """Rotary pairs (i, i + n/2) on the first n channels of heads [tokens, heads, width]."""
        n = self.key("rope.dimension_count")
        angle = np.outer(np.arange(start, start + len(x)), self.key("rope.freq_base") ** (-2 * np.arange(n // 2) / n))[:, None]
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n:]], axis=-1).astype(np.float32)

    def attention(self, x: np.ndarray, b: str, start: int) -> np.ndarray:
        heads, kv, width = self.key("attention.head_count"), self.key("attention.head_count_kv"), self.key("attention.key_length")
        q, gate = np.split(self.mul(x, b + "attn_q").reshape(len(x), heads, 2 * width), 2, axis=-1)
        q = self.rotate(rms(q, self.w[b + "attn_q_norm.weight"]), start)
        k = self.rotate(rms(self.mul(x, b + "attn_k").reshape(len(x), kv, width), self.w[b + "attn_k_norm.weight"]), start)
        v = self.mul(x, b + "attn_v").reshape(len(x), kv, width)
        k, v = k.repeat(heads // kv, 1), v.repeat(heads // kv, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / width**0.5
        score = np.where(np.tri(len(x), dtype=bool), score, -np.inf)
        p = np.exp(score - score.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v) * sigmoid(gate)
        return self.mul(out.reshape(len(x), -1), b + "attn_output")

    def delta_net(self, x: np.ndarray, b: str) -> np.ndarray:
        hk, hv, dk = self.key("ssm.group_count"), self.key("ssm.time_step_rank"), self.key("ssm.state_size")
        dv, taps, n = self.key("ssm.inner_size") // hv, self.key("ssm.conv_kernel"), len(x)
        u = np.pad(self.mul(x, b + "attn_qkv"), ((taps - 1, 0), (0, 0)))
        conv = self.w[b + "ssm_conv1d.weight"]
        u = silu(sum(u[j : j + n] * conv[:, j] for j in range(taps)))
        q, k, v = np.split(u, [hk * dk, 2 * hk * dk], axis=1)
        q, k = (y.reshape(n, hk, dk) / np.sqrt((y.reshape(n, hk, dk) ** 2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
        served = np.arange(hv) % hk  # tiled head map
        q, k, v = q[:, served] / dk**0.5, k[:, served], v.reshape(n, hv, dv)
        beta = sigmoid(self.mul(x, b + "ssm_beta"))
        decay = np.exp(self.w[b + "ssm_a"] * np.logaddexp(0, self.mul(x, b + "ssm_alpha") + self.w[b + "ssm_dt.bias"]))
        state, out = np.zeros((hv, dk, dv), np.float32), []
        for t in range(n):
            state *= decay[t][:, None, None]
            delta = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * delta[:, None, :]
            out.append(np.einsum("hkv,hk->hv", state, q[t]))
        z = self.mul(x, b + "attn_gate").reshape(n, hv, dv)
        out = rms(np.stack(out), self.w[b + "ssm_norm.weight"]) * silu(z)
        return self.mul(out.reshape(n, -1), b + "ssm_out")

    def experts(self, x: np.ndarray, b: str) -> np.ndarray:
        logits = self.mul(x, b + "ffn_gate_inp")
        p = np.exp(logits - logits.max(-1, keepdims=True))
        picks = np.argsort(-p, axis=1, kind="stable")[:, : self.key("expert_used_count")]
        weight = np.take_along_axis(p, picks, axis=1)
        weight /= weight.sum(1, keepdims=True)
        gate, up, down = (self.w[f"{b}ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        shared = silu(self.mul(x, b + "ffn_gate_shexp")) * self.mul(x, b + "ffn_up_shexp")
        out = sigmoid(x @ self.w[b + "ffn_gate_inp_shexp.weight"])[:, None] * self.mul(shared, b + "ffn_down_shexp")
        for t, row in enumerate(x):
            hidden = silu(gate[picks[t]] @ row) * (up[picks[t]] @ row)
            out[t] += np.einsum("e,edf,ef->d", weight[t], down[picks[t]], hidden, optimize=True)
        return out

    def block(self, x: np.ndarray, index: int, start: int = 0) -> np.ndarray:
        b = f"blk.{index}."
        h = rms(x, self.w[b + "attn_norm.weight"])
        x = x + (self.attention(h, b, start) if b + "attn_q.weight" in self.w else self.delta_net(h, b))
        return x + self.experts(rms(x, self.w[b + "post_attention_norm.weight"]), b)

    def hidden(self, ids: list[int]) -> np.ndarray:
        """The vectors that feed the head, of every position."""
        x = self.w["token_embd.weight"][ids]
        for index in range(self.trunk):
            x = self.block(x, index)
        return rms(x, self.w["output_norm.weight"])

    def draft(self, hidden: np.ndarray, following: list[int]) -> np.ndarray:
        """Logits of the prediction block for pairs (hidden of p, token p+1): they predict token p+2."""
        b = f"blk.{self.trunk}.nextn."
        e = rms(self.w["token_embd.weight"][following], self.w[b + "enorm.weight"])
        c = self.mul(np.concatenate([e, rms(hidden, self.w[b + "hnorm.weight"])], axis=1), b + "eh_proj")
        return self.mul(rms(self.block(c, self.trunk, start=1), self.w[b + "shared_head_norm.weight"]), "output")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, nargs="?", default=pathlib.Path("fixtures/tales/tales.gguf"))
    parser.add_argument("--goldens", type=pathlib.Path, default=pathlib.Path("fixtures/tales/goldens.json"))
    args = parser.parse_args()
    model = Model(args.model)
    agree = total = drafts_agree = accepted = drafts = 0
    logprob_error, draft_error = 0.0, 0.0
    for item in json.loads(args.goldens.read_text())["items"]:
        prompt, greedy = item["prompt_ids"], item["greedy_ids"]
        hidden = model.hidden(prompt + greedy)
        logits = model.mul(hidden, "output")[len(prompt) - 1 : -1]
        agree += int((logits.argmax(1) == greedy).sum())
        total += len(greedy)
        for row, best in zip(logits, item["first4_top5_logprobs"]):
            log_sum = row.max() + np.log(np.exp(row - row.max()).sum())
            logprob_error = max(logprob_error, *(abs(row[token] - log_sum - value) for token, value in best))
        predicted = model.draft(hidden[:-1], (prompt + greedy)[1:])
        for row in item["mtp"]:
            mine = predicted[row["position"]]
            drafts += 1
            drafts_agree += int(mine.argmax() == row["draft"])
            accepted += int(mine.argmax() == row["verified"])
            draft_error = max(draft_error, *(abs(mine[token] - value) for token, value in row["top3"]))
    print(f"{args.model.name}: greedy ids {agree}/{total}, largest log-probability difference of the first steps {logprob_error:.2g}")
    print(f"  drafts {drafts_agree}/{drafts} as in the goldens, {accepted}/{drafts} as the trunk says, largest logit difference {draft_error:.2g}")


if __name__ == "__main__":
    main()
