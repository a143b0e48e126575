#!/usr/bin/env python3
"""`saccade serve` and llama-server under the same loads, in turn, on one GGUF file: one Markdown table.

  tools/serve_beside.py MODEL.gguf --llama PATH/llama-server -t 16

Without --llama ours is measured alone. The loads (--loads picks some of them):
  http     what HTTP costs one stream, with two threads: `saccade bench`, the server, and both again
  one      one stream
  eight    eight streams, first with prompts that must be read, then with the same ones from memory
  beside   long prompts (--prompts), one after the other, while seven streams decode: gaps between their tokens until
           each one's first token; the first prompt is the server's first, so what it learns from it counts, too
  chat     two turns of a chat over a long text; ours goes on after a restart, too, from its --cache-disk

Needs nothing but the programs and Python. What each load printed stays in --out."""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

LOADS = "http", "one", "eight", "beside", "chat"
N_STREAM = 7


# ---- Servers ----

class Server:
    """A server that runs, and its name in the table; a context manager."""

    def __init__(self, name, argv, port, log):
        self.name, self.port = name, port
        with open(log, "a", encoding="utf-8") as stderr:
            self.process = subprocess.Popen([*argv, "--port", str(port)], stdout=stderr, stderr=stderr)
        end = time.monotonic() + 120
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise SystemExit(f"serve_beside: {argv[0]} does not serve: see {log}")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ours(opt, threads, *more):
    argv = [opt.saccade, "serve", "-m", opt.model, "-q", "--no-page", "-t", str(threads), *more]
    return Server("ours", argv, opt.port, opt.out / "ours.log")


def theirs(opt):
    argv = [*opt.llama, "-m", opt.model, "-t", str(opt.threads), "-np", "8", "-c", str(8 * n_ctx(opt)), "-fa", "on"]
    return Server("llama", argv, opt.port + 1, opt.out / "llama.log")


def n_ctx(opt):
    """Of one sequence: the longest load, and its answers."""
    return max(opt.short, opt.long, opt.chat) + 1024


# ---- Loads of bench serve ----

def load(opt, server, name, *options):
    """The report of one load, or None: it failed or took too long, which is said."""
    argv = [opt.saccade, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--ignore-eos", "-o", "json",
            "--save-detailed", "--num-warmups", "0", *map(str, options)]
    return report_of(opt, f"{name}.{server.name}", argv)


def report_of(opt, name, argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=opt.limit)
    except subprocess.TimeoutExpired:
        print(f"serve_beside: {name}: over {opt.limit} s", file=sys.stderr)
        return None
    (opt.out / f"{name}.json").write_text(done.stdout, encoding="utf-8")
    report = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr.strip()}
    report = report[0] if isinstance(report, list) else report
    if report.get("failed"):
        print(f"serve_beside: {name}: failed: {report['failed']}", file=sys.stderr)
        return None
    return report


def of(report, key, i=None, scale=1.0):
    if not report or (i is not None and len(report[key]) <= i):
        return None
    return scale * (report[key] if i is None else report[key][i])


def http_cost(opt):
    """Tokens/s of `bench` and through the server, each twice, in turn."""
    rates = []
    for again in "ab":
        bench = report_of(opt, f"bench.{again}", [opt.saccade, "bench", "-m", opt.model, "-t", "2", "-p", "0", "-n",
                                                  str(opt.tokens), "-r", "3", "-o", "json"])
        with ours(opt, 2, "-np", "1", "-c", "2048") as server:
            report = load(opt, server, f"http.{again}", *one_stream(opt))
        rates.append((of(bench, "median_ts"), over(1e3, of(report, "median_tpot_ms"))))
    return rates


def one_stream(opt):
    return ("--num-prompts", 3, "--max-concurrency", 1, "--request-rate", 0, "--input-len", 32, "--output-len",
            opt.tokens)


def eight_streams(opt):
    return ("--num-prompts", 8, "--request-rate", 0, "--input-len", opt.short - 128, "--output-len", 128, "--seed", 7)


def chat(opt, n_turn):
    return ("--backend", "openai-chat", "--num-prompts", 1, "--num-turns", n_turn, "--prefix-len", opt.chat, "--input-len",
            48, "--output-len", 64, "--seed", 3)


# ---- A long prompt beside streams ----

