#!/usr/bin/env python3
"""Token ids equal those of another engine, llama.cpp's llama-tokenize: for every pre-tokeniser on the
hard cases (with the vocabulary of smollm2-135m), and for every fetched model on the essays (644 KB).

Its ids are kept as checksums in tests/golden/tokenizer.json, and whole for the hard cases of each
model in tests/golden/tokens (test_tokenizer_golden.c reads those). Where llama-tokenize itself is
there ($LLAMA_TOKENIZE), random text is compared as well, and `test_tokenizer.py --write` writes all
golden files anew; it needs the `gguf` package and all models.
"""
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
import unittest

ROOT = pathlib.Path(os.environ.get("SACCADE_ROOT", pathlib.Path(__file__).parents[2]))
SACCADE = os.environ.get("SACCADE_BIN", str(ROOT / "build" / "saccade"))
HARD = ROOT / "tests" / "truth" / "hard_cases.txt"
GOLDEN = ROOT / "tests" / "golden" / "tokenizer.json"
GOLDEN_IDS = ROOT / "tests" / "golden" / "tokens"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODELS = pathlib.Path(os.environ.get("SACCADE_MODELS") or CACHE / "saccade" / "models")
ESSAYS = MODELS / "texts" / "essays.txt"
PEER = pathlib.Path(os.environ.get("LLAMA_TOKENIZE")
                    or CACHE / "saccade-peers" / "llama" / "bin" / "llama-tokenize")
NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma-3-270m"]
SMALL = "smollm2-135m"


def run(*command):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SACCADE_ARG_")}
    done = subprocess.run(list(map(str, command)), capture_output=True, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
    return json.loads(done.stdout)


def ours(model, text, *more):
    return run(SACCADE, "tokenize", "--raw", "-m", model, "-f", text, *more)


def peers(model, text, *more):
    return run(PEER, "-m", model, "-f", text, "--ids", "--no-escape", "--log-disable", *more)


def checksum(ids):
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def pre_names():
    """Every name of the table in pretok.c."""
    source = (ROOT / "src" / "model" / "pretok.c").read_text()
    table = source.split("rows[] = {")[1].split("\n};")[0]
    lists = re.findall(r'^    \{((?:\s*"[^"]*")+),', table, re.MULTILINE)
    names = "".join("".join(re.findall(r'"([^"]*)"', group)) + " " for group in lists).split()
    assert len(names) > 50, names
    return names


def write_vocabulary(path, pre):
    """A file with the vocabulary of the small model, no weights, and another pre-tokeniser."""
    import gguf  # only needed here
    fields = gguf.GGUFReader(MODELS / f"{SMALL}.gguf").fields
    writer = gguf.GGUFWriter(path, fields["general.architecture"].contents())
    for key, field in fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = pre if key == "tokenizer.ggml.pre" else field.contents()
        sub = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, value, field.types[0], sub_type=sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def random_text(seed):
    """Characters of all categories, and what pre-tokenisers cut at, in no order."""
    rng = random.Random(seed)
    kinds = {}
    for code in range(0x80, 0x30000):
        kinds.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    for unwanted in ("Cs", "Cn"):
        kinds.pop(unwanted, None)
    # U+180E is a blank to some libraries and not to others; hard_cases.txt has it.
    kinds["Cf"].remove("\u180e")
    pick = [
        lambda: rng.choice(" \n\t\r'"), lambda: chr(rng.randrange(0x20, 0x7f)),
        lambda: rng.choice("sStTrReEvVmMlLdD'"), lambda: rng.choice("0123456789") * rng.randint(1, 5),
        lambda: rng.choice(kinds[rng.choice(sorted(kinds))]),
        lambda: rng.choice(["don't", "I'LL", "\u3000", "x" * rng.randint(1, 70),
                            " " * rng.randint(1, 9), "\n" * rng.randint(1, 5)]),
    ]
    return "".join(rng.choices(pick, weights=[20, 25, 10, 10, 30, 5])[0]() for _ in range(4000))


class Golden(unittest.TestCase):
    def setUp(self):
        self.golden = json.loads(GOLDEN.read_text())

    def test_pre_tokenisers(self):
        self.assertEqual(sorted(self.golden["pre"]), sorted(pre_names()))
        for name, want in self.golden["pre"].items():
            with self.subTest(name):
                self.assertEqual(checksum(ours(SMALL, HARD, "--override-pre", name, "--no-bos")), want)

    def test_essays(self):
        if not ESSAYS.exists():
            self.skipTest(f"{ESSAYS} is missing: make text NAME=essays")
        for name in NAMES:
            with self.subTest(name):
                if not (MODELS / f"{name}.gguf").exists():
                    self.skipTest(f"{name} is not fetched")
                self.assertEqual(checksum(ours(name, ESSAYS)), self.golden["essays"][name])

    def test_options(self):
        """The golden files of the hard cases, through the program."""
        for flags, suffix in (([], ""), (["--no-bos", "--no-parse-special"], ".plain")):
            want = json.loads((GOLDEN_IDS / f"{SMALL}{suffix}.ids").read_text())
            self.assertEqual(ours(SMALL, HARD, *flags), want)


@unittest.skipUnless(PEER.exists(), f"no {PEER}")
class Peer(unittest.TestCase):
    def test_random_text(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "random.txt")
            for seed in range(5):
                text.write_text(random_text(seed), newline="")
                for name in NAMES:
                    model = MODELS / f"{name}.gguf"
                    if model.exists():
                        self.assertEqual(ours(model, text), peers(model, text), (name, seed))

    def test_random_bytes(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "random.txt")
            for seed in range(5):
                # No 0xf4 to 0xf7: they can announce code points that the peer gives up on.
                data = bytes(b for b in random.Random(seed).randbytes(4000) if not 0xf4 <= b <= 0xf7)
                text.write_bytes(data)
                for name in NAMES:
                    model = MODELS / f"{name}.gguf"
                    if model.exists():
                        self.assertEqual(ours(model, text), peers(model, text), (name, seed))


def write_golden():
    golden = {"pre": {}, "essays": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in pre_names():
            path = pathlib.Path(folder, "vocabulary.gguf")
            write_vocabulary(path, name)
            golden["pre"][name] = checksum(peers(path, HARD, "--no-bos"))
    for name in NAMES:
        model = MODELS / f"{name}.gguf"
        golden["essays"][name] = checksum(peers(model, ESSAYS))
        if name == "qwen2.5-coder-1.5b":  # the vocabulary of the 0.5B model
            continue
        for suffix, flags in (("", []), (".plain", ["--no-bos", "--no-parse-special"])):
            ids = peers(model, HARD, *flags)
            (GOLDEN_IDS / f"{name}{suffix}.ids").write_text(json.dumps(ids) + "\n")
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_golden()
    else:
        unittest.main()
