#!/usr/bin/env python3
"""junit_summary.py on files that CTest itself writes for tests that pass, fail, skip, crash and do
not exist."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).with_name("junit_summary.py")
COMMANDS = {"pass": "true", "fail": "false", "skip": 'sh -c "exit 77"',
            "crash": 'sh -c "kill -SEGV $$$$"', "absent": "no-such-program-in-this-folder"}


class SummaryTest(unittest.TestCase):
    def summary(self, *names):
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"add_test({name} {COMMANDS[name]})\n"
                     f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n".replace("$$", "$")
                     for name in names]
            pathlib.Path(folder, "CTestTestfile.cmake").write_text("".join(lines))
            subprocess.run(["ctest", "--test-dir", folder, "--output-junit", f"{folder}/junit.xml"],
                           capture_output=True)
            done = subprocess.run([sys.executable, SUMMARY, f"{folder}/junit.xml"],
                                  capture_output=True, text=True)
            return done.returncode, done.stdout.splitlines()

    def test_all_pass(self):
        self.assertEqual(self.summary("pass"), (0, ["1 passed, 0 failed"]))

    def test_every_kind(self):
        status, lines = self.summary("pass", "fail", "skip", "crash", "absent")
        self.assertEqual(status, 1)
        self.assertEqual(lines, ["skipped: skip", "failed: fail crash absent", "1 passed, 3 failed"])

    def test_nothing_run_is_no_success(self):
        self.assertEqual(self.summary("skip"), (1, ["skipped: skip", "0 passed, 0 failed"]))


if __name__ == "__main__":
    unittest.main()
