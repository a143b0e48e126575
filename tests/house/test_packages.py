#!/usr/bin/env python3
"""The list of what is linked names all of it, with versions; THIRD_PARTY has a notice for each library that
is not the system's; what the packages install is what `make install` puts in place."""
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
BUILD = pathlib.Path(os.environ["SACCADE_BUILD"])
DEBIAN = ROOT / "packaging" / "debian"
# Parts of the C library and of the compiler, which every program has.
SYSTEM = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|ld-linux.*)\.so")


class BillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        files = [BUILD / "saccade", BUILD / "libsaccade.so"]
        told = subprocess.run([sys.executable, ROOT / "tools/make_sbom.py", *files], capture_output=True, text=True,
                              check=True)
        cls.files, cls.bill = files, json.loads(told.stdout)
        cls.names = {c["name"] for c in cls.bill["components"]}

    def test_all_that_is_linked_is_there(self):
        for path in self.files:
            told = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            linked = set(re.findall(r"^\s+(\S+) => /", told, re.M))
            self.assertGreater(len(linked), 3)
            self.assertLessEqual(linked, self.names)

    def test_each_has_version_and_hash(self):
        for part in self.bill["components"]:
            self.assertRegex(part["hashes"][0]["content"], r"^[0-9a-f]{64}$")
            if pathlib.Path("/usr/bin/dpkg-query").exists():
                self.assertRegex(part["purl"], r"^pkg:deb/debian/[\w.+-]+@", part["name"])

    def test_dependencies_name_components(self):
        known = self.names | {p.name for p in self.files}
        for entry in self.bill["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, known)

    def test_direct_libraries_have_notices(self):
        direct = {name for entry in self.bill["dependencies"] if entry["ref"] in {p.name for p in self.files}
                  for name in entry["dependsOn"]}
        notices = (ROOT / "THIRD_PARTY").read_text().lower().replace("-", "")
        for name in direct:
            if not SYSTEM.match(name):
                stem = re.match(r"lib(.+?)(?:-\d.*|\d-.*)?\.so", name)[1]
                self.assertIn(stem.lower().replace("-", ""), notices, f"THIRD_PARTY says nothing of {name}")


class DebianTest(unittest.TestCase):
    @staticmethod
    def holds(line, file):
        return fnmatch.fnmatch(file, line) or fnmatch.fnmatch(file, line + "/*")

    def test_packages_hold_what_is_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cmake", "--install", BUILD], check=True, capture_output=True,
                           env={**os.environ, "DESTDIR": folder})
            files = [p.relative_to(folder).as_posix() for p in pathlib.Path(folder).rglob("*") if not p.is_dir()]
        # The package's prefix is /usr, and its libraries lie in a folder of the architecture.
        files = [re.sub(r"^usr/local/", "usr/", f) for f in files]
        files = [re.sub(r"^usr/lib/(?!.*-linux-)", "usr/lib/x-linux-gnu/", f) for f in files]
        # What a line takes; a second word is the folder that a package has it in.
        wanted = [line.split()[0] for path in DEBIAN.glob("*.install") for line in path.read_text().splitlines()]
        for line in wanted:
            self.assertTrue(any(self.holds(line, f) for f in files), line)
        for f in files:
            if not f.startswith("usr/share/doc/"):  # licences, which packages have in a form of their own
                self.assertTrue(any(self.holds(line, f) for line in wanted),
                                f"no package has {f}")

    def test_a_tree_without_git_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("make_deb.sh", "deps.sh"):
                path = pathlib.Path(folder, "tools", name)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes((ROOT / "tools" / name).read_bytes())
            told = subprocess.run(["sh", path.parent / "make_deb.sh"], capture_output=True, text=True,
                                  env={**os.environ, "GIT_CEILING_DIRECTORIES": folder})
            self.assertEqual(told.returncode, 1)
            self.assertIn("this folder is no clone", told.stderr)
            self.assertFalse(pathlib.Path(folder, "build").exists())

    def test_names_follow_the_version(self):
        version = re.search(r"VERSION (\d+)\.", (ROOT / "CMakeLists.txt").read_text().split("project(")[1])[1]
        self.assertTrue((DEBIAN / f"libsaccade{version}.install").is_file())
        self.assertIn(f"Package: libsaccade{version}\n", (DEBIAN / "control.in").read_text())


if __name__ == "__main__":
    unittest.main()
