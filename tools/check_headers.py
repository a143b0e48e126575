#!/usr/bin/env python3
"""Every header compiles alone, so that includes have no hidden order. $CC is the compiler."""
import os
import pathlib
import shlex
import subprocess
import sys

import csource

FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c"]


def main(root):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    problems, n = [], 0
    for path in csource.files(root, ["include", "src"], suffixes=(".h",)):
        n += 1
        # Twice: the second one shows that the include guard works.
        source = f'#include "{path.resolve()}"\n' * 2
        done = subprocess.run([*compiler, *FLAGS, "-I", root / "include", "-I", root / "src", "-"],
                              input=source, capture_output=True, text=True)
        if done.returncode != 0:
            problems.append(f"{path.relative_to(root)} does not compile alone:\n{done.stderr}")
    return csource.report(problems, f"headers: {n} compile alone")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
