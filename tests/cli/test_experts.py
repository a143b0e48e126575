#!/usr/bin/env python3
"""Files with mixtures of experts: what is missing, misshapen or not built in is told by name, in one
line."""
import os
import sys
import tempfile
import unittest

try:
    import gguf  # noqa: F401
except ImportError:
    print("gguf is not installed")
    sys.exit(77)

from cli import ROOT, saccade

sys.path.insert(0, str(ROOT / "tools"))
import make_tiny  # noqa: E402


class Odd(make_tiny.Writer):
    """Leaves out one tensor of the model, or gives it another shape."""
    missing = None
    shapes = {}

    def vector(self, name, n, *args, **kwargs):
        if name != self.missing:
            super().vector(name, n, *args, **kwargs)

    def matrix(self, name, n_out, n_in, *args, n=0, **kwargs):
        n, n_out, n_in = self.shapes.get(name, (n, n_out, n_in))
        if name != self.missing:
            super().matrix(name, n_out, n_in, *args, n=n, **kwargs)


class Experts(unittest.TestCase):
    def run_file(self, missing=None, shapes=None, keys=(), **spec):
        """What the program says of a file; `keys` in place of those that the maker writes."""
        class Changed(Odd):
            def __init__(self, path, spec):
                super().__init__(path, spec)
                self.missing, self.shapes = missing, shapes or {}

        def add_keys(w, s, add=make_tiny.add_keys):
            add(w, s)
            for name, value in keys:
                w.kv_data[0].pop(f"{s.arch}.{name}", None)
                if value is not None:
                    w.add_uint32(f"{s.arch}.{name}", value)
        before = make_tiny.Writer, make_tiny.add_keys
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tiny.gguf")
            make_tiny.Writer, make_tiny.add_keys = Changed, add_keys
            try:
                make_tiny.write(path, make_tiny.Spec(**{"arch": "qwen3moe", **spec}))
            finally:
                make_tiny.Writer, make_tiny.add_keys = before
            return saccade("run", "-m", path, "-p", "a", "-n", "2", "--temp", "0", "--raw")

    def assert_refused(self, words, **file):
        done = self.run_file(**file)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_good_files_run(self):
        for arch in "qwen2moe", "qwen3moe":
            self.assertEqual(self.run_file(arch=arch).returncode, 0)
        self.assertEqual(self.run_file(arch="llama", experts=4, experts_used=2).returncode, 0)
        # Keys that say what is so anyway.
        plain = (("expert_gating_func", 1), ("expert_group_count", 1), ("leading_dense_block_count", 0))
        self.assertEqual(self.run_file(keys=plain).returncode, 0)

    def test_keys(self):
        used, count = "qwen3moe.expert_used_count", "qwen3moe.expert_count"
        for value in 0, 9:
            self.assert_refused(f"key {used} is {value}, must be 1 to 8", keys=[("expert_used_count", value)])
        self.assert_refused(used, keys=[("expert_used_count", None)])
        for value in 0, 1025:
            self.assert_refused(f"key {count} is {value}, must be 1 to 1024", keys=[("expert_count", value)])
        self.assert_refused(count, keys=[("expert_count", None)])
        self.assert_refused("key qwen3moe.expert_feed_forward_length gives a width of 48, which must be a "
                            "multiple of 32", keys=[("expert_feed_forward_length", 48)])
        for key, value in ("expert_gating_func", 2), ("expert_group_count", 4), \
                          ("leading_dense_block_count", 1):
            self.assert_refused(f"key qwen3moe.{key} is {value}: only a softmax over all experts, in all "
                                "layers, is built in", keys=[(key, value)])
        self.assert_refused("key qwen3.expert_count is 8: mixtures of experts are not built in for qwen3",
                            arch="qwen3", keys=[("expert_count", 8)])

    def test_widths_that_the_file_leaves_out(self):
        """The dense width is then that of all of a token's experts together."""
        self.assertEqual(self.run_file(ff=192, expert_ff=64,
                                       keys=[("expert_feed_forward_length", None)]).returncode, 0)
        self.assertEqual(self.run_file(arch="qwen2moe", keys=[
            ("expert_shared_feed_forward_length", None)]).returncode, 0)
        self.assert_refused("key qwen3moe.feed_forward_length gives a width of 85", ff=256,
                            keys=[("expert_feed_forward_length", None)])

    def test_missing_tensors(self):
        names = ["gate_inp", "gate_exps", "up_exps", "down_exps"]
        for name in [*names, "gate_inp_shexp", "gate_shexp", "up_shexp", "down_shexp"]:
            tensor = f"blk.1.ffn_{name}.weight"
            self.assert_refused(f"tensor {tensor} is missing", arch="qwen2moe", missing=tensor)
        self.assert_refused("tensor blk.0.ffn_gate_inp.weight is missing", arch="llama", experts=4,
                            missing="blk.0.ffn_gate_inp.weight")

    def test_misshapen_tensors(self):
        for name, found, right in (("gate_inp", (0, 7, 128), (0, 8, 128)),
                                   ("gate_exps", (7, 96, 128), (8, 96, 128)),
                                   ("up_exps", (8, 64, 128), (8, 96, 128)),
                                   ("down_exps", (8, 96, 128), (8, 128, 96)),
                                   ("down_exps", (0, 1024, 96), (8, 128, 96))):
            tensor = f"blk.1.ffn_{name}.weight"
            is_, asked = (str([n for n in shape if n]) for shape in (found, right))
            self.assert_refused(f"tensor {tensor} is {is_}, the model's keys ask for {asked}",
                                shapes={tensor: found})


if __name__ == "__main__":
    unittest.main()
