#!/usr/bin/env python3
"""measured.py on numbers that are known, and on a program that fails."""
import contextlib
import io
import json
import pathlib
import stat
import tempfile
import unittest

import measured


def row(method, kl, **more):
    return {"method": method, "ctx": 4096, "kv": "f16", "kl_mean": kl, "top1": 0.875, "mass_mean": 0.9,
            "share_read": 0.05, "bytes_share": 0.125, "bytes_per_token": 250000.0,
            "choose_bytes_per_token": 40000.0, "build_bytes_per_token": 10000.0, "bytes_rows": 48,
            "chosen": 204.0, **more}


class Measured(unittest.TestCase):
    def test_methods_are_spread_over_budgets(self):
        self.assertEqual(measured.spread(["auto", "quest:budget={}", "auto"], ["2%", "5%"]),
                         ["auto", "quest:budget=2%", "quest:budget=5%"])

    def test_a_table_holds_what_was_measured(self):
        text = measured.report([row("quest", 0.2), row("streaming", 0.1, chosen=None)])
        lines = text.splitlines()
        self.assertEqual(lines[0], "4,096 tokens, KV f16; building is spread over 48 rows:")
        self.assertEqual(len({line.count("|") for line in lines[2:]}), 1)
        self.assertEqual(lines[4], "| `streaming` | 0.1 | 87.5 | 90.00 | 5.0 | 12.5 | 250 | 40 | 10 | - |")
        self.assertEqual(lines[5], "| `quest` | 0.2 | 87.5 | 90.00 | 5.0 | 12.5 | 250 | 40 | 10 | 204.0 |")

    def test_prompt_rows_have_no_bytes(self):
        none = dict.fromkeys(("bytes_share", "bytes_per_token", "choose_bytes_per_token", "build_bytes_per_token",
                              "bytes_rows", "chosen"))
        self.assertIn("| 5.0 | - | - | - | - | - |", measured.report([row("quest", 0.2, **none)]))

    def test_contexts_have_a_table_each(self):
        text = measured.report([row("a", 1, ctx=8192), row("a", 1)])
        self.assertLess(text.index("4,096 tokens"), text.index("8,192 tokens"))

    def test_rows_of_different_length_are_refused(self):
        with self.assertRaisesRegex(SystemExit, "different numbers of rows"):
            measured.report([row("a", 1), row("b", 1, bytes_rows=47)])

    def run_with(self, script, *args):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "saccade")
            program.write_text("#!/bin/sh\n" + script)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                measured.main([str(program), "-m", "m", "-f", "t", *args])
            return out.getvalue()

    def test_the_command_stands_above_the_table(self):
        rows = json.dumps([row("quest:budget=2%", 0.2)])
        out = self.run_with(f"echo '{rows}'", "--budgets", "2%", "quest:budget={}")
        self.assertIn("eval fidelity -m m -f t -c 4k -k 48 -o json --methods 'quest:budget=2%'", out)
        self.assertIn("| `quest:budget=2%` |", out)

    def test_a_failure_is_told_in_the_programs_words(self):
        with self.assertRaisesRegex(SystemExit, "nothing was chosen"):
            self.run_with("echo nothing was chosen >&2; exit 2", "quest")


if __name__ == "__main__":
    unittest.main()
