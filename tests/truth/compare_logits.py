#!/usr/bin/env python3
"""Compares the engine's logits with those of forward.py, position by position.

    compare_logits.py [MODEL...] [--n 256]      models by short name; without: all that are fetched

The engine runs with SAC_CPU=ref, so that only the model code is judged and not the rounding of fast
kernels, which have a comparison of their own. Agreement: the largest difference is below 1e-3 of the
range of the logits at that position, and the likeliest token is the same everywhere.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np

import forward

TOLERANCE = 1e-3
BUILD = pathlib.Path(os.environ.get("SACCADE_BUILD", "build"))
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
MODELS = pathlib.Path(os.environ.get("SACCADE_MODELS") or f"{CACHE}/saccade/models")
ESSAYS = MODELS / "texts" / "essays.txt"
NAMES = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma-3-270m")


class Result(NamedTuple):
    n: int
    difference: float  # the largest |a - b| / range, over all positions
    same_top: int      # positions where the likeliest token is the same
    lost_top: int      # positions where it is not, though it leads by more than the tolerance

    def agrees(self):
        return self.difference < TOLERANCE and self.same_top == self.n

    def agrees_but_for_ties(self):
        """For random weights, whose best two tokens are now and then equal in all but rounding."""
        return self.difference < TOLERANCE and self.lost_top == 0

    def is_within(self, tolerance):
        """For kernels and caches that round: nearer than that, whatever the likeliest token."""
        return self.difference < tolerance

    def __str__(self):
        return (f"{self.n} positions, largest difference {self.difference:.2e} of the range, "
                f"same top-1 at {self.same_top}")


def engine_logits(model_path, tokens, *options, isa="ref", library=None):
    """float32 [len(tokens), n_vocab] of the engine; isa None: the best of this CPU; library: what
    serves as a GPU's."""
    env = {k: v for k, v in os.environ.items() if k != "SAC_CPU"}
    env |= {"SAC_CPU": isa} if isa else {}
    env |= {"SACCADE_CUDA": str(library)} if library else {}
    with tempfile.TemporaryFile() as out:
        subprocess.run([BUILD / "tests" / "logits_dump", model_path, *options], check=True, stdout=out,
                       input=" ".join(map(str, tokens)).encode(), env=env)
        out.seek(0)
        return np.fromfile(out, dtype=np.float32).reshape(len(tokens), -1)


def compare(expected, found):
    if expected.shape != found.shape:
        raise ValueError(f"shapes differ: {expected.shape} and {found.shape}")
    spread = expected.max(axis=1) - expected.min(axis=1)
    difference = np.abs(expected.astype(np.float64) - found).max(axis=1) / spread
    same = expected.argmax(axis=1) == found.argmax(axis=1)
    best = np.partition(expected, -2, axis=1)[:, -2:]
    lost = ~same & (best[:, 1] - best[:, 0] > TOLERANCE * spread)
    # NaN must not pass: max() of an array with NaN is NaN, and NaN < TOLERANCE is false.
    return Result(len(expected), float(difference.max()), int(same.sum()), int(lost.sum()))


def essay_tokens(model_path, n):
    with tempfile.NamedTemporaryFile() as text:
        text.write(ESSAYS.read_bytes()[:16 * n])
        text.flush()
        done = subprocess.run([BUILD / "saccade", "tokenize", "--raw", "-m", model_path, "-f", text.name],
                              check=True, capture_output=True, text=True)
    return json.loads(done.stdout)[:n]


def compare_model(name, n):
    path = MODELS / f"{name}.gguf"
    tokens = essay_tokens(path, n)
    if len(tokens) != n:
        raise ValueError(f"{ESSAYS} gives {len(tokens)} tokens, not {n}")
    return compare(forward.Model(path).logits(tokens), engine_logits(path, tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--n", type=int, default=256)
    args = parser.parse_args()
    names = args.models or [m for m in NAMES if (MODELS / f"{m}.gguf").exists()]
    results = {}
    for name in names:
        results[name] = compare_model(name, args.n)
        print(f"{name}: {results[name]}", flush=True)
    return 0 if results and all(r.agrees() for r in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
