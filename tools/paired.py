#!/usr/bin/env python3
"""Scores of several methods on the same samples, and what each loses to a yardstick, with intervals.

Reads one or more samples.jsonl of `saccade eval` (a task run may be split over processes), takes the
samples that every method has answered, and prints Markdown: a row for each task, the mean over
tasks, the paired difference to the yardstick with its 95 % interval, and what was read. The
interval is a bootstrap over samples, drawn task by task, so that tasks keep their weight.

With --first N every task and context counts alike, by its first N samples in order of their seeds;
--ctx takes one context alone.

  tools/paired.py out/*/samples.jsonl --yardstick dense --first 50 --ctx 4096
"""
import argparse
import collections
import json
import random
import statistics
import sys

ROUNDS = 10000


def read_samples(paths):
    """{task: {sample: {method: row}}}; a later file's row wins over an earlier one's."""
    table = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    sample = (row["ctx"], row.get("place"), row["depth"], row["index"], row["seed"], row["turn"])
                    table[row["task"]][sample][row["method"]] = row
                except (ValueError, KeyError, TypeError) as error:
                    sys.exit(f"{path}:{number}: not a row of samples.jsonl: {error!r}")
    return table


def common(table, methods, ctx=None, first=None):
    """The samples that all methods have answered: {task: [{method: row}]}, tasks in order of name.

    Of each context the first ones by seed and index, or all where first is None."""
    kept = {}
    for task in sorted(table):
        rows, taken = [], collections.Counter()
        for sample, by_method in sorted(table[task].items(), key=lambda item: (item[0][4], item[0][3], str(item[0]))):
            if ctx not in (None, sample[0]) or not all(m in by_method for m in methods):
                continue
            taken[sample[0]] += 1
            if first is None or taken[sample[0]] <= first:
                rows.append(by_method)
        for context, n in taken.items():
            if first is not None and n < first:
                print(f"{task} at {context} tokens has {n} samples, not {first}", file=sys.stderr)
        if rows:
            kept[task] = rows
    return kept


def mean_of_tasks(rows_by_task, value):
    return statistics.fmean(statistics.fmean(map(value, rows)) for rows in rows_by_task.values())


def interval(rows_by_task, value, rng):
    """The 2.5 and 97.5 % points of the mean over tasks when samples are drawn with replacement."""
    values = [[value(row) for row in rows] for rows in rows_by_task.values()]
    means = sorted(statistics.fmean(sum(rng.choices(v, k=len(v))) / len(v) for v in values)
                   for _ in range(ROUNDS))
    return means[int(0.025 * ROUNDS)], means[int(0.975 * ROUNDS) - 1]


def print_table(rows_by_task, methods, yardstick):
    def score(method):
        return lambda row: 100 * row[method]["score"]

    def line(name, cells):
        print("| " + " | ".join([name, *cells]) + " |")

    line("task (samples)", [f"`{m}`" for m in methods])
    print("|---|" + "--:|" * len(methods))
    for task, rows in rows_by_task.items():
        line(f"{task} ({len(rows)})", [f"{statistics.fmean(map(score(m), rows)):.1f}" for m in methods])
    line("mean of the tasks", [f"{mean_of_tasks(rows_by_task, score(m)):.1f}" for m in methods])
    cells = []
    for m in methods:
        def loss(row, m=m):
            return 100 * (row[m]["score"] - row[yardstick]["score"])
        if m == yardstick:
            cells.append("")
            continue
        low, high = interval(rows_by_task, loss, random.Random(1))
        cells.append(f"{mean_of_tasks(rows_by_task, loss):+.1f} ({low:+.1f} to {high:+.1f})")
    line(f"less `{yardstick}`, 95 % interval", cells)
    for key, name in (("share_read", "keys and values that attention reads, %"),
                      ("bytes_share", "bytes moved, choosing included, %"),
                      ("planned_share", "cells of the prompt computed, %")):
        if all(row[m].get(key) is not None for rows in rows_by_task.values() for row in rows for m in methods):
            line(name, [f"{mean_of_tasks(rows_by_task, lambda row, m=m, key=key: 100 * row[m][key]):.1f}"
                        for m in methods])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="+", help="samples.jsonl")
    parser.add_argument("--methods", help="columns, parted by spaces (default: all, in order of appearance)")
    parser.add_argument("--yardstick", default="dense", help="the method that others are compared with")
    parser.add_argument("--ctx", type=int, help="only samples of this context, in tokens")
    parser.add_argument("--first", type=int, help="so many samples of each task and context, those of the lowest seeds")
    opt = parser.parse_args()
    table = read_samples(opt.samples)
    seen = dict.fromkeys(m for by_sample in table.values() for rows in by_sample.values() for m in rows)
    methods = opt.methods.split() if opt.methods else list(seen)
    for m in [*methods, opt.yardstick]:
        if m not in seen:
            sys.exit(f"no sample was answered by '{m}'; there are (for --methods and --yardstick): {', '.join(seen)}")
    if opt.yardstick not in methods:
        methods.insert(0, opt.yardstick)
    rows_by_task = common(table, methods, opt.ctx, opt.first)
    if not rows_by_task:
        sys.exit("no sample was answered by all of the methods: " + ", ".join(methods))
    print_table(rows_by_task, methods, opt.yardstick)


if __name__ == "__main__":
    main()
