#!/usr/bin/env python3
"""Draws the plots of the pages from the tables beside them, with `saccade bench plot`, and the tiers
from a run's counters; a test compares the drawings with fresh ones. usage: make_plots.py PROGRAM
"""
import json
import pathlib
import subprocess
import sys

import draw_tiers

ROOT = pathlib.Path(__file__).parent.parent
# Each drawing: its table and what `saccade bench plot` is told.
PLOTS = {
    "docs/performance/prompts.svg": ["docs/performance/speed.csv", "-x", "n_prompt", "-y", "tok_s", "--by", "what",
                                     "--tokens", "--only", "model=qwen2.5-coder-0.5b", "--only", "n_gen=0",
                                     "--x-label", "tokens of the prompt", "--y-label", "tokens read per second",
                                     "--title", "How fast a prompt is read"],
}
# Each drawing of tiers: the counters of its run, page that shows it.
TIERS = {"docs/tiers.svg": ("docs/tiers.json", "docs/memory.md")}


def tiers(name):
    """The text of a drawing of tiers."""
    return draw_tiers.draw(json.loads((ROOT / TIERS[name][0]).read_text()))


def plot(program, name):
    """The text of a plot."""
    table, *options = PLOTS[name]
    drawn = subprocess.run([program, "bench", "plot", ROOT / table, *options], check=True,
                           capture_output=True, text=True)
    return drawn.stdout


def main(program):
    for name in PLOTS:
        (ROOT / name).write_text(plot(program, name))
    for name in TIERS:
        (ROOT / name).write_text(tiers(name))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
