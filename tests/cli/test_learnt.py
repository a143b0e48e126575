#!/usr/bin/env python3
"""Decode methods that learn from the prompt, on a real model: the same answer with any threads and
chunks, over pages of either type, behind a sparse prompt, and of a stored document."""
import json
import tempfile
import unittest

from cli import model_path, run_json, saccade

TEXT = " ".join(f"Locker {i} holds {thing} and has the code {i * 7919 % 10000}." for i, thing in enumerate(
    ("a kite", "two shoes", "old maps", "a lamp", "blue paint", "a trumpet") * 3))
ASK = "Look at all the lockers once more, from the first one to the last. What does locker 7 hold, and which code?"
SETTING = ("-n", "5", "--temp", "0", "--n-probs", "1", "--sparse-min-ctx", "0")
METHODS = ("kascade:budget=48,anchors=4", "think:ratio=0.5", "kvzip:budget=40%,repeat=100")


def ask(*args):
    return run_json("-p", ASK, *SETTING, *args)


def heard(answer):
    return answer["tokens"], [p["logprob"] for p in answer["probs"]]


class Learnt(unittest.TestCase):
    def setUp(self):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".txt")
        self.addCleanup(self.file.close)
        self.file.write(TEXT)
        self.file.flush()

    def expect(self, method, *args, batches):
        """The same with any threads and chunks; of one of these answers."""
        want, got = (ask(*args, "--decode", method, "-t", t, "-b", b) for t, b in zip("12", batches))
        self.assertEqual(heard(got), heard(want))
        share = want["timings"]["decode"]["share_read"]
        self.assertEqual(share, got["timings"]["decode"]["share_read"])
        self.assertEqual(share < 0.9, "think" not in method)  # that reads all tokens, but not all channels
        return want

    def test_over_q8_pages_behind_a_sparse_prompt(self):
        self.file.write(" " + TEXT)  # more rows than a tile of the prompt's method has
        self.file.flush()
        args = ("-f", self.file.name, "-ctk", "q8", "-ctv", "q8", "--prefill", "auto:mass=0.5,most=1,last=0")
        for method in METHODS:
            with self.subTest(method=method):
                told = self.expect(method, *args, batches=("512", "1000"))
                self.assertLess(told["timings"]["prefill"]["planned_share"], 1)

    def test_of_a_stored_document(self):
        """The question is longer than the rows that the methods learn from."""
        with tempfile.TemporaryDirectory() as store:
            added = saccade("docs", "add", "-m", model_path(), "--store", store, "--name", "lockers", self.file.name)
            self.assertEqual(added.returncode, 0, added.stderr)
            for method in METHODS:
                with self.subTest(method=method):
                    told = self.expect(method, "--docs", "lockers", "--store", store, batches=("512", "32"))
                    self.assertEqual(told["context"]["documents"], ["lockers"])


if __name__ == "__main__":
    unittest.main()
