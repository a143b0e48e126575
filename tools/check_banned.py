#!/usr/bin/env python3
"""Calls that src/ may not make: unbounded string functions, number parsers that cannot fail, and
memory that does not go through base/mem.h."""
import pathlib
import re
import sys

import csource

MEMORY = ("malloc calloc realloc reallocarray free aligned_alloc posix_memalign memalign strdup "
          "strndup asprintf vasprintf mmap munmap mremap alloca").split()
UNSAFE = ("strcpy strcat stpcpy strncpy strncat sprintf vsprintf gets scanf sscanf fscanf strtok "
          "atoi atol atoll atof tmpnam mktemp rand srand setjmp longjmp system popen").split()
# mem.c is the home of memory; gguf.c maps the model file.
MEMORY_HOMES = re.compile(r"src/base/mem\.c|src/model/gguf\w*\.c")


def main(root):
    call = re.compile(rf"(?<![\w.>])({'|'.join(MEMORY + UNSAFE)})\s*\(")
    problems, n = [], 0
    for path in csource.files(root, ["src"]):
        where = path.relative_to(root).as_posix()
        code = csource.strip(path.read_text())
        n += 1
        for match in call.finditer(code):
            name = match.group(1)
            if name in MEMORY and MEMORY_HOMES.fullmatch(where):
                continue
            line = code.count("\n", 0, match.start()) + 1
            instead = "base/mem.h instead" if name in MEMORY else "unbounded or cannot fail"
            problems.append(f"{where}:{line}: {name}() is banned: {instead}")
    return csource.report(problems, f"banned: {n} files make no banned call")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
