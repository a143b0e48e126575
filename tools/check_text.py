#!/usr/bin/env python3
"""The tree says nothing about the machine that it was written on, and links to few places.

Looks through every tracked text file for absolute paths of somebody's machine, hosts that are not
on the list below, credits to tools in place of people, times of day in pages, large or binary files, and
scripts that cannot be run as they are named.
"""
import pathlib
import re
import subprocess
import sys

import csource

# Papers and specifications; package indexes and mirrors are the business of pip and apt.
HOSTS = {"arxiv.org", "doi.org", "github.com", "json.schemastore.org", "www.rfc-editor.org",
         "unicode.org", "www.unicode.org", "www.w3.org", "www.debian.org"}
# This machine, and names that are reserved for examples (RFC 2606).
NOWHERE = re.compile(r"localhost|127\.0\.0\.1|[\w.-]+\.(?:example|invalid)")
URL = re.compile(r"\b(?:https?|ftp|git)://([\w.-]+)")
MACHINE_PATH = re.compile(r"(?<![\w./$}~])/(?:home|root|work|mnt|Users|tmp)/[\w.]+")
CLOCK = re.compile(r"(?<![\w:.-])(?:[01]\d|2[0-3]):[0-5]\d(?![\w:])")
CREDIT = re.compile(r"co-authored-by|\b(?:AI|LLM|machine)[- ](?:generated|written|authored)", re.I)
BYTES_MAX = 512 << 10
# Licences of files that are others' come as they are.
LICENCE = re.compile(r"\.LICENSE$")
# Pictures of the page, which only a browser can draw.
PICTURE = re.compile(r"^docs/[\w/]+\.png$")
PICTURE_BYTES_MAX = 100 << 10


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True)
    return [pathlib.Path(root, name) for name in listed.stdout.decode().split("\0") if name]


def problems_of(where, text):
    for number, line in enumerate(text.splitlines(), 1):
        for match in URL.finditer(line):
            if match.group(1) not in HOSTS and not NOWHERE.fullmatch(match.group(1)):
                yield f"{where}:{number}: link to {match.group(1)}, not a host of tools/check_text.py"
        for what, pattern in ("path of one machine", MACHINE_PATH), ("credit to a tool", CREDIT):
            if match := pattern.search(line):
                yield f"{where}:{number}: {what}: {match.group()}"
        if where.endswith(".md") and (match := CLOCK.search(line)):
            yield f"{where}:{number}: a time of day, which tells a reader nothing: {match.group()}"


def mode_problem(path, data):
    can_run, names_runner = bool(path.stat().st_mode & 0o100), data.startswith(b"#!")
    if names_runner and not can_run:
        return "begins with #!, but cannot be run: chmod +x"
    if can_run and not names_runner:
        return "can be run, but does not begin with #!: chmod -x"
    return None


def main(root):
    problems, n = [], 0
    for path in tracked(root):
        if not path.is_file():
            continue
        where = path.relative_to(root).as_posix()
        data = path.read_bytes()
        n += 1
        if wrong := mode_problem(path, data):
            problems.append(f"{where}: {wrong}")
        most = PICTURE_BYTES_MAX if PICTURE.match(where) else BYTES_MAX
        if len(data) > most:
            problems.append(f"{where}: {len(data)} bytes, at most {most}")
        if PICTURE.match(where) or LICENCE.search(where):
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            # Fuzzing inputs and hard cases for the tokenizer are meant to be odd.
            if not where.startswith("tests/"):
                problems.append(f"{where}: not UTF-8 text")
            continue
        if where not in ("tools/check_text.py", "tools/test_checks.py"):
            problems.extend(problems_of(where, text))
    return csource.report(problems, f"text: {n} tracked files are fit to print")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
