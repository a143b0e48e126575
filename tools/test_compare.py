#!/usr/bin/env python3
"""compare.py with programs that print what they are told: who runs when, what is made of the figures,
and what is refused."""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).with_name("compare.py")

# Takes the next of the outputs in FOLDER/NAME.json, notes its turn in FOLDER/log.
PROGRAM = """
import json, pathlib, sys
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with open(folder / "log", "a") as log:
    log.write(json.dumps([name, *sys.argv[3:]]) + "\\n")
outputs = json.loads((folder / f"{name}.json").read_text())
n_run = sum(json.loads(line)[0] == name for line in open(folder / "log"))
output = outputs[n_run - 1]
sys.exit(output) if isinstance(output, str) else print(json.dumps(output))
"""


def row(rate, n_prompt=512, n_gen=0, **more):
    return {"n_prompt": n_prompt, "n_gen": n_gen, "avg_ts": rate, **more}


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "program.py").write_text(PROGRAM)
        (self.folder / "m.gguf").write_bytes(b"")

    def compare(self, outputs, *options, tests=("-p 512 -n 0",)):
        commands = {}
        for name, texts in outputs.items():
            (self.folder / f"{name}.json").write_text(json.dumps(texts))
            commands[name] = shlex.join([sys.executable, str(self.folder / "program.py"), str(self.folder), name])
        peers = [word for name in outputs if name != "saccade" for word in ("--peer", f"{name}={commands[name]}")]
        return subprocess.run([sys.executable, COMPARE, self.folder / "m.gguf", "--saccade", commands["saccade"],
                               *peers, "-t", "3", *options, "--", *tests], capture_output=True, text=True)

    def turns(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def refused(self, outputs, *words):
        done = self.compare(outputs, "--rounds", "1")
        self.assertEqual((done.returncode, done.stdout.count("`-p")), (1, 0), done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_medians_and_ratios(self):
        done = self.compare({"saccade": [[row(r)] for r in (1000, 4000, 3000)],
                             "a": [[row(r)] for r in (40, 42.5, 41)], "b": [[row(r)] for r in (4.5, 4.52, 5)]})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[2:], [
            "| test | saccade | a | b | ratio to a | ratio to b |",
            "|---|---:|---:|---:|---:|---:|",
            "| `-p 512 -n 0` | 3,000 (1,000-4,000) | 41.0 (40.0-42.5) | 4.52 (4.50-5.00) | 73.2 | 664 |"])

    def test_programs_take_turns_and_get_the_same(self):
        self.compare({"saccade": [[row(1)]] * 4, "a": [[row(1)]] * 4}, "--rounds", "2",
                     tests=("-p 512 -n 0", "-p 512 -n 0 -d 9"))
        turns = self.turns()
        self.assertEqual([turn[0] for turn in turns], ["saccade", "a", "a", "saccade"] * 2)
        same = ["-m", str(self.folder / "m.gguf"), "-t", "3", "-r", "1", "-o", "json", "-p", "512", "-n", "0"]
        self.assertEqual([turn[1:] for turn in turns], [same] * 4 + [same + ["-d", "9"]] * 4)

    def test_a_program_that_fails(self):
        self.refused({"saccade": [[row(1)]], "a": ["no such tensor"]}, "no such tensor", "status 1")

    def test_tests_that_differ(self):
        self.refused({"saccade": [[row(1, n_depth=8192)]], "a": [[row(1)]]}, "different tests", "8192")

    def test_two_rows(self):
        self.refused({"saccade": [[row(1), row(2)]], "a": [[row(1)]]}, "expected one row")

    def test_a_row_without_a_rate(self):
        self.refused({"saccade": [[{"n_prompt": 1, "n_gen": 0}]], "a": [[row(1)]]}, "avg_ts")

    def test_no_json(self):
        done = subprocess.run([sys.executable, COMPARE, self.folder / "m.gguf", "--saccade", "echo -", "--peer",
                               "a=false", "-p 1 -n 0"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("echo - -m", done.stderr)

    def test_wrong_usage(self):
        for words in (["nowhere.gguf", "--peer", "a=true"], [self.folder / "m.gguf", "--peer", "a"],
                      [self.folder / "m.gguf", "--peer", "a=true", "--rounds", "0"], [self.folder / "m.gguf"]):
            done = subprocess.run([sys.executable, COMPARE, *words, "--", "-p 1"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, words)


if __name__ == "__main__":
    unittest.main()
