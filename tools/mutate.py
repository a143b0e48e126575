#!/usr/bin/env python3
"""Puts each fault of tests/mutants into a copy of the tree and demands that its test notices.

A mutant is killed when its test passes without it and fails with it, in the function that the list
names. The copy and its build stay in build-mutate, so that a second run is quick; the tree itself is
only read. With --in-place the faults are put into the tree itself and taken out again, so that a
build that is needed anyway serves them too. Ends with `N killed, N survived`; exit status 1 if one
survived or its test says nothing.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import mutants

WORK = "build-mutate"
TEST_SECONDS = 300  # of a whole program; a fault may make a loop endless
# Files by how much a change compiles anew, most first: each turn gets its share of the slow ones.
COST = {".h": 0, ".cuh": 1, ".cu": 2}


def parse_turn(text):
    match = re.fullmatch(r"(\d+)/([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"must be K/N, part K of N, not '{text}'")
    return int(match.group(1)), int(match.group(2))


def choose(listed, only, turn):
    """The mutants of the names, or those whose turn it is, else all."""
    unknown = [name for name in only if name not in {m.name for m in listed}]
    if unknown:
        raise mutants.Fault(f"there is no mutant {', '.join(unknown)} in {mutants.FOLDER}")
    chosen = [m for m in listed if not only or m.name in only]
    if turn:
        chosen.sort(key=lambda m: (COST.get(pathlib.Path(m.file).suffix, len(COST)), m.name))
        chosen = chosen[turn[0] % turn[1]::turn[1]]
    return chosen


def copy_tree(root, to):
    """What git would keep of the working tree; files that have not changed are not touched."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"],
                            capture_output=True, check=True).stdout.decode()
    wanted = {name for name in listed.split("\0") if name and (root / name).is_file()}
    for path in [p for p in to.rglob("*") if p.is_file()]:
        if path.relative_to(to).as_posix() not in wanted:
            path.unlink()
    for name in wanted:
        new = (root / name).read_bytes()
        if not (to / name).is_file() or (to / name).read_bytes() != new:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(new)
            shutil.copymode(root / name, to / name)


class InPlace:
    """The tree itself and a configured build of it."""

    def __init__(self, root, build, jobs):
        self.tree, self.build, self.jobs = root, build, jobs
        changed = subprocess.run(["git", "-C", root, "status", "--porcelain", "--untracked-files=no", "src"],
                                 capture_output=True, text=True, check=True).stdout
        if changed:
            sys.exit(f"--in-place could lose changes that are not committed:\n{changed}")

    def source(self, path, text):
        """Marked as a system header, in which the compiler ignores warnings: this build may make them errors."""
        return f'# 1 "{path}" 3\n{text}'

    def run(self, *words, **more):
        return subprocess.run([str(w) for w in words], capture_output=True, text=True, errors="replace",
                              env={**os.environ, "CMOCKA_MESSAGE_OUTPUT": "stdout", **more})

    def make(self, tests):
        """The end of the compiler's words if the tests cannot be built, else nothing."""
        done = self.run("cmake", "--build", self.build, "--parallel", self.jobs, "--target",
                        *sorted(t.split("/")[1] for t in tests))
        return done.stdout[-1500:] if done.returncode != 0 else ""

    def test(self, name, function="*", seconds=TEST_SECONDS):
        """Functions of the test program (default: all) that passed, that failed. Some that failed say no more of their
        own, as they ended the program or could not clean up; others pass with another model of the same program."""
        said = self.run("ctest", "--test-dir", self.build, "-R", f"^{name}$", "-V",
                        SAC_TEST_FUNCTION=function, SAC_TEST_SECONDS=str(int(seconds))).stdout
        begun, passed, skipped, failed = (set(re.findall(rf"\[ +{word} +\] ([a-z]\w*)", said))
                                          for word in ("RUN", "OK", "SKIPPED", "FAILED"))
        return passed - failed, failed | begun - passed - skipped


class Copy(InPlace):
    """A copy of the tree, and a quick build of it."""

    def __init__(self, root, jobs):
        self.tree, self.build, self.jobs = root / WORK / "tree", root / WORK / "build", jobs
        copy_tree(root, self.tree)
        ccache = shutil.which("ccache")
        self.must("cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DSAC_TESTS=ON", "-DSAC_WERROR=OFF",
                  f"-DSAC_PYTHON={sys.executable}", "-DCMAKE_BUILD_TYPE=Mutate", "-DCMAKE_C_FLAGS_MUTATE=-O1",
                  *([f"-DCMAKE_C_COMPILER_LAUNCHER={ccache}"] if ccache else []))

    def source(self, path, text):
        return text

    def must(self, *words):
        done = self.run(*words)
        if done.returncode != 0:
            sys.exit(f"{' '.join(str(w) for w in words[:2])} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def verdict(shop, mutant, seconds):
    """'killed', or why it is not; `seconds`: how long the function may take."""
    path = shop.tree / mutant.file
    text = path.read_text()
    path.write_text(shop.source(path, mutants.apply(mutant, text)))
    try:
        if words := shop.make([mutant.test]):
            print(words, file=sys.stderr)
            return "does not build"
        _, failed = shop.test(mutant.test, mutant.function, seconds)
        if mutant.function not in failed:  # alone; it may fail after others, or others in its place
            _, failed = shop.test(mutant.test)
    finally:
        path.write_text(text)
    if mutant.function in failed:
        return "killed"
    return "another test fails: " + " ".join(sorted(failed)) if failed else "SURVIVED"


def run_all(shop, chosen):
    tests = {m.test for m in chosen}
    if words := shop.make(tests):
        sys.exit(f"the tests cannot be built:\n{words}")
    passed, seconds = {}, {}
    for m in chosen:
        start = time.monotonic()
        passed[m.name] = m.function in shop.test(m.test, m.function)[0]
        seconds[m.name] = 20 + 5 * (time.monotonic() - start)
    width = max(len(m.name) for m in chosen)
    n_killed = 0
    for mutant in chosen:
        start = time.monotonic()
        said = verdict(shop, mutant, seconds[mutant.name]) if passed[mutant.name] else "its test does not pass without it"
        n_killed += said == "killed"
        print(f"{mutant.name:{width}}  {time.monotonic() - start:4.0f} s  {said}"
              + ("" if said == "killed" else f" ({mutant.test} {mutant.function}: {mutant.why})"), flush=True)
    print(f"{n_killed} killed, {len(chosen) - n_killed} survived")
    return 0 if n_killed == len(chosen) else 1


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant, may be repeated")
    parser.add_argument("--turn", type=parse_turn, metavar="K/N", help="part K of N; a larger K begins anew")
    parser.add_argument("--list", action="store_true", help="name the mutants and why they matter, run nothing")
    parser.add_argument("--in-place", type=pathlib.Path, metavar="BUILD", help="in the tree itself, of which this is a build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("root", nargs="?", default=".", help="of the tree")
    args = parser.parse_args(words)
    root = pathlib.Path(args.root).resolve()
    try:
        listed = mutants.read(root)
        chosen = choose(listed, args.only, args.turn)
        for mutant in listed:
            mutants.check(mutant, root)
    except mutants.Fault as fault:
        sys.exit(str(fault))
    if args.list or not chosen:
        for mutant in chosen:
            print(f"{mutant.name}: {mutant.why} ({mutant.file})")
        return 0
    print(f"{len(chosen)} of {len(listed)} mutants, in {args.in_place or WORK}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and verdict() restores the file
    shop = InPlace(root, root / args.in_place, args.jobs) if args.in_place else Copy(root, args.jobs)
    return run_all(shop, chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
