#!/usr/bin/env python3
"""docs/man/saccade.1 is what `make man` makes of the program's --help today."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
MAKE_MAN = ROOT / "tools" / "make_man.py"
TOY = """#!/bin/sh
case "$*" in
--version) echo "saccade 9.9.9" ;;
--help) printf 'Usage: saccade COMMAND\\n\\nCommands:\\n  one   does one\\n  two   does two\\n\\n'
        echo "Exit codes: 0 done." ;;
*) printf 'Usage: saccade %s [options]\\n\\nA summary.\\n\\nOwn:\\n' "$1"
   printf '  -x, --only-%s N\\n                  text of it\\n\\nShared:\\n  --both  in both\\n\\n' "$1"
   echo "  -h, --help   This text" ;;
esac
"""


def make_man(program):
    return subprocess.run([sys.executable, MAKE_MAN, program], check=True, capture_output=True,
                          text=True).stdout


class ManTest(unittest.TestCase):
    def test_page_is_fresh(self):
        page = (ROOT / "docs" / "man" / "saccade.1").read_text()
        self.assertEqual(page, make_man(os.environ["SACCADE_BIN"]), "run `make man`")

    def test_options_reach_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            toy = pathlib.Path(folder, "saccade")
            toy.write_text(TOY)
            toy.chmod(0o755)
            page = make_man(toy)
        self.assertIn(".B \\-x, \\-\\-only\\-one N\ntext of it\n", page)
        self.assertIn(".B \\-x, \\-\\-only\\-two N\n", page)
        self.assertEqual(page.count(".B \\-\\-both\n"), 1)
        self.assertIn("saccade 9.9.9", page)


if __name__ == "__main__":
    unittest.main()
