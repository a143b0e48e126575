#!/usr/bin/env python3
"""Every folder with sources has a README.md of at most 30 lines that begins with a heading, and that of src leads to each layer."""
import pathlib
import sys

import csource

LINES_MAX = 30
ROOTS = ("src", "tests", "tools", "docs", "examples", "bench")
SUFFIXES = {".c", ".h", ".py", ".sh", ".1", ".md"}


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
        n_line = readme.read_text().count("\n")
        if not readme.read_text().startswith("# "):
            problems.append(f"{where}: no heading")
        if folder != root and n_line > LINES_MAX:
            problems.append(f"{where}: {n_line} lines, at most {LINES_MAX}")
    layers = (root / "src" / "README.md").read_text() if (root / "src" / "README.md").is_file() else ""
    for folder in sorted(f.name for f in (root / "src").glob("*/") if f.is_dir()):
        if f"]({folder})" not in layers:
            problems.append(f"src/README.md: no link to {folder}")
    return csource.report(problems, f"readme: {n} folders explain themselves")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
