#!/usr/bin/env python3
"""`saccade methods`: text and JSON hold the same methods."""
import json
import unittest

from cli import model_path, saccade


def wrong_values(param):
    """(key, value, words of the answer): of another type, below the least, above the most."""
    key = param["key"]
    if "choices" in param:
        return [(key, v, f"not one of {param['choices']}") for v in ("no-such-choice", "", "1e3")]
    if param["type"] == "file":  # any path: the engine opens it
        return []
    low, high = param["min"], param["max"]
    values = ["x", "", "nan", "inf", "1e999", f"{low - 1:.15g}", f"{2 * high + 1:.15g}"]
    whole, real = [f"{low}.5", "5%"], ["5%", "0.5x"]
    values += {"int": whole, "tokens": whole, "float": real, "share": real,
               "budget": [f"{low}.5", "0%", "-5%", "101%"]}[param["type"]]
    limits = f"{low:.15g} to {high:.15g}"
    return [(key, v, f"{key}={v} must be") for v in values] + [(key, "x", limits)]


class Methods(unittest.TestCase):
    def test_text_and_json_agree(self):
        rows = json.loads(saccade("methods", "-o", "json").stdout)
        lines = [line.split(None, 3) for line in saccade("methods").stdout.splitlines()]
        self.assertEqual([[r["kind"], r["name"], r["runs_on"], r["summary"]] for r in rows], lines)
        self.assertIn(("prefill", "dense"), [(r["kind"], r["name"]) for r in rows])
        self.assertIn(("decode", "full"), [(r["kind"], r["name"]) for r in rows])
        self.assertIn(("auto", "any"), [(r["name"], r["runs_on"]) for r in rows if r["kind"] == "decode"])
        self.assertIn(("raas", "cpu"), [(r["name"], r["runs_on"]) for r in rows])
        self.assertEqual(["infllm"], [r["name"] for r in rows if (r["kind"], r["runs_on"]) == ("context", "cpu")])

    def test_one_method_is_explained(self):
        text = saccade("methods", "streaming").stdout
        [row] = json.loads(saccade("methods", "streaming", "-o", "json").stdout)
        self.assertIn(row["summary"], text)
        for param in row["param"]:
            self.assertIn(param["help"], text)
        self.assertGreater(len(row["deviation"]), 0)
        for deviation in row["deviation"]:
            for key in "paper", "here", "why":
                self.assertIn(deviation[key], text)
        self.assertIn("(did you mean 'quest'?)", saccade("methods", "quset").stderr)
        self.assertIn("(it is a decode method)",
                      saccade("run", "-m", model_path(), "-p", "x", "--prefill", "quest").stderr)
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

    def test_every_parameter_of_every_method_has_its_limits(self):
        for method in json.loads(saccade("methods", "-o", "json").stdout):
            kind, name = method["kind"], method["name"]
            wrong = [("no-such-key", "1", "no parameter 'no-such-key'")]
            for param in method["param"]:
                wrong += wrong_values(param)
            for key, value, words in wrong:
                spec = f"{name}:{key}={value}"
                docs = ["--docs", "no-such-document"] if kind == "context" else []
                done = saccade("run", "-m", "no-such-model", "-p", "x", f"--{kind}", spec, *docs)
                self.assertEqual((done.returncode, done.stdout), (2, ""), spec)
                self.assertEqual(done.stderr.count("\n"), 1, spec)
                for word in (f"{kind} method '{name}'", words):
                    self.assertIn(word, done.stderr, spec)

    def test_shared_dials_need_a_method(self):
        done = saccade("run", "-m", "x", "-p", "x", "--budget", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--decode", done.stderr)


if __name__ == "__main__":
    unittest.main()
