#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles programs against the headers that are installed, without the source tree.

    installed_headers_test.py --build DIR

The headers that a public header includes must be installed, and those that modules share must not be: none of rpc.
Each public header is a promise to users, so there are at most HEADERS_MAX.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

PROGRAM = """
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
int main() { return cohort::Dataset::range(3).cardinality() == 3 ? 0 : 1; }
"""
# Checkpoints, metrics and what is around a loop brought six to fifty; launchers, the Estimator and version 1 six: one for
# each thing that a program uses by itself.
HEADERS_MAX = 63
SOURCES = pathlib.Path(__file__).resolve().parent.parent.parent / "src"
REFUSED = ("cohort/rpc/channel.h", "cohort/rpc/control.h", "cohort/parameter_server_strategy/parameter_server_home.h",
           "cohort/data/graph/node.h")


def command_of(build):
    """The compiler and the options that matter to a user's program: LibTorch's folders, not the project's."""
    entry = next(one for one in json.loads((build / "compile_commands.json").read_text())
                 if one["file"].endswith("tests/compile/options_test.cpp"))
    words = shlex.split(entry["command"])
    compiler = next(i for i, word in enumerate(words) if pathlib.Path(word).name.startswith(("c++", "g++", "clang")))
    kept = [words[compiler], "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    for before, word in zip(words, words[1:]):
        if before == "-isystem":
            kept += [before, word]
        elif word.startswith(("-D_GLIBCXX", "-fsanitize")):
            kept.append(word)
    return kept


def internal_headers():
    """The headers that modules keep to themselves or share."""
    for path in sorted(SOURCES.rglob("*.h")):
        yield path.relative_to(SOURCES).as_posix()


def compiled(command, include, text, folder):
    source = folder / "program.cpp"
    source.write_text(text)
    return subprocess.run([*command, f"-I{include}", str(source)], capture_output=True, text=True, check=False,
                          env={**os.environ, "LC_ALL": "C.UTF-8"})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run(["cmake", "--install", str(build), "--component", "headers", "--prefix", name], check=True,
                       stdout=subprocess.DEVNULL)
        command = command_of(build)
        done = compiled(command, folder / "include", PROGRAM, folder)
        if done.returncode != 0:
            sys.exit(f"a program does not compile against the installed headers:\n{done.stderr}")
        found = [path for path in REFUSED
                 if "No such file" not in compiled(command, folder / "include", f"#include <{path}>\n", folder).stderr]
        if found:
            sys.exit(f"installed, though not public: {', '.join(found)}")
        # All of them in one program, as the compiler looks for them.
        internal = list(internal_headers())
        asks = "".join(f"#if __has_include(<{path}>)\n#error {path} is installed\n#endif\n" for path in internal)
        done = compiled(command, folder / "include", asks, folder)
        if done.returncode != 0:
            sys.exit(f"installed, though not public:\n{done.stderr}")
        installed = len(list((folder / "include").rglob("*.h")))
        print(f"{installed} headers are installed, {len(internal)} are not")
        if installed > HEADERS_MAX:
            sys.exit(f"expected at most {HEADERS_MAX} installed headers, got {installed}: move one to src")


if __name__ == "__main__":
    main()
