#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at every source and header of a build folder with clang.

    tools/clang_checks.py BUILD [--jobs N] [--filter TEXT] [--since REVISION]

First each is compiled alone, so that none gets an include from its neighbour; the costly headers that it includes anyway
are precompiled for this. A header passes with the source that includes it first: it had nothing before it.

Then clang-tidy, with clang's thread-safety analysis on, runs over the sources. Most of its time goes to LibTorch's
headers, so it looks at many sources as one. Where these have a finding or do not compile together (two may use one
name), they are parted and looked at again, at last each alone: only what is found then counts.

A source unchanged since it last passed is skipped: its stamp in BUILD/clang_checks holds a digest of .clang-tidy,
of its command and of all of the project's files it may include. The commands come from BUILD/compile_commands.json,
without what only g++ understands. With --filter, clang-tidy looks at every matching source alone.

All of it takes half an hour of CPU time. With --since, only what has changed since a revision of git is looked at, and
the sources that include a header that has changed: a finding is nearly always where something was just written. The others
get no stamp, so that a run without --since looks at them.
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
COSTLY_HEADERS = ("ATen/core/Tensor.h", "ATen/Context.h", "ATen/DeviceGuard.h", "ATen/TensorOperators.h", "torch/torch.h",
                  "gtest/gtest.h", "gmock/gmock.h")
OF_EVERY_OP = ("ATen/core/Tensor.h", "ATen/Context.h", "ATen/DeviceGuard.h")
BRINGS_ALONG = {"ATen/TensorOperators.h": OF_EVERY_OP, "torch/torch.h": (*OF_EVERY_OP, "ATen/TensorOperators.h"), "gmock/gmock.h": ("gtest/gtest.h",)}
# Macros that no costly header looks at.
OF_NO_COSTLY_HEADER = ("-DCOHORT_", "-Dcohort_", "-DEXAMPLE_", "-DFMT_", "-DSPDLOG_")

# So many share the cost of LibTorch's headers; more would need too much memory.
MOST_JOINED = 64
# Below, joining gains nothing.
FEWEST_JOINED = 4

# The name in a definition at the start of a line: `Dataset with_policy(`, `struct Counter {`, `constexpr int kCount =`,
# `TEST_F(Suite, Name)`.
DEFINITION = re.compile(
    r"^(?![ ]|using|return|namespace|template|friend|extern)"
    r"(?:[\w:<>,&*\[\] ]+?[ &*](?=\w+(?: final)? ?(?:[({=;]|:(?!:)))|TEST\w*\()"
    r"(\w+)(?:, (\w+)\))?", re.MULTILINE)

Source = collections.namedtuple("Source", "file arguments stamp digest closure")


def wanted(words):
    """The words of a command line that say how to parse: without those that only g++ understands."""
    kept = []
    for before, word in zip([""] + words, words):
        if before == "-isystem":
            kept.append(before + word)
        elif word.startswith(("-D", "-I", "-std=")):
            kept.append(word)
    return kept


def is_benchmark(file):
    return file.name.endswith("_bench.cpp") or file.is_relative_to(ROOT / "bench")


def sources(build):
    """(file, command) of every source of ours that the build compiles."""
    for file, command in compiled_files(build / "compile_commands.json"):
        if not file.is_relative_to(ROOT) or file.is_relative_to(build) or file.suffix != ".cpp":
            continue
        if not file.exists():  # deleted since the build was configured
            continue
        # g++ compiles benchmarks without precompiled headers, so it finds a missing include itself.
        if "verify_interface_header_sets" not in command and not is_benchmark(file):
            yield file, command


def project_header(name):
    """The file of an include of "cohort/…": public headers lie in include/, the others beside their sources."""
    public = ROOT / "include" / name
    return public if public.exists() else ROOT / "src" / name


def headers(build):
    """(file, command) of every header that CMake would verify to compile alone."""
    for file, command in compiled_files(build / "compile_commands.json"):
        folder, _, name = file.as_posix().partition("_verify_interface_header_sets/")
        if name and (header := project_header(name.removesuffix(".cxx"))).exists():
            yield header, command


Included = collections.namedtuple("Included", "own others first")


