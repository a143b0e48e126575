#!/usr/bin/env python3
"""docs/methods is what the program says of its methods today, and the example of
docs/adding_a_method.md is a method: it compiles under the warnings of the sources."""
import os
import pathlib
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

    def test_the_example_compiles(self):
        page = (ROOT / "docs" / "adding_a_method.md").read_text()
        source = page.split("```c\n")[1].split("```")[0]
        self.assertLessEqual(source.count("\n"), 60)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "stride.c")
            # The line that methods.def would get.
            path.write_text('#include "methods/method.h"\nextern const struct method stride_method;\n'
                            + source)
            done = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-D_GNU_SOURCE", *WARNINGS,
                                   f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-c", path, "-o",
                                   pathlib.Path(folder, "stride.o")],
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
