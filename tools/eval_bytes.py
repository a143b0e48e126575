#!/usr/bin/env python3
"""Which bytes each method reads where it is as good as dense attention on the tasks of RULER that the
model can solve, with the pages on a disk.

Runs `saccade eval ruler` on ever more samples until the time is over, so that a short run has looked
at all tasks, and goes on where an earlier run has stopped. Takes the samples that every method has
answered and the tasks that dense attention solves, and prints Markdown: for each setting its score in
percent of dense, the bytes that a decode row reads (choosing included), and those that came from the
disk; then, for each method, the setting that reads least among those that reach the goal.

  tools/eval_bytes.py build/saccade qwen2.5-coder-0.5b out/bytes /var/tmp/pages --seconds 600 -- -t 16
"""
import argparse
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import paired

YARDSTICK = "full"
SETTINGS = (*(f"arkvale:budget={b}%" for b in (5, 10, 20, 40)), *(f"psa:mass={m}" for m in (0.7, 0.8, 0.9, 0.95)))


def ask(opt, methods, further):
    """Samples into opt.out, as many as the time allows; `further` are options of eval ruler."""
    end = time.monotonic() + opt.seconds
    n = 1
    while n <= opt.samples and time.monotonic() < end:
        command = [opt.program, "eval", "ruler", "-m", opt.model, "--ctx", opt.ctx, "-n", str(n), "-q",
                   "--decode-rows", "question", "-ctk", "q8", "-ctv", "q8", "--kv-fast", opt.kv_fast,
                   "--kv-disk", f"{opt.disk}:{opt.disk_size}", "--methods", ",".join(methods), "--out", str(opt.out),
                   *further]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                code = process.wait(max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # what was answered by then is kept
                process.wait()
                return
        if code:
            sys.exit(f"saccade eval ruler ended with status {code}")
        n *= 2


def table_of(rows_by_task, methods):
    """{method: (score in percent of dense, bytes read, their share of dense, bytes fetched)}"""
    def mean(method, key):
        return paired.mean_of_tasks(rows_by_task, lambda row: row[method][key] or 0)

    return {m: (100 * mean(m, "score") / mean(YARDSTICK, "score"), mean(m, "bytes_per_token"),
                100 * mean(m, "bytes_per_token") / mean(YARDSTICK, "bytes_per_token"),
                mean(m, "tier_bytes_per_token")) for m in methods}


def cheapest(table, goal):
    """{family: the setting that reads least of those that reach the goal, or None}"""
    found = {}
    for method, (score, read, _, _) in table.items():
        family = method.split(":")[0]
        found.setdefault(family, None)
        if score >= goal and (not found[family] or read < table[found[family]][1]):
            found[family] = method
    return found


def show(table, goal, rows_by_task):
    print("Tasks that dense attention solves, with samples: "
          + ", ".join(f"{task} ({len(rows)})" for task, rows in rows_by_task.items()) + "\n")
    print("| method | score, % of dense | KV KiB/token | of dense, % | fetched KiB/token |")
    print("|---|--:|--:|--:|--:|")
    for method, (score, read, share, fetched) in table.items():
        print(f"| {method} | {score:.1f} | {read / 1024:.0f} | {share:.1f} | {fetched / 1024:.0f} |")
    print(f"\n| at {goal:g} % of dense | KV KiB/token | times less than dense |")
    print("|---|--:|--:|")
    for family, best in cheapest(table, goal).items():
        if best:
            print(f"| {best} | {table[best][1] / 1024:.0f} | {100 / table[best][2]:.2f} |")
        else:
            print(f"| {family}: no setting | - | - |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path, help="folder for the samples")
    parser.add_argument("disk", help="scratch file for pages, which is not there yet")
    parser.add_argument("--disk-size", default="2G")
    parser.add_argument("--kv-fast", default="14M", help="memory for pages (default: %(default)s)")
    parser.add_argument("--ctx", default="8k")
    parser.add_argument("--methods", help="settings beside full, parted by spaces")
    parser.add_argument("--samples", type=int, default=8, help="of each task, at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600, help="for all of them (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=98, help="percent of dense (default: %(default)s)")
    parser.add_argument("--solvable", type=float, default=80, help="least score of dense in percent (default: "
                        "%(default)s)")
    parser.epilog = "What stands behind -- goes to eval ruler."
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    opt = parser.parse_args(given[:cut])
    methods = [YARDSTICK, *(opt.methods.split() if opt.methods else SETTINGS)]
    ask(opt, methods, given[cut + 1:])
    file = opt.out / "samples.jsonl"
    rows_by_task = paired.common(paired.read_samples([file]), methods) if file.exists() else {}
    if not rows_by_task:
        sys.exit("no sample was answered by all methods: give it more --seconds, or fewer --methods")
    solved = {task: rows for task, rows in rows_by_task.items()
              if 100 * statistics.fmean(row[YARDSTICK]["score"] for row in rows) >= opt.solvable}
    if not solved:
        sys.exit(f"dense attention solves {opt.solvable:g} % of none of these tasks: {', '.join(rows_by_task)}")
    show(table_of(solved, methods), opt.goal, solved)


if __name__ == "__main__":
    main()