class Includes:
    """The includes of the project's files, each read once: own files, names of others, the own file if that is first."""

    def __init__(self):
        self.known = {}

    def of_file(self, path):
        if path not in self.known:
            text = path.read_text(encoding="utf-8")
            names = re.findall(r'^\s*#\s*include\s*(["<][^">]+)', text, re.MULTILINE)
            own = {name: project_header(name[1:]) if name.startswith('"cohort/') else ROOT / name[1:] for name in names
                   if name.startswith(('"cohort/', '"tests/', '"bench/'))}
            self.known[path] = Included(list(own.values()), {name[1:] for name in names if name[0] == "<"},
                                        own.get(names[0]) if names else None)
        return self.known[path]

    def closure(self, file):
        """The project's files that a source includes, however deep, and itself."""
        open_files, seen = [file], set()
        while open_files:
            at = open_files.pop()
            seen.add(at)
            open_files += [path for path in self.of_file(at).own if path not in seen and path.exists()]
        return sorted(seen)

    def costly(self, closure):
        """The COSTLY_HEADERS that it includes: with them precompiled it sees nothing that it does not include."""
        found = set().union(*(self.of_file(path).others for path in closure))
        for name in list(found):
            found.update(OF_EVERY_OP if name.startswith("ATen/ops/") else BRINGS_ALONG.get(name, ()))
        # So few include this one that the variants with GoogleTest's headers would cost more than they save.
        found -= {"gtest/gtest.h", "gmock/gmock.h"} if "torch/torch.h" in found else set()
        return tuple(name for name in COSTLY_HEADERS if name in found)


def changed_since(revision):
    """The project's files that differ from a revision of git."""
    names = subprocess.run(["git", "-c", "core.quotePath=false", "diff", "--name-only", revision, "--"], capture_output=True, text=True, cwd=ROOT)
    if names.returncode != 0:
        raise SystemExit(f"clang: --since: git knows no revision '{revision}' here:\n{names.stderr}")
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT, check=True)
    return {ROOT / name for name in (names.stdout + new.stdout).splitlines()}


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
    code, output, errors = run(["clang-tidy", "--quiet", f"--header-filter=^{ROOT}/((src|include)/cohort/.*\\.h|[^:]*\\.cpp)$", str(file),
                                "--", "-x", "c++", "-Wno-everything", "-Wthread-safety", "-ferror-limit=0", "-include", str(PRELUDE), *arguments])
    return "" if code == 0 else output + errors


class Precompiled:
    """The costly headers of the sources, for each set of them and of definitions."""

    def __init__(self, folder, pool):
        self.folder, self.pool, self.made = folder, pool, {}

    def request(self, headers, arguments):
        """Begins to make it; what is the same for a target's macros of its own is made once."""
        ignored = OF_NO_COSTLY_HEADER if "gtest/gtest.h" in headers else (*OF_NO_COSTLY_HEADER, "-DGTEST_")
        flags = [word for word in arguments if not word.startswith(ignored)]
        key = (headers, tuple(sorted(word for word in flags if word.startswith(("-D", "-std=")))))
        if headers and key not in self.made:
            header = self.folder / f"{len(self.made)}.h"
            header.write_text(f'#include "{PRELUDE}"\n' + "".join(f"#include <{name}>\n" for name in headers))
            self.made[key] = self.pool.submit(self.make, header, flags)
        return self.made.get(key)

    @staticmethod
    def make(header, flags):
        made = header.with_suffix(".pch")
        # Or each source that it is for would instantiate its templates again.
        code, _, errors = run(["clang++", "-x", "c++-header", "-Wno-everything", "-fpch-instantiate-templates", *flags, str(header), "-o", str(made)])
        if code != 0:
            raise RuntimeError(f"clang++ cannot precompile {header}:\n{errors}")
        return made


def compile_alone(source, precompiled):
    """Nothing, or why the source does not compile without its neighbours."""
    before = ["-include-pch", str(precompiled.result())] if precompiled else ["-include", str(PRELUDE)]
    code, _, errors = run(["clang++", "-fsyntax-only", *before, "-x", "c++", "-Wno-everything", *source.arguments, str(source.file)])
    return "" if code == 0 else errors


def names_of(source):
    """The names that may clash where sources are joined: the values of its macros, and the names that it seems to define."""
    names = {word.partition("=")[0]: word for word in source.arguments if word.startswith("-D")}
    for name, test in DEFINITION.findall(source.file.read_text(encoding="utf-8")):
        names[name + test] = source.file
    return names


def grouped(sources):
    """Lists of sources that can probably be joined: each is added to the first where it clashes with nothing."""
    groups = []
    for source in sources:
        own = names_of(source)
        for group, names in groups:
            if len(group) < MOST_JOINED and all(names.get(name, value) == value for name, value in own.items()):
                group.append(source)
                names.update(own)
                break
        else:
            groups.append(([source], own))
    return [group for group, _ in groups]


