#!/usr/bin/env python3
"""A GGUF file of any shape with random weights, for speed: what it says is noise.

    tools/make_model.py llama-8b llama-8b.gguf --type q4_k
    tools/make_model.py qwen3-moe moe.gguf --layers 4   # 30B-A3B with 4 of its 48 layers
    tools/make_model.py --layers 2 --embd 256 --heads 4 --kv-heads 2 --head-dim 64 --ff 512 OUT

Needs numpy alone, so that it runs where nothing else is installed.
"""
import argparse
import math
import struct

import numpy as np

# embd, layers, heads, kv_heads, head_dim, ff, vocab, context, rope base
SHAPES = {
    "llama-8b": (4096, 32, 32, 8, 128, 14336, 128256, 131072, 500000.0),
    "qwen-0.5b": (896, 24, 14, 2, 64, 4864, 151936, 32768, 1000000.0),
    "qwen3-moe": (2048, 48, 32, 4, 128, 6144, 151936, 40960, 1000000.0),
    "small": (256, 2, 4, 2, 64, 512, 512, 4096, 10000.0),
}
# experts, experts of a token, width of one; other shapes have none
EXPERTS = {"qwen3-moe": (128, 8, 768)}
# GGUF id, elements and bytes of a block, the places of its f16 scales
TYPES = {
    "f32": (0, 1, 4, ()),
    "q8_0": (8, 32, 34, (0,)),
    "q4_k": (12, 256, 144, (0, 2)),
    "q6_k": (14, 256, 210, (208,)),
}
U32, F32, STRING, ARRAY = 4, 6, 8, 9


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def byte_char(b):
    """The character that stands for a byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(b) if b in plain else chr(256 + [i for i in range(256) if i not in plain].index(b))


def vocabulary(n):
    tokens = [byte_char(b) for b in range(256)] + [f"<filler_{i}>" for i in range(n - 256)]
    kinds = [1] * 256 + [5] * (n - 256)
    yield key("tokenizer.ggml.model", STRING, text("gpt2"))
    yield key("tokenizer.ggml.pre", STRING, text("gpt-2"))
    yield key("tokenizer.ggml.tokens", ARRAY,
              struct.pack("<IQ", STRING, n) + b"".join(text(t) for t in tokens))
    yield key("tokenizer.ggml.token_type", ARRAY,
              struct.pack("<IQ", 5, n) + np.array(kinds, "<i4").tobytes())
    yield key("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", STRING, 0))


def keys(o):
    arch = "qwen3moe" if o.experts else "llama"
    yield key("general.architecture", STRING, text(arch))
    yield key("general.name", STRING, text("random weights"))
    for name, value in (("context_length", o.ctx), ("embedding_length", o.embd),
                        ("block_count", o.layers), ("feed_forward_length", o.ff),
                        ("attention.head_count", o.heads),
                        ("attention.head_count_kv", o.kv_heads),
                        ("attention.key_length", o.head_dim),
                        ("attention.value_length", o.head_dim),
                        ("rope.dimension_count", o.head_dim),
                        *((("expert_count", o.experts), ("expert_used_count", o.experts_used),
                           ("expert_feed_forward_length", o.expert_ff)) if o.experts else ())):
        yield key(f"{arch}.{name}", U32, struct.pack("<I", value))
    for name, value in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", o.base)):
        yield key(f"{arch}.{name}", F32, struct.pack("<f", value))
    yield from vocabulary(o.vocab)


def tensors(o):
    """Names and shapes (n_in, n_out, ...), the fastest dimension first; of a vector (n,)."""
    q, kv = o.heads * o.head_dim, o.kv_heads * o.head_dim
    dense = (("ffn_gate", (o.embd, o.ff)), ("ffn_up", (o.embd, o.ff)), ("ffn_down", (o.ff, o.embd)))
    experts = (("attn_q_norm", (o.head_dim,)), ("attn_k_norm", (o.head_dim,)),
               ("ffn_gate_inp", (o.embd, o.experts)),
               ("ffn_gate_exps", (o.embd, o.expert_ff, o.experts)),
               ("ffn_up_exps", (o.embd, o.expert_ff, o.experts)),
               ("ffn_down_exps", (o.expert_ff, o.embd, o.experts)))
    yield "token_embd.weight", (o.embd, o.vocab)
    for i in range(o.layers):
        for name, shape in (("attn_norm", (o.embd,)), ("attn_q", (o.embd, q)), ("attn_k", (o.embd, kv)),
                            ("attn_v", (o.embd, kv)), ("attn_output", (q, o.embd)),
                            ("ffn_norm", (o.embd,)), *(experts if o.experts else dense)):
            yield f"blk.{i}.{name}.weight", shape
    yield "output_norm.weight", (o.embd,)
    yield "output.weight", (o.embd, o.vocab)


def blocks(rng, kind, n_out, n_in):
    """Random codes; scales that give the weights a deviation of about 1 / sqrt(n_in)."""
    _, elems, size, scales = TYPES[kind]
    if kind == "f32":
        return rng.standard_normal(n_out * n_in, np.float32).astype("<f4") / np.float32(n_in) ** 0.5
    n = n_out * n_in // elems
    made = rng.integers(0, 256, (min(n, 1 << 16), size), np.uint8)
    unit = {"q8_0": 1 / 74, "q4_k": 1 / 150, "q6_k": 1 / 1400}[kind] / n_in ** 0.5
    for at in scales:
        made[:, at:at + 2] = np.frombuffer(np.array(unit * (4 if at else 1), "<f2").tobytes(), np.uint8)
    return np.tile(made, (-(-n // len(made)), 1))[:n]


def type_of(o, name, shape):
    plain = len(shape) == 1 or "ffn_gate_inp" in name or shape[0] % TYPES[o.type][1]
    return "f32" if plain else o.type


def write(o, f):
    rng = np.random.default_rng(o.seed)
    all_keys, all_tensors, at = list(keys(o)), list(tensors(o)), 0
    f.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(all_keys)))
    f.write(b"".join(all_keys))
    for name, shape in all_tensors:
        number, elems, size, _ = TYPES[type_of(o, name, shape)]
        f.write(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, at))
        at += -(-(math.prod(shape) // elems * size) // 32) * 32
    f.write(b"\0" * (-f.tell() % 32))
    for name, (n_in, *n_out) in all_tensors:
        if not n_out:
            f.write((1 + 0.1 * rng.standard_normal(n_in)).astype("<f4").tobytes())
        else:
            kind = type_of(o, name, (n_in, *n_out))
            f.write(blocks(rng, kind, math.prod(n_out), n_in).tobytes())
        f.write(b"\0" * (-f.tell() % 32))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("shape", nargs="?", choices=SHAPES, default="small")
    p.add_argument("out")
    p.add_argument("--type", choices=TYPES, default="q8_0")
    p.add_argument("--seed", type=int, default=1)
    options = ("--embd", "--layers", "--heads", "--kv-heads", "--head-dim", "--ff", "--vocab", "--ctx", "--base",
               "--experts", "--experts-used", "--expert-ff")
    values = [p.add_argument(name, type=float if name == "--base" else int) for name in options]
    o = p.parse_args()
    for option, value in zip(values, (*SHAPES[o.shape], *EXPERTS.get(o.shape, (0, 0, 0)))):
        if getattr(o, option.dest) is None:
            setattr(o, option.dest, value)
    with open(o.out, "wb") as f:
        write(o, f)


if __name__ == "__main__":
    main()
