#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the path of a Python that has TensorFlow, making an environment with one where there is none.

    tests/interop/tensorflow_python.py [--no-install]

It is, in this order: $COHORT_TENSORFLOW_PYTHON; this Python, if it has TensorFlow; $ANCHORS_ROOT/tf, as benchmarks
use it; the environment ${XDG_CACHE_HOME:-~/.cache}/cohort/tensorflow, made by pip from requirements.txt. Exit code 69
and one line on stderr when there is none.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"
INSTALL_TIMEOUT_SECONDS = 1800
IMPORT_TIMEOUT_SECONDS = 300
UNAVAILABLE = 69


class Unavailable(Exception):
    """TensorFlow cannot be had here and now; the text says why."""


def has_tensorflow(python):
    try:
        done = subprocess.run([python, "-c", "import tensorflow"], capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=IMPORT_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "cohort" / "tensorflow"


def run(what, command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=INSTALL_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} took longer than {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{what} failed: {lines[-1] if lines else done.returncode}")


def install(folder):
    print(f"interop: installing TensorFlow (about 2 GB) into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # the remains of an interrupted installation
    run("python3 -m venv", [sys.executable, "-m", "venv", str(folder)])
    run("pip install", [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check",
                        "--requirement", str(REQUIREMENTS)])


def find(may_install):
    chosen = os.environ.get("COHORT_TENSORFLOW_PYTHON")
    if chosen:
        if not has_tensorflow(chosen):
            raise Unavailable(f"COHORT_TENSORFLOW_PYTHON is '{chosen}', which cannot import tensorflow")
        return chosen
    python = str(cache_folder() / "bin" / "python")
    anchors = os.environ.get("ANCHORS_ROOT")
    for known in [sys.executable] + ([f"{anchors}/tf/bin/python"] if anchors else []) + [python]:
        if has_tensorflow(known):
            return known
    if not may_install:
        raise Unavailable("no Python here has TensorFlow; `./dev test --interop` installs it, or set "
                          "COHORT_TENSORFLOW_PYTHON to one that has it")
    install(cache_folder())
    if not has_tensorflow(python):
        raise Unavailable(f"'{python}' cannot import the tensorflow that was installed for it")
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-install", action="store_true", help="fail where TensorFlow is not there yet")
    arguments = parser.parse_args()
    try:
        print(find(not arguments.no_install))
    except Unavailable as reason:
        print(f"interop: there is no TensorFlow to compare with: {reason}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
