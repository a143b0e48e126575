#!/usr/bin/env python3
"""Every `saccade` line of the pages is understood: it is run in an empty folder, with a model that is not there, and must
not end as wrong usage does."""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
import cli  # noqa: E402

NO_MODEL = "/no/such.gguf"
CODE = re.compile(r"^(?: {4,}|\$ )(.*)$")
END = {"|", "||", "&", "&&", ";", ")", ">", ">>", "<", "2>", "<(", "("}


def code_lines(text):
    """(number, line) of a page's examples; a line that ends in a backslash, or within quotes, goes on in the next one."""
    number, line = 0, ""
    for i, raw in enumerate(text.splitlines(), 1):
        code = CODE.match(raw) if not line else re.match(r"(.*)", raw)
        if not code:
            continue
        number, line = number if line else i, line + code[1].strip().removeprefix("$ ")
        if line.endswith("\\"):
            line = line[:-1]
        elif line.count("'") % 2 and i - number < 20:
            line += " "
        else:
            yield number, line
            line = ""


def commands(line):
    """The words behind each `saccade` of a line of shell."""
    try:
        lex = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lex.whitespace_split = True
        words = list(lex)
    except ValueError:
        return
    for i, word in enumerate(words):
        if word in ("saccade", "build/saccade") and (i == 0 or words[i - 1] in END or "=" in words[i - 1]):
            args = []
            for arg in words[i + 1:]:
                if arg in END:
                    break
                args.append(arg)
            yield args


def prepared(args):
    """The arguments with a model that is not there; None: it would do more than be understood."""
    if not args or args[0].isupper() or any("$" in a or "..." in a or a == "COMMAND" for a in args):
        return None
    if args[0] == "fetch" or args[:2] == ["bench", "ops"] or args == ["minference", "1"]:  # the last one heads a file
        return None
    out = [NO_MODEL if before in ("-m", "--model", "--model2") else arg for before, arg in zip([""] + args, args)]
    return out if args[:2] != ["bench", "serve"] else [*out, "--request-timeout", "1"]


class ExamplesTest(unittest.TestCase):
    def test_every_line_is_understood(self):
        n = 0
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
        with tempfile.TemporaryDirectory() as folder:
            env = cli.clean_env(XDG_CACHE_HOME=folder, SACCADE_DOCS=folder + "/docs")
            for page in pages:
                for number, line in code_lines(page.read_text()):
                    for args in filter(None, map(prepared, commands(line))):
                        n += 1
                        with self.subTest(where=f"{page.relative_to(ROOT)}:{number}", args=args):
                            done = subprocess.run([cli.BIN, *args], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                                  capture_output=True, text=True, timeout=30, check=False)
                            self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertGreater(n, 60)


if __name__ == "__main__":
    unittest.main()
