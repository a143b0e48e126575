#!/usr/bin/env python3
"""`saccade bench`: formats hold the same rows, counts are those of the model, wrong lists are told."""
import csv
import io
import json
import sqlite3
import subprocess
import sys
import tempfile
import unittest

from cli import ROOT, model_path, saccade

# smollm2-135m
LAYERS, EMBD, FF, Q, KV, VOCAB = 30, 576, 1536, 576, 192, 49152


def flop(pos0, n, n_logit):
    """Of n rows behind pos0 tokens, by the shapes of the matrices and the causal triangle."""
    linear = n * LAYERS * (EMBD * (Q + 2 * KV) + Q * EMBD + 3 * EMBD * FF) + n_logit * EMBD * VOCAB
    keys = sum(pos0 + row + 1 for row in range(n))
    return 2 * linear + 4 * Q * LAYERS * keys


def bench(*args):
    return saccade("bench", "-m", model_path(), "-r", "2", *args)


def rows(*args):
    done = bench("-o", "json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weight_bytes(row, n_step=2):  # of one step
    return row["weight_gb_s"] * 1e9 * row["avg_ns"] * 1e-9 / n_step


class Mixture(unittest.TestCase):
    def test_counts_are_those_of_the_experts_that_were_read(self):
        """A made model in the shape of Qwen3-30B-A3B, far smaller: 16 experts, 2 of them a token's."""
        embd, ff, vocab = 256, 128, 512
        shape = {"layers": 2, "embd": embd, "heads": 4, "kv-heads": 2, "head-dim": 64, "vocab": vocab,
                 "experts": 16, "experts-used": 2, "expert-ff": ff}
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/moe.gguf"
            subprocess.run([sys.executable, ROOT / "tools" / "make_model.py", "qwen3-moe", path,
                            *(word for key, value in shape.items() for word in ("--" + key, str(value)))],
                           check=True)
            done = saccade("bench", "-m", path, "-r", "2", "-p", "64", "-n", "1", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        prompt, step = json.loads(done.stdout)

        def packed(n_out, n_in, weight_bytes=34 / 32):  # a group of 16 rows has 64 bytes more
            return n_out // 16 * (64 + 16 * n_in * weight_bytes)
        expert = 2 * packed(ff, embd) + packed(embd, ff)
        layer = 2 * packed(256, embd) + 2 * packed(128, embd) + packed(16, embd, 4)
        dense = 2 * layer + packed(vocab, embd)
        self.assertAlmostEqual(weight_bytes(step, 1), dense + 2 * 2 * expert, delta=1)
        # 64 rows of a prompt choose most of the 2 x 16 experts, whose weights are then read once.
        n_expert = (weight_bytes(prompt, 1) - dense) / expert
        self.assertAlmostEqual(n_expert, round(n_expert), delta=1e-4)
        self.assertTrue(16 < n_expert <= 32, n_expert)
        linear = 2 * (2 * 256 * embd + 2 * 128 * embd + 2 * 3 * embd * ff) + embd * vocab
        self.assertEqual(step["flop"], 2 * linear + 4 * 256 * 2)


class Bench(unittest.TestCase):
    def test_rows_and_counts(self):
        found = rows("-p", "40,0", "-n", "3", "-pg", "8,2", "-d", "0,70")
        self.assertEqual([r["test"] for r in found],
                         ["pp40", "tg3", "pp8+tg2", "pp40 @ d70", "tg3 @ d70", "pp8+tg2 @ d70"])
        self.assertEqual([r["flop"] for r in found],
                         [flop(d, 40, 1) if test == 0 else flop(d, 3, 3) if test == 1 else
                          flop(d, 8, 1) + flop(d + 8, 2, 2) for d in (0, 70) for test in range(3)])
        for r in found:
            self.assertEqual(len(r["samples_ts"]), 2)
            self.assertLessEqual(r["min_ts"], r["median_ts"])
            self.assertLessEqual(r["median_ts"], r["max_ts"])
            self.assertAlmostEqual(r["avg_ts"], sum(r["samples_ts"]) / 2)
            self.assertGreater(r["load_s"], 0)
            self.assertGreater(r["share"], 0)
        # 23,040 bytes a token: whole pages of 32, and a tail of each of the two sequences.
        self.assertEqual(found[0]["kv_bytes"], 23040 * 32 * (1 + 2))
        self.assertEqual(found[3]["kv_bytes"], 23040 * 32 * (3 + 2))

    def test_noise_takes_the_place_of_a_context(self):
        with tempfile.TemporaryDirectory() as folder:
            tiers = ["--kv-fast", "2M", "--kv-disk", folder + "/pages:64M"]
            args = ["-p", "0", "-n", "2", "-d", "256", "-ctk", "q8", "-ctv", "q8", *tiers]
            noise, = rows("--depth-fill", "noise", *args)
            computed, = rows(*args)
        self.assertEqual((noise["test"], computed["test"]), ("tg2 @ d256 noise", "tg2 @ d256"))
        for key in ("kv_bytes", "flop", "n_depth", "bytes_per_token"):
            self.assertEqual(noise[key], computed[key])
        # What the depth has cost is no part of it: two tests of two steps, of 8 x 90 pages each.
        for r in (noise, computed):
            self.assertLessEqual(r["tier_bytes_fetched"], 4 * 8 * 90 * 4096)
            self.assertGreater(r["tier_bytes_fetched"] + r["tier_hit_share"], 0)

    def test_sequences_share_a_depth_or_have_their_own(self):
        args = ["-p", "0", "-n", "2", "-d", "70", "--decode-batch", "3"]
        shared, = rows(*args)
        own, = rows("--depth-own", *args)
        self.assertEqual([(r["test"], r["n_depths"]) for r in (shared, own)],
                         [("tg2 x3 @ d70", 1), ("tg2 x3 @ d70 own", 3)])
        # Two pages and a tail of a depth, and another tail of each that generates.
        self.assertEqual([r["kv_bytes"] for r in (shared, own)],
                         [23040 * 32 * (3 + 3), 23040 * 32 * (3 * 3 + 3)])
        noise, = rows("--depth-fill", "noise", "--depth-own", *args)
        self.assertEqual((noise["test"], noise["kv_bytes"]), ("tg2 x3 @ d70 noise own", own["kv_bytes"]))

    def test_decode_batch_reads_weights_once(self):
        one, four = (rows("-p", "0", "-n", "2", "--decode-batch", n, "--top-k", "0")[0]
                     for n in ("1", "4"))
        self.assertEqual(four["test"], "tg2 all x4")
        self.assertEqual(four["flop"], 4 * one["flop"])
        self.assertAlmostEqual(weight_bytes(four) / weight_bytes(one), 1, places=6)

    def test_few_logits_read_less(self):
        few, all_of_them = (rows("-p", "0", "-n", "2", "--top-k", n)[0] for n in ("1", "0"))
        self.assertEqual([few["test"], all_of_them["test"]], ["tg2", "tg2 all"])
        self.assertEqual([few["n_top"], all_of_them["n_top"]], [1, 0])
        self.assertLess(weight_bytes(few), 0.97 * weight_bytes(all_of_them))

    def test_formats_agree(self):
        keys = list(rows("-p", "4", "-n", "0")[0])
        lines = bench("-p", "4", "-n", "2", "-o", "jsonl").stdout.splitlines()
        self.assertEqual([list(json.loads(line)) for line in lines], [keys, keys])
        table = list(csv.reader(io.StringIO(bench("-p", "4", "-n", "2", "-o", "csv").stdout)))
        self.assertEqual(table[0], keys)
        self.assertEqual([len(row) for row in table], [len(keys)] * 3)
        base = sqlite3.connect(":memory:")
        for _ in range(2):  # a second run goes into the same table
            base.executescript(bench("-p", "4", "-n", "2", "-o", "sql").stdout)
        found = base.execute("SELECT * FROM bench")
        self.assertEqual([column[0] for column in found.description], keys)
        table = [dict(zip(keys, row)) for row in found]
        self.assertEqual([row["test"] for row in table], ["pp4", "tg2"] * 2)
        self.assertEqual([(row["n_prompt"], row["share_read"]) for row in table], [(4, None), (0, None)] * 2)
        self.assertEqual(len(table[1]["samples_ts"].split()), 2)
        text = bench("-p", "4", "-n", "2").stdout
        self.assertIn("limits: read ", text)
        self.assertEqual(len([line for line in text.splitlines() if line.startswith("|")]), 4)

    def test_methods_are_rows(self):
        found = rows("-p", "4", "-n", "2", "-d", "300", "--sparse-min-ctx", "0",
                     "--decode", "full", "--decode", "streaming:budget=64")
        self.assertEqual([(r["test"], r["decode"]) for r in found[1:]],
                         [("tg2 @ d300", "full"), ("tg2 @ d300", "streaming:budget=64")])
        self.assertEqual(found[1]["share_read"], 1)
        self.assertLess(found[2]["share_read"], 0.5)

    def test_lengths_in_units(self):
        self.assertEqual([r["test"] for r in rows("-p", "0", "-n", "1", "-r", "1", "-d", "1k")], ["tg1 @ d1024"])

    def test_wrong_usage(self):
        for args, words in [(("-p", "5x"), "option '-p': '5x' is not a list of whole numbers"),
                            (("-p", "5, 99999999"), "99999999 is out of range"),
                            (("-p", "5kk"), "option '-p': '5kk' is not a list of whole numbers"),
                            (("-d", "1k,9999m"), "option '-d': 9999m is out of range"),
                            (("-n", "1,,2"), "option '-n': '1,,2'"),
                            (("-d", "99999999999"), "option '-d': 99999999999 is out of range"),
                            (("-pg", "5"), "option '-pg': '5' is not of the form P,N"),
                            (("-r", "0"), "option '-r': '0' is out of range"),
                            (("-p", "0", "-n", "0"), "no test"),
                            (("--decode", "guess"), "option '--decode': "),
                            (("-o", "xml"), "option '-o': 'xml'"),
                            (("-ctk", "q8"), "q8")]:
            done = bench(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(words, done.stderr)
        self.assertIn("a model is missing", saccade("bench").stderr)
        # a GPU that is missing is told before anything is measured, and so is a file
        done = saccade("bench", "-m", model_path(), "--device", "cuda", "--kv-device", "host",
                       env={"SACCADE_CUDA": "/nowhere/lib.so"})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("/nowhere/lib.so", done.stderr)
        done = bench("-m", "no-such.gguf")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no-such.gguf: No such file", done.stderr)


class Ops(unittest.TestCase):
    def test_filters_and_figures(self):
        done = saccade("bench", "ops", "--ops", "rope,linear-narrow", "--shape", "smollm2",
                       "--ms", "1", "-o", "json")
        found = json.loads(done.stdout)
        self.assertEqual({(r["op"], r["mode"]) for r in found}, {("linear", "narrow"), ("rope", "")})
        by_what = {r["what"]: r for r in found}
        down = by_what["down Q4_1 1536 x 576, 4 rows"]
        self.assertEqual(down["flop"], 2 * 4 * 1536 * 576)
        # 20 bytes for each 32 weights, and 64 for each 16 rows.
        self.assertEqual(down["bytes"], 1536 * 576 * 20 // 32 + 576 // 16 * 64)
        for r in found:
            self.assertLessEqual(r["seconds_best"], r["seconds"])
            self.assertAlmostEqual(r["share"] * r["seconds"], r["seconds_limit"])

    def test_wrong_usage(self):
        for args, words in [(("--ops", "linear,foo"), "'foo' is no operation: there are linear, attn, rmsnorm, rope, kv_write, seal; "),
                            (("--shape", "no such"), "no row of 'no such'"),
                            (("--ms", "0"), "option '--ms'")]:
            done = saccade("bench", "ops", *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(words, done.stderr)


class Prefix(unittest.TestCase):
    def test_a_text_is_computed_and_held_once(self):
        done = saccade("bench", "prefix", "-m", model_path(), "-p", "40", "--own", "30", "--sequences",
                       "2", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        page = LAYERS * KV // 64  # of all layers and heads: 32 tokens; 70 have 2, of which one is shared
        self.assertEqual([r["salt"] for r in found], ["the same", "the same", "another"])
        self.assertEqual([r["n_reused"] for r in found], [0, 32, 0])
        self.assertEqual([r["n_page"] for r in found], [2 * page, 3 * page, 5 * page])
        self.assertEqual([r["n_page_without"] for r in found], [2 * page, 4 * page, 6 * page])
        for r in found:
            self.assertEqual((r["bits"], r["n_prompt"]), ("same bits", 70))
            self.assertGreater(min(r["ttft_ms"], r["ttft_ms_without"]), 0)

    def test_wrong_usage(self):
        for args, words in [((), "a model is missing"),
                            (("-m", model_path(), "--own", "0"), "option '--own'"),
                            (("-m", model_path(), "--sequences", "65"), "option '--sequences'")]:
            done = saccade("bench", "prefix", *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(words, done.stderr)


class Mask(unittest.TestCase):
    def test_a_mask_beside_its_step(self):
        done = saccade("bench", "mask", "-m", model_path(), "-t", "1", "-n", "4", "--answers", "3", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        # The first token of an answer ends the step over its prompt.
        self.assertEqual([(r["answers"], r["n_token"]) for r in found], [("the first", 3), ("those behind it", 6)])
        for r in found:
            self.assertTrue(0 < r["mask_us"] <= r["mask_us_p99"] <= r["mask_us_max"], r)
            self.assertAlmostEqual(r["share_median"], 100 * r["mask_us"] / r["step_us"], places=6)
            self.assertGreater(r["step_us"], 100)

    def test_the_grammar_is_the_users(self):
        done = saccade("bench", "mask", "-m", model_path(), "--grammar", 'root ::= "a"', "--answers", "2", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(sum(r["n_token"] for r in json.loads(done.stdout)), 2)  # the end of each
        for args in (["-j", '{"type": "?"}'], ["--grammar", 'root ::= "a" |', "-j", "{}"], ["--answers", "1"]):
            done = saccade("bench", "mask", "-m", model_path(), *args)
            self.assertIn(done.returncode, (1, 2), done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
