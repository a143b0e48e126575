#!/usr/bin/env python3
"""The tail is what hurts: limits on functions, files and parameters.

Functions have 70 lines at most (in C of src/ops 150: kernels unroll by hand), files 800 (src/ops/cpu
and src/ops/cuda: 1500), functions 6 parameters, where a trailing `sac_error *err` is not counted: every fallible function has
one and it carries no thought; nor is what a template passes through (`args...`).
"""
import pathlib
import sys

import csource

FUNCTION_LINES, KERNEL_LINES = 70, 150
FILE_LINES, KERNEL_FILE_LINES = 800, 1500
PARAMS = 6
SUFFIXES = (".c", ".h", ".cu", ".cuh", ".cpp")
KERNEL_FOLDERS = ("src/ops/cpu/", "src/ops/cuda/")
DICTATED = {  # functions whose form a library dictates
    "src/serve/http.c": {"on_request"},
    "src/serve/upload.c": {"on_part"},
    "tests/cuda_host/runtime.cpp": {"cudaMemcpy2DAsync"},
}


def main(root):
    problems, n = [], 0
    for path in csource.files(root, ["include", "src", "tests", "examples"], SUFFIXES):
        where = path.relative_to(root)
        text = path.read_text()
        place = where.as_posix()
        file_limit = KERNEL_FILE_LINES if place.startswith(KERNEL_FOLDERS) else FILE_LINES
        is_kernel = place.startswith("src/ops/") and path.suffix in (".c", ".h")
        function_limit = KERNEL_LINES if is_kernel else FUNCTION_LINES
        n_lines = text.count("\n")
        if n_lines > file_limit:
            problems.append(f"{where}: {n_lines} lines, at most {file_limit}")
        for f in csource.functions(text):
            n += 1
            length = f.last_line - f.first_line + 1
            if length > function_limit:
                problems.append(f"{where}:{f.first_line}: {f.name} has {length} lines, "
                                f"at most {function_limit}")
            params = [p for p in f.params if not p.endswith("sac_error *err") and "..." not in p]
            if len(params) > PARAMS and f.name not in DICTATED.get(place, ()):
                problems.append(f"{where}:{f.first_line}: {f.name} has {len(params)} parameters, "
                                f"at most {PARAMS}; then an argument struct")
    return csource.report(problems, f"size: {n} functions within their limits")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
