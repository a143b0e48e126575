#!/usr/bin/env python3
"""The engine's logits equal those of the independent forward pass: on tiny random models of every
architecture with every variant that its keys allow, and on real models where they are fetched
(smollm2-135m always, the others with SACCADE_TRUTH=all)."""
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import compare_logits
import forward

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import make_tiny  # noqa: E402

N_TOKENS = 150  # more than four pages, and three times the window of the tiny gemma3
ROPE_VARIANTS = {
    "plain": {},
    "base": dict(freq_base=500000.0),
    "partial": dict(rope_dim=16),
    "linear": dict(rope="linear"),
    "yarn": dict(rope="yarn", context=256),
    "longrope long": dict(rope="longrope", context=256),
    "longrope short": dict(rope="longrope", context=256, rope_orig_ctx=512),
    "llama3 factors": dict(rope="freqs"),
}
OTHER_VARIANTS = {
    "llama untied": dict(arch="llama", tied=False),
    "llama with biases": dict(arch="llama", bias=True),
    "llama multi-query": dict(arch="llama", kv_heads=1),
    "llama multi-head": dict(arch="llama", kv_heads=4),
    "llama wide heads": dict(arch="llama", head_dim=64),
    "qwen2 tied": dict(arch="qwen2", tied=True),
    "gemma3 capped logits": dict(arch="gemma3", final_softcap=3.0),
    "gemma3 capped scores": dict(arch="gemma3", attn_softcap=2.0),
    "gemma3 other pattern": dict(arch="gemma3", window_pattern=2, window=17),
    "gemma3 12 layers": dict(arch="gemma3", layers=12),
    "gemma2 capped logits": dict(arch="gemma2", final_softcap=3.0),
    "gemma2 capped scores": dict(arch="gemma2", attn_softcap=2.0),
    "gemma2 other window": dict(arch="gemma2", layers=5, window=17),
    "phi3 heads of 96": dict(arch="phi3", width=384, kv_heads=4, head_dim=96),
    "phi3 without a window": dict(arch="phi3", window=0),
    "phi3 partial LongRoPE": dict(arch="phi3", rope="longrope", context=256, rope_dim=16),
    "phi3 window and LongRoPE": dict(arch="phi3", rope="longrope", context=256, window=70),
    "phi3 types": dict(arch="phi3", width=256, head_dim=64, types=("Q4_K", "Q6_K", "Q5_0")),
    "phi3 tied": dict(arch="phi3", tied=True),
    "glm4 partial, with biases": dict(arch="glm4", bias=True, rope_dim=16),
    "mixtral": dict(arch="llama", experts=8, experts_used=2, ff=128),
    "one expert": dict(arch="llama", experts=1, experts_used=1),
    "one expert of 40": dict(arch="qwen3moe", experts=40, experts_used=1),
    "all experts": dict(arch="qwen3moe", experts_used=8),
    "qwen2moe with norm and scale": dict(arch="qwen2moe", expert_norm=True, expert_scale=2.5),
    "qwen3moe without norm": dict(arch="qwen3moe", expert_norm=False),
    "types": dict(arch="llama", width=256, head_dim=64, types=("Q4_K", "Q6_K", "Q5_K", "Q3_K", "Q2_K")),
    "types of experts": dict(arch="qwen3moe", width=256, head_dim=64, expert_ff=256,
                             types=("Q4_K", "Q6_K", "Q5_K", "Q3_K", "Q2_K")),
    "more types of experts": dict(arch="qwen2moe", types=("Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16",
                                                          "F32", "IQ4_NL")),
    "more types": dict(arch="qwen2", types=("Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16", "F32")),
}
MIXTURES = {
    "mixtral": dict(arch="llama", experts=8, experts_used=2, ff=128),
    "qwen2moe": dict(arch="qwen2moe"),
    "qwen3moe": dict(arch="qwen3moe", experts=24, experts_used=5),
}
# What the caller of sac_model_load may put in place of the file's scaling.
OVERRIDES = {
    "none": dict(rope="none"),
    "linear": dict(rope="linear", rope_scale=3.0),
    "yarn": dict(rope="yarn", rope_scale=4.0, yarn_orig=64),
    "base": dict(rope_base=12345.0),
}
# As the models of these architectures are, but for their sizes: heads, windows, caps, factors.
LIKE_REAL = {
    "phi3 (3.5-mini)": dict(arch="phi3", width=384, kv_heads=4, head_dim=96, window=0, rope="longrope",
                            context=256),
    "phi3 (mini-4k)": dict(arch="phi3", width=384, kv_heads=4, head_dim=96),
    "phi3 (4-mini)": dict(arch="phi3", width=512, head_dim=128, window=0, rope="longrope", context=256,
                          rope_dim=96, tied=True),
    "gemma2": dict(arch="gemma2", heads=2, kv_heads=1, head_dim=256, attn_softcap=20.0),
    "glm4": dict(arch="glm4", width=512, head_dim=128, rope_dim=64),
    "internlm2": dict(arch="internlm2", width=512, head_dim=128),
}
# A CPU takes its time to be a GPU.
ON_A_GPU = {
    "phi3 window": dict(arch="phi3", heads=2, kv_heads=1, head_dim=64),
    "phi3 LongRoPE": dict(arch="phi3", heads=2, kv_heads=1, head_dim=64, window=0, rope="longrope",
                          context=256, rope_dim=48),
    "gemma2": dict(arch="gemma2", layers=2, heads=2, kv_heads=1, head_dim=64, attn_softcap=20.0),
    "glm4": dict(arch="glm4", heads=2, kv_heads=1, head_dim=64, rope_dim=32),
}
# What fast kernels and a cache of 8 bits may change, in parts of the range of the logits. Without
# its window, say, a model's logits change by several times as much.
TOLERANCE_FAST, TOLERANCE_Q8 = 5e-3, 0.1
TOLERANCE_BF16 = 0.12  # AVX-512 and AMX round inputs of linear layers to bf16: 0.08 was seen, with gemma2
FAST_SETS = ("avx2", None) if platform.machine() == "x86_64" else (None,)
CUDA_HOST = (compare_logits.BUILD / "tests" / "libcuda_host.so").absolute()
FLAGS = {"rope": "--rope", "rope_scale": "--rope-scale", "rope_base": "--rope-base",
         "yarn_orig": "--yarn-orig-ctx"}


class TinyModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name) / "tiny.gguf"

    def make(self, **spec):
        make_tiny.write(self.path, make_tiny.Spec(**spec))
        n_vocab = len(forward.Model(self.path).weight("token_embd.weight"))
        return np.random.default_rng(7).integers(0, n_vocab, N_TOKENS).tolist()

    def engine_logits(self, *options, **where):
        """By one thread unless the options say otherwise, since other tests run beside this one."""
        return compare_logits.engine_logits(self.path, self.tokens, "--threads", "1", *options, **where)

    def assert_agrees(self, expected, *options, isa="ref"):
        result = compare_logits.compare(expected, self.engine_logits(*options, isa=isa))
        print(f"{self.label}: {result}", flush=True)
        self.assertTrue(result.agrees_but_for_ties(), f"{self.label}: {result}")

    def check(self, label, spec, overrides=None, options=()):
        self.label, self.tokens = label, self.make(**spec)
        expected = forward.Model(self.path, **(overrides or {})).logits(self.tokens)
        with self.subTest(label):
            self.assert_agrees(expected, *options)
        return expected

    def test_rope_variants_of_every_architecture(self):
        for arch in make_tiny.ARCHS:
            plain = None
            for name, spec in ROPE_VARIANTS.items():
                expected = self.check(f"{arch} {name}", dict(arch=arch) | spec)
                if plain is None:
                    plain = expected
                else:
                    # The same weights with another rotation: the comparison can tell them apart.
                    result = compare_logits.compare(plain, expected)
                    self.assertGreater(result.difference, 10 * compare_logits.TOLERANCE, name)

    def test_other_variants(self):
        for label, spec in OTHER_VARIANTS.items():
            self.check(label, spec)

    def test_overrides(self):
        for arch in "llama", "gemma3":
            for name, overrides in OVERRIDES.items():
                options = [word for key, value in overrides.items()
                           for word in (FLAGS[key], str(value))]
                self.check(f"{arch} in place of yarn: {name}", dict(arch=arch, rope="yarn"), overrides,
                           options)

    def test_decode_rows_and_chunks(self):
        for arch in make_tiny.ARCHS:
            self.label, self.tokens = arch, self.make(arch=arch)
            expected = forward.Model(self.path).logits(self.tokens)
            for options in ("--kind", "decode"), ("--chunk", "7"), ("--threads", "2"), ("--kv", "f16"):
                self.label = f"{arch} {' '.join(options)}"
                with self.subTest(self.label):
                    self.assert_agrees(expected, *options)

    def test_mixtures_with_fast_kernels(self):
        """Experts' rows in tiles and their outputs in pieces, whatever the kernels do."""
        if platform.machine() != "x86_64":
            self.skipTest("avx2 is of x86_64")
        for label, spec in MIXTURES.items():
            self.label, self.tokens = label, self.make(**spec)
            expected = forward.Model(self.path).logits(self.tokens)
            for options in ((), ("--kind", "decode"), ("--chunk", "40"), ("--threads", "3")):
                self.label = f"{label} avx2 {' '.join(options)}"
                with self.subTest(self.label):
                    self.assert_agrees(expected, *options, isa="avx2")

    def test_brain_floats_in_the_cache(self):
        self.label, self.tokens = "llama bf16", self.make(arch="llama")
        model = forward.Model(self.path)
        self.assert_agrees(model.logits(self.tokens, kv_type=forward.bfloat16), "--kv", "bf16")
        # The two roundings differ by more than the tolerance: the test can tell them apart.
        other = compare_logits.compare(model.logits(self.tokens),
                                       model.logits(self.tokens, kv_type=forward.bfloat16))
        self.assertGreater(other.difference, compare_logits.TOLERANCE)

    def assert_near(self, tolerance, expected, *options, **where):
        result = compare_logits.compare(expected, self.engine_logits(*options, **where))
        print(f"{self.label} {' '.join(options)} {where}: {result}", flush=True)
        self.assertTrue(result.is_within(tolerance), f"{self.label} {options} {where}: {result}")

    def test_shapes_of_real_models(self):
        for self.label, spec in LIKE_REAL.items():
            self.tokens = self.make(**spec)
            model = forward.Model(self.path)
            expected = model.logits(self.tokens)
            for kind in "prompt", "decode":
                with self.subTest(self.label, kind=kind):
                    self.assert_agrees(expected, "--kind", kind)
                    for isa in FAST_SETS:
                        tolerance = TOLERANCE_FAST if isa == "avx2" else TOLERANCE_BF16
                        self.assert_near(tolerance, expected, "--kind", kind, isa=isa)
                    for isa in "ref", FAST_SETS[0]:
                        self.assert_near(TOLERANCE_Q8, expected, "--kind", kind, "--kv", "q8", isa=isa)
            if model.window:
                model.window = 0
                other = compare_logits.compare(expected, model.logits(self.tokens))
                self.assertGreater(other.difference, 2 * TOLERANCE_Q8, self.label)

    def test_scores_of_the_27b_model(self):
        """Gemma 2 27B is told by its 46 layers, through which roundings grow."""
        self.label, self.tokens = "gemma2 27B", self.make(arch="gemma2", layers=46, head_dim=64)[:60]
        model = forward.Model(self.path)
        expected = model.logits(self.tokens)
        self.assert_near(TOLERANCE_Q8, expected)
        model.query_scale = lambda: model.head_dim ** -0.5
        other = compare_logits.compare(expected, model.logits(self.tokens))
        self.assertGreater(other.difference, 2 * TOLERANCE_Q8)

    @unittest.skipUnless(CUDA_HOST.exists(), "build the CUDA kernels for the CPU: cuda_host")
    def test_on_a_gpu(self):
        for self.label, spec in ON_A_GPU.items():
            self.tokens = self.make(**spec)[:80]  # more than the window and LongRoPE's context
            expected = forward.Model(self.path).logits(self.tokens)
            for kind, kv, tolerance in (("prompt", "f16", TOLERANCE_FAST), ("decode", "q8", TOLERANCE_Q8)):
                with self.subTest(self.label, kind=kind):
                    self.assert_near(tolerance, expected, "--kind", kind, "--kv", kv, "--device", "cuda",
                                     isa=None, library=CUDA_HOST)

    @unittest.skipUnless(CUDA_HOST.exists(), "build the CUDA kernels for the CPU: cuda_host")
    def test_heads_of_96_are_refused_on_a_gpu(self):
        self.make(**LIKE_REAL["phi3 (mini-4k)"])
        self.assert_refused("heads of 96: a GPU reads heads of 64, 128 and 256")

    def assert_refused(self, text):
        done = subprocess.run([compare_logits.BUILD / "tests" / "logits_dump", self.path, "--device",
                               "cuda"], input=b"1 2 3", capture_output=True,
                              env=os.environ | {"SACCADE_CUDA": str(CUDA_HOST)})
        self.assertEqual(done.returncode, 1)
        self.assertIn(text, done.stderr.decode())

    def test_comparison_sees_a_difference(self):
        a = np.random.default_rng(1).standard_normal((4, 50)).astype(np.float32)
        self.assertTrue(compare_logits.compare(a, a).agrees())
        for row, change in ((3, 0.1), (0, np.nan)):
            b = a.copy()
            b[row, 7] += change
            self.assertFalse(compare_logits.compare(a, b).agrees())


class RealModels(unittest.TestCase):
    def check(self, name):
        if not (compare_logits.MODELS / f"{name}.gguf").exists() or not compare_logits.ESSAYS.exists():
            self.skipTest(f"make model NAME={name}; make text NAME=essays")
        result = compare_logits.compare_model(name, 256)
        print(f"{name}: {result}", flush=True)
        self.assertTrue(result.agrees(), f"{name}: {result}")

    def test_smollm2(self):
        self.check("smollm2-135m")

    @unittest.skipUnless(os.environ.get("SACCADE_TRUTH") == "all", "make truth runs all models")
    def test_the_others(self):
        for name in compare_logits.NAMES[1:]:
            with self.subTest(name):
                self.check(name)


if __name__ == "__main__":
    unittest.main()
