#!/usr/bin/env python3
"""Every header compiles alone, so that includes have no hidden order. $CC is the compiler.

Headers of kernels (src/ops/cpu) are compiled for a processor that has all instruction sets, those of
another processor not at all. A text that files of kernels include once, after they have defined what it
needs, ends in `_tmpl.h`; it is compiled there only.
"""
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

import csource

FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c"]
KERNEL_FLAGS = {"x86_64": ["-march=sapphirerapids"], "aarch64": ["-march=armv8.2-a+dotprod"]}
FOREIGN = re.compile(r"_neon\.h$" if platform.machine() == "x86_64" else r"_(avx2|avx512|amx)\.h$")


def main(root):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    problems, n = [], 0
    for path in csource.files(root, ["include", "src"], suffixes=(".h",)):
        if FOREIGN.search(path.name) or path.name.endswith("_tmpl.h"):
            continue
        n += 1
        is_kernel = path.relative_to(root).as_posix().startswith("src/ops/cpu/")
        flags = KERNEL_FLAGS.get(platform.machine(), []) if is_kernel else []
        # Twice: the second one shows that the include guard works.
        source = f'#include "{path.resolve()}"\n' * 2
        command = [*compiler, *FLAGS, *flags, "-I", root / "include", "-I", root / "src", "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        if done.returncode != 0:
            problems.append(f"{path.relative_to(root)} does not compile alone:\n{done.stderr}")
    return csource.report(problems, f"headers: {n} compile alone")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