class Stream(threading.Thread):
    """One streamed answer: when each of its pieces came. `close` gives it up."""

    def __init__(self, server, prompt, n_token):
        super().__init__(daemon=True)
        self.times, self.sent, self.error, self.closed = [], time.monotonic(), None, False
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        self.body = json.dumps({"prompt": prompt, "max_tokens": n_token, "stream": True, "temperature": 0,
                                "ignore_eos": True})
        self.start()

    def run(self):
        try:
            self.connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
            response = self.connection.getresponse()
            if response.status != 200:
                raise OSError(response.read().decode())
            while not self.closed and (line := response.readline()):
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    self.times.append(time.monotonic())
        except (OSError, ValueError, http.client.HTTPException) as wrong:
            self.error = wrong

    def close(self):
        self.closed = True
        self.join(60)
        self.connection.close()


def percentile(values, q):
    """Between ranks, as numpy and bench serve have it."""
    values = sorted(values)
    at = q / 100 * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def beside(opt, server):
    """Gaps in ms of seven streams while long prompts are read, and the median of their first tokens in s."""
    rng = random.Random(1)

    def tokens(n):
        return [rng.randrange(1000, 20000) for _ in range(n)]
    streams = [Stream(server, tokens(128), 8000) for _ in range(N_STREAM)]
    end = time.monotonic() + opt.limit
    while min(len(s.times) for s in streams) < 8 and time.monotonic() < end:
        time.sleep(0.02)
    read = []
    while len(read) < opt.prompts and all(s.times for s in read):
        read.append(Stream(server, tokens(opt.long), 1))
        read[-1].join(opt.limit)
    for s in streams:
        s.close()
    wrong = next((s.error for s in (*streams, *read) if s.error), None)
    if wrong or not read[-1].times or any(s.times[-1] < read[-1].times[0] for s in streams):
        print(f"serve_beside: beside.{server.name}: failed: {wrong or f'over {opt.limit} s'}", file=sys.stderr)
        return None
    gaps = [1e3 * (b - a) for long in read for s in streams for a, b in zip(s.times, s.times[1:])
            if b > long.sent and a < long.times[0]]
    ttfts = [long.times[0] - long.sent for long in read]
    found = {"n": len(gaps), "late_share": sum(gap > opt.target for gap in gaps) / len(gaps), "ttft_s": percentile(ttfts, 50),
             **{f"p{q}_ms": percentile(gaps, q) for q in (50, 95, 99)}}
    (opt.out / f"beside.{server.name}.json").write_text(json.dumps({**found, "ttfts_s": ttfts, "gaps_ms": gaps}), encoding="utf-8")
    return found


# ---- All of it ----

def measure(opt, server):
    """Each load of one server that is asked for."""
    got = {}
    if "one" in opt.loads:
        got["one"] = load(opt, server, "one", *one_stream(opt))
    if "eight" in opt.loads:
        got["eight_cold"] = load(opt, server, "eight_cold", *eight_streams(opt))
        got["eight"] = load(opt, server, "eight", *eight_streams(opt))
    if "beside" in opt.loads:
        got["beside"] = beside(opt, server)
    if "chat" in opt.loads:
        got["chat"] = load(opt, server, "chat", *chat(opt, 2))
    return got


def measure_ours(opt):
    disk = opt.out / "disk"
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    more = ("-np", "8", "-c", str(n_ctx(opt)), "--cache-disk", f"{disk}:8G", "--tbt-target-ms", str(opt.target))
    with ours(opt, opt.threads, *more) as server:
        got = measure(opt, server)
    if "chat" in opt.loads:  # what was read is on the disk
        with ours(opt, opt.threads, *more) as server:
            got["restart"] = load(opt, server, "restart", *chat(opt, 1))
    return got


def measure_theirs(opt):
    if not opt.llama:
        return {}
    with theirs(opt) as server:
        return measure(opt, server)


def over(a, b):
    return a / b if a and b else None


def num(x, form="{:.1f}"):
    return "-" if x is None else form.format(x)


