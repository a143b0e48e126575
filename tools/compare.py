#!/usr/bin/env python3
"""Saccade and other engines on one GGUF file, in turn: medians, and the ratios of ours to theirs.

Every program is a command that knows llama-bench's options and prints its JSON for `-o json`, as
`saccade bench` does and llama-bench of llama.cpp and of its forks. A test is what they are all given,
and must be one row of their tables. Each round runs every program once, in an order that turns round
with each round, so that a machine that becomes slower is slower for all. Prints Markdown.

  tools/compare.py MODEL.gguf --peer 'llama.cpp=PATH/llama-bench -fa 1' '-p 512 -n 0' '-p 0 -n 64'

`--saccade 'build/saccade bench --decode auto'` gives ours options that the others do not have.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

OURS = "saccade"


def parse_peer(text):
    """NAME=COMMAND as (name, argv)."""
    name, equals, command = text.partition("=")
    if not name or not equals or not shlex.split(command) or name == OURS:
        raise argparse.ArgumentTypeError(f"'{text}': expected NAME=COMMAND")
    return name, shlex.split(command)


def parse_output(text):
    """(shape, tokens/s) of the one row that a program printed; ValueError says what it printed."""
    rows = json.loads(text)
    if not isinstance(rows, list) or len(rows) != 1:
        raise ValueError("expected one row, from a test like '-p 512 -n 0' or '-p 0 -n 64'")
    row = rows[0]
    try:
        shape = row["n_prompt"], row["n_gen"], row.get("n_depth", 0)
        return shape, float(row["avg_ts"])
    except KeyError as missing:
        raise ValueError(f"a row without {missing}") from None


def measure(argv):
    """(shape, tokens/s, stderr) of one run."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"compare: {shlex.join(argv)}: status {done.returncode}\n{done.stderr.strip()}")
    try:
        return *parse_output(done.stdout), done.stderr
    except ValueError as wrong:
        raise SystemExit(f"compare: {shlex.join(argv)}: {wrong}") from None


def run_rounds(programs, options, n_round):
    """Rates of each program, {name: [n_round]}, `n_round` of them in turn."""
    rates = {name: [] for name in programs}
    shapes = {}
    for i in range(n_round):
        for name in list(programs)[::-1 if i % 2 else 1]:
            shapes[name], rate, said = measure(programs[name] + options)
            rates[name].append(rate)
            if name == OURS:
                sys.stderr.write(said)  # says when the machine was not idle
    if len(set(shapes.values())) > 1:
        raise SystemExit(f"compare: the programs ran different tests (prompt, generated, depth): {shapes}")
    return rates


def figure(x):
    """Three digits, or all before the point."""
    return f"{x:,.{0 if x >= 99.95 else 1 if x >= 9.995 else 2}f}"


def table_row(test, rates):
    median = {name: statistics.median(values) for name, values in rates.items()}
    cells = [f"{figure(median[name])} ({figure(min(values))}-{figure(max(values))})"
             for name, values in rates.items()]
    ratios = [figure(median[OURS] / median[name]) for name in rates if name != OURS]
    return "| " + " | ".join([f"`{test}`", *cells, *ratios]) + " |"


def processor():
    """The CPU's name, where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("tests", nargs="+", metavar="TEST", help="options of llama-bench, in quotes")
    parser.add_argument("--peer", type=parse_peer, action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--saccade", default="build/saccade bench", metavar="COMMAND")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (3)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="of every program (all CPUs)")
    args = parser.parse_args()
    if not args.model.is_file():
        parser.error(f"{args.model}: no such file")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected 1 or more")
    programs = {OURS: shlex.split(args.saccade), **dict(args.peer)}
    peers = [name for name in programs if name != OURS]
    now = datetime.datetime.now(datetime.timezone.utc)
    print(f"{args.model.name}, {args.threads} threads, {processor()}, {now:%Y-%m-%d %H:%M} UTC. Tokens/s: median "
          f"(lowest-highest) of {args.rounds}, in turn.\n")
    print("| test | " + " | ".join([OURS, *peers, *(f"ratio to {name}" for name in peers)]) + " |")
    print("|---" + "|---:" * (1 + 2 * len(peers)) + "|", flush=True)
    common = ["-m", str(args.model), "-t", str(args.threads), "-r", "1", "-o", "json"]
    for test in args.tests:
        print(table_row(test, run_rounds(programs, common + shlex.split(test), args.rounds)), flush=True)


if __name__ == "__main__":
    main()
