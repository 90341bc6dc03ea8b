#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang_checks.py over a project of a few lines: joined sources have the findings that they have alone."""

import contextlib
import io
import json
import pathlib
import shutil
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
        for name in (".clang-tidy", "tools/clang_prelude.h"):
            self.write(name, (clang_checks.ROOT / name).read_text())
        for name, value in (("ROOT", self.root), ("PRELUDE", self.root / "tools/clang_prelude.h")):
            patcher = mock.patch.object(clang_checks, name, value)
            patcher.start()
            self.addCleanup(patcher.stop)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def check(self, *sources):
        """(exit code, output) for these sources, joined as CMake does it."""
        files = [self.write(f"src/cohort/x/s{i}.cpp", text) for i, text in enumerate(sources)]
        joined = self.write("build/Unity/unity_0_cxx.cxx", "".join(f'#include "{file}"\n' for file in files))
        command = f"c++ -std=c++20 -I{self.root}/src -c {joined}"
        self.write("build/compile_commands.json",
                   json.dumps([{"directory": str(self.root), "file": str(joined), "command": command}]))
        return self.run_checks()

    def run_checks(self, *options):
        output = io.StringIO()
        with mock.patch.object(sys, "argv", ["clang_checks.py", str(self.root / "build"), "--jobs", "2", *options]), \
                contextlib.redirect_stdout(output):
            code = clang_checks.main()
        return code, output.getvalue()

    def check_headers(self, text):
        """(exit code, output) for a header with this text beside a.h."""
        self.write("src/cohort/x/b.h", text)
        entries = [{"directory": str(self.root), "file": f"build/x_verify_interface_header_sets/cohort/x/{name}.cxx",
                    "command": f"c++ -std=c++20 -I{self.root}/src"} for name in ("a.h", "b.h")]
        self.write("build/compile_commands.json", json.dumps(entries))
        return self.run_checks("--headers")

    def test_a_header_that_does_not_compile_alone_is_named(self):
        self.assertEqual(self.check_headers('#pragma once\n#include "cohort/x/a.h"\ninline int two() { return answer(); }\n'),
                         (0, "clang: 2 headers looked at, 0 with findings\n"))
        code, output = self.check_headers("#pragma once\ninline int two() { return answer(); }\n")
        self.assertEqual(code, 1, output)
        self.assertIn("src/cohort/x/b.h:2", output)

    def test_passes_and_then_passes_over(self):
        good = '#include "cohort/x/a.h"\nint one() { return answer(); }\n'
        self.assertEqual(self.check(good, "int two() { return 2; }\n"),
                         (0, "clang: 2 sources looked at, 0 with findings\n"))
        self.assertEqual(self.check(good, "int two() { return 3; }\n"),
                         (0, "clang: 1 sources looked at, 0 with findings\n"))

    def test_names_the_source_of_a_finding(self):
        good = "int one() { return 1; }\n"
        for bad, finding in (("struct bad_name {};\n", "bad_name"),
                             ('#include "cohort/x/a.h"\nvoid take(Mutex& m) { m.lock(); }\n', "still held"),
                             ("struct S { S(int); };\n", "explicit")):
            code, output = self.check(good, bad)
            self.assertEqual(code, 1, output)
            self.assertIn("src/cohort/x/s1.cpp:", output)
            self.assertNotIn("s0.cpp:", output)
            self.assertIn(finding, output)

    def test_a_neighbours_include_does_not_count(self):
        code, output = self.check('#include "cohort/x/a.h"\nint one() { return answer(); }\n',
                                  "int two() { return answer(); }\n")
        self.assertEqual(code, 1, output)
        self.assertIn("src/cohort/x/s1.cpp:1", output)
        self.assertIn("answer", output)

    def test_sources_that_cannot_be_joined_are_looked_at_alone(self):
        text = "namespace { int one() { return 1; } }\nint used_%s() { return one(); }\n"
        code, output = self.check(text % "a", text % "b")
        self.assertEqual((code, output), (0, "clang: 2 sources looked at, 0 with findings; "
                                             "1 batches could not be looked at as one\n"))


if __name__ == "__main__":
    unittest.main()
