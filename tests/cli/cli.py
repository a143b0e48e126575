"""What the tests of the command line share: the program, a model, and ways to run them."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("SACCADE_ROOT", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("SACCADE_BUILD", ROOT / "build"))
# How much longer than elsewhere the program may take: a sanitizer makes it slow.
PATIENCE = float(os.environ.get("SAC_TEST_PATIENCE", 1))
BIN = os.environ.get("SACCADE_BIN", str(ROOT / "build" / "saccade"))


def model_path(name="smollm2-135m"):
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = os.environ.get("SACCADE_MODELS") or pathlib.Path(cache) / "saccade" / "models"
    path = pathlib.Path(folder) / f"{name}.gguf"
    if not path.exists():
        sys.exit(f"{path} is missing: make model NAME={name}")
    return str(path)


def clean_env(**more):
    """The environment without settings of the user's, which would change results; one thread, for
    tests run side by side."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SACCADE_ARG_")}
    env.setdefault("HOME", str(pathlib.Path.home()))  # where model_path looks, and the program
    return {**env, "SACCADE_ARG_THREADS": "1", **more}


def saccade(*args, env=None, stdin="", timeout=300, **kwargs):
    """Runs the program to its end; the result has returncode, stdout and stderr."""
    kwargs.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([BIN, *args], input=stdin, stderr=subprocess.PIPE, text=True,
                          timeout=timeout * PATIENCE, env=clean_env(**(env or {})), check=False, **kwargs)


def run_json(*args, **kwargs):
    done = saccade("run", "-m", model_path(), "-o", "json", *args, **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def commands():
    """The names that `saccade --help` lists."""
    lines = saccade("--help").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines]
