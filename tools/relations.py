#!/usr/bin/env python3
"""What the papers say of decode methods, measured on one model and text: the order of methods at a
budget of 2 %, what LFPS scores exactly and bypasses, what PSA reads at the fidelity of a fixed
number of pages, what box certificates leave out, and who keeps a question that stands first.
Prints Markdown. usage: relations.py PROGRAM [options]
"""
import argparse
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile

import fetch

ORDER = ["topk:budget=2%,sink=4", "lfps", "quest:budget=2%", "quest:budget=2%,dense=0", "magicpig",
         "magicpig:dense_every=0", "tokenselect:budget=2%,sink=4,recent=32", "streaming:budget=2%",
         "h2o:budget=2%", "snapkv:budget=2%"]
BYPASS = [0.95, 0.9, 0.85, 0.8, 0.75, 0.7]
PSA = [0.7, 0.8, 0.9, 0.95]
PAGES = ["5%", "10%", "20%", "40%"]
A = [0.1, 0.2, 0.3, 0.4]
FIRST = ["full", "snapkv:budget=256", "adakv:budget=256", "loopserve:budget=256",
         "loopserve:budget=256,warm=snapkv", "loopserve:budget=256,warm=lines"]


def run(*args):
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(args)}\n{done.stderr}")
    return done.stdout


def shape_of(opt):
    """Query heads of a KV head, and channels."""
    done = subprocess.run([opt.program, "run", "-m", opt.model, "-p", "x", "-n", "1", "-v"],
                          capture_output=True, text=True, check=True)
    n_head, n_kv_head, head_dim = map(int, re.search(r"(\d+)\+(\d+) heads of (\d+)", done.stderr).groups())
    return n_head // n_kv_head, head_dim


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" + "---:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def fidelity(opt, methods, *more):
    text = run(opt.program, "eval", "fidelity", "-m", opt.model, "-f", opt.text, "--sparse-min-ctx", "1",
               "-o", "json", "--methods", ",".join(methods), *more)
    return {(row["method"], row["ctx"]): row for row in json.loads(text)}


def percent(x):
    return f"{100 * x:.1f}"


def print_order(rows, ctx):
    print(f"## Order at 2 % of {ctx} tokens\n")
    best = sorted(ORDER, key=lambda m: rows[m, ctx]["kl_mean"])
    table(["method", "KL", "top-1 %", "mass %", "read %"],
          [[f"`{m}`", f"{r['kl_mean']:.3g}", percent(r["top1"]), percent(r["mass_mean"]),
            percent(r["share_read"])] for m in best for r in [rows[m, ctx]]])


def print_bypass(rows, ctx):
    print("## LFPS: query heads that are bypassed\n")
    found = [(b, rows[f"lfps:bypass={b}", ctx]) for b in BYPASS]
    table(["threshold", *(f"{b}" for b, _ in found)],
          [["bypassed, %", *(percent(r["bypass"]) for _, r in found)],
           ["KL", *(f"{r['kl_mean']:.3g}" for _, r in found)]])


def share_at(points, kl):
    """Share read at a divergence, between two measured points on logarithmic scales; None outside."""
    points = sorted((math.log(k), math.log(s)) for s, k in points if k > 0)
    for (k0, s0), (k1, s1) in zip(points, points[1:]):
        if k0 <= math.log(kl) <= k1:
            return math.exp(s0 + (s1 - s0) * (math.log(kl) - k0) / (k1 - k0))
    return None


def print_psa(rows, ctx):
    print("## PSA against a fixed number of pages, at equal KL\n")
    fixed = [rows[f"arkvale:budget={p},dense=0", ctx] for p in PAGES]
    points = [(r["share_read"], r["kl_mean"]) for r in fixed]
    lines = [[f"`{r['method']}`", percent(r["share_read"]), f"{r['kl_mean']:.3g}", "", ""] for r in fixed]
    for m in PSA:
        r = rows[f"psa:mass={m},stop=min,order=box", ctx]
        share = share_at(points, r["kl_mean"])
        layers = [layer["page_share"] for layer in r["per_layer"]]
        lines.append([f"`{r['method']}`", percent(r["share_read"]), f"{r['kl_mean']:.3g}",
                      f"{percent(min(layers))} to {percent(max(layers))}",
                      f"{share / r['share_read']:.2f}" if share else "outside"])
    table(["method", "read %", "KL", "pages read by layer, %", "pages at this KL / PSA's"], lines)


