#!/usr/bin/env python3
"""`saccade eval`: tiny grids on a real small model: output, files, resuming, wrong usage, bad data."""
import json
import pathlib
import tempfile
import unittest

from cli import model_path, saccade

FACT = {"needle": "The gate of Oz is painted green.", "question": "Which colour has the gate of Oz?",
        "answer": "green"}


class EvalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def run_eval(self, command, *args, code=0):
        done = saccade("eval", command, *args, "-m", model_path(), "--out", str(self.out), "-q")
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def rows(self, command, *args):
        return json.loads(self.run_eval(command, *args, "-o", "json").stdout)

    def samples(self):
        return [json.loads(line) for line in (self.out / "samples.jsonl").read_text().splitlines()]

    def test_needle_grid_and_files(self):
        args = ("needle", "--ctx", "512", "--depths", "20,80", "--methods", "full")
        rows = self.rows(*args)
        self.assertEqual([(r["method"], r["ctx"], r["n"]) for r in rows], [("full", 512, 2)])
        for key in "score", "score_low", "score_high", "mass_mean", "share_read", "ttft_ms":
            self.assertIn(key, rows[0])
        self.assertIsNone(rows[0]["mass_mean"])  # nothing was recorded
        self.assertEqual(rows[0]["share_read"], 1)
        samples = self.samples()
        self.assertEqual([s["depth"] for s in samples], [20, 80])
        for s in samples:
            self.assertLessEqual(s["prompt_n"] + s["predicted_n"], 512)
            self.assertGreater(s["prompt_n"], 450)
            self.assertEqual(s["score"], float(s["expected"][0] in s["answer"]))
            self.assertIn(s["expected"][0], s["prompt"])
            self.assertGreater(s["ttft_ms"], 0)
        self.assertEqual(json.loads((self.out / "summary.json").read_text())["rows"], rows)
        self.assertIn("| needle_number | 512 | full | 2 |", (self.out / "summary.md").read_text())
        # Without a folder the same is asked, and printed alone.
        done = saccade("eval", *args, "-m", model_path(), "-q", "-o", "json", cwd=self.folder)
        alone = json.loads(done.stdout)
        self.assertEqual([(r["n"], r["score"]) for r in alone],
                         [(r["n"], r["score"]) for r in rows])
        self.assertEqual([p.name for p in self.folder.iterdir()], ["out"])
        # The same again: nothing is asked anew, and what was lost is.
        before = (self.out / "samples.jsonl").read_bytes()
        self.assertEqual(self.rows(*args), rows)
        self.assertEqual((self.out / "samples.jsonl").read_bytes(), before)
        first = before[:before.index(b"\n") + 1]
        (self.out / "samples.jsonl").write_bytes(first + b'{"task": "nee')
        self.assertEqual([r["score"] for r in self.rows(*args)], [r["score"] for r in rows])
        again = self.samples()
        self.assertEqual([(s["answer"], s["depth"]) for s in again],
                         [(s["answer"], s["depth"]) for s in samples])
        done = self.run_eval(*args, "-s", "7", code=2)
        self.assertIn("samples.jsonl:1: made with another model or other settings", done.stderr)

    def test_methods_share_the_prompt_and_are_paired(self):
        rows = self.rows("passkey", "--ctx", "512", "--depths", "10", "--methods",
                         "full,streaming:budget=128", "--sparse-min-ctx", "0", "--record")
        self.assertEqual([r["method"] for r in rows], ["full", "streaming:budget=128"])
        full, streaming = rows
        self.assertNotIn("diff", full)
        self.assertEqual(streaming["diff_to"], "full")
        self.assertAlmostEqual(streaming["diff"], streaming["score"] - full["score"])
        self.assertLess(streaming["share_read"], 0.6)
        self.assertEqual(full["share_read"], 1)
        self.assertEqual((full["chosen"], streaming["chosen"]), (None, None))
        self.assertAlmostEqual(full["mass_mean"], 1, places=4)
        self.assertLess(streaming["mass_mean"], 1)
        self.assertEqual(len({s["prompt"] for s in self.samples()}), 1)

    def test_matrix_of_prefill_and_decode_methods(self):
        args = ("needle", "--matrix", "--prefill", "dense,a-shape:sink=4,window=64", "--decode",
                "full,streaming:budget=128,h2o:budget=128", "--ctx", "512", "--depths", "50",
                "--sparse-min-ctx", "0")
        rows = {r["method"]: r for r in self.rows(*args)}
        self.assertEqual(len(rows), 6)
        dense, shape = rows["dense+full"], rows["a-shape:sink=4,window=64+streaming:budget=128"]
        self.assertEqual((dense["planned_share"], dense["share_read"]), (1, 1))
        self.assertLess(shape["planned_share"], 0.7)
        self.assertLess(shape["share_read"], 0.6)
        table = self.run_eval(*args).stdout  # all answers are there: nothing is asked again
        self.assertIn("| decode | read | dense | a-shape:sink=4,window=64 |\n", table)
        self.assertIn(f"\n| full | 100.0 | {dense['score'] * 100:.0f} |", table)
        self.assertIn(table, (self.out / "summary.md").read_text())

    def test_patterns_of_heads(self):
        text, table = self.folder / "text.txt", self.folder / "table.txt"
        text.write_text("".join(f"Line {i}: the key of door {i % 97} hangs by the stove.\n"
                                for i in range(220)))
        done = saccade("eval", "patterns", "-m", model_path(), "-f", str(text), "-c", "2700", "--out",
                       str(table))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = table.read_text().splitlines()
        heads = [line for line in lines if line[0].isdigit()]
        self.assertEqual(lines[0], "saccade minference 1")
        self.assertEqual(len(heads), 30 * 9)
        self.assertEqual(sum(int(row.split("|")[2]) for row in done.stdout.splitlines()[2:]), 30 * 9)
        wrong = self.folder / "wrong.txt"
        wrong.write_text(table.read_text().replace("model ", "model Not "))
        args = ("needle", "--matrix", "--prefill", f"minference:table={table},minference:table={wrong}",
                "--decode", "full", "--ctx", "512", "--depths", "50")
        out = self.run_eval(*args).stdout
        self.assertIn("| full |", out)
        self.assertIn(f"refused: minference:table={wrong}+full: {wrong}: line 2: the table is for model", out)
        for args, words in [(("-f", str(text), "-c", "400"), "longer than 2,500 tokens"),
                            (("-f", str(text), "-c", "400", "--prefill", "a-shape"), "no table"),
                            ((), "-f FILE")]:
            done = saccade("eval", "patterns", "-m", model_path(), *args)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)

    def test_ruler_turns_and_documents(self):
        rows = self.rows("ruler", "--ctx", "512", "--tasks", "niah_single_1,qa_1")
        self.assertEqual([r["task"] for r in rows], ["niah_single_1", "qa_1"])
        self.out = self.folder / "turns"
        rows = self.rows("turns", "--ctx", "1000", "--tasks", "facts")
        self.assertEqual([(r["place"], r["n"]) for r in rows], [("begin", 3), ("middle", 3), ("end", 3)])
        self.assertEqual({s["turn"] for s in self.samples()}, {0, 1, 2})
        self.out = self.folder / "docs"
        rows = self.rows("docs", "--ctx", "500", "--docs", "2", "--tasks", "docs_facts")
        self.assertEqual([r["place"] for r in rows], ["first", "middle", "last"])

    def test_files_of_suites(self):
        path = self.folder / "needles.jsonl"
        path.write_text(json.dumps(FACT) + "\n")
        rows = self.rows("jsonl", str(path), "--format", "needle", "--ctx", "400")
        self.assertEqual([(r["task"], r["n"]) for r in rows], [("needle_file", 1)])
        path = self.folder / "long.jsonl"
        row = {"input": "Which colour?", "context": "The gate is green. " * 400, "answers": ["green"],
               "dataset": "hotpotqa", "all_classes": None}
        path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"answers": []}) + "\n")
        self.out = self.folder / "long"
        done = self.run_eval("jsonl", str(path), "--format", "longbench", code=1)
        self.assertIn(f"{path}:2: field 'answers' is an empty list", done.stderr)
        path.write_text(json.dumps(row) + "\n")
        rows = self.rows("jsonl", str(path), "--format", "longbench", "--ctx", "512")
        self.assertEqual(self.samples()[0]["metric"], "f1")
        self.assertLessEqual(self.samples()[0]["prompt_n"], 512 - 32)  # its middle was cut out

    def test_wrong_usage(self):
        for args, words in [
            (("needle", "--depths", "101"), "--depths"),
            (("needle", "--ctx", "4x"), "'4x'"),
            (("needle", "--needle", "x"), "--question"),
            (("needle", "--methods", "full,nothing"), "nothing"),
            (("needle", "--prefill", "a-shape"), "--prefill"),
            (("needle", "--matrix", "--prefill", "dense,nothing"), "nothing"),
            (("needle", "--matrix", "--methods", "full"), "--methods"),
            (("needle", "--matrix", "--mass", "0.9"), "NAME:mass"),
            (("ruler", "--tasks", "vt,wt"), "'wt'"),
            (("jsonl",), "FILE"),
        ]:
            done = self.run_eval(*args, code=2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
