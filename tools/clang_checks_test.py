#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang_checks.py over a project of a few lines: joined sources have the findings that they have alone."""

import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import clang_checks  # noqa: E402

MUTEX = """
struct __attribute__((capability("mutex"))) Mutex {
  void lock() __attribute__((acquire_capability()));
};
"""


@unittest.skipUnless(shutil.which("clang-tidy") and shutil.which("clang++"), "needs clang (./dev setup --check)")
class Joined(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("src/cohort/x/a.h", "#pragma once\n" + MUTEX + "inline int answer() { return 42; }\n")
        self.write(".clang-tidy", (clang_checks.ROOT / ".clang-tidy").read_text())
        self.write("tools/clang_prelude.h", "// What LibTorch's headers need costs each run half a second, and nothing here includes them.\n")
        for name, value in (("ROOT", self.root), ("PRELUDE", self.root / "tools/clang_prelude.h")):
            patcher = mock.patch.object(clang_checks, name, value)
            patcher.start()
            self.addCleanup(patcher.stop)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def entry(self, file, *options):
        return {"directory": str(self.root), "file": str(file), "command": " ".join(["c++ -std=c++20", f"-I{self.root}/src", *options])}

    def run_on(self, entries, *options):
        """(exit code, output) for these entries of compile_commands.json; few enough are joined too."""
        self.write("build/compile_commands.json", json.dumps(entries))
        output = io.StringIO()
        with mock.patch.object(sys, "argv", ["clang_checks.py", *options, str(self.root / "build"), "--jobs", "2"]), \
                mock.patch.object(clang_checks, "FEWEST_JOINED", 1), contextlib.redirect_stdout(output):
            code = clang_checks.main()
        return code, output.getvalue()

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", self.root, *arguments], check=True, capture_output=True)

    def check(self, *sources, options=()):
        """The same for these sources, joined as CMake does it."""
        files = [self.write(f"src/cohort/x/s{i}.cpp", text) for i, text in enumerate(sources)]
        return self.run_on([self.entry(self.write("build/Unity/unity_0_cxx.cxx", "".join(f'#include "{file}"\n' for file in files)))], *options)

    def check_header(self, text, source=None):
        """The same for a header b.h with this text, and a source."""
        self.write("src/cohort/x/b.h", text)
        entries = [self.entry("build/x_verify_interface_header_sets/cohort/x/b.h.cxx")]
        if source:
            entries.append(self.entry(self.write("src/cohort/x/b.cpp", source)))
        return self.run_on(entries)

    def compiled(self):
        """The sources for which the patched compile_alone was called, by name."""
        names = []
        real = clang_checks.compile_alone
        patcher = mock.patch.object(clang_checks, "compile_alone",
                                    lambda source, header: (names.append(source.file.name), real(source, header))[1])
        patcher.start()
        self.addCleanup(patcher.stop)
        return names

    def test_a_header_that_does_not_compile_alone_is_named(self):
        self.assertEqual(self.check_header('#pragma once\n#include "cohort/x/a.h"\ninline int two() { return answer(); }\n'),
                         (0, "clang: 0 sources and 1 headers looked at, 0 with findings\n"))
        code, output = self.check_header("#pragma once\ninline int two() { return answer(); }\n")
        self.assertEqual(code, 1, output)
        self.assertIn("src/cohort/x/b.h:2", output)

    def test_a_header_passes_with_the_source_that_includes_it_first(self):
        good = '#pragma once\n#include "cohort/x/a.h"\ninline int two() { return answer(); }\n'
        names = self.compiled()
        other = self.write("src/cohort/x/c.cpp", "int three() { return 3; }\n")
        self.write("src/cohort/x/b.h", good)
        source = self.write("src/cohort/x/b.cpp", '#include "cohort/x/b.h"\nint four() { return two(); }\n')
        entries = [self.entry(source), self.entry(other), self.entry("build/x_verify_interface_header_sets/cohort/x/b.h.cxx")]
        passed = (0, "clang: 2 sources and 1 headers looked at, 0 with findings\n")
        self.assertEqual(self.run_on(entries), passed)
        self.assertEqual(sorted(names), ["b.cpp", "c.cpp"])

    def test_a_header_does_not_pass_with_a_source_that_includes_it_later(self):
        text = "#pragma once\ninline std::bitset<2> two() { return {}; }\n"
        for before in ("#include <bitset>\n", '#include "cohort/x/d.h"\n'):
            self.write("src/cohort/x/d.h", "#pragma once\n#include <bitset>\n")
            self.write("src/cohort/x/c.cpp", "int three() { return 3; }\n")
            code, output = self.check_header(text, before + '#include "cohort/x/b.h"\n')
            self.assertEqual(code, 1, output)
            self.assertIn("src/cohort/x/b.h:2", output)

    def test_passes_and_then_passes_over(self):
        good = '#include "cohort/x/a.h"\nint one() { return answer(); }\n'
        self.assertEqual(self.check(good, "int two() { return 2; }\n"),
                         (0, "clang: 2 sources and 0 headers looked at, 0 with findings\n"))
        self.assertEqual(self.check(good, "int two() { return 3; }\n"),
                         (0, "clang: 1 sources and 0 headers looked at, 0 with findings\n"))

    def test_names_the_source_of_a_finding(self):
        good = "int one() { return 1; }\n"
        for bad, finding in (("struct bad_name {};\n", "bad_name"),
                             ('#include "cohort/x/a.h"\nvoid take(Mutex& m) { m.lock(); }\n', "still held"),
                             ("struct S { S(int); };\n", "explicit")):
            code, output = self.check(good, "int three() { return 3; }\n", bad)
            self.assertEqual(code, 1, output)
            self.assertIn("src/cohort/x/s2.cpp:", output)
            self.assertNotRegex(output, "s[01].cpp:")
            self.assertIn(finding, output)
            self.assertIn("3 sources and 0 headers looked at, 1 with findings" if bad.startswith("struct bad") else "1 with findings", output)

    def test_a_neighbours_include_does_not_count(self):
        code, output = self.check('#include "cohort/x/a.h"\nint one() { return answer(); }\n',
                                  "int two() { return answer(); }\n")
        self.assertEqual(code, 1, output)
        self.assertIn("src/cohort/x/s1.cpp:1", output)
        self.assertIn("answer", output)

    def test_since_a_revision_only_what_has_changed_is_compiled_alone(self):
        sources = ['#include "cohort/x/a.h"\nint one() { return answer(); }\n', "int two() { return answer(); }\n"]
        for i, text in enumerate(sources):
            self.write(f"src/cohort/x/s{i}.cpp", text)
        self.git("init", "-q")
        self.git("add", "src")
        self.git("commit", "-qm", "x")
        self.assertEqual(self.check(*sources, options=["--since", "HEAD"]),
                         (0, "clang: 0 sources and 0 headers looked at, 0 with findings\n"))
        for options in (["--since", "HEAD"], []):
            code, output = self.check(sources[0], sources[1] + "\n", options=options)
            self.assertEqual(code, 1, output)
            self.assertIn("src/cohort/x/s1.cpp:1", output)
        self.assertEqual(self.check(*sources)[0], 1, "the run before has left a stamp")
        with self.assertRaisesRegex(SystemExit, "no revision 'v0'"):
            self.check(*sources, options=["--since", "v0"])

    def test_sources_that_cannot_be_joined_are_looked_at_apart(self):
        text = "namespace { int one() { return 1; } }\nint used_%s() { return one(); }\n"
        self.assertEqual(self.check(text % "a", text % "b", "int two() { return 2; }\n"),
                         (0, "clang: 3 sources and 0 headers looked at, 0 with findings\n"))

    def test_sources_that_define_one_name_are_grouped_apart(self):
        texts = ("struct Row final : public torch::nn::Row {\n};\n", "class Row {\n  int run() { return 1; }\n};\n", "  Row row();\n",
                 "using Row = int;\nint run() { return 1; }\n", "TEST_F(Queue, IsEmpty) {}\n", "TEST(Queue, IsFull) {}\nTEST(Queue, IsEmpty) {}\n")
        files = [clang_checks.Source(self.write(f"src/cohort/x/n{i}.cpp", text), ["-DA=1"], None, "", []) for i, text in enumerate(texts)]
        self.assertEqual([[file.file.name for file in group] for group in clang_checks.grouped(files)],
                         [["n0.cpp", "n2.cpp", "n3.cpp", "n4.cpp"], ["n1.cpp", "n5.cpp"]])

    def test_sources_with_other_values_of_a_macro_are_not_joined(self):
        entries = [self.entry(self.write(f"src/cohort/x/m{value}.cpp", f"static_assert(VALUE == {value});\n"), f"-DVALUE={value}")
                   for value in (1, 2)]
        entries.append(self.entry(self.write("src/cohort/x/m3.cpp", "static_assert(OTHER == 3);\n"), "-DOTHER=3"))
        groups = clang_checks.grouped([clang_checks.Source(pathlib.Path(entry["file"]), clang_checks.wanted(entry["command"].split()), None, "", [])
                                       for entry in entries])
        self.assertEqual([len(group) for group in groups], [2, 1])
        self.assertEqual(self.run_on(entries), (0, "clang: 3 sources and 0 headers looked at, 0 with findings\n"))


if __name__ == "__main__":
    unittest.main()
