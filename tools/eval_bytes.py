#!/usr/bin/env python3
"""Which bytes each method reads where it is as good as dense attention on the tasks of RULER that the
model can solve.

Runs `saccade eval ruler` on ever more samples until the time is over, so that a short run has looked
at all tasks, and goes on where an earlier run has stopped; in several processes that draw from seeds of
their own, if asked. With --kv-disk the pages lie on a disk, and what came from there is told, too. Takes
the samples that every method has answered and the tasks that dense attention solves, and prints Markdown:
for each setting its score in percent of dense with a 95 % interval (a bootstrap over samples, drawn task
by task), the share of keys and values that attention reads, and the bytes that a decode row moves, choosing
included; then, for each method, the settings that move and that read least among those that reach the goal.
tools/paired.py OUT/*/samples.jsonl tells more of the same samples, task by task.

  tools/eval_bytes.py build/saccade qwen2.5-coder-0.5b out/bytes --processes 8 --seconds 600 -- -t 2
"""
import argparse
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

import paired

YARDSTICK = "full"
SETTINGS = (*(f"arkvale:budget={b}%" for b in (5, 10, 20, 40)), *(f"psa:mass={m}" for m in (0.7, 0.8, 0.9, 0.95)))
ROUNDS = 2000


def command_of(opt, methods, part, n, further):
    """`further` are options of eval ruler."""
    command = [opt.program, "eval", "ruler", "-m", opt.model, "--ctx", opt.ctx, "-n", str(n), "-q", "-s",
               str(opt.seed + part), "--decode-rows", "question", "-ctk", opt.cache, "-ctv", opt.cache, "--methods",
               ",".join(methods), "--out", str(opt.out / f"part.{part}")]
    if opt.kv_disk:
        command += ["--kv-fast", opt.kv_fast, "--kv-disk", f"{opt.kv_disk}.{part}:{opt.disk_size}"]
    return command + further


def stop(running):
    for process in running:
        process.send_signal(signal.SIGINT)  # what was answered by then is kept
    for process in running:
        process.wait()


def ask(opt, methods, further):
    """Samples into folders of opt.out, as many as the time allows."""
    end = time.monotonic() + opt.seconds
    opt.out.mkdir(parents=True, exist_ok=True)
    n_of = dict.fromkeys(range(opt.processes), 1)
    running = {}
    while n_of and time.monotonic() < end:
        for part, n in n_of.items():
            if part not in running:
                running[part] = subprocess.Popen(command_of(opt, methods, part, n, further), stdout=subprocess.DEVNULL)
        time.sleep(0.02)
        for part in [part for part, process in running.items() if process.poll() is not None]:
            code = running.pop(part).returncode
            if code:
                stop(running.values())
                sys.exit(f"saccade eval ruler ended with status {code}")
            n_of[part] *= 2
            if n_of[part] > opt.samples:
                del n_of[part]
    stop(running.values())


def interval(rows_by_task, method, rng):
    """The 2.5 and 97.5 % points of the method's score in percent of dense's."""
    tasks = [[(row[method]["score"], row[YARDSTICK]["score"]) for row in rows] for rows in rows_by_task.values()]
    found = []
    for _ in range(ROUNDS):
        drawn = [rng.choices(rows, k=len(rows)) for rows in tasks]
        of = [sum(sum(pair[i] for pair in rows) / len(rows) for rows in drawn) for i in (0, 1)]
        found.append(100 * of[0] / of[1] if of[1] else 100)
    found.sort()
    return found[int(0.025 * ROUNDS)], found[int(0.975 * ROUNDS) - 1]


def table_of(rows_by_task, methods):
    """{method: what is told of it}; bytes are of a decode row."""
    def mean(method, key):
        return paired.mean_of_tasks(rows_by_task, lambda row: row[method].get(key) or 0)

    dense = {key: mean(YARDSTICK, key) for key in ("score", "bytes_per_token")}
    return {m: {"score": 100 * mean(m, "score") / dense["score"],
                "interval": interval(rows_by_task, m, random.Random(1)),
                "read": 100 * mean(m, "share_read"),
                "bytes": mean(m, "bytes_per_token"),
                "share": 100 * mean(m, "bytes_per_token") / dense["bytes_per_token"],
                "choosing": 100 * mean(m, "choose_bytes_per_token") / dense["bytes_per_token"],
                "fetched": mean(m, "tier_bytes_per_token")} for m in methods}