ROWS = [  # load, key, place, factor, form, whether more is better, words
    ("one", "output_throughput", None, 1, "{:.1f}", True, "one stream: tokens/s"),
    ("one", "median_itl_ms", None, 1, "{:.1f}", False, "one stream: median time between tokens, ms"),
    ("eight_cold", "output_throughput", None, 1, "{:.1f}", True, "eight streams, prompts of {short} read, too: tokens/s"),
    ("eight_cold", "median_ttft_ms", None, 1e-3, "{:.2f}", False, "the same: median first token, s"),
    ("eight", "output_throughput", None, 1, "{:.1f}", True, "eight streams, prompts in memory: tokens/s"),
    ("eight", "median_tpot_ms", None, 1, "{:.1f}", False, "the same: median TPOT, ms"),
    ("beside", "p99_ms", None, 1, "{:.1f}", False,
     "seven while a prompt of {long} is read: p99 between tokens, ms (target of ours {target})"),
    ("beside", "p95_ms", None, 1, "{:.1f}", False, "the same: p95 between tokens, ms"),
    ("beside", "late_share", None, 100, "{:.2f}", False, "the same: later than that target, % of the gaps"),
    ("beside", "p50_ms", None, 1, "{:.1f}", False, "the same: median between tokens, ms"),
    ("beside", "ttft_s", None, 1, "{:.2f}", False, "the long prompt's first token, s (median)"),
    ("chat", "ttfts", 0, 1, "{:.2f}", False, "chat over {chat} tokens, first turn: first token, s"),
    ("chat", "ttfts", 1, 1, "{:.2f}", False, "the same, second turn: first token, s"),
    ("restart", "ttfts", 0, 1, "{:.2f}", False, "the same after a restart, from the disk: first token, s"),
]


def table(opt, mine, other):
    """Lines of Markdown."""
    yield "| load | ours | llama-server | times better |"
    yield "|---|--:|--:|--:|"
    for name, key, i, scale, form, up, words in ROWS:
        if name not in mine:
            continue
        a, b = of(mine[name], key, i, scale), of(other.get(name), key, i, scale)
        better = over(a, b) if up else over(b, a)
        yield f"| {words.format(**vars(opt))} | {num(a, form)} | {num(b, form)} | {num(better, '{:.2f}')} |"


def parse_loads(text):
    loads = text.split(",")
    if wrong := [x for x in loads if x not in LOADS]:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}': expected some of {','.join(LOADS)}")
    return loads


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="GGUF file that both can run")
    p.add_argument("--saccade", default="build/saccade", help="program (default: build/saccade)")
    p.add_argument("--llama", type=shlex.split, help="command of llama-server (default: none, ours alone)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("serve_beside"), help="folder of the reports")
    p.add_argument("--loads", type=parse_loads, default=LOADS, help=f"of {','.join(LOADS)} (default: all)")
    p.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    p.add_argument("--tokens", type=int, default=128, help="answers of one stream (default: 128)")
    p.add_argument("--short", type=int, default=2048, help="context of eight streams (default: 2048)")
    p.add_argument("--long", type=int, default=8192, help="the prompt beside seven (default: 8192)")
    p.add_argument("--prompts", type=int, default=3, help="so many of them, one after the other (default: 3)")
    p.add_argument("--chat", type=int, default=16000, help="the chat's text (default: 16000)")
    p.add_argument("--target", type=float, default=50, help="--tbt-target-ms of ours (default: 50)")
    p.add_argument("--limit", type=float, default=120, help="seconds that one load may take (default: 120)")
    p.add_argument("--port", type=int, default=8123, help="of ours; llama-server has the next (default: 8123)")
    return p.parse_args()


def main():
    opt = parse_args()
    opt.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    lines = [f"{pathlib.Path(opt.model).name}, {opt.threads} threads, {datetime.date.today()}", ""]
    if "http" in opt.loads:
        for bench, served in http_cost(opt):
            lines.append(f"- one stream, 2 threads: {num(bench)} tokens/s of bench, {num(served)} through the server: "
                         f"{num(over(served, bench), '{:.3f}')} of it")
        lines.append("")
    if set(opt.loads) != {"http"}:
        mine, other = measure_ours(opt), measure_theirs(opt)
        lines += table(opt, mine, other)
        counts = [str(of(got.get("beside"), "n")) for got in (mine, other) if got.get("beside")]
        if counts:
            lines += ["", f"Beside long prompts {' and '.join(counts)} gaps were counted; seven come from one step."]
    lines += ["", f"All of it took {time.monotonic() - begin:.0f} s."]
    text = "\n".join(lines) + "\n"
    (opt.out / "table.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
