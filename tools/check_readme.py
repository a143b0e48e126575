#!/usr/bin/env python3
"""Every folder with sources has a README.md of at most 30 lines, whose links lead somewhere."""
import pathlib
import re
import sys

import csource

LINES_MAX = 30
ROOTS = ("src", "tests", "tools", "docs", "examples", "bench")
SUFFIXES = {".c", ".h", ".py", ".sh", ".1", ".md"}
LINK = re.compile(r"\]\(([^)#:]+)\)")


def folders(root):
    """Folders below ROOTS that hold sources themselves, and all that lie above those."""
    found = set()
    for name in ROOTS:
        for path in pathlib.Path(root, name).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file():
                folder = path.parent
                while folder != root:
                    found.add(folder)
                    folder = folder.parent
    # A folder with nothing but a page or two for `man` is told of in docs/README.md.
    return sorted(f for f in found if f.relative_to(root).as_posix() != "docs/man")


def main(root):
    problems, n = [], 0
    for folder in [root, *folders(root)]:
        readme = folder / "README.md"
        where = readme.relative_to(root)
        if not readme.is_file():
            problems.append(f"{where} is missing")
            continue
        n += 1
        text = readme.read_text()
        if folder != root and text.count("\n") > LINES_MAX:
            problems.append(f"{where}: {text.count(chr(10))} lines, at most {LINES_MAX}")
        for target in LINK.findall(text):
            if not (folder / target).exists():
                problems.append(f"{where}: link to {target}, which is not there")
    return csource.report(problems, f"readme: {n} folders explain themselves")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
