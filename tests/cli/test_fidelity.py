#!/usr/bin/env python3
"""`saccade eval fidelity` and `eval read` on a real small model: dense attention is no distance from
itself, rounded keys and values a small one, and a file with two layers swapped is found out by every
figure that compares models."""
import csv
import io
import json
import os
import pathlib
import re
import tempfile
import unittest

from cli import ROOT, model_path, saccade

TEXT = str(ROOT / "docs" / "cli.md")
COMMON = ("-f", TEXT, "-c", "256", "-k", "16", "-o", "json")
DISTANCES = ("kl_mean", "kl_median", "kl_p90", "kl_p99", "kl_max", "drift_mean")
LIKENESSES = ("top1", "top5", "overlap_mean")


def fidelity(*args):
    done = saccade("eval", "fidelity", "-m", model_path(), *COMMON, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def swap_layers(source, target, a, b):
    """Exchanges the names of two layers' tensors, which are of one length."""
    data = pathlib.Path(source).read_bytes()
    a, b = f"blk.{a}.".encode(), f"blk.{b}.".encode()
    head, rest = data[:16 << 20], data[16 << 20:]
    assert len(a) == len(b) and head.count(a) == head.count(b) > 0
    head = re.sub(re.escape(a) + b"|" + re.escape(b), lambda m: b if m.group() == a else a, head)
    pathlib.Path(target).write_bytes(head + rest)


class Fidelity(unittest.TestCase):
    def test_full_is_no_distance_and_a_window_is_some(self):
        with tempfile.TemporaryDirectory() as folder:
            full, window = fidelity("--methods", "full,streaming:sink=4,budget=64",
                                    "--sparse-min-ctx", "1", "--out", folder)
            self.assertEqual(json.loads(pathlib.Path(folder, "fidelity.json").read_text()),
                             [full, window])
            told = json.loads(pathlib.Path(folder, "run.json").read_text())
            self.assertTrue({"model", "file", "file_sha256", "kv", "cpu", "commit", "date"} <= set(told))
            self.assertEqual(told["command"], "eval fidelity")
            self.assertIn("| full | 256 |", pathlib.Path(folder, "fidelity.md").read_text())
            done = saccade("eval", "read", os.path.join(folder, "reading.sacr"))
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = list(csv.DictReader(io.StringIO(done.stdout)))
            pages = json.loads(saccade("eval", "read", os.path.join(folder, "reading.sacr"), "-o",
                                       "json", "--pages").stdout)
        for key in DISTANCES:
            self.assertEqual(full[key], 0, key)
            self.assertGreater(window[key], 0, key)
        self.assertEqual((full["top1"], full["top5"]), (1, 1))
        self.assertEqual((full["share_read"], full["byte_ratio"]), (1, 1))
        self.assertEqual(full["ppl"], full["ppl_dense"])
        self.assertAlmostEqual(full["mass_mean"], 1, places=5)
        self.assertAlmostEqual(full["overlap_mean"], 1, places=5)
        self.assertLess(window["share_read"], 0.5)
        self.assertLess(window["mass_mean"], 1)
        self.assertGreater(window["out_err_mean"], full["out_err_mean"])
        self.assertEqual(len(window["per_layer"]), 30)
        # The recording says the same of both methods.
        self.assertEqual(len(rows), 2 * 16 * 30 * 3)
        self.assertEqual(pages["methods"], ["full", "streaming:sink=4,budget=64"])
        for want in (full, window):
            mass = [float(r["mass"]) for r in rows if r["method"] == want["method"]]
            self.assertAlmostEqual(sum(mass) / len(mass), want["mass_mean"], places=5)
        for record in pages["records"]:
            self.assertAlmostEqual(sum(record["page_mass"]), 1, places=2)
            self.assertEqual(len(record["page"]), record["n_page_read"])

    def test_a_sweep_sets_each_method_to_all_values_of_its_dial(self):
        with tempfile.TemporaryDirectory() as folder:
            done = saccade("eval", "sweep", "-m", model_path(), *COMMON[:-4], "-k", "4", "-o", "json",
                           "--sparse-min-ctx", "1", "--budgets", "16,64", "--masses", "0.5,0.9", "--methods",
                           "full,auto,quest:dense=0,topk:budget=5,dense+snapkv", "--out", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = json.loads(done.stdout)
            self.assertEqual([r["method"] for r in rows],
                             ["full", "auto:mass=0.5", "auto:mass=0.9", "quest:dense=0,budget=16",
                              "quest:dense=0,budget=64", "topk:budget=5", "dense+snapkv:budget=16",
                              "dense+snapkv:budget=64"])
            for row in rows:  # a step of this model is no wonder and no pause
                self.assertTrue(100 < row["us_per_token"] < 10_000_000, row["us_per_token"])
            plots = {p.name for p in pathlib.Path(folder).glob("kl-*.csv")}
            self.assertEqual(plots, {"kl-share.csv", "kl-time.csv"})
        (plain,) = fidelity()
        self.assertIsNone(plain["us_per_token"])
        for args, word in ((("--out", "x", "--budgets", "0"), "budget"), ((), "--out")):
            done = saccade("eval", "sweep", "-m", model_path(), *COMMON, "--methods", "quest", *args)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr)

    def test_the_place_in_the_list_changes_nothing(self):
        # The prompt is read by the first method, the others go on behind it.
        methods = ["raas:budget=64", "raas:budget=64,prompt=age", "loopserve:budget=64", "h2o:budget=64",
                   "lfps:budget=64", "snapkv:budget=64"]
        rows = {}
        for order in (methods, methods[1:] + methods[:1]):
            for row in fidelity("--methods", ",".join(order), "--sparse-min-ctx", "1"):
                found = (row["kl_mean"], row["share_read"])
                self.assertEqual(rows.setdefault(row["method"], found), found, row["method"])
        self.assertEqual(rows["raas:budget=64"][1], 1)  # its prompt stays
        self.assertLess(rows["raas:budget=64,prompt=age"][1], 0.5)

    def test_methods_beside_the_list_are_refused(self):
        for option, value, words in (
            ("--decode", "think", "--methods names the methods here, not --decode"),
            ("--prefill", "auto", "--methods names the methods here, not --prefill"),
            ("--budget", "5%", "--budget goes into --methods"),
            ("--mass", "0.9", "--mass goes into --methods"),
        ):
            done = saccade("eval", "fidelity", "-m", "/no/such", "-f", __file__, option, value)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_methods_below_the_least_context_are_noted(self):
        args = ("eval", "fidelity", "-m", model_path(), *COMMON[:-2], "-k", "2", "--methods", "full,streaming:budget=64")
        done = saccade(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("dense attention: 'streaming:budget=64' at 256 tokens\n", done.stderr)
        self.assertNotIn("read whole", saccade(*args, "--sparse-min-ctx", "1").stderr)

    def test_a_row_that_chose_nothing_is_refused(self):
        # A budget that its window fills: the paper's way of counting leaves nothing to choose.
        args = ("eval", "fidelity", "-m", model_path(), *COMMON[:-2], "-k", "2", "--sparse-min-ctx", "1",
                "--methods", "full,streaming:budget=64,quest:budget=2%,snapkv:budget=16")
        done = saccade(*args)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'snapkv:budget=16' at 256 tokens", done.stderr)
        self.assertNotIn("quest", done.stderr)  # 2 % of 256 are less than a page: it chose one
        self.assertNotIn("streaming", done.stderr)  # never chooses
        cell = {line.split("|")[1].strip(): line.split("|")[15].strip() for line in done.stdout.splitlines()
                if line.startswith("| ")}
        self.assertEqual((cell["method"], cell["full"], cell["streaming:budget=64"], cell["quest:budget=2%"],
                          cell["snapkv:budget=16"]), ("chosen", "-", "-", "16.0", "nothing"))
        done = saccade(*args, "--allow-idle", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([r["chosen"] for r in json.loads(done.stdout)], [None, None, 16, 0])

    def test_proofs_hold(self):
        for kv in ((), ("-ctk", "q8", "-ctv", "q8")):
            rows = fidelity("--methods", "psa_cert:mass=0.9,psa_cert:mass=0.5,mode=report,by=shadow4,full",
                            "--sparse-min-ctx", "1", *kv)
            for row in rows[:2]:
                self.assertEqual((row["n_proof"], row["n_broken"]), (16 * 30 * 3, 0), row["method"])
                self.assertTrue(0 < row["mass_proved"] <= row["mass_mean"], row)
                self.assertGreater(row["out_bound"], 0)
                self.assertEqual(len({layer["page_share"] for layer in row["per_layer"]}) > 1, True)
            self.assertGreater(rows[0]["mass_proved"], 0.9)
            self.assertLess(rows[1]["mass_proved"], rows[0]["mass_proved"])
            self.assertEqual((rows[2]["n_proof"], rows[2]["out_bound"]), (0, 0))

    def test_q8_is_a_small_distance_in_both_forms(self):
        for form in ((), ("--prefill-form",)):
            (row,) = fidelity("-ctk", "q8", "-ctv", "q8", *form)
            self.assertTrue(0 < row["kl_mean"] < 1e-2, row)
            self.assertGreater(row["drift_mean"], 0)
            self.assertLess(row["byte_ratio"], 0.9)

    def test_swapped_layers_are_found_out(self):
        (q8,) = fidelity("-ctk", "q8", "-ctv", "q8")
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "swapped.gguf")
            swap_layers(model_path(), other, 12, 17)
            (swapped,) = fidelity("--model2", other)
        for key in DISTANCES:
            self.assertGreater(swapped[key], 3 * q8[key], key)
        for key in LIKENESSES:
            self.assertLess(swapped[key], q8[key], key)
        self.assertGreater(abs(swapped["ppl"] / swapped["ppl_dense"] - 1),
                           3 * abs(q8["ppl"] / q8["ppl_dense"] - 1))
        # Layers before the first that was swapped see what they saw.
        self.assertEqual([layer["drift"] == 0 for layer in swapped["per_layer"]],
                         [i < 12 for i in range(30)])


class Refusals(unittest.TestCase):
    def test_what_is_wrong_is_named(self):
        for args, code, word in (
                (("-f", TEXT, "-c", "256", "-k", "256"), 2, "'-k'"),
                (("-f", TEXT, "-c", "64k"), 2, "65536"),
                (("-c", "256"), 2, "-f FILE"),
                (("-f", TEXT, "--methods", "nothing"), 2, "nothing"),
                (("-f", TEXT, "-c", "256", "--out", "/dev/null/folder"), 1, "/dev/null/folder")):
            done = saccade("eval", "fidelity", "-m", model_path(), *args)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(word, done.stderr)
            self.assertEqual(done.stdout, "")

    def test_broken_recordings(self):
        done = saccade("eval", "read", TEXT)
        self.assertEqual(done.returncode, 1)
        self.assertIn("SACREAD", done.stderr)
        self.assertEqual(saccade("eval", "read", "/no/such").returncode, 1)
        self.assertEqual(saccade("eval", "read").returncode, 2)


if __name__ == "__main__":
    unittest.main()
