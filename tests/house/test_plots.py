#!/usr/bin/env python3
"""The drawings of the pages are what the program makes of the tables beside them; `bench plot` refuses
what is no table and names what it wanted."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
sys.path.insert(0, str(ROOT / "tools"))
import make_plots  # noqa: E402

PROGRAM = os.environ["SACCADE_BIN"]
SVG = "{http://www.w3.org/2000/svg}"
TABLE = ("what,n,tok_s,model\n\"a, dense\",512,100,m\n\"a, dense\",1024,50,m\nb,512,10,m\nb,1024,,m\n"
         "b,2048,5,other\n")


class PlotsTest(unittest.TestCase):
    def test_drawings_are_fresh(self):
        for name in make_plots.PLOTS:
            self.assertEqual((ROOT / name).read_text(), make_plots.plot(PROGRAM, name),
                             f"{name}: run `make plots`")

        for name in make_plots.TIERS:
            self.assertEqual((ROOT / name).read_text(), make_plots.tiers(name), f"{name}: run `make plots`")

    def test_tiers_are_drawn_from_counters(self):
        run = json.loads((ROOT / "docs/tiers.json").read_text())
        layers = run["tier"]["layers"]
        self.assertEqual((sum(x["hits"] for x in layers), sum(x["fetches"] for x in layers)),
                         (run["tier"]["hits"], run["tier"]["fetches"]))
        layers[3].update(hits=3, fetches=1)
        drawn = make_plots.draw_tiers.draw(run)
        xml.fromstring(drawn)
        self.assertIn('height="67.5" fill="#3a7ebf"><title>layer 3: 3 of 4</title>', drawn)
        for wrong in ({}, {"tier": {"hits": 1}}, {"tier": {**run["tier"], "layers": []}}):
            self.assertRaises(KeyError, make_plots.draw_tiers.draw, wrong)

    def test_pages_show_them(self):
        for name, (_, page) in make_plots.TIERS.items():
            self.assertIn(f"({pathlib.Path(name).name})", (ROOT / page).read_text())
        for name in make_plots.PLOTS:
            self.assertIn(name, (ROOT / "README.md").read_text())

    def plot(self, table, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.csv")
            path.write_text(table)
            return subprocess.run([PROGRAM, "bench", "plot", path, "-x", "n", "-y", "tok_s", "--by",
                                   "what", *options], capture_output=True, text=True, check=False)

    def lines_of(self, drawn):
        """How many points each line has."""
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        root = xml.fromstring(drawn.stdout)
        paths = [p.get("d") for p in root.iter(SVG + "path") if p.get("class").startswith("ln ")]
        return [len(re.findall("[ML]", d)) for d in paths]

    def test_what_is_drawn(self):
        self.assertEqual(self.lines_of(self.plot(TABLE)), [2, 2])
        self.assertEqual(self.lines_of(self.plot(TABLE, "--only", "model=m")), [2, 1])
        self.assertEqual(self.lines_of(self.plot(TABLE.replace("\n", "\r\n"), "--only", "model=m")), [2, 1])

    def test_both_themes(self):
        text = self.plot(TABLE).stdout
        self.assertIn("@media(prefers-color-scheme:dark)", text)
        self.assertNotIn("<script", text)

    def assert_refused(self, table, word, *options):
        done = self.plot(table, *options)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertIn(word, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_refusals(self):
        self.assert_refused("", "is empty")
        self.assert_refused("what,n,tok_s\n", "no row has both")
        self.assert_refused("what,n,tok_s\na,1\n", "t.csv:2: 2 cells, the first line names 3")
        self.assert_refused('what,n,tok_s\n"a,1,2\n', "t.csv:2: a quote is not closed")
        self.assert_refused('what,n,tok_s\n"a"b,1,2\n', "text behind a closed quote")
        self.assert_refused("what,n,tok_s\na,1,fast\n", "'fast' is not 0 or a number")
        for value in "inf", "nan", "1e-300", "-1e300", "1e13":
            self.assert_refused(f"what,n,tok_s\na,1,{value}\nb,2,1\n", f"'{value}' is not 0 or a number")
        self.assert_refused("what,n,tok_s\na,1,2\0\n", "zero byte")
        self.assert_refused("what,n,rate\na,1,2\n", "no column 'tok_s'; there are what, n, rate")
        self.assert_refused(TABLE, "no row has model=x", "--only", "model=x")
        self.assert_refused(TABLE, "is not COLUMN=VALUE", "--only", "model")
        many = "what,n,tok_s\n" + "".join(f"{i},1,2\n" for i in range(17))
        self.assert_refused(many, "more than 16 lines")


if __name__ == "__main__":
    unittest.main()
