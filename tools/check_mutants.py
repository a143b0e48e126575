#!/usr/bin/env python3
"""Each mutant of tests/mutants fits the tree: its old text stands once in its file, its test exists.

So whoever changes a line that a mutant changes sees it at once, and moves the mutant along.
"""
import pathlib
import sys

import csource
import mutants


def main(root):
    problems, listed = [], []
    try:
        listed = mutants.read(root)
    except mutants.Fault as fault:
        problems.append(str(fault))
    for mutant in listed:
        try:
            mutants.check(mutant, root)
        except mutants.Fault as fault:
            problems.append(str(fault))
    return csource.report(problems, f"mutants: {len(listed)} fit the tree")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
