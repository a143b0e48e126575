#!/usr/bin/env python3
"""eval_bytes.py with a made-up program: what it asks for, what it makes of the samples, when it stops."""
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).with_name("eval_bytes.py")
FAKE = """#!{python}
import json, pathlib, sys, time
args = sys.argv[1:]
out = pathlib.Path(args[args.index("--out") + 1])
out.mkdir(exist_ok=True)
seed = int(args[args.index("-s") + 1])
n = int(args[args.index("-n") + 1])
with open(out / "asked", "a") as file:
    file.write(json.dumps(args) + "\\n")
table = json.loads({table!r})
with open(out / "samples.jsonl", "w") as file:
    for task, method, score, read, *share in table:
        for index in range(n):
            file.write(json.dumps(dict(task=task, ctx=512, depth=None, index=index, turn=0, seed=seed, method=method,
                                       {score}, share_read=share[0] if share else read / 1e6, bytes_per_token=read,
                                       choose_bytes_per_token=5e4, tier_bytes_per_token=read / 4)) + "\\n")
time.sleep({sleep})
sys.exit({code})
"""
TABLE = [(task, *rest) for task in ("niah", "vt") for rest in
         (("full", 1, 1e6), ("arkvale:budget=5%", 0.5, 1e5), ("arkvale:budget=40%", 1, 6e5), ("psa:mass=0.7", 0.99, 2e5),
          ("psa:mass=0.9", 1, 4e5))] + [("cwe", m, s, 9e6) for m, s in
                                        (("full", 0.1), ("arkvale:budget=5%", 0), ("arkvale:budget=40%", 0),
                                         ("psa:mass=0.7", 0), ("psa:mass=0.9", 0))]
METHODS = "arkvale:budget=5% arkvale:budget=40% psa:mass=0.7 psa:mass=0.9"


class EvalBytes(unittest.TestCase):
    def run_script(self, *options, table=TABLE, sleep=0, code=0, methods=METHODS, score="score=score"):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "saccade"
        program.write_text(FAKE.format(python=sys.executable, table=json.dumps(table), sleep=sleep, code=code,
                                       score=score))
        program.chmod(0o755)
        self.out = pathlib.Path(folder.name) / "new" / "out"
        return subprocess.run([sys.executable, SCRIPT, program, "model", self.out, "--methods", methods, *options],
                              capture_output=True, text=True, check=False)

    def asked(self, part=0):
        return [json.loads(line) for line in (self.out / f"part.{part}" / "asked").read_text().splitlines()]

    def test_the_cheapest_setting_that_is_good_enough(self):
        done = self.run_script("--samples", "3", "--kv-disk", "pages", "--", "-t", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("niah (2), vt (2)\n", done.stdout)  # cwe is not solved; one sample, then two
        self.assertIn("| `arkvale:budget=5%` | 50.0 | 50.0 to 50.0 | 10.0 | 98 | 10.0 | 5.0 | 24 |", done.stdout)
        goal = done.stdout.split("at 98 %")[1]
        self.assertIn("| arkvale | `arkvale:budget=40%` | 1.67 | `arkvale:budget=40%` | 1.67 |", goal)
        self.assertIn("| psa | `psa:mass=0.7` | 5.00 | `psa:mass=0.7` | 5.00 |", goal)
        self.assertEqual([a[-2:] for a in self.asked()], [["-t", "7"]] * 2)
        self.assertIn("full," + METHODS.replace(" ", ","), self.asked()[0])
        self.assertIn("pages.0:2G", self.asked()[0])
        strict = self.run_script("--goal", "99.5", "--samples", "1").stdout.split("at 99.5 %")[1]
        self.assertIn("| psa | `psa:mass=0.9` | 2.50 |", strict)
        self.assertNotIn("--kv-fast", self.asked()[0])
        self.assertIn("| arkvale | no setting | - |",
                      self.run_script("--samples", "1", methods="arkvale:budget=5%").stdout)

    def test_the_fewest_bytes_need_not_be_the_fewest_keys(self):
        table = [("niah", "full", 1, 1e6), ("niah", "psa:mass=0.7", 1, 3e5, 0.2), ("niah", "psa:mass=0.9", 1, 4e5, 0.1)]
        done = self.run_script("--samples", "1", table=table, methods="psa:mass=0.7 psa:mass=0.9")
        self.assertIn("| psa | `psa:mass=0.7` | 3.33 | `psa:mass=0.9` | 10.00 |", done.stdout)

    def test_processes_have_seeds_of_their_own(self):
        done = self.run_script("--samples", "1", "--processes", "3", "--seed", "7", "--cache", "f16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("niah (3), vt (3)\n", done.stdout)
        for part in range(3):
            (args,) = self.asked(part)
            self.assertEqual(args[args.index("-s") + 1], str(7 + part))
            self.assertEqual(args[args.index("-ctk") + 1], "f16")

    def test_intervals_hold_the_score(self):
        table = [("niah", m, s, 1e6) for m, s in (("full", 1), ("psa:mass=0.7", 0.5))]
        table += [("vt", m, s, 1e6) for m, s in (("full", 1), ("psa:mass=0.7", 1))]
        fake_score = 'score=score if method == "full" or index % 2 else 1 - score'
        done = self.run_script("--samples", "16", table=table, methods="psa:mass=0.7", score=fake_score)
        row = next(line for line in done.stdout.splitlines() if line.startswith("| `psa"))
        score, interval = row.split("|")[2:4]
        low, high = map(float, interval.split(" to "))
        self.assertLess(low, float(score) - 5)
        self.assertGreater(high, float(score) + 5)

    def test_it_ends_in_time_with_what_it_has(self):
        begin = time.monotonic()
        done = self.run_script("--seconds", "1", sleep=60)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertIn("| psa | `psa:mass=0.7` | 5.00 |", done.stdout)

    def test_failures_are_told(self):
        self.assertIn("ended with status 3", self.run_script(code=3).stderr)
        self.assertIn("no sample was answered by all",
                      self.run_script(methods="psa:mass=0.5", table=TABLE, *["--samples", "1"]).stderr)
        self.assertIn("solves 80 % of none of these tasks: cwe",
                      self.run_script("--samples", "1", table=TABLE[10:]).stderr)


if __name__ == "__main__":
    unittest.main()
