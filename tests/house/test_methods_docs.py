#!/usr/bin/env python3
"""docs/methods is what the program says of its methods today, and the example of
docs/adding_a_method.md is a method: it compiles under the warnings of the sources. Pages that list
the methods with a property list those that have it."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
sys.path.insert(0, str(ROOT / "tools"))
import make_methods  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wstrict-prototypes",
            "-Wmissing-prototypes", "-Wvla", "-Werror"]


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
        self.assert_lists("docs/eval.md", "or hold all of the prompt:", "(`needs_question`", "decode",
                          "needs_question", True)

    def compile(self, source):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "example.c")
            path.write_text(source)
            done = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-D_GNU_SOURCE", *WARNINGS,
                                   f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-c", path, "-o",
                                   pathlib.Path(folder, "example.o")],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_examples_compile(self):
        page = (ROOT / "docs" / "adding_a_method.md").read_text()
        decode, prefill = (part.split("```")[0] for part in page.split("```c\n")[1:])
        self.assertLessEqual(decode.count("\n"), 60)
        # The line that methods.def would get, and what the second one takes for granted.
        self.compile('#include "methods/method.h"\nextern const struct method stride_method;\n' + decode)
        self.compile('#include "methods/plan.h"\nenum { SINK, WINDOW };\n' + prefill +
                     "extern const struct method near_method;\n"
                     "const struct method near_method = {.prefill = &hooks};\n")


if __name__ == "__main__":
    unittest.main()
