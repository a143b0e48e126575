#!/usr/bin/env python3
"""`saccade bench capacity`: one row for each method, the same twice, with a clock that charges for
counts; files of trials and their drawing; wrong options and Ctrl-C."""
import csv
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest
import xml.dom.minidom

from cli import BIN, clean_env, model_path, saccade

SMALL = ["--lengths", "150,190", "--num-prompts", "2", "--output-len", "3", "--clock", "model",
         "--duration", "0.1", "--max-trials", "2"]


def capacity(*args):
    return saccade("bench", "capacity", "-m", model_path(), *SMALL, *args)


class Capacity(unittest.TestCase):
    def test_rows_trials_and_drawing(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = capacity("--methods", "dense,quest:budget=32,sink=4", "-o", "json", "--trials",
                            str(folder / "t.csv"), "--plot", str(folder / "t.svg"))
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads(done.stdout)
            trials = list(csv.DictReader((folder / "t.csv").read_text().splitlines()))
            xml.dom.minidom.parse(str(folder / "t.svg"))
        self.assertEqual([r["method"] for r in rows], ["dense", "quest:budget=32,sink=4"])
        dense, quest = rows
        self.assertEqual(dense["bytes_share"], 1)
        self.assertLess(quest["bytes_share"], 1)
        self.assertLess(quest["bytes_per_token"], dense["bytes_per_token"])
        for r in rows:
            self.assertEqual((r["n_differ"], r["n_failed"]), (0, 0))
            self.assertAlmostEqual(r["strict_ms"], 5 * r["idle_ms"])
            self.assertAlmostEqual(r["relaxed_ms"], 25 * r["idle_ms"])
            mine = [t for t in trials if t["method"] == r["method"]]
            self.assertEqual(len(mine), r["n_trial"])
            for limit in ("strict", "relaxed"):
                kept = [float(t["rate"]) for t in mine if t["limit"] == limit and t["kept"] == "1"]
                self.assertAlmostEqual(r["capacity_" + limit], max(kept, default=0), 3)
        self.assertEqual({t["n_differ"] for t in trials}, {"0"})

    def test_no_time_is_told_as_such(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = capacity("--methods", "dense", "--seconds", "0.0001", "--trials", str(folder / "t.csv"), "--plot",
                            str(folder / "t.svg"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| dense | ?* | ?* |", done.stdout)

    def test_wrong_options_are_told(self):
        for args, word in ((["--lengths", "12"], "12 tokens: a prompt has 128 to"),
                           (["--lengths", "400K"], "'K' is no length"),
                           (["--methods", "dense,nosuch"], "nosuch"),
                           (["--methods", "dense,dense"], "named twice"),
                           (["--duration", "0"], "--duration"),
                           (["--kv-fast", "1M"], "--kv-disk"),
                           (["--num-contexts", "1"], "there are 2 prompts"),
                           (["--num-contexts", "4", "--cold"], "not with --cold"),
                           (["--device", "gpu"], "'gpu'"),
                           (["--clock", "sun"], "--clock")):
            done = capacity(*args)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr)
            self.assertEqual(done.stdout, "")

    def test_interrupt_keeps_what_is_done(self):
        with tempfile.TemporaryDirectory() as name:
            trials = pathlib.Path(name) / "t.csv"
            with subprocess.Popen([BIN, "bench", "capacity", "-m", model_path(), *SMALL,
                                   "--methods", "dense,streaming:budget=64,topk", "-o", "jsonl",
                                   "--trials", str(trials)], stdout=subprocess.PIPE, text=True,
                                  env=clean_env()) as p:
                first = json.loads(p.stdout.readline())
                os.kill(p.pid, signal.SIGINT)
                rest = p.stdout.read()
            self.assertEqual(p.returncode, 130)
            self.assertEqual(first["method"], "dense")
            self.assertLess(len(rest.splitlines()), 2)
            self.assertGreaterEqual(len(trials.read_text().splitlines()), 1 + first["n_trial"])


if __name__ == "__main__":
    unittest.main()
