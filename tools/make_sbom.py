#!/usr/bin/env python3
"""What a build is linked with, as a bill of materials in the form of CycloneDX 1.5 on stdout.
usage: make_sbom.py FILE...   (program, shared library)

The libraries are those that the files name themselves, and those that these name, found as the loader
finds them; Debian's package database has their versions and licences' files.
"""
import datetime
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys


def told_by(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", told_by("readelf", "-d", str(path)))


@functools.cache
def loader_paths():
    """Each library's name and where the loader finds it."""
    ldconfig = told_by("/sbin/ldconfig", "-p")
    return {name: pathlib.Path(path) for name, path in re.findall(r"^\s+(\S+) \(.*\) => (\S+)$", ldconfig, re.M)[::-1]}


def packages_of(paths):
    """For each file name, version, architecture and source of the Debian package that holds it. One question
    for all files, as each takes long; a file may be known by its place before folders were merged into /usr."""
    places = {str(place): path for path in paths for real in [path.resolve()]
              for place in (path, real, pathlib.Path("/", *real.parts[2:]))}
    told = subprocess.run(["dpkg-query", "-S", *places], capture_output=True, text=True, check=False).stdout
    owner = {places[place]: name for name, place in re.findall(r"^(\S+): (\S+)$", told, re.M) if place in places}
    form = "${binary:Package}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
    lines = told_by("dpkg-query", "-W", "-f", form, *set(owner.values())) if owner else ""
    facts = {}
    for line in lines.splitlines():
        name, *fact = line.split("\t")
        facts[name] = facts[name.split(":")[0]] = fact
    return {path: facts.get(name) for path, name in owner.items()}


def component(name, path, package):
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    found = {"type": "library", "bom-ref": name, "name": name, "hashes": [{"alg": "SHA-256", "content": sha}]}
    if package:
        debian, version, architecture, source = package
        found |= {"version": version, "purl": f"pkg:deb/debian/{debian}@{version}?arch={architecture}",
                  "properties": [{"name": "debian:source", "value": source}]}
        notice = pathlib.Path("/usr/share/doc", debian, "copyright")
        if notice.is_file():
            found["properties"].append({"name": "debian:copyright", "value": str(notice)})
    return found


def bill(files, version, now):
    parts, depends, waiting = {}, {}, []
    for path in files:
        depends[path.name] = needed(path)
        waiting += depends[path.name]
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        path = loader_paths().get(name)
        if not path or not path.is_file():
            sys.exit(f"make_sbom: {name} is linked and the loader does not find it")
        parts[name] = path
        depends[name] = needed(path)
        waiting += depends[name]
    packages = packages_of(list(parts.values())) if shutil.which("dpkg-query") else {}
    own = [{"type": "application" if os.access(f, os.X_OK) and ".so" not in f.name else "library",
            "bom-ref": f.name, "name": f.name, "version": version, "licenses": [{"license": {"id": "MIT"}}],
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(f.read_bytes()).hexdigest()}]} for f in files]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"timestamp": now, "component": {"type": "application", "name": "saccade", "version": version,
                                                         "components": own}},
            "components": [component(name, parts[name], packages.get(parts[name])) for name in sorted(parts)],
            "dependencies": [{"ref": ref, "dependsOn": sorted(depends[ref])} for ref in sorted(depends)]}


def main(names):
    root = pathlib.Path(__file__).parent.parent
    version = re.search(r"^project\(saccade VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text(), re.M)[1]
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or told_by("git", "-C", str(root), "log", "-1", "--format=%ct") or 0)
    now = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(json.dumps(bill([pathlib.Path(n) for n in names], version, now), indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
