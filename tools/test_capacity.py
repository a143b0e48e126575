#!/usr/bin/env python3
"""capacity.sh with a made-up program: what it asks for, what goes from one run to the others, where it ends."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("capacity.sh")
FAKE = """#!{python}
import json, pathlib, sys
args = sys.argv[1:]
if args[1] == "plot":
    print("a drawing of", pathlib.Path(args[2]).read_text())
    sys.exit()
trials = pathlib.Path(args[args.index("--trials") + 1])
with open(trials.parent / "asked", "a") as file:
    file.write(json.dumps(args) + "\\n")
first = args[args.index("--methods") + 1].split(",")[0]
if "{kept}" != "none": trials.write_text("method,kept,kv_most_bytes\\n" + "".join('"%s",%s\\n' % (first, rest) for rest in ("1,4000", "{kept},9000", ",20000")))
print("one idle iteration: 5.25 ms; more\\n\\n| method | rate |\\n|---|---|")
for method in args[args.index("--methods") + 1].split(","):
    print("|", method, "|", trials.stem, "|")
print("\\n*: a mark of all" + "\\n\\n?: one of " + trials.stem)
"""


class Capacity(unittest.TestCase):
    def run_script(self, kept="1", code=0, disk="pages", **env):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        program = root / "fake"
        program.write_text(FAKE.format(python=sys.executable, kept=kept))
        program.chmod(0o755)
        done = subprocess.run(["sh", SCRIPT, program, "a-model", root / "out", disk if disk == "-" else root / disk, "--", "-t", "3"],
                              env={**os.environ, "METHODS": "dense,quest psa", **env}, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.out = root / "out"
        asked = [json.loads(line) for line in (root / "out" / "asked").read_text().splitlines()]
        return done, [{k: v for k, v in zip(a, a[1:]) if k.startswith("-")} for a in asked]

    def test_memory_is_a_share_of_what_dense_attention_held(self):
        done, asked = self.run_script(SHARE="25", TABLES="working_set all")
        self.assertEqual([a["--methods"] for a in asked], ["dense", "dense,quest", "psa", "dense,quest", "psa"])
        self.assertNotIn("--kv-fast", asked[0])
        for a in asked[1:]:
            self.assertEqual((a["--idle-ms"], a["--kv-fast"], a["-t"]), ("5.25", "2250", "3"))
            self.assertTrue(a["--kv-disk"].endswith("/pages:8G"), a)
        self.assertEqual([a.get("--kv-admit") for a in asked], [None, "working-set", "working-set", "all", "all"])
        self.assertEqual(done.stdout, "".join(
            f"## {table}\n\none idle iteration: 5.25 ms; more\n\n| method | rate |\n|---|---|\n"
            f"| dense, all in memory | resident |\n| dense | {table}-dense |\n| quest | {table}-dense |\n"
            f"| psa | {table}-psa |\n\n*: a mark of all\n\n?: one of resident\n\n?: one of {table}-dense\n\n"
            f"?: one of {table}-psa\n" for table in ("working_set", "all")))
        for table in "working_set", "all":
            trials = (self.out / f"{table}.csv").read_text().splitlines()
            self.assertEqual(trials[:4:3] + trials[4::3], ["method,kept,kv_most_bytes", '"dense, all in memory",,20000',
                                                           '"dense",1,4000', '"psa",1,4000'])
            self.assertEqual((self.out / f"{table}.svg").read_text(), "a drawing of " + "\n".join(trials) + "\n\n")

    def test_loads_that_broke_the_limit_do_not_count(self):
        asked = self.run_script(kept="", SHARE="50", TABLES="all")[1]
        self.assertEqual({a["--kv-fast"] for a in asked[1:]}, {"2000"})

    def test_a_gpu_has_no_disk(self):
        asked = self.run_script(disk="-")[1]
        self.assertEqual([("--kv-fast" in a, "--kv-disk" in a) for a in asked], [(False, False), (True, False), (True, False)])

    def test_a_search_without_a_decision_is_told(self):
        done, asked = self.run_script(kept="none", code=1, SECONDS_EACH="3")
        self.assertIn("more SECONDS_EACH than 3", done.stderr)
        self.assertEqual(len(asked), 1)

    def test_wrong_tables_are_told(self):
        done, asked = self.run_script(code=2, TABLES="none")
        self.assertIn("none is neither working_set nor all", done.stderr)
        self.assertEqual(len(asked), 1)


if __name__ == "__main__":
    unittest.main()