def tidy_joined(batch, joined):
    """Nothing, or what clang-tidy found in the sources of a batch as one."""
    if len(batch) == 1:
        return tidy(batch[0].file, batch[0].arguments)
    joined.write_text("".join(f'#include "{source.file}"\n' for source in batch))
    return tidy(joined, list(dict.fromkeys(word for source in batch for word in source.arguments)))


def parted(batch, output):
    """Two batches: those which clash with the names of sources before them, and the rest; or else halves."""
    named = set(re.findall(r"^(/[^:]+):\d+:\d+: error: .*\[clang-diagnostic-error\]$", output, re.MULTILINE))
    clashing = [source for source in batch if str(source.file) in named]
    if not clashing or len(clashing) == len(batch):
        clashing = batch[len(batch) // 2:]
    return clashing, [source for source in batch if source not in clashing]


class Checks:
    def __init__(self, build, jobs, text, changed=None):
        self.folder = build / "clang_checks"
        self.folder.mkdir(exist_ok=True)
        self.includes, self.failed, self.runs = Includes(), 0, 0
        self.changed = changed  # None: all files count as changed
        self.sources = list(self.read(each for each in sources(build) if text in str(each[0]) and self.is_new(each[0])))
        self.headers = list(self.read(each for each in headers(build) if text in str(each[0]) and self.is_changed(each[0])))
        self.are_joined = not text and len(self.sources) > FEWEST_JOINED
        # First in, first out: a header is being made before anything waits for it.
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.precompiled = Precompiled(self.folder, self.pool)

    def read(self, files):
        """The files that have an old stamp; each once, for some belong to several programs."""
        for file, command in sorted(dict(sorted(files, reverse=True)).items()):
            arguments, closure = wanted(shlex.split(command)), self.includes.closure(file)
            stamp = self.folder / file.relative_to(ROOT).as_posix().replace("/", "+")
            state = digest(arguments, closure)
            if not (stamp.exists() and stamp.read_text() == state):
                yield Source(file, arguments, stamp, state, closure)

    def is_changed(self, file):
        return self.changed is None or file in self.changed

    def is_new(self, file):
        """Whether it, or a header that it names in an #include, has changed."""
        return self.is_changed(file) or not self.changed.isdisjoint(self.includes.of_file(file).own)

    def report(self, source, findings):
        if findings:
            self.failed += 1
            print(findings.replace(f"{ROOT}/", ""), end="", flush=True)
        elif self.is_changed(source.file):
            source.stamp.write_text(source.digest)

    def compiled(self, files):
        """Compiles each alone; gives those that pass, and reports the others."""
        made = [self.precompiled.request(self.includes.costly(file.closure), file.arguments) for file in files]
        results = [self.pool.submit(compile_alone, file, header) for file, header in zip(files, made)]
        passed = []
        for file, result in zip(files, results):
            if result.result():
                self.report(file, result.result())
            else:
                passed.append(file)
        return passed

    def proves(self, source, header):
        """Whether a source that compiles shows that a header does: it comes first, and is compiled as alone."""
        more = set(source.arguments) - set(header.arguments)
        return (self.includes.of_file(source.file).first == header.file
                and self.includes.costly(source.closure) == self.includes.costly(header.closure) and all(word.startswith("-D") for word in more))

    def check_headers(self, compiled):
        proven = [header for header in self.headers if any(self.proves(source, header) for source in compiled)]
        for header in proven + self.compiled([header for header in self.headers if header not in proven]):
            self.report(header, "")

    def submit(self, batch):
        self.runs += 1
        return self.pool.submit(tidy_joined, batch, self.folder / f"joined_{self.runs}.cpp")

    def tidy_all(self, batches):
        waiting = {self.submit(batch): batch for batch in batches}
        while waiting:
            done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                batch, output = waiting.pop(future), future.result()
                if output and len(batch) > 1:
                    waiting |= {self.submit(part): part for part in parted(batch, output)}
                    continue
                for source in batch:
                    self.report(source, output)

    def all(self):
        with self.pool:
            compiled = self.compiled([source for source in self.sources if self.is_changed(source.file)]) if self.are_joined else []
            self.check_headers(compiled)
            compiled += [source for source in self.sources if not self.is_changed(source.file)]
            self.tidy_all(grouped(compiled) if self.are_joined else [[source] for source in self.sources])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="", help="only files whose path contains this, each alone")
    parser.add_argument("--since", metavar="REVISION", help="only what has changed since this revision of git, and what includes it")
    options = parser.parse_args()
    checks = Checks(options.build.resolve(), options.jobs, options.filter, changed_since(options.since) if options.since else None)
    checks.all()
    print(f"clang: {len(checks.sources)} sources and {len(checks.headers)} headers looked at, {checks.failed} with findings")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
