#!/usr/bin/env python3
"""docs_table.py on made-up rows: who is counted, scores by place, paired losses, shares of time."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TABLE = pathlib.Path(__file__).with_name("docs_table.py")


def row(place, index, method, score, **more):
    return {"model": "m", "kv": "f16", "task": "docs_facts", "documents": 4, "document_tokens": 1360, "seed": 1,
            "place": place, "index": index, "method": method, "score": score, "kl": 0.25, "resident_share": 0.5,
            "recomputed_share": 0.1, "ttft_ms": 1000, **more}


class DocsTableTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def table(self, files, *options):
        paths = []
        for i, rows in enumerate(files):
            paths.append(self.folder / f"{i}.jsonl")
            paths[-1].write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
        done = subprocess.run([sys.executable, TABLE, *paths, *options], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_what_all_have_answered_is_counted(self):
        files = [[row("first", 0, "recompute", 1, kl=0), row("first", 0, "auto", 1, ttft_ms=100),
                  row("middle", 0, "recompute", 1, kl=0), row("middle", 0, "auto", 0, ttft_ms=140)],
                 [row("first", 1, "recompute", 0, kl=0), row("first", 1, "auto", 1, kl=1, ttft_ms=120),
                  row("last", 1, "recompute", 1, kl=9, ttft_ms=9e6)]]  # the last question was cut off
        code, out, err = self.table(files)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("4 documents of 1360 tokens: 3 questions that all methods have answered, of 4\n", out)
        self.assertIn("| `recompute` | 67 (50, 100, -) |  | 0.000 | 0.000 | 50.0 | 10.0 | 1,000 | 100.0 % |", out)
        # Documents 0 lose half a question in the mean, documents 1 gain one.
        self.assertIn("| `auto` | 67 (100, 0, -) | +0 (-50 to +100) | 0.500 | 0.250 | 50.0 | 10.0 | 120 | 12.0 % |", out)

    def test_settings_have_tables_of_their_own(self):
        rows = [row("first", 0, "recompute", 1), row("first", 0, "recompute", 1, documents=10)]
        out = self.table([rows])[1]
        self.assertEqual((out.count("| method |"), out.count("1 questions")), (2, 2))

    def test_what_is_no_result_is_told(self):
        for text, options, words in [("{\n", [], "0.jsonl:1: not a row"), ('{"model": 1}\n', [], "not a row"),
                                     (json.dumps(row("first", 0, "auto", 1)), ["--yardstick", "epic"], "no method 'epic'")]:
            code, out, err = self.table([[text]], *options)
            self.assertEqual((code, out), (1, ""))
            self.assertIn(words, err)


if __name__ == "__main__":
    unittest.main()
