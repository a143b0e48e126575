#!/usr/bin/env python3
"""`saccade eval report` on a small synthetic evaluation: the page, its data, and what it refuses."""
import base64
import csv
import hashlib
import html.parser
import json
import pathlib
import re
import tempfile
import unittest

import eval_dir
from cli import ROOT, saccade

HOSTILE = "x</script><script>alert(1)</script><img src=//evil/p onerror=alert(2)>\"'"
VOID = {"meta", "wbr", "input", "br"}


class Page(html.parser.HTMLParser):
    """Elements that nest, ids, links, the JSON of each plot, and what could reach out or run."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.data, self.problems, self.links, self.text = [], [], {}, [], [], ""
        self.scripts = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        for name, value in attrs.items():
            if name.startswith("on") or name == "src" or (name == "href" and "//" in value):
                self.problems.append((tag, name, value))
        if tag in ("img", "link", "iframe", "object") or (
                tag == "script" and attrs.get("type") != "application/json" and attrs):
            self.problems.append((tag, attrs))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()[0] != tag:
            self.problems.append(("nesting", tag))

    def handle_data(self, data):
        if self.open and self.open[-1] == ("script", {}):
            self.scripts.append(data)
        elif self.open and self.open[-1][0] == "script":
            self.data[self.open[-1][1]["id"]] = json.loads(data)
        else:
            self.text += data


def report(folder, *args):
    done = saccade("eval", "report", str(folder), *args)
    assert done.returncode == 0, done.stderr
    return done, Page((pathlib.Path(folder) / "report.html").read_text())


def rows(folder, name):
    with open(pathlib.Path(folder) / f"{name}.csv", newline="") as f:
        return list(csv.DictReader(f))


class Reports(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = self.folder.name

    def write(self, **what):
        return eval_dir.write(self.dir, **what)

    def write_all(self):
        return self.write(lines=list(eval_dir.samples()), rows=eval_dir.fidelity(),
                          summary={"model": "tiny", "seed": 1}, recording=eval_dir.reading())

    def test_every_plot_is_there_with_its_data(self):
        self.write_all()
        done, page = report(self.dir)
        names = ["scores", "needle", "score-share", "ttft", "decode-speed", "prompt-speed", "kl-share",
                 "layer-error", "heads", "read-and-missed", "blocks-95", "block-map"]
        self.assertIn(f"{len(names)} plots", done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertEqual(page.problems, [])
        self.assertEqual(page.open, [])
        self.assertEqual(len(page.ids), len(set(page.ids)))
        self.assertEqual(sorted(page.data), sorted(f"data-{n}" for n in names))
        for name in names:
            self.assertIn(f"{name}.csv", page.links)
            plain, data = rows(self.dir, name), page.data[f"data-{name}"]
            self.assertEqual(list(plain[0]), data["columns"])
            self.assertEqual(len(plain), len(data["rows"]))
            for line, row in zip(plain, data["rows"]):
                for text, value in zip(line.values(), row):
                    same = value is None and text == "" or str(value) == text or \
                        not isinstance(value, str) and float(text) == value
                    self.assertTrue(same, (name, text, value))
        for anchor in (link for link in page.links if link.startswith("#")):
            self.assertIn(anchor[1:], page.ids)

    def test_numbers_are_those_of_the_samples(self):
        self.write_all()
        report(self.dir)
        needle = {(r["method"], r["ctx"], r["depth"]): r for r in rows(self.dir, "needle")}
        for s in eval_dir.samples():
            row = needle[s["method"], str(s["ctx"]), str(s["depth"])]
            self.assertEqual((float(row["score"]), row["n"]), (s["score"], "1"))
        scores = {(r["task"], r["method"], r["ctx"]): r for r in rows(self.dir, "scores")}
        own = [s["score"] for s in eval_dir.samples()
               if (s["method"], s["ctx"]) == ("quest:budget=256", 8192)]
        row = scores[next(iter(eval_dir.samples()))["task"], "quest:budget=256", "8192"]
        self.assertAlmostEqual(float(row["score"]), sum(own) / len(own), places=6)
        self.assertEqual(row["n"], str(len(own)))
        self.assertTrue(float(row["score_low"]) < float(row["score"]) < float(row["score_high"]))
        share = {(r["method"], r["ctx"]): r for r in rows(self.dir, "score-share")}
        quest = share["quest:budget=256", "8192"]
        self.assertEqual((quest["decode_rows"], quest["decode_rows_n"]), ("question", "20"))
        self.assertEqual(float(quest["share_read"]), 256 / 8192)
        self.assertEqual(float(quest["bytes_share"]), 256 / 8192 + 0.1)
        self.assertEqual(float(quest["bytes_per_token"]), 1e6 * (256 / 8192 + 0.1))
        kl = {(r["method"], r["ctx"]): r for r in rows(self.dir, "kl-share")}
        for key, row in kl.items():  # plotted by bytes, with both shares in the table
            self.assertEqual(float(row["bytes_share"]) > float(row["share_read"]), key[0] != "full" and
                             float(row["share_read"]) < 1)
        self.assertEqual(float(quest["score"]), 0.8)  # not found in the middle, 1 of 5 depths
        self.assertTrue(float(quest["score_low"]) <= 0.8 <= float(quest["score_high"]))
        ttft = {(r["method"], r["ctx"]): float(r["median"]) for r in rows(self.dir, "ttft")}
        self.assertAlmostEqual(ttft["full", "4096"], 4096 * 0.9, places=3)

    def test_documents_are_drawn_by_place_time_and_layer(self):
        self.write(docs=list(eval_dir.docs()))
        _, page = report(self.dir)
        self.assertEqual((page.problems, page.open), ([], []))
        self.assertEqual(sorted(page.data), ["data-docs-kl", "data-docs-layers", "data-docs-places", "data-docs-time"])
        html = (pathlib.Path(self.dir) / "report.html").read_text()
        places = rows(self.dir, "docs-places")
        self.assertEqual(len({(r["question"], r["method"], r["place"]) for r in places}), len(places))
        self.assertEqual(len(places), 2 * 3 * len(eval_dir.DOCS_METHODS))
        self.assertEqual(len(re.findall(r'<rect class="bar', html)), len(places))
        order = {p: i for i, p in enumerate(("first", "middle", "last"))}
        for row in places:
            score = eval_dir.DOCS_METHODS[row["method"]][1][order[row["place"]]]
            self.assertEqual((float(row["score"]), row["n"]), (score, "4"))
            self.assertEqual(row["diff"], "" if row["method"] == "recompute" else f"{score - 1:g}")
            self.assertIn(f'<title>{row["method"]}, {row["place"]}: {100 * score:.1f} %</title>', html)
        for row in rows(self.dir, "docs-time"):
            ms, score, kl, share = eval_dir.DOCS_METHODS[row["method"]]
            documents = 10 if "10 documents" in row["question"] else 4
            self.assertEqual([float(row[k]) for k in ("ttft_ms", "kl", "recomputed_share", "peak_bytes")],
                             [ms * documents / 4, kl, share, 2e8])
            self.assertAlmostEqual(float(row["score"]), sum(score) / 3, places=6)
        layers = {(r["question"][:15], r["method"], r["layer"]): float(r["error"]) for r in rows(self.dir, "docs-layers")}
        self.assertEqual(len(layers), 2 * 6 * len(eval_dir.DOCS_METHODS))
        self.assertAlmostEqual(layers["docs_facts: 4 d", "reuse", "3"], 0.2, places=6)
        hostile = {HOSTILE[:200]: eval_dir.DOCS_METHODS["reuse"]}
        self.write(docs=list(eval_dir.docs(hostile)) + [{"model": 1}])
        self.assert_fails(1, "docs.jsonl:25", "'model'")
        self.write(docs=list(eval_dir.docs(hostile)))
        _, page = report(self.dir)
        self.assertEqual((page.problems, page.open), ([], []))

    def test_contexts_of_a_recording_stay_apart_and_share_a_scale(self):
        head = eval_dir.reading(n_layer=1, n_head=1, n_page=4, n_answer=0, methods=("m",), prompt=False)
        lines = [eval_dir.record(0, 1, ctx, 4 * 32, 0, 0, [0.2] * 5, {1, 4}, n_tok) for ctx, n_tok in
                 ((4096, 32), (8192, 16), (4096, 8))]
        eval_dir.write(self.dir, recording=head + b"".join(lines))
        report(self.dir)
        heads = {r["ctx"]: r for r in rows(self.dir, "heads")}
        self.assertEqual({ctx: (float(r["density"]), r["n"]) for ctx, r in heads.items()},
                         {"4096": (20 / 128, "2"), "8192": (16 / 128, "1")})
        pathlib.Path(self.dir, "run.json").write_text('{"model": "tiny <b>", "commit": "abc"}')
        report(self.dir)
        page = pathlib.Path(self.dir, "report.html").read_text(encoding="utf-8")
        self.assertIn("m, context 8192: density", page)
        self.assertIn("<dt>model</dt><dd>tiny &lt;b&gt;</dd>", page)

    def test_numbers_are_those_of_the_recording(self):
        self.write_all()
        report(self.dir)
        heads = {(r["method"], r["layer"], r["kv_head"]): r for r in rows(self.dir, "heads")}
        self.assertEqual(len(heads), 2 * 6 * 2)
        self.assertEqual(float(heads["full", "0", "0"]["density"]), 1)
        self.assertAlmostEqual(float(heads["full", "0", "0"]["mass"]), 1, places=2)
        quest = heads["quest:budget=256", "5", "1"]
        self.assertAlmostEqual(float(quest["density"]), 100 / (24 * 32), places=6)  # tokens, not pages
        self.assertEqual(quest["n"], "4")
        # Later layers of the synthetic recording look at fewer pages.
        self.assertLess(float(heads["full", "5", "0"]["blocks_95"]),
                        float(heads["full", "0", "0"]["blocks_95"]))
        curve = [r for r in rows(self.dir, "blocks-95") if r["layer"] == "3"]
        values = [float(r["share_queries"]) for r in curve]
        self.assertEqual((values[0], values[-1], values), (0, 1, sorted(values)))
        # Rows of a block map sum to 1, and no query sees what comes behind it.
        sums = {}
        for r in rows(self.dir, "block-map"):
            self.assertLessEqual(int(r["key"]), int(r["query"]))
            key = r["layer"], r["query"]
            sums[key] = sums.get(key, 0) + float(r["mass"])
        self.assertEqual(len(sums), 4 * 24)
        for value in sums.values():
            self.assertAlmostEqual(value, 1, places=2)
        report(self.dir, "--map-layer", "2", "--map-head", "1", "--map-sample", "3")
        self.assertEqual({r["layer"] for r in rows(self.dir, "block-map")}, {"2"})

    def test_what_was_read_and_missed_is_all_of_the_mass(self):
        self.write_all()
        report(self.dir)
        sums = {}
        for r in rows(self.dir, "read-and-missed"):
            dense, read, missed = (float(r[k]) for k in ("dense", "read", "missed"))
            self.assertAlmostEqual(read + missed, dense, places=6)
            of = sums.setdefault((r["method"], r["layer"], r["kv_head"]), [0, 0])
            of[0], of[1] = of[0] + dense, of[1] + read
        heads = {(r["method"], r["layer"], r["kv_head"]): float(r["mass"]) for r in rows(self.dir, "heads")}
        self.assertEqual(set(sums), set(heads))
        for who, (dense, read) in sums.items():
            self.assertAlmostEqual(dense, 1, places=2)
            self.assertAlmostEqual(read, heads[who], places=2)  # the figure of heads has the totals

    def test_many_contexts_are_not_all_drawn(self):
        head = eval_dir.reading(n_layer=1, n_head=1, n_page=4, n_answer=0, methods=("m",), prompt=False)
        lines = [eval_dir.record(0, 1, ctx, 4 * 32, 0, 0, [0.2] * 5, {1, 4}, 32) for ctx in range(6)]
        eval_dir.write(self.dir, recording=head + b"".join(lines))
        _, page = report(self.dir)
        found = rows(self.dir, "read-and-missed")
        self.assertEqual(sorted({r["ctx"] for r in found}), ["0", "1", "2", "3"])
        self.assertEqual([(r["key"], float(r["missed"]) > 0) for r in found if r["ctx"] == "0"],
                         [("0", True), ("32", False), ("64", True), ("96", True), ("128", False)])
        self.assertIn("the first methods and contexts alone are drawn", page.text)

    def test_what_is_missing_is_said(self):
        self.write(lines=list(eval_dir.samples()))
        done, page = report(self.dir)
        for name in ("fidelity.json is missing", "reading.sacr is missing", "run.json is missing"):
            self.assertIn(name, page.text)
            self.assertIn(name, done.stderr)
        self.assertNotIn("samples.jsonl is missing", page.text)
        self.assertEqual(report(self.dir, "-q")[0].stderr, "")
        with tempfile.TemporaryDirectory() as other:
            eval_dir.write(other, recording=eval_dir.reading(prompt=False))
            _, page = report(other)
            self.assertIn("samples.jsonl is missing", page.text)
            self.assertNotIn("holds no sample", page.text)
            self.assertIn("no rows of a prompt", page.text)

    def test_folders_are_compared_on_one_page(self):
        self.write_all()
        with tempfile.TemporaryDirectory() as other:
            eval_dir.write(other, rows=eval_dir.fidelity(contexts=(2048,)))
            out = pathlib.Path(other, "both")
            done = saccade("eval", "report", self.dir, other, "--out", str(out))
            self.assertEqual(done.returncode, 0, done.stderr)
            page = Page((out / "report.html").read_text())
            a, b = pathlib.Path(self.dir).name, pathlib.Path(other).name
            found = rows(out, "kl-share")
            alone = rows(self.dir, "kl-share") if report(self.dir) else []
            self.assertEqual([r for r in found if r["method"].endswith(f" [{a}]")],
                             [{**r, "method": f"{r['method']} [{a}]"} for r in alone if r["ctx"] == "2048"] +
                             [{**r, "method": f"{r['method']} [{a}]"} for r in alone if r["ctx"] != "2048"])
            self.assertEqual({r["ctx"] for r in found if r["method"].endswith(f" [{b}]")}, {"2048"})
            self.assertIn("It has no run.json", page.text)
            self.assertEqual((page.problems, page.open), ([], []))
            for args, word in (((self.dir, f"{self.dir}/../{a}"), "same last name"),
                               ((f"{self.dir}/none",), "none: No such file or directory"),
                               ((self.dir, str(out)), "holds no samples.jsonl, fidelity.json or docs.jsonl")):
                done = saccade("eval", "report", *args, "--out", str(out))
                self.assertEqual(done.returncode, 2 if "same" in word else 1, done.stderr)
                self.assertIn(word, done.stderr)

    def test_hostile_texts_stay_text(self):
        lines = list(eval_dir.samples(methods=("full", HOSTILE), task=HOSTILE))
        self.write(lines=lines, rows=eval_dir.fidelity(methods=(HOSTILE, "full")),
                   summary={HOSTILE: HOSTILE},
                   recording=eval_dir.reading(methods=(HOSTILE,)))
        _, page = report(self.dir)
        self.assertEqual(page.problems, [])
        self.assertEqual(page.open, [])
        self.assertIn(HOSTILE, page.text)
        self.assertEqual({r["task"] for r in rows(self.dir, "needle")}, {HOSTILE})
        text = (pathlib.Path(self.dir) / "report.html").read_text()
        self.assertEqual(len(re.findall(r"<script(?! type=\"application/json\" id=\"data-)", text)), 1)
        self.assertIn("default-src 'none'", text)
        # The one script that may run is the one that is there.
        (script,) = page.scripts
        self.assertEqual(script, (ROOT / "src" / "eval" / "report_save.js").read_text())
        name = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self.assertEqual(re.findall(r"script-src ([^;\"]*)", text), [f"'sha256-{name}'"])

    def test_the_last_line_may_be_cut(self):
        folder = self.write(lines=list(eval_dir.samples()))
        path = folder / "samples.jsonl"
        path.write_text(path.read_text() + '{"task": "needle", "ctx": 20')
        _, page = report(self.dir)
        self.assertIn("The last line of samples.jsonl is not complete", page.text)

    def assert_fails(self, code, *words, args=()):
        done = saccade("eval", "report", self.dir, *args)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_broken_files_are_named(self):
        self.assert_fails(1, self.dir, "samples.jsonl")
        good = json.dumps(next(eval_dir.samples()))
        for bad, word in (("[]", "not a JSON object"), ("{", "not a JSON object"),
                          ('{"task": "a", "method": "b", "score": 1}', "'ctx'"),
                          ('{"task": "a", "ctx": 1, "score": 1}', "'method'"),
                          ('{"task": 5, "method": "b", "ctx": 1, "score": 1}', "'task'"),
                          ('{"task": "a", "method": "b", "ctx": 1, "score": "1"}', "'score'")):
            (pathlib.Path(self.dir) / "samples.jsonl").write_text(f"{good}\n{bad}\n{good}\n")
            self.assert_fails(1, "samples.jsonl:2", word)
        (pathlib.Path(self.dir) / "samples.jsonl").unlink()
        for bad, word in (("{", "not valid JSON"), ("{}", "no list of rows"),
                          ('[{"method": "a", "ctx": 1}]', "row 1: field 'kl_mean'")):
            (pathlib.Path(self.dir) / "fidelity.json").write_text(bad)
            self.assert_fails(1, "fidelity.json", word)
        (pathlib.Path(self.dir) / "fidelity.json").unlink()
        self.write(recording=eval_dir.reading()[:-5])
        self.assert_fails(1, "reading.sacr")
        self.write(recording=eval_dir.reading())
        self.assert_fails(2, "layer 9", args=("--map-layer", "9"))
        self.assert_fails(2, "head 2", args=("--map-head", "2"))
        self.assert_fails(2, "sample 8", args=("--map-sample", "8"))

    def test_wrong_usage(self):
        done = saccade("eval", "report")
        self.assertEqual(done.returncode, 2)
        self.assertIn("directory", done.stderr)


if __name__ == "__main__":
    unittest.main()
