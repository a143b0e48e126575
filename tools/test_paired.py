#!/usr/bin/env python3
"""paired.py on made-up samples: means, paired differences, intervals, and what is refused."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PAIRED = pathlib.Path(__file__).with_name("paired.py")


def row(task, index, method, score, **more):
    return {"task": task, "ctx": 16384, "depth": None, "index": index, "turn": 0, "seed": 42, "method": method,
            "score": score, "share_read": 0.5, **more}


class PairedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def paired(self, files, *options):
        paths = []
        for i, rows in enumerate(files):
            paths.append(self.folder / f"{i}.jsonl")
            paths[-1].write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
        done = subprocess.run([sys.executable, PAIRED, *paths, *options], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def cells(self, out, name):
        for line in out.splitlines():
            if line.startswith(f"| {name}"):
                return [cell.strip() for cell in line.strip("|").split("|")][1:]
        self.fail(f"no row '{name}' in:\n{out}")

    def test_means_differences_and_shares(self):
        rows = [row("vt", 0, "dense", 1), row("vt", 0, "auto", 0.5), row("vt", 1, "dense", 1), row("vt", 1, "auto", 1),
                row("cwe", 0, "dense", 0), row("cwe", 0, "auto", 0)]
        status, out, err = self.paired([rows[:3], rows[3:]])
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(self.cells(out, "vt (2)"), ["100.0", "75.0"])
        self.assertEqual(self.cells(out, "mean of the tasks"), ["50.0", "37.5"])
        # cwe never differs; vt's mean loss is 0, 25 or 50 points: between -25 and 0 over two tasks.
        self.assertEqual(self.cells(out, "less `dense`"), ["", "-12.5 (-25.0 to +0.0)"])
        self.assertEqual(self.cells(out, "keys and values"), ["50.0", "50.0"])

    def test_only_samples_that_all_have_answered(self):
        rows = [row("vt", 0, "dense", 1), row("vt", 0, "auto", 1), row("vt", 1, "dense", 0)]
        _, out, _ = self.paired([rows])
        self.assertEqual(self.cells(out, "vt (1)"), ["100.0", "100.0"])

    def test_the_later_file_wins(self):
        _, out, _ = self.paired([[row("vt", 0, "dense", 0)], [row("vt", 0, "dense", 1)]])
        self.assertEqual(self.cells(out, "vt (1)"), ["100.0"])

    def test_contexts_and_first_samples(self):
        rows = [{**row("vt", index, "dense", score), "ctx": ctx, "seed": seed}
                for ctx, seed, index, score in ((4096, 10, 0, 0), (4096, 9, 1, 0), (4096, 9, 0, 1), (8192, 42, 0, 0))]
        _, out, err = self.paired([rows], "--first", "1")
        self.assertEqual((self.cells(out, "vt (2)"), err), (["50.0"], ""))
        _, out, _ = self.paired([rows], "--ctx", "4096")
        self.assertEqual(self.cells(out, "vt (3)"), ["33.3"])
        _, out, err = self.paired([rows], "--ctx", "8192", "--first", "2")
        self.assertEqual(self.cells(out, "vt (1)"), ["0.0"])
        self.assertIn("vt at 8192 tokens has 1 samples, not 2", err)
        status, _, err = self.paired([rows], "--ctx", "512")
        self.assertNotEqual(status, 0)
        self.assertIn("no sample was answered by all", err)

    def test_refusals_name_what_is_wrong(self):
        status, _, err = self.paired([["{}\n"]])
        self.assertNotEqual(status, 0)
        self.assertIn("0.jsonl:1", err)
        status, _, err = self.paired([[row("vt", 0, "dense", 1)]], "--methods", "dense quest")
        self.assertNotEqual(status, 0)
        self.assertIn("'quest'", err)
        status, _, err = self.paired([[row("vt", 0, "dense", 1), row("vt", 1, "auto", 1)]])
        self.assertNotEqual(status, 0)
        self.assertIn("no sample was answered by all", err)


if __name__ == "__main__":
    unittest.main()
