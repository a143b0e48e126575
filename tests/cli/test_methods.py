#!/usr/bin/env python3
"""`saccade methods`: text and JSON hold the same methods."""
import json
import unittest

from cli import saccade


class Methods(unittest.TestCase):
    def test_text_and_json_agree(self):
        rows = json.loads(saccade("methods", "-o", "json").stdout)
        lines = [line.split(None, 2) for line in saccade("methods").stdout.splitlines()]
        self.assertEqual([[r["kind"], r["name"], r["summary"]] for r in rows], lines)
        self.assertIn(("prefill", "dense"), [(r["kind"], r["name"]) for r in rows])
        self.assertIn(("decode", "full"), [(r["kind"], r["name"]) for r in rows])

    def test_one_method_is_explained(self):
        text = saccade("methods", "streaming").stdout
        [row] = json.loads(saccade("methods", "streaming", "-o", "json").stdout)
        self.assertIn(row["summary"], text)
        for param in row["param"]:
            self.assertIn(param["help"], text)
        wrong = saccade("methods", "no-such")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no-such", wrong.stderr)

    def test_a_wrong_specification_is_told_before_the_model_is_read(self):
        for spec, word in (("no-such", "streaming"), ("streaming:bud=1", "budget, sink"),
                           ("streaming:budget=0", "1 to")):
            done = saccade("run", "-m", "no-such-model", "-p", "x", "--decode", spec)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        done = saccade("run", "-m", "x", "-p", "x", "--budget", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--decode", done.stderr)


if __name__ == "__main__":
    unittest.main()
