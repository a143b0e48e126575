#!/usr/bin/env python3
"""docs/methods is what the program says of its methods today. Pages that list the methods with a
property list those that have it."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
sys.path.insert(0, str(ROOT / "tools"))
import make_methods  # noqa: E402


class MethodsDocsTest(unittest.TestCase):
    def test_pages_are_fresh(self):
        for name, text in make_methods.pages(os.environ["SACCADE_BIN"]).items():
            self.assertEqual((ROOT / "docs" / "methods" / name).read_text(), text,
                             f"{name}: run tools/make_methods.py")

    def assert_lists(self, page, first, last, kind, key, value):
        """The names in backquotes between two phrases of a page are the methods with key = value."""
        text = (ROOT / page).read_text()
        part = text[text.index(first) + len(first):]
        told = subprocess.run([os.environ["SACCADE_BIN"], "methods", "-o", "json"], check=True,
                              capture_output=True, text=True)
        want = sorted(m["name"] for m in json.loads(told.stdout)
                      if m["kind"] == kind and m[key] == value)
        self.assertEqual(sorted(re.findall(r"`([\w-]+)`", part[:part.index(last)])), want, page)

    def test_lists_of_methods_are_whole(self):
        self.assert_lists("docs/what_runs.md", "plan a chunk as a whole:", ".", "prefill", "any_chunk", False)
        self.assert_lists("docs/cli.md", "methods that plan chunk by chunk (", ")", "prefill", "any_chunk", False)
        self.assert_lists("docs/eval.md", "or hold all of the prompt:", "(`needs_question`", "decode",
                          "needs_question", True)

    def test_methods_of_gpus_are_whole(self):
        page = (ROOT / "docs" / "gpu.md").read_text()
        told = subprocess.run([os.environ["SACCADE_BIN"], "methods", "-o", "json"], check=True,
                              capture_output=True, text=True)
        methods = [m for m in json.loads(told.stdout) if m["name"] not in ("dense", "full")]
        for kind in ("prefill", "decode"):
            row = re.search(rf"^\| `--{kind}` \|(.*)$", page, re.M).group(1)
            self.assertEqual(sorted(re.findall(r"`([\w-]+)`", row)),
                             sorted(m["name"] for m in methods if m["kind"] == kind and m["runs_on"] == "any"))
        row = re.search(r"^\| `--context` \| all but(.*)$", page, re.M).group(1)
        self.assertEqual(re.findall(r"`([\w-]+)`", row),
                         [m["name"] for m in methods if m["kind"] == "context" and m["runs_on"] == "cpu"])


if __name__ == "__main__":
    unittest.main()
