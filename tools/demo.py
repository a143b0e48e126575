#!/usr/bin/env python3
"""The demo: a sentence hidden in the middle of real essays, and a question about it.

Writes the document beside the text in the cache, lets the program answer, and checks that the answer
holds the hidden fact. About 16K tokens; with --long about 120K, four times the context that the model
was trained for (YaRN), of which prompt and answer read what the method `auto` chooses.
usage: demo.py PROGRAM [--long] [OPTION OF SACCADE RUN...]
"""
import argparse
import json
import pathlib
import subprocess
import sys

import fetch

DOCUMENT_BYTES = 70_000
LONG_BYTES = 530_000
LONG_OPTIONS = ("-c", "131072", "--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "32768",
                "-b", "2048", "--prefill", "auto", "--decode", "auto")
NEEDLE = ("The night watchman of the lighthouse at Kerrigan Point keeps the spare key "
          "under the seventh blue flowerpot.")
# At 120K tokens the model finds the fact when asked for it in its own words, "under", and, reading every
# token, answers "in red" when asked "where": which methods cannot mend.
QUESTION = ("According to the document, the night watchman of the lighthouse at Kerrigan Point keeps the "
            "spare key under what?")
FACT = ("seventh", "blue", "flowerpot")


def make_document(essays, n_bytes):
    """The first `n_bytes` of the essays, cut at a line, with the needle as a paragraph of its own at
    the first border behind the middle."""
    text = essays[:n_bytes].decode("utf-8", errors="ignore")
    text = text[:text.rindex("\n")]
    middle = text.find("\n\n", len(text) // 2)
    if middle < 0:
        raise SystemExit(f"demo: the first {n_bytes:,} bytes have no border behind their middle")
    return f"{text[:middle]}\n\n{NEEDLE}{text[middle:]}\n"


def print_reading(timings):
    """What the methods left out, where one was at work."""
    prompt, answer = timings["prefill"], timings["decode"]
    if prompt["lists"]:
        mass = prompt.get("mass_estimate")
        print(f"prompt:   {prompt['method']} computed {100 * prompt['planned_share']:.1f} % of the attention"
              + (f" and keeps {100 * mass:.1f} % of its mass by its own estimate" if mass else "")
              + f"; choosing took {prompt['estimate_ms'] / 1000:.1f} s of {prompt['attention_ms'] / 1000:.1f} s")
    if answer["share_read"] is not None and answer["share_read"] < 1:
        print(f"answer:   {answer['method']} read {100 * answer['share_read']:.1f} % of the tokens before it, with"
              f" its choosing {100 * answer['bytes_share']:.1f} % of the bytes that dense attention reads")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--long", action="store_true", help="120K tokens, read sparsely")
    parser.add_argument("--bytes", type=int, help="size of the document")
    args, more = parser.parse_known_args()
    n_bytes = args.bytes or (LONG_BYTES if args.long else DOCUMENT_BYTES)
    if args.long:
        more = [*LONG_OPTIONS, *more]
    entries = {e.name: e for e in fetch.read_table(fetch.TABLE)}
    essays = fetch.cache_path(entries["essays"])
    document = essays.with_name("demo.txt")
    document.write_text(make_document(essays.read_bytes(), n_bytes))
    print(f"document: {document}, {document.stat().st_size:,} bytes\nquestion: {QUESTION}",
          flush=True)
    # stderr stays on the terminal: the program shows its progress there.
    model = fetch.cache_path(entries[args.model])
    done = subprocess.run([args.program, "run", "-m", model, "-f", document, "-p", QUESTION, "-n", "64",
                           "--temp", "0", "-o", "json", *more], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"demo: {args.program} ended with status {done.returncode}", file=sys.stderr)
        return 1
    answer = json.loads(done.stdout)
    timings = answer["timings"]
    print(f"answer:   {answer['text'].strip()}")
    print(f"time to first token {timings['ttft_ms'] / 1000:.2f} s for {timings['prompt_n']:,} "
          f"tokens ({timings['prompt_per_second']:.1f} tokens/s), then "
          f"{timings['predicted_per_second']:.1f} tokens/s, "
          f"KV {answer['kv_bytes_used']:,} bytes used of {answer['kv_bytes']:,} planned")
    print_reading(timings)
    found = all(word in answer["text"].lower() for word in FACT)
    print("the hidden fact is in the answer" if found else "the hidden fact is NOT in the answer")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
