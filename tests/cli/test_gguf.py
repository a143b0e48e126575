#!/usr/bin/env python3
"""`saccade gguf`: what it shows equals what an independent reader finds, and what is wrong with a
file is told with exit code 1."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

try:
    import gguf
except ImportError:
    print("gguf is not installed")
    sys.exit(77)

from cli import ROOT, saccade

sys.path.insert(0, str(ROOT / "tools"))
import make_tiny  # noqa: E402


class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "tiny.gguf")
        make_tiny.write(cls.path, make_tiny.Spec(arch="gemma3", layers=2, rope="linear",
                                                 types=("Q4_0", "Q5_1", "BF16")))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def shown(self, *args):
        done = saccade("gguf", "-o", "json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_keys_and_tensors_equal_an_independent_reader(self):
        found, reader = self.shown("--full", self.path), gguf.GGUFReader(self.path)
        fields = {k: v for k, v in reader.fields.items() if not k.startswith("GGUF.")}
        self.assertEqual([k["name"] for k in found["keys"]], list(fields))
        for key in found["keys"]:
            want = fields[key["name"]].contents()
            if key["type"] == "f32":
                self.assertEqual([f"{v:.6g}" for v in (key["value"] if key["array"] else [key["value"]])],
                                 [f"{v:.6g}" for v in (want if key["array"] else [want])])
            else:
                self.assertEqual(key["value"], want, key["name"])
        self.assertEqual(
            [(t["name"], t["type"], t["shape"], t["bytes"], t["offset"]) for t in found["tensors"]],
            [(t.name, t.tensor_type.name, [int(n) for n in t.shape], t.n_bytes, t.data_offset)
             for t in reader.tensors])
        self.assertEqual(found["file_bytes"], os.path.getsize(self.path))

    def test_arrays_are_shortened_and_their_length_told(self):
        key = next(k for k in self.shown(self.path)["keys"] if k["name"] == "tokenizer.ggml.tokens")
        self.assertEqual((key["n"], len(key["value"])), (300, 6))
        self.assertIn('str[300]     ["<unk>", "<s>", "</s>",', saccade("gguf", self.path).stdout)

    def test_a_template_that_is_missing_can_be_named(self):
        done = saccade("run", "-m", self.path, "-p", "x", "-n", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no chat template: name a built-in one, chatml, llama2", done.stderr)
        self.assertIn("(--chat-template NAME), or go without one (--raw)", done.stderr)
        self.assertEqual(saccade("run", "-m", self.path, "-p", "x", "-n", "1", "--chat-template", "chatml").returncode, 0)

    def test_parts_are_one_model(self):
        stem = pathlib.Path(self.folder.name, "cut")
        make_tiny.write(f"{stem}.gguf", make_tiny.Spec(split_tensors=8))
        whole = f"{stem}-whole.gguf"
        make_tiny.write(whole, make_tiny.Spec())
        parts, one = self.shown(f"{stem}-00002-of-00003.gguf"), self.shown(whole)
        self.assertEqual((parts["n_part"], one["n_part"]), (3, 1))
        self.assertEqual([t["name"] for t in parts["tensors"]], [t["name"] for t in one["tensors"]])
        self.assertEqual({t["part"] for t in parts["tensors"]}, {0, 1, 2})
        done = saccade("gguf", "check", f"{stem}-00003-of-00003.gguf")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("in 3 files", done.stdout)

    def test_check(self):
        done = saccade("gguf", "check", self.path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"tiny\.gguf: ok: version 3, alignment 32, \d+ keys, \d+ tensors")
        report = json.loads(saccade("gguf", "check", "-o", "json", self.path).stdout)
        self.assertIs(report["ok"], True)

    def test_what_is_wrong_is_told(self):
        cut = os.path.join(self.folder.name, "short.gguf")
        data = pathlib.Path(self.path).read_bytes()
        pathlib.Path(cut).write_bytes(data[:-1])
        for command in (("check", cut), (cut,)):
            done = saccade("gguf", *command)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"short\.gguf: tensor '[\w.]+': \d+ bytes at offset \d+ pass")
        done = saccade("gguf", "check", "-o", "json", cut)
        self.assertEqual(done.returncode, 1)
        report = json.loads(done.stdout)
        self.assertIs(report["ok"], False)
        self.assertIn("short.gguf: tensor", report["error"])

    def test_usage(self):
        for args, says in (((), "a FILE is missing"), (("a", "b"), "unexpected argument 'b'"),
                           (("-o", "xml", "a"), "xml"), (("--every", "a"), "--every")):
            done = saccade("gguf", *args)
            self.assertEqual(done.returncode, 2)
            self.assertIn(says, done.stderr)
        done = saccade("gguf", "absent.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertIn("absent.gguf: No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
