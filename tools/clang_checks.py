#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy, with clang's thread-safety analysis on, over every source of a build folder.

    tools/clang_checks.py BUILD [--jobs N] [--filter TEXT]

A source whose inputs have not changed since it last passed is passed over: its stamp in
BUILD/clang_checks holds a digest of .clang-tidy, of its command and of all of the project's files it
may include. The commands come from BUILD/compile_commands.json, without what only g++ understands.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shlex
import subprocess
import sys

from compiled_files import compiled_files

ROOT = pathlib.Path(__file__).resolve().parent.parent


def wanted(words):
    """Of a command line, what says how to parse: without what only g++ understands."""
    kept = []
    for before, word in zip([""] + words, words):
        if before == "-isystem":
            kept += [before, word]
        elif word.startswith(("-D", "-I", "-std=")):
            kept.append(word)
    return kept


def sources(build):
    """(file, arguments for clang) of every source of ours that the build compiles."""
    for file, command in compiled_files(build / "compile_commands.json"):
        if not file.is_relative_to(ROOT) or file.is_relative_to(build) or file.suffix != ".cpp":
            continue
        if not file.exists():  # deleted since the build was configured
            continue
        if "verify_interface_header_sets" not in command:
            yield file, wanted(shlex.split(command))


def includes_of(file, known):
    """The project's headers that a source includes, however deep."""
    open_files, seen = [file], set()
    while open_files:
        at = open_files.pop()
        if at not in known:
            text = at.read_text(encoding="utf-8")
            names = re.findall(r'^\s*#\s*include\s*"((?:cohort|tests|bench)/[^"]+)"', text, re.MULTILINE)
            known[at] = [(ROOT / "src" if name.startswith("cohort/") else ROOT) / name for name in names]
        seen.add(at)
        open_files += [path for path in known[at] if path not in seen and path.exists()]
    return sorted(seen)


def digest(file, arguments, known):
    state = hashlib.sha256(repr(arguments).encode())
    for path in [ROOT / ".clang-tidy", ROOT / "tools/clang_prelude.h", *includes_of(file, known)]:
        state.update(path.read_bytes())
    return state.hexdigest()


def run_one(file, arguments):
    command = ["clang-tidy", "--quiet", str(file), "--", "-x", "c++", "-Wno-everything", "-Wthread-safety",
               "-include", str(ROOT / "tools/clang_prelude.h"),
               *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="", help="only files whose path contains this")
    options = parser.parse_args()
    build = options.build.resolve()
    stamps = build / "clang_checks"
    stamps.mkdir(exist_ok=True)
    known, waiting, failed = {}, {}, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for file, arguments in sorted(sources(build)):
            stamp = stamps / file.relative_to(ROOT).as_posix().replace("/", "+")
            state = digest(file, arguments, known)
            if options.filter in str(file) and not (stamp.exists() and stamp.read_text() == state):
                waiting[pool.submit(run_one, file, arguments)] = (file, stamp, state)
        for done in concurrent.futures.as_completed(waiting):
            file, stamp, state = waiting[done]
            code, output = done.result()
            if code == 0:
                stamp.write_text(state)
            else:
                failed += 1
                print(output.replace(f"{ROOT}/", ""), end="", flush=True)
    print(f"clang: {len(waiting)} sources looked at, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
