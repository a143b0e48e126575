#!/usr/bin/env python3
"""Writes a tiny model with random weights: a real GGUF file that loads in a moment, for tests.

The text it generates is noise, but every number of the forward pass is defined, so two programs that
read the same file must agree on the logits. Each tensor has a random stream of its own, seeded by
--seed and its name: changing one option leaves all other tensors as they were.

From Python: make_tiny.write(path, make_tiny.Spec(arch="qwen3", rope="yarn")).
"""
import argparse
import dataclasses
import logging
import sys
import zlib

import gguf
import numpy as np

ARCHS = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "phi3", "internlm2", "glm4")
# How the files of an architecture differ from Llama's.
QK_NORM = ("qwen3", "qwen3moe", "gemma3")
POST_NORM = ("gemma2", "gemma3", "glm4")
SCALED_EMBEDDING = ("gemma2", "gemma3")
FUSED_QKV = ("phi3",)
FUSED_GATE_UP = ("phi3", "glm4")
WINDOWED = {"gemma2": 48, "gemma3": 48, "phi3": 48}
ROPES = ("none", "linear", "yarn", "longrope", "freqs")
TYPES = ("F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS").split()
# Pairs that join, most frequent first, in text where "_" is the blank before a word.
PAIRS = ("_ t|h e|i n|_ a|e r|o n|r e|_t he|_ s|a t|n d|_ o|_ w|i s|e n|_ c|o r|e s|_ b|a l|i t|in g|"
         "_ f|a r|o u|_o f|e d|_ p|_a nd|_ in|_ m|i c|r o|a s|_t o|a n|en t|_ d|l e|i on|_ h").split("|")
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
          "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


@dataclasses.dataclass
class Spec:
    arch: str = "llama"
    seed: int = 1
    layers: int = 0  # 0: 6 for gemma3, whose last layer of six is global; 4 for gemma2; else 2
    width: int = 128
    ff: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 2048
    types: tuple = ("Q8_0",)  # of the matrices, in turn
    embd_type: str = "Q8_0"  # of token_embd and output
    tied: bool | None = None  # None: as models of that arch usually are
    bias: bool | None = None  # on q, k, v; None: as that arch has it
    tokenizer: str = ""  # bpe or spm; "": as that arch usually has it
    pre: str = "gpt-2"  # of bpe
    freq_base: float = 10000.0
    rope: str = "none"
    rope_factor: float = 4.0
    rope_orig_ctx: int = 0  # 0: context / rope_factor
    rope_dim: int = 0  # 0: all of the head
    window: int | None = None  # sliding window, 0: none; None: 48 for gemma and phi3
    window_pattern: int = 0  # every n-th layer is global; 0: not said in the file
    final_softcap: float = 0.0
    attn_softcap: float = 0.0
    experts: int | None = None  # None: 8 for the archs that are mixtures; 0 none
    experts_used: int = 3
    expert_ff: int = 96
    expert_norm: bool | None = None  # key expert_weights_norm; None: not said in the file
    expert_scale: float = 0.0  # key expert_weights_scale; 0: not said in the file
    split_tensors: int = 0  # at most so many tensors in a file; 0: one file

    def __post_init__(self):
        gemma = self.arch in SCALED_EMBEDDING
        self.layers = self.layers or {"gemma3": 6, "gemma2": 4}.get(self.arch, 2)
        self.window = WINDOWED.get(self.arch, 0) if self.window is None else self.window
        self.tied = gemma if self.tied is None else self.tied
        self.experts = 8 * self.arch.endswith("moe") if self.experts is None else self.experts
        self.bias = self.arch in ("qwen2", "qwen2moe") if self.bias is None else self.bias
        self.tokenizer = self.tokenizer or ("spm" if gemma else "bpe")
        self.rope_orig_ctx = self.rope_orig_ctx or int(self.context / self.rope_factor)
        for name in (*self.types, self.embd_type):
            block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
            for n in (self.width, self.ff, self.heads * self.head_dim,
                      self.expert_ff if self.experts else 0):
                if n % block:
                    raise ValueError(f"type {name} has blocks of {block}; rows of {n} do not fit")


