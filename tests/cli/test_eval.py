#!/usr/bin/env python3
"""`saccade eval`: tiny grids on a real small model: output, files, resuming, wrong usage, bad data."""
import hashlib
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
        told = json.loads((self.out / "run.json").read_text())
        self.assertEqual((told["command"], told["kv"]), ("eval needle", "f16"))
        with open(model_path(), "rb") as model:
            self.assertEqual(told["file_sha256"], hashlib.file_digest(model, "sha256").hexdigest())
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
        # With --record times mean nothing: such samples do not mix with others.
        done = self.run_eval(*args, "--record", code=2)
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

    def count(self, text):
        done = saccade("tokenize", "-m", model_path(), "--no-bos", text)
        return len(json.loads(done.stdout))

    def test_the_questions_rows_are_the_decode_methods(self):
        blind = "streaming:sink=0,budget=1"
        snapkv, shape = "snapkv:budget=128", "a-shape:sink=4,window=64"
        # The first method, whose rows are others, stays what all are compared with.
        rows = {r["method"]: r for r in self.rows(
            "passkey", "--ctx", "512", "--depths", "50", "--methods",
            f"{snapkv},full,{blind},{shape}+full,quest:budget=128,dense=0", "--sparse-min-ctx", "0")}
        self.assertEqual({r.get("diff_to") for r in rows.values()}, {None, snapkv})
        # It reads its own page alone, from the question on: dense attention gives it nothing.
        self.assertLess(rows[blind]["share_read"], 0.1)
        self.assertEqual((rows["full"]["score"], rows[blind]["score"]), (1, 0))
        # Behind the question the template ends the turn and names the assistant: six tokens.
        asked = self.count("What is the pass key?") + 6 + self.count("The pass key is")
        for s in self.samples():
            last = s["method"] in (snapkv, shape + "+full")
            self.assertEqual((s["decode_rows"], s["decode_rows_n"]),
                             ("last", 1) if last else ("question", asked), s["method"])
        self.assertEqual(rows["full"]["decode_rows_n"], asked)
        self.assertEqual(rows[snapkv]["decode_rows"], "last")
        self.assertIn(f"| question {asked:.1f} |", (self.out / "summary.md").read_text())
        self.out = self.folder / "three"
        rows = self.rows("passkey", "--ctx", "512", "--depths", "50", "--methods", f"full,{snapkv}",
                         "--decode-rows", "3", "--sparse-min-ctx", "0")
        self.assertEqual([(r["decode_rows"], r["decode_rows_n"]) for r in rows], [("last", 3)] * 2)
        self.assertIn("made with another model or other settings",
                      self.run_eval("passkey", "--ctx", "512", "--depths", "50", code=2).stderr)

    def test_methods_below_the_least_context_are_noted(self):
        args = ("eval", "passkey", "-m", model_path(), "--ctx", "512", "--depths", "50", "-q", "--methods")
        done = saccade(*args, "full,streaming:budget=64,quest:budget=64,a-shape:sink=4,window=64+full")
        self.assertEqual(done.returncode, 0, done.stderr)
        note, = done.stderr.splitlines()
        self.assertIn("below --sparse-min-ctx (2048) are read whole", note)
        self.assertTrue(note.endswith("dense attention: 'streaming:budget=64' at 512 tokens, 'quest:budget=64' at "
                                      "512 tokens, 'a-shape:sink=4,window=64+full' at 512 tokens"), note)
        for quiet in ("full,dense+full",), ("full,streaming:budget=64", "--sparse-min-ctx", "0"):
            done = saccade(*args, *quiet)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_prompt_in_two_parts_is_the_same_prompt(self):
        # Behind a prompt for others, of a method whose chunks may be cut anywhere and of one that
        # plans them as a whole, an answer is what it is alone.
        for prefill in "dense", "sparge:top=0.5":
            alone = f"{prefill}+snapkv:budget=96"
            answers = []
            for methods in (f"{prefill}+quest:budget=96,dense=0,{alone}", alone):
                self.out = self.folder / f"out{len(methods)}{prefill[0]}"
                self.rows("needle", "--ctx", "700", "--depths", "40", "--methods", methods,
                          "--sparse-min-ctx", "0", "--allow-idle")
                answers += [(s["answer"], s["planned_share"]) for s in self.samples()
                            if s["method"] == alone]
            self.assertEqual(answers[0], answers[1], prefill)

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
        self.assertIn("| decode | read | bytes | dense | a-shape:sink=4,window=64 |\n", table)
        self.assertIn(f"\n| full | 100.0 | 100.0 | {dense['score'] * 100:.0f} |", table)
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
        # In later turns, too, the rows behind the turn's last text and no others.
        for s in self.samples():
            behind = "Answer the question with the help of all texts so far."
            least = self.count(behind) + self.count(s["prefix"]) + 6
            self.assertEqual(s["decode_rows"], "question")
            if s["place"] != "end":
                self.assertTrue(least <= s["decode_rows_n"] <= least + 1, s)
            else:
                self.assertTrue(least + 5 < s["decode_rows_n"] < least + 40, s)

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
            (("needle", "--decode-rows", "0"), "--decode-rows"),
            (("needle", "--methods", "full,nothing"), "nothing"),
            (("needle", "--prefill", "a-shape"), "--prefill"),
            (("needle", "--matrix", "--prefill", "dense,nothing"), "nothing"),
            (("needle", "--matrix", "--methods", "full"), "--methods"),
            (("needle", "--matrix", "--mass", "0.9"), "NAME:mass"),
            (("ruler", "--tasks", "vt,wt"), "'wt': there are niah_single_1, "),
            (("jsonl",), "FILE"),
        ]:
            done = self.run_eval(*args, code=2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
