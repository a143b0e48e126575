#!/usr/bin/env python3
"""Includes follow LAYERS: one layer a line, lowest first; names on one line are equals.

A file includes headers of its own folder and of lower lines, never of higher ones, nor of an equal.
Layers above the engine see it only through saccade.h, and base/ for its helpers. Includes of the
project are written "folder/file.h".
"""
import pathlib
import re
import sys

import csource

PUBLIC = ("saccade.h", "saccade_cache.h", "saccade_machine.h", "saccade_method.h", "saccade_tier.h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def read_layers(root):
    lines = pathlib.Path(root, "LAYERS").read_text().splitlines()
    return {name: rank for rank, line in enumerate(lines) for name in line.split()}


def problem_of(folder, included, layers):
    """Why a file of `folder` may not include `included`, or None."""
    if included in PUBLIC:
        return None
    target = included.split("/")[0]
    if "/" not in included or target not in layers:
        return 'is not "folder/file.h" of a layer'
    if target == folder:
        return None
    if layers[target] == layers[folder]:
        return f"{target} and {folder} are equals and do not see each other"
    if layers[target] > layers[folder]:
        return f"{target} lies above {folder}"
    if target != "base" and layers[target] <= layers["engine"] < layers[folder]:
        return f"{folder} sees the engine through saccade.h only"
    return None


def main(root):
    layers = read_layers(root)
    problems, n = [], 0
    for path in csource.files(root, ["src"]):
        where = path.relative_to(root)
        folder = where.parts[1]
        if folder not in layers:
            problems.append(f"{where}: folder {folder} is not in LAYERS")
            continue
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            n += 1
            why = problem_of(folder, match.group(1), layers)
            if why:
                line = text.count("\n", 0, match.start()) + 1
                problems.append(f'{where}:{line}: "{match.group(1)}": {why}')
    return csource.report(problems, f"layers: {n} includes point down")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
