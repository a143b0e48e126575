#!/usr/bin/env python3
"""The tables of docs/methods/measured.csv: decode methods on one text, as `saccade eval fidelity` measures them.

usage: tools/measured.py PROGRAM -m MODEL -f TEXT [-c 4k] [-k 48] [--budgets 2%,5%,10%] METHOD...

A METHOD in which `{}` stands is measured with each budget (or mass, or whatever the list holds) in its place. Prints the
command, the number of rows that building is spread over, and a Markdown table, the least KL first. What the program
refuses is an error here; nothing is filled in by hand."""
import argparse
import json
import subprocess
import sys

COLUMNS = ("method", "KL", "top-1 %", "mass %", "read %", "bytes %", "kB/token", "of it choosing", "building", "chosen")


def spread(methods, budgets):
    """Each method, or one for each budget where `{}` stands for it."""
    out = []
    for method in methods:
        for one in [method.replace("{}", b) for b in budgets] if "{}" in method else [method]:
            if one not in out:
                out.append(one)
    return out


def command(opt, methods):
    more = ["--allow-idle"] if opt.allow_idle else []
    return [opt.program, "eval", "fidelity", "-m", opt.model, "-f", opt.text, "-c", opt.ctx, "-k", str(opt.k),
            *(["-t", str(opt.threads)] if opt.threads else []), *more, "-o", "json", "--methods", ",".join(methods)]


def shown(value, form):
    return "-" if value is None else form.format(value)


def cells(row):
    """A line of the table. Bytes are those of docs/fairness.md; None where nothing was measured or chosen."""
    kb = [None if row[key] is None else row[key] / 1000
          for key in ("bytes_per_token", "choose_bytes_per_token", "build_bytes_per_token")]
    share = None if row["bytes_share"] is None else 100 * row["bytes_share"]
    return [f"`{row['method']}`", f"{row['kl_mean']:.3g}", f"{100 * row['top1']:.1f}",
            f"{100 * row['mass_mean']:.2f}", f"{100 * row['share_read']:.1f}", shown(share, "{:.1f}"),
            *(shown(v, "{:.0f}") for v in kb), shown(row["chosen"], "{:.1f}")]


def table(rows):
    lines = [" | ".join(COLUMNS), "|".join(["---", *["---:"] * (len(COLUMNS) - 1)])]
    lines += [" | ".join(cells(r)) for r in sorted(rows, key=lambda r: r["kl_mean"])]
    return "".join(f"| {lines[0]} |\n" if i == 0 else f"|{line}|\n" if i == 1 else f"| {line} |\n"
                   for i, line in enumerate(lines))


def report(rows):
    """A table for each context, and what its bytes are spread over."""
    out = []
    for ctx in sorted({r["ctx"] for r in rows}):
        some = [r for r in rows if r["ctx"] == ctx]
        n_row = {r["bytes_rows"] for r in some}
        if len(n_row) > 1:
            raise SystemExit(f"measured: the methods served different numbers of rows at {ctx} tokens: {n_row}")
        out.append(f"{ctx:,} tokens, KV {some[0]['kv']}; building is spread over {n_row.pop() or 0} rows:\n\n{table(some)}")
    return "\n".join(out)


def main(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("method", nargs="+")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("-f", "--text", required=True)
    p.add_argument("-c", "--ctx", default="4k", help="contexts, as `eval fidelity` takes them")
    p.add_argument("-k", type=int, default=48, help="rows that are scored")
    p.add_argument("-t", "--threads", type=int)
    p.add_argument("--budgets", default="2%,5%,10%")
    p.add_argument("--allow-idle", action="store_true", help="take rows in which nothing was chosen, too")
    opt = p.parse_args(argv)
    run = command(opt, spread(opt.method, opt.budgets.split(",")))
    done = subprocess.run(run, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"measured: exit status {done.returncode}")
    print("    " + " ".join(run[:-1] + [f"'{run[-1]}'"]) + "\n\n" + report(json.loads(done.stdout)), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