def cheapest(table, goal, of):
    """{family: the setting with the least `of` among those that reach the goal, or None}"""
    found = {}
    for method, told in table.items():
        family = method.split(":")[0]
        found.setdefault(family, None)
        if told["score"] >= goal and (not found[family] or told[of] < table[found[family]][of]):
            found[family] = method
    return found


def show(table, goal, rows_by_task):
    print("Tasks that dense attention solves, with samples: "
          + ", ".join(f"{task} ({len(rows)})" for task, rows in rows_by_task.items()) + "\n")
    print("| method | score, % of dense | 95 % | attention reads, % | KV KiB/token | of dense, % | choosing, % | "
          "fetched KiB/token |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for method, told in table.items():
        low, high = told["interval"]
        print(f"| `{method}` | {told['score']:.1f} | {low:.1f} to {high:.1f} | {told['read']:.1f} | "
              f"{told['bytes'] / 1024:.0f} | {told['share']:.1f} | {told['choosing']:.1f} | "
              f"{told['fetched'] / 1024:.0f} |")
    print(f"\n| at {goal:g} % of dense | fewest bytes | times less than dense | fewest keys and values | times less |")
    print("|---|---|--:|---|--:|")
    fewest = cheapest(table, goal, "read")
    for family, best in cheapest(table, goal, "bytes").items():
        if best:
            print(f"| {family} | `{best}` | {100 / table[best]['share']:.2f} | `{fewest[family]}` | "
                  f"{100 / table[fewest[family]]['read']:.2f} |")
        else:
            print(f"| {family} | no setting | - | no setting | - |")


def parse(given):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path, help="folder for the samples")
    parser.add_argument("--kv-disk", help="scratch file for pages, which is not there yet (default: all in memory); "
                        "each process adds its number to the name")
    parser.add_argument("--disk-size", default="2G")
    parser.add_argument("--kv-fast", default="14M", help="with a disk: memory for pages (default: %(default)s)")
    parser.add_argument("--cache", default="q8", help="type of keys and values (default: %(default)s)")
    parser.add_argument("--ctx", default="8k")
    parser.add_argument("--methods", help="settings beside full, parted by spaces")
    parser.add_argument("--processes", type=int, default=1, help="that ask at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="of the first process; others count on (default: "
                        "%(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="of each task and process, at most (default: "
                        "%(default)s)")
    parser.add_argument("--seconds", type=float, default=600, help="for all of them (default: %(default)s)")
    parser.add_argument("--goal", type=float, default=98, help="percent of dense (default: %(default)s)")
    parser.add_argument("--solvable", type=float, default=80, help="least score of dense in percent (default: "
                        "%(default)s)")
    parser.epilog = "What stands behind -- goes to eval ruler."
    return parser.parse_args(given)


def main():
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    opt = parse(given[:cut])
    methods = [YARDSTICK, *(opt.methods.split() if opt.methods else SETTINGS)]
    ask(opt, methods, given[cut + 1:])
    files = sorted(opt.out.glob("part.*/samples.jsonl"))
    rows_by_task = paired.common(paired.read_samples(files), methods)
    if not rows_by_task:
        sys.exit("no sample was answered by all methods: give it more --seconds, or fewer --methods")
    solved = {task: rows for task, rows in rows_by_task.items()
              if 100 * statistics.fmean(row[YARDSTICK]["score"] for row in rows) >= opt.solvable}
    if not solved:
        sys.exit(f"dense attention solves {opt.solvable:g} % of none of these tasks: {', '.join(rows_by_task)}")
    show(table_of(solved, methods), opt.goal, solved)


if __name__ == "__main__":
    main()
