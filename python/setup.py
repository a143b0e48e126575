"""Puts the library and its headers, which come from one build, into the package, so that the two fit.

They are taken from the tree (`make` first), or from an installed library that pkg-config knows.
$SACCADE_LIBRARY names another libsaccade.so; the headers are then those of the tree.
"""
import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent.parent


def installed(variable):
    told = subprocess.run(["pkg-config", f"--variable={variable}", "saccade"], capture_output=True,
                          text=True, check=False)
    return pathlib.Path(told.stdout.strip()) if told.returncode == 0 else None


def sources():
    """The folder of the headers and the shared library."""
    headers = ROOT / "include"
    library = pathlib.Path(os.environ.get("SACCADE_LIBRARY", ROOT / "build" / "libsaccade.so"))
    if headers.is_dir() and library.is_file():
        return headers, library
    include, lib = installed("includedir"), installed("libdir")
    if include and lib:
        return include, lib / "libsaccade.so"
    raise SystemExit(f"{library} is missing: run `make` first, or install the library")


class Build(build_py):
    def run(self):
        super().run()
        headers, library = sources()
        folder = pathlib.Path(self.build_lib, "saccade")
        folder.mkdir(parents=True, exist_ok=True)
        for name in "saccade.h", "saccade_method.h":
            shutil.copyfile(headers / name, folder / name)
        shutil.copyfile(library, folder / "libsaccade.so")


setup(cmdclass={"build_py": Build})
