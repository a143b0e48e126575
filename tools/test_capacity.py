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
trials = pathlib.Path(args[args.index("--trials") + 1])
with open(trials.parent / "asked", "a") as file:
    file.write(json.dumps(args) + "\\n")
trials.write_text("method,kept,kv_most_bytes\\ndense,1,4000\\ndense,{kept},9000\\ndense,,20000\\n")
print("one idle iteration: 5.25 ms; more\\n\\n| a table of", trials.stem, "|")
"""


class Capacity(unittest.TestCase):
    def run_script(self, kept="1", code=0, **env):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        program = root / "fake"
        program.write_text(FAKE.format(python=sys.executable, kept=kept))
        program.chmod(0o755)
        done = subprocess.run(["sh", SCRIPT, program, "a-model", root / "out", root / "pages", "--", "-t", "3"],
                              env={**os.environ, "METHODS": "dense,quest psa", **env}, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
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
        for name in "resident", "working_set-dense", "working_set-psa", "all-dense", "all-psa":
            self.assertIn(f"## {name}\n\none idle iteration: 5.25 ms; more\n\n| a table of {name} |", done.stdout)

    def test_loads_that_broke_the_limit_do_not_count(self):
        asked = self.run_script(kept="", SHARE="50", TABLES="all")[1]
        self.assertEqual({a["--kv-fast"] for a in asked[1:]}, {"2000"})

    def test_wrong_tables_are_told(self):
        done, asked = self.run_script(code=2, TABLES="none")
        self.assertIn("none is neither working_set nor all", done.stderr)
        self.assertEqual(len(asked), 1)


if __name__ == "__main__":
    unittest.main()
