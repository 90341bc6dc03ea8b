#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy, with clang's thread-safety analysis on, over every source of a build folder.

    tools/clang_checks.py BUILD [--jobs N] [--filter TEXT] [--headers]

Most of the time goes to LibTorch's headers, so the sources that the build joins are looked at as one. Two things keep
the result that of looking at each alone: where the joined ones have a finding or do not compile (two may use one name),
each is looked at alone and only that counts; and clang compiles each alone, so that no source gets an include from its
neighbour. For the latter, the costly headers that the source includes anyway are precompiled.

A source whose inputs have not changed since it last passed is passed over: its stamp in
BUILD/clang_checks holds a digest of .clang-tidy, of its command and of all of the project's files it
may include. The commands come from BUILD/compile_commands.json, without what only g++ understands.
With --filter, every matching source is looked at alone. With --headers, every header of the project is compiled alone
instead, by clang.
"""

import argparse
import collections
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
PRELUDE = ROOT / "tools/clang_prelude.h"
# In this order: a header comes after those that it includes itself.
COSTLY_HEADERS = ("ATen/core/Tensor.h", "torch/torch.h", "gtest/gtest.h", "gmock/gmock.h")
BRINGS_ALONG = {"torch/torch.h": "ATen/core/Tensor.h", "gmock/gmock.h": "gtest/gtest.h"}

Source = collections.namedtuple("Source", "file arguments stamp digest closure")


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
    """(file, command) of every source of ours that the build compiles; those of one command may be joined."""
    for file, command in compiled_files(build / "compile_commands.json"):
        if not file.is_relative_to(ROOT) or file.is_relative_to(build) or file.suffix != ".cpp":
            continue
        if not file.exists():  # deleted since the build was configured
            continue
        if "verify_interface_header_sets" not in command:
            yield file, command


def headers(build):
    """(file, command) of every header that CMake would verify to compile alone."""
    for file, command in compiled_files(build / "compile_commands.json"):
        folder, _, name = file.as_posix().partition("_verify_interface_header_sets/")
        header = ROOT / "src" / name.removesuffix(".cxx")
        if name and header.exists():
            yield header, command


class Includes:
    """What the project's files include, each read once."""

    def __init__(self):
        self.known = {}

    def of_file(self, path):
        if path not in self.known:
            text = path.read_text(encoding="utf-8")
            own = re.findall(r'^\s*#\s*include\s*"((?:cohort|tests|bench)/[^"]+)"', text, re.MULTILINE)
            self.known[path] = ([(ROOT / "src" if name.startswith("cohort/") else ROOT) / name for name in own],
                                set(re.findall(r"^\s*#\s*include\s*<([^>]+)>", text, re.MULTILINE)))
        return self.known[path]

    def closure(self, file):
        """The project's files that a source includes, however deep, and itself."""
        open_files, seen = [file], set()
        while open_files:
            at = open_files.pop()
            seen.add(at)
            open_files += [path for path in self.of_file(at)[0] if path not in seen and path.exists()]
        return sorted(seen)

    def costly(self, closure):
        """Those of COSTLY_HEADERS that it includes: with them precompiled it sees nothing that it does not include."""
        found = set().union(*(self.of_file(path)[1] for path in closure))
        found |= {BRINGS_ALONG[name] for name in found if name in BRINGS_ALONG}
        return tuple(name for name in COSTLY_HEADERS if name in found)


def digest(arguments, closure):
    state = hashlib.sha256(repr(arguments).encode())
    for path in [ROOT / ".clang-tidy", PRELUDE, *closure]:
        state.update(path.read_bytes())
    return state.hexdigest()


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def tidy(file, arguments):
    """Nothing, or what clang-tidy found in a source or in the sources that it includes."""
    code, output, errors = run(["clang-tidy", "--quiet", f"--header-filter=^{ROOT}/(src/cohort/.*\\.h|[^:]*\\.cpp)$", str(file),
                                "--", "-x", "c++", "-Wno-everything", "-Wthread-safety", "-include", str(PRELUDE), *arguments])
    return "" if code == 0 else output + errors


