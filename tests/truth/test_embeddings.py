#!/usr/bin/env python3
"""Vectors of /v1/embeddings and /embedding equal those of the independent forward pass, for each kind of pooling, with
texts of many lengths in one request: shorter than a page, and longer than a step."""
import os
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import forward

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/serve")]
import make_tiny  # noqa: E402
from server import Server  # noqa: E402

# By the reference kernels: those of AVX-512 and AMX round weights' inputs to bf16, ten times as coarse (test_forward.py
# compares them).
os.environ["SAC_CPU"] = "ref"

# Of vectors of length 1: kernels round queries and rows that the other computes in float64. The largest difference seen
# is 1e-4. Rows that are not normalised agree as logits do (compare_logits.py), to 1e-3 of the largest value.
TOLERANCE, MIXTURE_TOLERANCE, ROW_TOLERANCE = 3e-4, 1e-3, 1e-3  # shares of experts are rounded, too
LENGTHS = 1, 2, 31, 32, 33, 150, 5, 64, 7, 100, 3, 40  # more than are computed at a time
POOL = {"mean": lambda x: x.mean(axis=0), "last": lambda x: x[-1], "cls": lambda x: x[0]}


def unit(x):
    return x / np.sqrt((x * x).sum())


class Embeddings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "tiny.gguf"

    def make(self, arch):
        make_tiny.write(self.path, make_tiny.Spec(arch=arch))
        self.model = forward.Model(self.path)
        rng = np.random.default_rng(3)
        n_vocab = len(self.model.weight("token_embd.weight"))
        self.texts = [rng.integers(0, n_vocab, n).tolist() for n in LENGTHS]

    def serve(self, pooling, *args):
        return Server("-m", str(self.path), "--embeddings", "--pooling", pooling, *args, n_ctx=256)

    def assert_near(self, got, expected, label, tolerance=TOLERANCE):
        difference = np.abs(np.asarray(got) - expected).max()
        print(f"{label}: {difference:.1e}", flush=True)
        self.assertLess(difference, tolerance, label)

    def test_poolings_of_every_architecture(self):
        for arch in make_tiny.ARCHS:
            self.make(arch)
            states = [self.model.states(text) for text in self.texts]
            for pooling, pool in POOL.items() if arch == "llama" else [("mean", POOL["mean"])]:
                with self.serve(pooling, "-b", "48") as server:
                    reply = server.answer("/v1/embeddings", {"input": self.texts})
                self.assertEqual([d["index"] for d in reply["data"]], list(range(len(LENGTHS))))
                self.assertEqual(reply["usage"], {"prompt_tokens": sum(LENGTHS), "total_tokens": sum(LENGTHS)})
                for got, x in zip(reply["data"], states):
                    self.assert_near(got["embedding"], unit(pool(x)), f"{arch} {pooling} {len(x)}",
                                     MIXTURE_TOLERANCE if arch.endswith("moe") else TOLERANCE)

    def test_comparison_sees_another_token(self):
        self.make("llama")
        for text in self.texts:
            other = [*text[:-1], (text[-1] + 1) % 200]
            for name, pool in POOL.items():
                if name != "cls" or len(text) == 1:
                    a, b = (unit(pool(self.model.states(t))) for t in (text, other))
                    self.assertGreater(np.abs(a - b).max(), 5 * TOLERANCE, (name, len(text)))

    def test_nothing_pooled(self):
        self.make("llama")
        with self.serve("none") as server:
            reply = server.answer("/embedding", {"input": self.texts})
            self.assertIn("/embedding can", server.refusal(400, "/v1/embeddings", {"input": "a"})["message"])
        for got, text in zip(reply, self.texts):
            x = self.model.states(text)
            self.assertEqual(np.asarray(got["embedding"]).shape, x.shape)
            self.assert_near(np.asarray(got["embedding"]) / np.abs(x).max(), x / np.abs(x).max(),
                             f"none {len(text)}", ROW_TOLERANCE)


if __name__ == "__main__":
    unittest.main()