# ---- Vocabulary: 300 tokens either way, so that no dimension is a multiple of 16 ----

def byte_symbols():
    """The printable character that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def add_bpe(w, spec):
    pairs = [p.replace("_", "\u0120").split() for p in PAIRS]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    symbols = byte_symbols()
    tokens = special + [symbols[b] for b in range(256)] + ["".join(p) for p in pairs]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(spec.pre)
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    w.add_token_merges([" ".join(p) for p in pairs])
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(CHATML)
    return len(tokens)


def add_spm(w, _spec):
    words = ["".join(p.split()).replace("_", "\u2581") for p in PAIRS[:14]]
    letters = ["\u2581", *"etaoinshrdlcumwfgypbvkjxqz"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>"] + byte_tokens + words + letters
    kinds = gguf.TokenType
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    # Joined pieces score by rank; letters come after all of them.
    w.add_token_scores([0.0] * 259 + [-float(i + 1) for i in range(len(words) + len(letters))])
    w.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 +
                      [kinds.NORMAL] * (len(words) + len(letters)))
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)
    return len(tokens)


# ---- Tensors ----

def random_blocks(rng, qtype, shape, std):
    """Random blocks of a type that the package cannot quantise to: every code and sub-scale is drawn
    freely, then the f16 scales are set so that the values have mean 0 and deviation `std`."""
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    n = int(np.prod(shape)) // block
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    name = qtype.name
    d_at = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ4_NL": 0, "IQ4_XS": 0}[name]
    min_at = {"Q2_K": 82, "Q4_K": 2, "Q5_K": 2}.get(name)

    def put(at, value):
        raw[:, at:at + 2] = np.array([value], dtype=np.float16).view(np.uint8)

    def values():
        return gguf.dequantize(raw, qtype)

    put(d_at, 1.0)
    ratio = 0.0
    if min_at is not None:
        put(min_at, 0.0)
        mean = values().mean()
        put(min_at, 1.0)
        ratio = mean / (mean - values().mean())
        put(min_at, ratio)
    scale = std / values().std()
    put(d_at, scale)
    if min_at is not None:
        put(min_at, scale * ratio)
    return raw.reshape(*shape[:-1], -1)


class Writer:
    def __init__(self, path, spec):
        self.spec = spec
        self.out = gguf.GGUFWriter(path, spec.arch, split_max_tensors=spec.split_tensors)
        self.n_matrix = 0

    def rng(self, name):
        return np.random.default_rng([self.spec.seed, zlib.crc32(name.encode())])

    def vector(self, name, n, mean=0.0, std=0.1):
        data = mean + std * self.rng(name).standard_normal(n)
        self.out.add_tensor(name, data.astype(np.float32))

    def matrix(self, name, n_out, n_in, type_name=None, std=None, n=0):
        """With `n` as many matrices, the slowest dimension of one tensor."""
        if type_name is None:
            type_name = self.spec.types[self.n_matrix % len(self.spec.types)]
            self.n_matrix += 1
        qtype = gguf.GGMLQuantizationType[type_name]
        std = std or n_in ** -0.5
        shape = (n, n_out, n_in) if n else (n_out, n_in)
        rng = self.rng(name)
        if "_K" in type_name or type_name.startswith("IQ"):
            data = random_blocks(rng, qtype, shape, std)
        else:
            values = (std * rng.standard_normal(shape)).astype(np.float32)
            data = gguf.quantize(values, qtype)
        self.out.add_tensor(name, data, raw_dtype=qtype)


def add_keys(w, s):
    w.add_name(f"tiny {s.arch}")
    w.add_context_length(s.context)
    w.add_embedding_length(s.width)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ff)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(s.freq_base)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.experts_used)
        if s.arch != "llama":
            w.add_expert_feed_forward_length(s.expert_ff)
        if s.arch == "qwen2moe":
            w.add_expert_shared_feed_forward_length(s.ff)
        if s.expert_norm is not None:
            w.add_expert_weights_norm(s.expert_norm)
        if s.expert_scale:
            w.add_expert_weights_scale(s.expert_scale)
    if s.arch in (*QK_NORM, "gemma2") or s.head_dim * s.heads != s.width:
        w.add_key_length(s.head_dim)
        w.add_value_length(s.head_dim)
    if s.arch in ("llama", "phi3") or s.rope_dim:
        w.add_rope_dimension_count(s.rope_dim or s.head_dim)
    if s.window or s.arch == "phi3":  # Phi-4's files say that there is none
        w.add_sliding_window(s.window)
    if s.window_pattern:
        w.add_sliding_window_pattern(s.window_pattern)
    if s.final_softcap:
        w.add_final_logit_softcapping(s.final_softcap)
    if s.attn_softcap:
        w.add_attn_logit_softcapping(s.attn_softcap)
    if s.rope in ("linear", "yarn") or s.rope == "longrope" and s.arch != "phi3":
        w.add_rope_scaling_type(gguf.RopeScalingType(s.rope))
    if s.rope in ("linear", "yarn"):
        w.add_rope_scaling_factor(s.rope_factor)
    if s.rope in ("yarn", "longrope"):
        w.add_rope_scaling_orig_ctx_len(s.rope_orig_ctx)
    if s.rope == "longrope":
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(s.rope_factor) /
                                                      np.log(s.rope_orig_ctx))))


def add_rope_tensors(t, s):
    n = (s.rope_dim or s.head_dim) // 2
    rise = np.linspace(0.0, 1.0, n, dtype=np.float32)
    factors = {"longrope": {"rope_factors_long.weight": 1 + (s.rope_factor - 1) * rise,
                            "rope_factors_short.weight": 1 + 0.25 * rise},
               # As Llama 3 scales: fast pairs as they are, slow pairs by the whole factor.
               "freqs": {"rope_freqs.weight": np.where(rise < 0.5, 1.0, 1 + (s.rope_factor - 1) *
                                                       np.clip(4 * rise - 2, 0, 1))}}
    for name, values in factors.get(s.rope, {}).items():
        t.out.add_tensor(name, values.astype(np.float32))


def add_experts(t, s, at):
    ff = s.ff if s.arch == "llama" else s.expert_ff  # Mixtral's files have one width
    # Routers are not quantised. Twice the usual size: shares that are nearly equal would hide errors.
    t.matrix(at + "ffn_gate_inp.weight", s.experts, s.width, "F32", 2 * s.width ** -0.5)
    t.matrix(at + "ffn_gate_exps.weight", ff, s.width, n=s.experts)
    t.matrix(at + "ffn_up_exps.weight", ff, s.width, n=s.experts)
    t.matrix(at + "ffn_down_exps.weight", s.width, ff, n=s.experts)
    if s.arch == "qwen2moe":
        t.vector(at + "ffn_gate_inp_shexp.weight", s.width)
        t.matrix(at + "ffn_gate_shexp.weight", s.ff, s.width)
        t.matrix(at + "ffn_up_shexp.weight", s.ff, s.width)
        t.matrix(at + "ffn_down_shexp.weight", s.width, s.ff)


def add_layer(t, s, i):
    n_q, n_kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    at = f"blk.{i}."
    t.vector(at + "attn_norm.weight", s.width, 1.0)
    # Twice the usual size: attention that is nearly uniform would hide errors in it.
    if s.arch in FUSED_QKV:
        t.matrix(at + "attn_qkv.weight", n_q + 2 * n_kv, s.width, std=2 * s.width ** -0.5)
    else:
        t.matrix(at + "attn_q.weight", n_q, s.width, std=2 * s.width ** -0.5)
        t.matrix(at + "attn_k.weight", n_kv, s.width, std=2 * s.width ** -0.5)
        t.matrix(at + "attn_v.weight", n_kv, s.width)
    t.matrix(at + "attn_output.weight", s.width, n_q)
    if s.bias:
        for name, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            t.vector(f"{at}attn_{name}.bias", n)
    if s.arch in QK_NORM:
        t.vector(at + "attn_q_norm.weight", s.head_dim, 1.5)
        t.vector(at + "attn_k_norm.weight", s.head_dim, 1.5)
    t.vector(at + "ffn_norm.weight", s.width, 1.0)
    if s.experts:
        add_experts(t, s, at)
    elif s.arch in FUSED_GATE_UP:
        t.matrix(at + "ffn_up.weight", 2 * s.ff, s.width)
        t.matrix(at + "ffn_down.weight", s.width, s.ff)
    else:
        t.matrix(at + "ffn_gate.weight", s.ff, s.width)
        t.matrix(at + "ffn_up.weight", s.ff, s.width)
        t.matrix(at + "ffn_down.weight", s.width, s.ff)
    if s.arch in POST_NORM:
        t.vector(at + "post_attention_norm.weight", s.width, 1.0)
        t.vector(at + "post_ffw_norm.weight", s.width, 1.0)


def write(path, spec):
    """Writes the model to `path`; split parts get the usual suffixes before .gguf."""
    t = Writer(path, spec)
    add_keys(t.out, spec)
    n_vocab = {"bpe": add_bpe, "spm": add_spm}[spec.tokenizer](t.out, spec)
    t.out.add_vocab_size(n_vocab)
    # Gemma multiplies embeddings by sqrt(width); the others take them as they are.
    embd_std = spec.width ** -0.5 if spec.arch in SCALED_EMBEDDING else 1.0
    t.matrix("token_embd.weight", n_vocab, spec.width, spec.embd_type, embd_std)
    add_rope_tensors(t, spec)
    for i in range(spec.layers):
        add_layer(t, spec, i)
    t.vector("output_norm.weight", spec.width, 1.0)
    if not spec.tied:
        t.matrix("output.weight", n_vocab, spec.width, spec.embd_type, 3 * spec.width ** -0.5)
    t.out.write_header_to_file()
    t.out.write_kv_data_to_file()
    t.out.write_tensors_to_file()
    t.out.close()


def main(argv):
    d = Spec()
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("path", help="file to write")
    p.add_argument("--arch", choices=ARCHS, default=d.arch)
    for name in "seed layers width ff heads kv-heads head-dim context rope-orig-ctx rope-dim window " \
                "window-pattern split-tensors experts-used expert-ff".split():
        p.add_argument(f"--{name}", type=int, default=getattr(d, name.replace("-", "_"))
                       if name not in ("layers", "rope-orig-ctx") else 0)
    p.add_argument("--experts", type=int)
    p.add_argument("--expert-norm", action=argparse.BooleanOptionalAction)
    for name in "freq-base rope-factor final-softcap attn-softcap expert-scale".split():
        p.add_argument(f"--{name}", type=float, default=getattr(d, name.replace("-", "_")))
    p.add_argument("--types", type=lambda s: tuple(s.split(",")), default=d.types,
                   help="tensor types of the matrices, in turn: " + " ".join(TYPES))
    p.add_argument("--embd-type", choices=TYPES, default=d.embd_type)
    p.add_argument("--tied", action=argparse.BooleanOptionalAction)
    p.add_argument("--bias", action=argparse.BooleanOptionalAction)
    p.add_argument("--tokenizer", choices=("", "bpe", "spm"), default="")
    p.add_argument("--pre", default=d.pre)
    p.add_argument("--rope", choices=ROPES, default=d.rope,
                   help="scaling; freqs: factors of Llama 3 as a tensor")
    args = vars(p.parse_args(argv))
    path = args.pop("path")
    logging.getLogger("gguf").setLevel(logging.WARNING)
    try:
        write(path, Spec(**args))
    except (ValueError, KeyError, OSError) as e:
        p.error(str(e))


if __name__ == "__main__":
    main(sys.argv[1:])
