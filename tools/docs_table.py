#!/usr/bin/env python3
"""Answers of `saccade eval docs` as Markdown, a table for each setting: model, task, number of documents.

Reads one or more docs.jsonl, and takes the questions that every method of the setting has answered. Scores are
told by the place of the evidence, KL as mean and median; what a method loses to the yardstick is paired, question by question, with a 95 %
interval (bootstrap); its time is told as a share of the yardstick's, too. Questions of one seed and index are about the same documents,
whatever the place, so the bootstrap draws documents with all their questions.

  tools/docs_table.py out/*/docs.jsonl
"""
import argparse
import collections
import json
import random
import statistics
import sys

ROUNDS = 2000
PLACES = ("first", "middle", "last")
SETTING = ("model", "kv", "task", "documents", "document_tokens")


def read_rows(paths):
    """{setting: {question: {method: row}}}, methods in the order of their first rows."""
    settings = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                    setting = tuple(row[key] for key in SETTING)
                    settings[setting][row["seed"], row["index"], row["place"]][row["method"]] = row
                except (ValueError, KeyError, TypeError) as error:
                    sys.exit(f"{path}:{number}: not a row of docs.jsonl: {error!r}")
    return settings


def mean(rows, field):
    return statistics.fmean(row[field] for row in rows)


def score(rows):
    by_place = [[row["score"] for row in rows if row["place"] == place] for place in PLACES]
    places = ", ".join(f"{100 * statistics.fmean(scores):.0f}" if scores else "-" for scores in by_place)
    return f"{100 * mean(rows, 'score'):.0f} ({places})"


def by_documents(rows, values):
    """The values of rows about the same documents, together."""
    groups = collections.defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        groups[row["seed"], row["index"]].append(value)
    return list(groups.values())


def resampled_mean(groups, rng):
    drawn = rng.choices(groups, k=len(groups))
    return sum(map(sum, drawn)) / sum(map(len, drawn))


def loss(rows, exact, rng):
    """Points that the rows lose to those of the yardstick, with the interval of the mean."""
    lost = [100 * (row["score"] - other["score"]) for row, other in zip(rows, exact, strict=True)]
    groups = by_documents(rows, lost)
    means = sorted(resampled_mean(groups, rng) for _ in range(ROUNDS))
    low, high = means[int(0.025 * ROUNDS)], means[int(0.975 * ROUNDS) - 1]
    return f"{statistics.fmean(lost):+.0f} ({low:+.0f} to {high:+.0f})"


def print_table(setting, questions, yardstick, rng):
    methods = list(dict.fromkeys(m for by_method in questions.values() for m in by_method))
    yardstick = yardstick or methods[0]
    if yardstick not in methods:
        sys.exit(f"there is no method '{yardstick}' among {', '.join(methods)}")
    common = [by_method for by_method in questions.values() if len(by_method) == len(methods)]
    model, kv, task, documents, n_tok = setting
    print(f"{model}, {kv} keys, {task}, {documents} documents of {n_tok} tokens: "
          f"{len(common)} questions that all methods have answered, of {len(questions)}\n")
    if not common:
        return
    exact = [by_method[yardstick] for by_method in common]
    print(f"| method | score, % ({', '.join(PLACES)}) | less `{yardstick}` (95 %) | KL, mean | median | kept, % | computed again, % "
          f"| first token, ms | share of `{yardstick}` |\n|---|---|---|--:|--:|--:|--:|--:|--:|")
    for method in methods:
        rows = [by_method[method] for by_method in common]
        print(f"| `{method}` | {score(rows)} | {'' if method == yardstick else loss(rows, exact, rng)} | "
              f"{mean(rows, 'kl'):.3f} | {statistics.median(row['kl'] for row in rows):.3f} | {100 * mean(rows, 'resident_share'):.1f} | "
              f"{100 * mean(rows, 'recomputed_share'):.1f} | {mean(rows, 'ttft_ms'):,.0f} | "
              f"{100 * mean(rows, 'ttft_ms') / mean(exact, 'ttft_ms'):.1f} % |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--yardstick", help="the method that others are compared with; else the first one")
    args = parser.parse_args()
    rng = random.Random(1)
    for setting, questions in read_rows(args.files).items():
        print_table(setting, questions, args.yardstick, rng)


if __name__ == "__main__":
    main()