def print_boxes(rows, ctx):
    print("## Certificates: pages visited for 95 % of the mass, by layer\n")
    found = [(by, rows[f"psa_cert:by={by}", ctx]) for by in ("box", "sphere", "shadow4", "shadow8")]
    n = len(found[0][1]["per_layer"])
    table(["layer", *(f"{by}, %" for by, _ in found)],
          [[str(i), *(percent(r["per_layer"][i]["page_share"]) for _, r in found)] for i in range(n)])
    table(["of all layers", *(by for by, _ in found)],
          [[name, *(form(r[key]) for _, r in found)] for name, key, form in (
              ("pages visited, %", "page_share", percent), ("mass proved, %", "mass_proved", percent),
              ("mass read, %", "mass_mean", percent), ("output's error proved", "out_bound", "{:.3g}".format),
              ("output's error", "out_left_mean", "{:.3g}".format), ("proofs", "n_proof", "{:.0f}".format),
              ("contradicted", "n_broken", "{:.0f}".format))])


def candidates(opt, heads):
    """What choosing reads, tables and whole pages of candidates, over the bytes of all keys, {(a, ctx): share}."""
    methods = [f"lfps:a={a},heads={heads}" for a in A]
    with tempfile.TemporaryDirectory() as folder:
        rows = fidelity(opt, methods, "-c", opt.contexts, "-k", str(opt.k), "--out", folder)
        text = run(opt.program, "eval", "read", os.path.join(folder, "reading.sacr"))
    sums = {key: [0.0, 0.0] for key in rows}
    for r in csv.DictReader(io.StringIO(text)):
        ctx, pos = int(r["sample"]), int(r["pos"])
        if r["method"] not in methods or pos == ctx - opt.k:
            continue  # the first row reads the prompt's last rows besides
        total = sums[r["method"], ctx]
        total[0] += float(r["side_bytes"])
        total[1] += 2 * opt.head_dim * (pos + 1)
    return {key: a / b for key, (a, b) in sums.items()}


def print_candidates(opt):
    for heads, what in (("group", "one pair of tables for a KV head"),
                        ("query", f"tables for each query head, union over the {opt.group} of a KV head")):
        print(f"## LFPS: what choosing reads, % of the bytes of all keys; {what}\n")
        shares = candidates(opt, heads)
        contexts = sorted({ctx for _, ctx in shares})
        table(["a", *(f"{c}" for c in contexts)],
              [[f"{a}", *(percent(shares[f"lfps:a={a},heads={heads}", c]) for c in contexts)] for a in A])


def print_first(opt):
    print("## Conversations: the place of the question\n")
    text = run(opt.program, "eval", "turns", "-m", opt.model, "--tasks", opt.tasks, "--ctx", "4k", "-n",
               str(opt.n), "-q", "-o", "json", "--sparse-min-ctx", "1", "--gold-history", "--methods",
               ",".join(FIRST))
    print("```\n" + text.strip() + "\n```\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("-m", "--model", default="qwen2.5-coder-0.5b")
    p.add_argument("-f", "--text", help="a file; without it the essays of `make text`")
    p.add_argument("-c", "--ctx", type=int, default=4096)
    p.add_argument("--contexts", default="2k,4k,8k", help="of what LFPS reads to choose")
    p.add_argument("-k", type=int, default=32, help="rows that are scored")
    p.add_argument("-n", type=int, default=2, help="conversations of each task and place; 0: none")
    p.add_argument("--tasks", default="facts,collect")
    opt = p.parse_args()
    texts = {e.name: fetch.cache_path(e) for e in fetch.read_table(fetch.TABLE)}
    opt.text = opt.text or str(texts["essays"])
    opt.group, opt.head_dim = shape_of(opt)
    methods = (ORDER + [f"lfps:bypass={b}" for b in BYPASS] + [f"psa:mass={m},stop=min,order=box" for m in PSA] +
               [f"arkvale:budget={x},dense=0" for x in PAGES] +
               [f"psa_cert:by={by}" for by in ("box", "sphere", "shadow4", "shadow8")])
    rows = fidelity(opt, methods, "-c", str(opt.ctx), "-k", str(opt.k))
    for show in (print_order, print_bypass, print_psa, print_boxes):
        show(rows, opt.ctx)
    print_candidates(opt)
    if opt.n:
        print_first(opt)


if __name__ == "__main__":
    main()