class Precompiled:
    """The costly headers of the sources, for each set of them and of definitions."""

    def __init__(self, folder, pool):
        self.folder, self.pool, self.made = folder, pool, {}

    def request(self, headers, arguments):
        """Begins to make it; what is the same for a target's macros of its own is made once."""
        flags = [word for word in arguments if not word.startswith("-DCOHORT_")]
        key = (headers, tuple(sorted(word for word in flags if word.startswith(("-D", "-std=")))))
        if headers and key not in self.made:
            header = self.folder / f"{len(self.made)}.h"
            header.write_text(f'#include "{PRELUDE}"\n' + "".join(f"#include <{name}>\n" for name in headers))
            self.made[key] = self.pool.submit(self.make, header, flags)
        return self.made.get(key)

    @staticmethod
    def make(header, flags):
        made = header.with_suffix(".pch")
        code, _, errors = run(["clang++", "-x", "c++-header", "-Wno-everything", *flags, str(header), "-o", str(made)])
        if code != 0:
            raise RuntimeError(f"clang++ cannot precompile {header}:\n{errors}")
        return made


def compile_alone(source, precompiled):
    """Nothing, or why the source does not compile without its neighbours."""
    before = ["-include-pch", str(precompiled.result())] if precompiled else ["-include", str(PRELUDE)]
    code, _, errors = run(["clang++", "-fsyntax-only", *before, "-x", "c++", "-Wno-everything", *source.arguments, str(source.file)])
    return "" if code == 0 else errors


def check_joined(batch, joined):
    """Whether the sources of a batch, as one, compile and have no finding."""
    joined.write_text("".join(f'#include "{source.file}"\n' for source in batch))
    return tidy(joined, batch[0].arguments) == ""


class Checks:
    def __init__(self, build, jobs, text, of_headers):
        self.of_headers = of_headers
        self.folder = build / "clang_checks"
        self.folder.mkdir(exist_ok=True)
        self.includes, self.text, self.looked_at, self.failed, self.parted = Includes(), text, 0, 0, 0
        # First in, first out: a header is being made before anything waits for it.
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.batches = self.read(build)
        self.precompiled = Precompiled(self.folder, self.pool)

    def read(self, build):
        """The sources whose stamps are old, those of one command together."""
        batches = collections.defaultdict(list)
        # Once each: some belong to several programs.
        files = (headers if self.of_headers else sources)(build)
        for file, command in sorted(dict(sorted(files, reverse=True)).items()):
            arguments, closure = wanted(shlex.split(command)), self.includes.closure(file)
            stamp = self.folder / file.relative_to(ROOT).as_posix().replace("/", "+")
            state = digest(arguments, closure)
            if self.text in str(file) and not (stamp.exists() and stamp.read_text() == state):
                batches[file if self.text else command].append(Source(file, arguments, stamp, state, closure))
        return list(batches.values())

    def finish(self, source, findings):
        self.looked_at += 1
        if findings:
            self.failed += 1
            print(findings.replace(f"{ROOT}/", ""), end="", flush=True)
        else:
            source.stamp.write_text(source.digest)

    def start_batch(self, number, batch):
        if len(batch) == 1:
            return {self.pool.submit(tidy, batch[0].file, batch[0].arguments): ("alone", batch[0])}
        return {self.pool.submit(check_joined, batch, self.folder / f"joined_{number}.cpp"): ("joined", batch)}

    def compile_each(self, batch):
        made = [self.precompiled.request(self.includes.costly(source.closure), source.arguments) for source in batch]
        return {self.pool.submit(compile_alone, source, header): ("alone", source) for source, header in zip(batch, made)}

    def after(self, kind, what, result):
        """Takes one result in; gives the work that follows from it."""
        if kind == "joined" and result:
            return self.compile_each(what)
        if kind == "joined":
            self.parted += 1
            return {self.pool.submit(tidy, source.file, source.arguments): ("alone", source) for source in what}
        self.finish(what, result)
        return {}

    def all(self):
        with self.pool:
            waiting = {}
            for number, batch in enumerate(self.batches):
                waiting |= self.compile_each(batch) if self.of_headers else self.start_batch(number, batch)
            while waiting:
                done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    waiting |= self.after(*waiting.pop(future), future.result())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="", help="only files whose path contains this, each alone")
    parser.add_argument("--headers", action="store_true", help="compile each header alone instead")
    options = parser.parse_args()
    checks = Checks(options.build.resolve(), options.jobs, options.filter, options.headers)
    checks.all()
    print(f"clang: {checks.looked_at} {'headers' if options.headers else 'sources'} looked at, {checks.failed} with findings"
          + (f"; {checks.parted} batches could not be looked at as one" if checks.parted else ""))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
