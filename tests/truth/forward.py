#!/usr/bin/env python3
"""An independent forward pass in numpy: what the engine must agree with.

Reads a GGUF file with the `gguf` package, dequantises one layer at a time and computes all positions
at once, dense, without cache or pages, in the order of the papers. Slow and plain on purpose.
Matrix products are float32 (the weights of a layer in float64 would double the memory for nothing);
norms, rotations, softmax and the residual stream are float64.

    forward.py MODEL --tokens IDS.json [--n 256] [--out LOGITS.f32]
    forward.py MODEL --tokens IDS.json --perplexity CHUNKS [--ctx 512]
"""
import argparse
import dataclasses
import json
import math
import sys

import gguf
import numpy as np

# How the architectures differ. All are pre-norm transformers with RMS norm and a gated FFN.
#   neox: channel i turns with i + n_rot/2; else (2i, 2i+1), as converted Llama weights want it
#   pattern: every pattern-th layer is global, the others see a window; 0: all see it
#   local_base: how layers with a window turn, if not as the others do
#   window, window_context: of files that do not say it, and of which context these are
#   caps: of scores and logits, where the file does not say it
#   wide: the number of layers of the model that divides scores by sqrt(width / heads)
#   norm_shares: of a mixture (Mixtral is a llama), a token's experts have shares that sum to 1
#   shared_expert: one more expert that all tokens go through, times a sigmoid of its own
ARCHITECTURES = {
    "llama": dict(neox=False, norm_shares=True),
    "qwen2": dict(neox=True),
    "qwen3": dict(neox=True),
    "qwen2moe": dict(neox=True, shared_expert=True),
    "qwen3moe": dict(neox=True, norm_shares=True),
    "gemma2": dict(neox=True, gelu=True, scale_embedding=True, pattern=2, window=4096,
                   caps=(50.0, 30.0), wide=46),
    "gemma3": dict(neox=True, gelu=True, scale_embedding=True, pattern=6, local_base=10000.0, wide=62),
    "phi3": dict(neox=True, pattern=0, window=2047, window_context=4096),
    "internlm2": dict(neox=False),
    "glm4": dict(neox=False),
}


@dataclasses.dataclass
class Rope:
    """Scaling of the rotation: the kind and the numbers that it needs."""
    kind: str = "none"
    n_rot: int = 0
    base: float = 10000.0
    factor: float = 1.0
    original: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    divisors: np.ndarray = None  # [n_rot/2], Llama 3's and LongRoPE's factor per frequency

    def table(self, positions):
        """cos and sin [n, n_rot/2]."""
        pair = np.arange(self.n_rot // 2, dtype=np.float64)
        frequency = self.base ** (-2.0 * pair / self.n_rot)
        if self.divisors is not None:
            frequency = frequency / self.divisors
        magnitude = self.attention_factor
        if self.kind == "linear":
            frequency = frequency / self.factor
        elif self.kind == "yarn":
            frequency = frequency * (self.yarn_kept(pair) * (1 - 1 / self.factor) + 1 / self.factor)
            magnitude *= 1.0 + 0.1 * math.log(max(self.factor, 1.0))
        angle = np.outer(positions, frequency)
        return np.cos(angle) * magnitude, np.sin(angle) * magnitude

    def yarn_kept(self, pair):
        """Share of its frequency that a pair keeps: all of it where the original context holds
        beta_fast turns or more, nothing below beta_slow turns, a line between the two pairs."""
        def pair_with(turns):
            wave = self.original / (2 * math.pi * turns)
            return self.n_rot * math.log(wave) / (2 * math.log(self.base))
        first = max(0, math.floor(pair_with(self.beta_fast)))
        last = min(self.n_rot - 1, math.ceil(pair_with(self.beta_slow)))
        return 1 - np.clip((pair - first) / max(last - first, 0.001), 0, 1)


def rotate(x, cos, sin, neox):
    """x [n, heads, d]; the first 2 * cos.shape[1] channels turn, the others pass."""
    half = cos.shape[1]
    a, b = (slice(0, half), slice(half, 2 * half)) if neox else (slice(0, 2 * half, 2),
                                                                 slice(1, 2 * half, 2))
    out = x.copy()
    cos, sin = cos[:, None, :], sin[:, None, :]
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., a] * sin + x[..., b] * cos
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def float16(x):
    return x.astype(np.float16).astype(np.float64)


