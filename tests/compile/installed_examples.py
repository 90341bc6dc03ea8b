#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds every program of examples/ against the installed package alone.

    installed_examples.py --build DIR --folder DIR

The package and the programs stand in FOLDER. It is kept, so that a later run compiles only what has changed.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def targets_of(sources):
    """The targets that examples/ must give: a file for each of its sources with a main, and the plugin."""
    programs = [path.stem for path in sources if re.search(r"^int main\(", path.read_text(encoding="utf-8"), re.M)]
    return {"plugin_host" if name == "host" else name for name in programs} | {"libplugin_trainer"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    package, examples, built = (folder / name for name in ("package", "examples", "built"))
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (arguments.build / "CMakeCache.txt").read_text(), re.M))
    for old in (package, examples):
        shutil.rmtree(old, ignore_errors=True)
    run("cmake", "--install", arguments.build, "--prefix", package)
    # A copy, from which no path leads to the library's sources. It keeps the times, so that ninja finds what it has built.
    shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("data"))
    run("cmake", "-S", examples, "-B", built, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={package}", f"-DTorch_DIR={cache['Torch_DIR']}",
        f"-DCMAKE_CXX_COMPILER={cache['CMAKE_CXX_COMPILER']}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        f"-DCOHORT_WERROR={os.environ.get('COHORT_WERROR', 'OFF')}")
    run("cmake", "--build", built, "--parallel", "2")
    names = {path.stem for path in built.iterdir() if path.is_file()}
    missing = sorted(targets_of(examples.rglob("*.cpp")) - names)
    if missing:
        sys.exit(f"examples/CMakeLists.txt builds no {', '.join(missing)}")
    print(f"built {len(targets_of(examples.rglob('*.cpp')))} programs and plugins against {package}")


if __name__ == "__main__":
    main()
