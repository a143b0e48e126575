#!/usr/bin/env python3
"""The two methods of docs/adding_a_method.md, copied out of the page as a reader would: each is a
file and a line in the list, compiles under the warnings of the sources, is as short as the page
promises, and keeps every promise that the tests ask of a method. The tests are linked again with a
table that has the two; nothing else is built anew. With SAC_TEST_LONG every C test runs so."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
BUILD = pathlib.Path(os.environ["SACCADE_BUILD"])
LONG = bool(os.environ.get("SAC_TEST_LONG"))
PAGE = (ROOT / "docs" / "adding_a_method.md").read_text()
# Tests that ask every method of the list, and what they ask these two alone.
TESTS = ["test_method", "test_needle", "test_not_finite", "test_plan", "test_window", "prop_methods",
         "prop_prefill"]
LINES = {"decode": 15, "prefill": 13}


def code_lines(source):
    """Lines that are neither empty nor comment."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    return sum(1 for line in source.splitlines() if line.strip())


class AddedMethodsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (BUILD / "build.ninja").exists():
            raise unittest.SkipTest("the build is not Ninja's")
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.source = dict(zip(("decode", "prefill"),
                              (part.split("```")[0] for part in PAGE.split("```c\n")[1:])))
        cls.name = {kind: re.search(r"const struct method (\w+)_method", source).group(1)
                    for kind, source in cls.source.items()}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def do(self, command, **more):
        done = subprocess.run(command, capture_output=True, text=True, **more)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout

    def compile(self):
        """The two files and the table, with the flags of the build; the list is found in the
        folder before that of the tree."""
        (self.dir / "methods").mkdir()
        listed = (ROOT / "src" / "methods" / "methods.def").read_text()
        for name in self.name.values():
            listed += f"METHOD({name}_method)\n"
        (self.dir / "methods" / "methods.def").write_text(listed)
        table = str(ROOT / "src" / "methods" / "method.c")
        entry = next(e for e in json.loads((BUILD / "compile_commands.json").read_text())
                     if os.path.realpath(e["file"]) == os.path.realpath(table))
        flags = re.sub(r" -o \S+ -c \S+$", "", entry["command"])
        compiler, rest = flags.split(" ", 1)
        objects = []
        for name, source in [("method", table)] + [(self.name[k], s) for k, s in self.source.items()]:
            path = source
            if source is not table:
                path = self.dir / f"{name}.c"
                path.write_text(source)
            objects.append(str(self.dir / f"{name}.o"))
            self.do(f"{compiler} -I{self.dir} {rest} "
                    f"-o {objects[-1]} -c {path}", shell=True, cwd=entry["directory"])
        return " ".join(objects)

    def link(self, test, objects):
        """The program of a test with these objects before the library's."""
        told = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", f"tests/{test}"], check=True,
                              capture_output=True, text=True).stdout
        command = told.strip().splitlines()[-1]
        self.assertIn(f" -o tests/{test} ", command)
        program = self.dir / test
        self.do(command.replace(f" -o tests/{test} ", f" {objects} -o {program} "), shell=True,
                cwd=BUILD)
        return program

    def test_examples_are_short(self):
        for kind, source in self.source.items():
            n = code_lines(source)
            print(f"{kind}: {n} lines", file=sys.stderr)
            self.assertLessEqual(n, LINES[kind], kind)

    def test_they_keep_the_promises(self):
        objects = self.compile()
        tests = TESTS
        if LONG:
            tests = sorted(p.stem for label in ("unit", "prop")
                           for p in (ROOT / "tests" / label).glob("*.c"))
        only = {} if LONG else {"SAC_TEST_METHODS": ",".join(self.name.values())}
        for test in tests:
            with self.subTest(test):
                out = self.do([str(self.link(test, objects))], cwd=ROOT, env={**os.environ, **only})
                self.assertNotIn("FAILED", out)


if __name__ == "__main__":
    unittest.main()