def bfloat16(x):
    """Rounded to 8 bits of mantissa, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + (0x7fff + ((bits >> 16) & 1)).astype(np.uint32)
    return (bits & np.uint32(0xffff0000)).view(np.float32).astype(np.float64)


def softcap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


class Model:
    def __init__(self, path, n_ctx=None, rope=None, rope_scale=None, rope_base=None, yarn_orig=None):
        reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.keys = {name: field.contents() for name, field in reader.fields.items()
                     if not name.startswith("tokenizer.")}
        self.arch = self.keys["general.architecture"]
        self.traits = ARCHITECTURES[self.arch]
        self.n_layer = self.number("block_count")
        self.width = self.number("embedding_length")
        self.n_head = self.number("attention.head_count")
        self.n_kv_head = self.number("attention.head_count_kv", self.n_head)
        self.head_dim = self.number("attention.key_length", self.width // self.n_head)
        self.eps = self.number("attention.layer_norm_rms_epsilon")
        self.n_ctx = n_ctx or self.number("context_length")
        self.window = self.read_window() if "pattern" in self.traits else 0
        self.pattern = self.number("attention.sliding_window_pattern", self.traits.get("pattern", 0))
        caps = self.traits.get("caps", (0.0, 0.0))
        self.attention_cap = self.number("attn_logit_softcapping", caps[0])
        self.final_cap = self.number("final_logit_softcapping", caps[1])
        self.global_rope = self.read_rope(rope, rope_scale, rope_base, yarn_orig)
        local_base = self.number("rope.freq_base_swa", self.traits.get("local_base", 0))
        self.local_rope = (Rope(n_rot=self.global_rope.n_rot, base=local_base) if local_base
                           else self.global_rope)

    def number(self, name, default=None):
        value = self.keys.get(f"{self.arch}.{name}", default)
        if value is None:
            raise KeyError(f"{self.arch}.{name}")
        return value[0] if isinstance(value, list) else value

    def read_window(self):
        trained = self.traits.get("window_context")
        usual = trained is None or trained == self.number("context_length")
        return self.number("attention.sliding_window", self.traits.get("window", 0) if usual else 0)

    def weight(self, name):
        """float32 [n_out, n_in] or [n], None if the file has no such tensor."""
        t = self.tensors.get(name)
        return None if t is None else gguf.quants.dequantize(t.data, t.tensor_type)

    def read_rope(self, kind, scale, base, original):
        found = Rope(
            kind=self.keys.get(f"{self.arch}.rope.scaling.type", "linear"),
            n_rot=self.number("rope.dimension_count", self.head_dim),
            base=base or self.number("rope.freq_base", 10000.0),
            factor=scale or self.number("rope.scaling.factor", self.number("rope.scale_linear", 1.0)),
            original=original or self.number("rope.scaling.original_context_length",
                                             self.number("context_length")),
            attention_factor=self.number("rope.scaling.attn_factor", 1.0),
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0))
        found.kind = kind or found.kind
        found.divisors = self.weight("rope_freqs.weight")
        if found.divisors is None:
            length = "long" if self.n_ctx > found.original else "short"
            found.divisors = self.weight(f"rope_factors_{length}.weight")
        return found

    def is_local(self, layer):
        if not self.window:
            return False
        return self.pattern == 0 or layer % self.pattern != self.pattern - 1

    def norm(self, x, name):
        w = self.weight(name)
        if w is None:
            return x
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * w

    def split(self, x, name, sizes):
        """The outputs of one matrix whose rows are those of several, one behind the other."""
        return np.split(self.linear(x, name), np.cumsum(sizes)[:-1], axis=1)

    def linear(self, x, name):
        w = self.weight(f"{name}.weight")
        y = (x.astype(np.float32) @ w.T).astype(np.float64)
        bias = self.weight(f"{name}.bias")
        return y if bias is None else y + bias

    def attention(self, x, layer, kv_type):
        n, d = len(x), self.head_dim
        block = f"blk.{layer}."
        if block + "attn_qkv.weight" in self.tensors:
            sizes = [self.n_head * d, self.n_kv_head * d, self.n_kv_head * d]
            q, k, v = self.split(x, block + "attn_qkv", sizes)
        else:
            q, k, v = (self.linear(x, f"{block}attn_{name}") for name in "qkv")
        q, k, v = (y.reshape(n, -1, d) for y in (q, k, v))
        q = self.norm(q, block + "attn_q_norm.weight")
        k = self.norm(k, block + "attn_k_norm.weight")
        position = np.arange(n)
        rope = self.local_rope if self.is_local(layer) else self.global_rope
        cos, sin = rope.table(position)
        q = rotate(q, cos, sin, self.traits["neox"])
        # The cache holds 16 bit: the same rounding here, or the comparison would measure it.
        k, v = kv_type(rotate(k, cos, sin, self.traits["neox"])), kv_type(v)
        distance = position[:, None] - position[None, :]
        seen = distance >= 0
        if self.is_local(layer):
            seen &= distance < self.window
        out = np.empty((n, self.n_head, d))
        for h in range(self.n_head):
            kv = h // (self.n_head // self.n_kv_head)
            score = softcap(q[:, h] @ k[:, kv].T * self.query_scale(), self.attention_cap)
            score = np.where(seen, score, -np.inf)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, h] = weight @ v[:, kv] / weight.sum(axis=1, keepdims=True)
        return self.linear(out.reshape(n, -1), block + "attn_output")

    def query_scale(self):
        if self.n_layer == self.traits.get("wide"):
            return 1 / math.sqrt(self.width / self.n_head)
        return 1 / math.sqrt(self.head_dim)

    def feed_forward(self, x, layer):
        block = f"blk.{layer}."
        if self.number("expert_count", 0):
            return self.mixture(x, block)
        act = gelu if self.traits.get("gelu") else silu
        if block + "ffn_gate.weight" in self.tensors:
            gate, up = self.linear(x, block + "ffn_gate"), self.linear(x, block + "ffn_up")
        else:
            n_ff = self.number("feed_forward_length")
            gate, up = self.split(x, block + "ffn_up", [n_ff, n_ff])
        return self.linear(act(gate) * up, block + "ffn_down")

    def gated(self, x, gate, up, down):
        act = gelu if self.traits.get("gelu") else silu

        def times(x, w):
            return (x.astype(np.float32) @ w.T).astype(np.float64)
        return times(act(times(x, gate)) * times(x, up), down)

    def mixture(self, x, block):
        """Every token through its experts: those with the largest logits, of equal ones the first."""
        n_used = self.number("expert_used_count")
        logits = self.linear(x, block + "ffn_gate_inp")
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, :n_used]
        weights = [self.weight(f"{block}ffn_{name}_exps.weight") for name in ("gate", "up", "down")]
        share = np.take_along_axis(shares, chosen, axis=1)
        if self.number("expert_weights_norm", self.traits.get("norm_shares", False)):
            share /= share.sum(axis=1, keepdims=True)
        share *= self.number("expert_weights_scale", 1.0)
        out = np.zeros_like(x)
        for expert in np.unique(chosen):
            row, slot = np.nonzero(chosen == expert)
            y = self.gated(x[row], *(w[expert] for w in weights))
            out[row] += share[row, slot][:, None] * y
        if self.traits.get("shared_expert"):
            gate = x @ self.weight(block + "ffn_gate_inp_shexp.weight").reshape(-1).astype(np.float64)
            y = self.gated(x, *(self.weight(f"{block}ffn_{name}_shexp.weight")
                                for name in ("gate", "up", "down")))
            out += y / (1 + np.exp(-gate))[:, None]
        return out

    def embed(self, tokens):
        t = self.tensors["token_embd.weight"]
        x = gguf.quants.dequantize(t.data[np.asarray(tokens)], t.tensor_type).astype(np.float64)
        return x * math.sqrt(self.width) if self.traits.get("scale_embedding") else x

    def states(self, tokens, first=0, kv_type=float16):
        """float64 [len(tokens) - first, width]: hidden states behind the last norm, from `first` on."""
        x = self.embed(tokens)
        for i in range(self.n_layer):
            block = f"blk.{i}."
            y = self.attention(self.norm(x, block + "attn_norm.weight"), i, kv_type)
            x = x + self.norm(y, block + "post_attention_norm.weight")
            y = self.feed_forward(self.norm(x, block + "ffn_norm.weight"), i)
            x = x + self.norm(y, block + "post_ffw_norm.weight")
        return self.norm(x[first:], "output_norm.weight")

    def logits(self, tokens, first=0, kv_type=float16):
        """float32 [len(tokens) - first, n_vocab]: logits from position `first` on."""
        x = self.states(tokens, first, kv_type)
        own = "output" if "output.weight" in self.tensors else "token_embd"
        return softcap(self.linear(x, own), self.final_cap).astype(np.float32)


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def perplexity(model, tokens, n_ctx, n_chunk, bos):
    """The usual definition for long texts: chunks of n_ctx, the second half of each is scored, the
    first token of each replaced by BOS where the model wants one."""
    loss, count = 0.0, 0
    for c in range(n_chunk):
        chunk = list(tokens[c * n_ctx:(c + 1) * n_ctx])
        target = chunk[n_ctx // 2 + 1:]
        if bos is not None:
            chunk[0] = bos
        scores = log_softmax(model.logits(chunk, first=n_ctx // 2)[:-1])
        loss -= scores[np.arange(len(target)), target].sum()
        count += len(target)
        print(f"[{c + 1}] {math.exp(loss / count):.4f}", flush=True)
    return math.exp(loss / count)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", required=True, help="JSON list of ids, - for stdin")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--out", help="float32 [n, n_vocab]")
    parser.add_argument("--perplexity", type=int, metavar="CHUNKS")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--bos", type=int)
    args = parser.parse_args()
    source = sys.stdin if args.tokens == "-" else open(args.tokens)
    tokens = json.load(source)
    model = Model(args.model)
    if args.perplexity:
        perplexity(model, tokens, args.ctx, args.perplexity, args.bos)
        return 0
    logits = model.logits(tokens[:args.n])
    if args.out:
        logits.tofile(args.out)
    scores = log_softmax(logits)
    target = tokens[1:args.n + 1]
    loss = -scores[np.arange(len(target)), target].mean()
    print(f"{len(logits)} positions, perplexity {math.exp(loss):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
