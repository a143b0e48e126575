#!/usr/bin/env python3
"""A GGUF file of any shape with random weights, for speed: what it says is noise.

    tools/make_model.py llama-8b llama-8b.gguf --type q4_k
    tools/make_model.py --layers 2 --embd 256 --heads 4 --kv-heads 2 --head-dim 64 --ff 512 OUT

Needs numpy alone, so that it runs where nothing else is installed.
"""
import argparse
import struct

import numpy as np

# embd, layers, heads, kv_heads, head_dim, ff, vocab, context, rope base
SHAPES = {
    "llama-8b": (4096, 32, 32, 8, 128, 14336, 128256, 131072, 500000.0),
    "qwen-0.5b": (896, 24, 14, 2, 64, 4864, 151936, 32768, 1000000.0),
    "small": (256, 2, 4, 2, 64, 512, 512, 4096, 10000.0),
}
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
    yield key("general.architecture", STRING, text("llama"))
    yield key("general.name", STRING, text("random weights"))
    for name, value in (("context_length", o.ctx), ("embedding_length", o.embd),
                        ("block_count", o.layers), ("feed_forward_length", o.ff),
                        ("attention.head_count", o.heads),
                        ("attention.head_count_kv", o.kv_heads),
                        ("attention.key_length", o.head_dim),
                        ("attention.value_length", o.head_dim),
                        ("rope.dimension_count", o.head_dim)):
        yield key("llama." + name, U32, struct.pack("<I", value))
    for name, value in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", o.base)):
        yield key("llama." + name, F32, struct.pack("<f", value))
    yield from vocabulary(o.vocab)


def tensors(o):
    """Names and shapes [n_out, n_in]; n_out 0: a vector."""
    q, kv = o.heads * o.head_dim, o.kv_heads * o.head_dim
    yield "token_embd.weight", o.vocab, o.embd
    for i in range(o.layers):
        for name, n_out, n_in in (("attn_norm", 0, o.embd), ("attn_q", q, o.embd),
                                  ("attn_k", kv, o.embd), ("attn_v", kv, o.embd),
                                  ("attn_output", o.embd, q), ("ffn_norm", 0, o.embd),
                                  ("ffn_gate", o.ff, o.embd), ("ffn_up", o.ff, o.embd),
                                  ("ffn_down", o.embd, o.ff)):
            yield f"blk.{i}.{name}.weight", n_out, n_in
    yield "output_norm.weight", 0, o.embd
    yield "output.weight", o.vocab, o.embd


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


def type_of(o, n_out, n_in):
    return "f32" if n_out == 0 or n_in % TYPES[o.type][1] else o.type


def write(o, f):
    rng = np.random.default_rng(o.seed)
    all_keys, all_tensors, at = list(keys(o)), list(tensors(o)), 0
    f.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(all_keys)))
    f.write(b"".join(all_keys))
    for name, n_out, n_in in all_tensors:
        number, elems, size, _ = TYPES[type_of(o, n_out, n_in)]
        shape = (n_in, n_out) if n_out else (n_in,)
        f.write(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, at))
        at += -(-(max(n_out, 1) * n_in // elems * size) // 32) * 32
    f.write(b"\0" * (-f.tell() % 32))
    for _, n_out, n_in in all_tensors:
        if n_out == 0:
            f.write((1 + 0.1 * rng.standard_normal(n_in)).astype("<f4").tobytes())
        else:
            f.write(blocks(rng, type_of(o, n_out, n_in), n_out, n_in).tobytes())
        f.write(b"\0" * (-f.tell() % 32))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("shape", nargs="?", choices=SHAPES, default="small")
    p.add_argument("out")
    p.add_argument("--type", choices=TYPES, default="q8_0")
    p.add_argument("--seed", type=int, default=1)
    options = ("--embd", "--layers", "--heads", "--kv-heads", "--head-dim", "--ff", "--vocab", "--ctx", "--base")
    values = [p.add_argument(name, type=float if name == "--base" else int) for name in options]
    o = p.parse_args()
    for option, value in zip(values, SHAPES[o.shape]):
        if getattr(o, option.dest) is None:
            setattr(o, option.dest, value)
    with open(o.out, "wb") as f:
        write(o, f)


if __name__ == "__main__":
    main()
