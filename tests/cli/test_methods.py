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


if __name__ == "__main__":
    unittest.main()
