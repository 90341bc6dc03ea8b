#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each rule of tidy.py finds what it is for, and leaves alone what is right."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tidy  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"
LAYERS = "core:\nrpc: core\nserver: core rpc\ntesting: *\n"
USES = (("rpc", "core"), ("server", "core"), ("server", "rpc"))  # each edge of LAYERS


class Rules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("tools/layers.txt", LAYERS)
        for module in ("core", "rpc", "server", "testing"):
            self.write(f"src/cohort/{module}/CMakeLists.txt", f"cohort_module({module})\n")
        for module, used in USES:
            self.write(f"src/cohort/{module}/uses_{used}_bench.cpp", HEAD + f'#include "cohort/{used}/x.h"\n')

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def found(self, path, text, rule=None):
        """The rules that a file breaks."""
        self.write(path, text)
        findings = tidy.findings(tidy.Tree(self.root))
        return [f.text for f in findings if f.rule == rule] if rule else [f.rule for f in findings]

    def test_right_code_has_no_finding(self):
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + '#include "cohort/core/b.h"\nint f() { return 1; }\n'
                                    '// what() is never searched: what().find("x"), std::exit(1)\n'
                                    'const char* text = "std::abort() LOG(1)";\n'), [])

    def test_layers(self):
        refused = self.found("src/cohort/core/a.cpp", HEAD + '#include "cohort/rpc/b.h"\n', "layers")
        self.assertEqual(refused, ["'core' may not use 'rpc' (\"cohort/rpc/b.h\")"])

    def test_an_include_in_a_comment_is_none(self):
        self.assertEqual(self.found("src/cohort/core/a.cpp", HEAD + '// #include "cohort/rpc/b.h"\n'), [])

    def test_a_module_without_a_line(self):
        self.assertIn("layers", self.found("src/cohort/new/a.cpp", HEAD + '#include "cohort/core/b.h"\n'))

    def test_an_edge_that_nothing_uses(self):
        self.write("src/cohort/server/uses_rpc_bench.cpp", HEAD)
        self.assertEqual(self.found("src/cohort/server/a.cpp", HEAD, "layers"), ["'server' does not use 'rpc': remove it"])

    def test_a_sub_folder_belongs_to_its_module(self):
        include = HEAD + '#include "cohort/rpc/frames/b.h"\n'
        self.assertEqual(self.found("src/cohort/server/a.cpp", include), ["layers"])
        self.assertEqual(self.found("src/cohort/server/a.cpp", HEAD), [])
        self.assertEqual(self.found("tests/a_test.cpp", include), ["layers"])
        self.assertEqual(self.found("tests/a_test.cpp", HEAD), [])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", include), [])
        backend = HEAD + '#include "cohort/rpc/backends/tcp/join.h"\n'
        self.assertEqual(self.found("tests/a_test.cpp", backend), [])
        self.assertEqual(self.found("src/cohort/server/a.cpp", backend), ["layers"])

    def test_testing_is_for_tests_and_its_public_headers_for_examples(self):
        self.write("include/cohort/testing/cluster/made.h", HEAD)
        private = HEAD + '#include "cohort/testing/throws_error.h"\n'
        self.assertEqual(len(self.found("examples/a.cpp", private, "layers")), 1)
        include = HEAD + "#include <cohort/testing/cluster/made.h>\n"
        self.assertEqual(self.found("examples/a.cpp", include, "layers"), [])
        self.assertEqual(len(self.found("src/cohort/core/a.cpp", include, "layers")), 1)

    def test_public_headers_of_a_sub_folder_are_for_all(self):
        self.write("include/cohort/core/text/printing.h", HEAD)
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + '#include "cohort/core/text/printing.h"\n'), [])

    def test_a_public_header_may_belong_to_a_part(self):
        self.write("tools/layers.txt", LAYERS + "server/call.h -> rpc\n")
        self.write("include/cohort/server/call.h", HEAD + '#include "cohort/core/b.h"\n')
        self.write("include/cohort/core/b.h", HEAD)
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + '#include "cohort/server/call.h"\n'), [])
        self.assertEqual(self.found("src/cohort/core/a.cpp", HEAD + '#include "cohort/server/call.h"\n', "layers"),
                         ["'core' may not use 'rpc' (\"cohort/server/call.h\")"])
        self.write("src/cohort/core/a.cpp", HEAD)
        self.write("include/cohort/server/x.h", HEAD)
        self.assertEqual(self.found("include/cohort/server/call.h", HEAD + '#include "cohort/server/x.h"\n', "layers"),
                         ["'rpc' may not use 'server' (\"cohort/server/x.h\")"])
        (self.root / "include/cohort/server/call.h").unlink()
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD, "layers"),
                         ["'cohort/server/call.h' is no public header: remove it"])

    def test_only_tests_use_testing(self):
        include = HEAD + '#include "cohort/testing/fake_clock.h"\n'
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", include), ["layers"])
        self.write("src/cohort/rpc/a.cpp", HEAD)
        self.assertEqual(self.found("src/cohort/rpc/a_test.cpp", include), [])
        self.assertEqual(self.found("tests/multiprocess/a_test.cpp", include), [])
        self.assertEqual(self.found("src/cohort/rpc/a_fixture.h", include, "layers"), [])

    def test_includes_of_a_public_header(self):
        self.write("src/cohort/rpc/user.cpp", HEAD + '#include "cohort/rpc/a.h"\n')
        good = "#include <ATen/core/Tensor.h>\n#include <c10/core/Device.h>\n#include <vector>\n"
        self.assertEqual(self.found("include/cohort/rpc/a.h", HEAD + good), [])
        for name in ("torch/torch.h", "ATen/ATen.h", "iostream", "grpcpp/grpcpp.h", "nlohmann/json.hpp"):
            self.assertEqual(self.found("include/cohort/rpc/a.h", HEAD + f"#include <{name}>\n"), ["includes"], name)

    def test_a_public_header_includes_what_it_uses(self):
        self.write("src/cohort/rpc/user.cpp", HEAD + '#include "cohort/rpc/a.h"\n')
        code = "struct A {\n  std::pair<int, int> both;  // std::tuple\n};\n"
        self.assertEqual(self.found("include/cohort/rpc/a.h", HEAD + code, "includes"), ["std::pair is of <utility>"])
        self.assertEqual(self.found("include/cohort/rpc/a.h", HEAD + "#include <utility>\n" + code), [])

    def test_a_public_header_includes_what_is_installed(self):
        include = HEAD + '#include "cohort/rpc/b.h"\n'
        self.assertIn("includes", self.found("include/cohort/server/a.h", include))
        self.write("include/cohort/server/a.h", HEAD)
        self.assertNotIn("includes", self.found("src/cohort/server/b.h", include))
        self.write("include/cohort/rpc/b.h", HEAD)
        self.assertNotIn("includes", self.found("include/cohort/server/a.h", include))

    def test_a_private_header_may_use_libraries_but_not_torch(self):
        self.write("src/cohort/rpc/user.cpp", HEAD + '#include "cohort/rpc/frames/a.h"\n')
        self.assertEqual(self.found("src/cohort/rpc/frames/a.h", HEAD + "#include <grpcpp/grpcpp.h>\n"), [])
        self.assertEqual(self.found("src/cohort/rpc/frames/a.h", HEAD + "#include <torch/torch.h>\n"), ["includes"])

    def test_calls(self):
        bad = ('if (std::string(error.what()).find("x") != 0) {}', "strstr(e.what(), text);", "std::exit(1);",
               "  exit(1);", "std::abort();", "LOG(INFO);", "CHECK(x);")
        for call in bad:
            self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + f"void f() {{\n{call}\n}}\n"), ["calls"], call)
        for call in ("queue.abort();", "COHORT_CHECK(x);", "_exit(127);", "request_exit(1);", "print(e.what());"):
            self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + f"void f() {{\n{call}\n}}\n"), [], call)

    def test_the_line_of_a_call(self):
        self.write("src/cohort/rpc/a.cpp", HEAD + "void f() {\n\n  exit(1);\n}\n")
        self.assertEqual([f.line for f in tidy.findings(tidy.Tree(self.root))], [4])

    def test_no_sleep_in_tests(self):
        sleep = HEAD + "void f() { std::this_thread::sleep_for(delay); }\n"
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", sleep), [])
        self.assertEqual(self.found("src/cohort/rpc/a_test.cpp", sleep), ["calls"])

    def test_long_functions(self):
        body = "".join(f"  if (x == {i}) {{ y(); }}\n" for i in range(80))
        long = f"namespace n {{\nclass A {{\n int f(int x) const {{\n{body} }}\n}};\n}}\n"
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + long, "length"), ["f has 82 lines; at most 70"])
        self.write("tools/long_functions.txt", "src/cohort/rpc/a.cpp f 82\n")
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + long), [])
        shrunk = long.replace("  if (x == 7) { y(); }\n", "")
        self.assertIn("shrank", self.found("src/cohort/rpc/a.cpp", HEAD + shrunk, "length")[0])
        self.assertIn("is no more", self.found("src/cohort/rpc/a.cpp", HEAD, "length")[0])

    def test_what_counts_as_a_function(self):
        code = tidy.without_comments(
            "A::A(int x) : x_{x}, y_(g({1, 2})) {\n run();\n}\n"
            "const std::vector<int> table = {\n 1, f(2),\n};\n"
            "enum class E { a, b };\n"
            'extern "C" {\nint g() {\n return 1; }\n}\n'
            "template <class T>\nstruct S {\n bool operator==(const S& o) const { return true; }\n};\n")
        self.assertEqual([(n, b - a + 1) for n, a, b in tidy.functions(code)],
                         [("A::A", 3), ("g", 2), ("operator==", 1)])

    def test_sizes(self):
        self.write("src/cohort/rpc/user.cpp", HEAD + '#include "cohort/rpc/a.h"\n')
        self.assertEqual(self.found("src/cohort/rpc/a.h", HEAD + "\n" * 400), ["size"])
        self.assertEqual(self.found("src/cohort/rpc/a.h", HEAD + "\n" * 399), [])
        self.assertEqual(self.found("src/cohort/rpc/b.cpp", HEAD + "\n" * 400), ["size"])
        self.assertEqual(self.found("src/cohort/rpc/b.cpp", HEAD + "\n" * 399), [])
        self.assertEqual(self.found("src/cohort/rpc/b_test.cpp", HEAD + "\n" * 599), [])
        self.assertEqual(self.found("src/cohort/rpc/b_test.cpp", HEAD + "\n" * 600), ["size"])

    def test_class_sizes(self):
        members = ("  explicit A(int x) : a_{x}, b_(x) {}\n  ~A();\n  A& operator=(const A&) = delete;\n"
                   "  void f0(B b = {}) { g(); }\n  template <class T>\n  T f1() const COHORT_REQUIRES(m_);\n"
                   "  bool operator==(const A&) const = default;\n  std::function<void(int)> hook_ = [](int) {};\n"
                   "  int a_ COHORT_GUARDED_BY(m_) = f();\n  using F = void (*)();\n  friend void h();\n"
                   "  struct Inner {\n    void one();\n    void two();\n  };\n")
        def text(count, comment="// A class.\n"):
            more = "".join(f"  void g{i}();\n" for i in range(count - 3))
            return HEAD + comment + "class COHORT_API A final : public B<int> {\n public:\n" + members + more + "};\n"
        path = "src/cohort/rpc/a.cpp"
        self.assertEqual(self.found(path, text(25)), [])
        self.assertEqual(self.found(path, text(26), "size"),
                         ["A has 26 methods; split at 25, or say above it: Many methods because …"])
        self.assertEqual(self.found(path, text(26, "// A class. Many methods\n// because it is one of a test.\n")), [])
        self.write(path, HEAD)
        self.assertEqual(self.found("src/cohort/rpc/a_test.cpp", text(26)), [])

    def test_class_names(self):
        self.write("src/cohort/core/a.cpp", HEAD + "namespace c::core {\nclass COHORT_API Row final : public A<B> {\n};\n}\n")
        unlike = ("namespace c::rpc {\nnamespace {\nstruct Row {};\n}\nstruct Outer {\n  struct Row {};\n};\n"
                  "class Row;\nenum class Row { a };\nstruct Outer::Row {\n};\nvoid f() {\n  struct Row {};\n}\n}\n")
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + unlike), [])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + "namespace c::core {\nclass Row {};\n}\n"), [])
        same = HEAD + "namespace c {\nnamespace rpc {\ntemplate <class T>\nstruct Row {\n};\n}\n}\n"
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", same), ["names"])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", same, "names"), ["'Row' is a class of c::core, c::rpc; rename one"])
        self.write("tools/same_names.txt", "# name, namespaces\nRow 2\n")
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", same), [])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD, "names"), ["'Row' has 1 namespaces: lower or remove it"])
        self.write("src/cohort/core/a.cpp", HEAD)
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD, "names"), ["'Row' is no more: remove it"])
        (self.root / "src/cohort/rpc/a.cpp").unlink()
        (self.root / "tools/same_names.txt").unlink()
        self.write("src/cohort/core/a.cpp", same)
        self.assertEqual(self.found("src/cohort/rpc/a_test.cpp", same.replace("rpc", "core")), [])

    def test_comment_widths(self):
        text = HEAD + "// " + "ä" * 97 + "\nconst char* x = \"" + "y" * 100 + "\";\n"
        self.assertEqual(self.found("src/cohort/core/a.cpp", text), [])
        self.assertEqual(self.found("src/cohort/core/a.cpp", text + "  // " + "x" * 96 + "\n"), ["size"])

    def test_comments_begin_with_their_subject(self):
        bad = ("// Of the last group.", "// A group. Those of one task.", "int x;  // What it counts", "//\n// Whose it is.",
               "// One of them:\n// That of the first.", "// See \"x.\" What follows is old.", "// - Those of tasks.")
        for text in bad:
            self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + text + "\n", "sentences"),
                             ["begin the sentence with its subject, not with Of, What, Whose, Those or That of"], text)
        good = ("// The groups, those of one task.", "int x;  // of the group", "// In a comment\n// Of is a word.",
                'const char* text = "// Of a text. What else";', "// Often. Whatever comes.")
        for text in good:
            self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + text + "\n"), [], text)
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD), [])
        for text in ('"""What it does."""', "x = 1\n# Of one process.", "# It runs. What it writes is a log."):
            self.assertEqual(self.found("tools/a.py", HEAD.replace("//", "#") + text + "\n"), ["sentences"], text)
        self.assertEqual(self.found("tools/a.py", HEAD.replace("//", "#") + "x = '# Of a text'\n"), [])
        self.assertEqual(self.found("dev", "#!/bin/bash\n# What it needs.\n"), ["sentences"])

    def test_names(self):
        for name in ("utils", "string_helpers", "task_manager", "CamelCase"):
            self.write(f"src/cohort/rpc/{name}.cpp", HEAD)
        self.assertEqual(self.found("src/cohort/rpc/manager_free.cpp", HEAD).count("names"), 5)

    def test_licence(self):
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", "int x;\n"), ["licence"])
        self.write("src/cohort/rpc/a.cpp", HEAD)
        self.assertEqual(self.found("tools/a.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n"), [])

    def test_unreached(self):
        self.assertEqual(self.found("src/cohort/rpc/alone.h", HEAD), ["unreached"])
        (self.root / "src/cohort/rpc/alone.h").unlink()
        self.assertEqual(self.found("src/stray.cpp", HEAD), ["unreached"])
        (self.root / "src/stray.cpp").unlink()
        self.write("src/cohort/rpc/a.cpp", HEAD)
        self.write("compile_commands.json", "[]")
        tree = tidy.Tree(self.root, self.root / "compile_commands.json")
        self.assertEqual([f.rule for f in tidy.findings(tree)], ["unreached"])
        self.write("src/cohort/rpc/without_a.cpp", HEAD)
        tree = tidy.Tree(self.root, self.root / "compile_commands.json")
        self.assertEqual(tidy.findings(tree), [])

    def test_option_defaults(self):
        header = HEAD + """struct COHORT_API AOptions {
  std::string name;  // a; comment
  std::map<std::string,
           int> ports;
  std::function<void(int)> call = {};
  int a = 1, b{2};
  struct Inner {
    int free;
  };
  Inner inner{};
  bool operator==(const AOptions&) const = default;
  void check() const;
};
struct Other {
  int free;
};
"""
        self.write("src/cohort/rpc/user.cpp", HEAD + '#include "cohort/rpc/a.h"\n')
        self.write("include/cohort/rpc/a.h", header)
        found = [f for f in tidy.findings(tidy.Tree(self.root)) if f.rule == "options"]
        self.assertEqual([(f.line, f.text.split("'")[1]) for f in found], [(3, "name"), (5, "ports")])

    def test_umbrella(self):
        for name, text in (("a", ""), ("b", '#include "cohort/rpc/c.h"\n'), ("c", "")):
            self.write(f"include/cohort/rpc/{name}.h", HEAD + text)
        self.write("src/cohort/rpc/d.h", HEAD)
        found = self.found("include/cohort/cohort.h", HEAD + '#include "cohort/rpc/b.h"\n', "umbrella")
        self.assertEqual(found, ["cohort.h does not include this public header"])
        self.assertEqual(self.found("include/cohort/cohort.h", HEAD + '#include "cohort/rpc/a.h"\n'
                                    '#include "cohort/rpc/b.h"\n', "umbrella"), [])

    def test_links(self):
        self.write("docs/b.md", "# B\n")
        self.assertEqual(self.found("docs/a.md", "[b](b.md#B) [w](https://x.y) [h](#here)\n```\n[c](d)\n```\n"), [])
        self.assertEqual(self.found("docs/a.md", "see [c](c.md)\n", "links"), ["no file 'c.md'"])

    def test_outputs(self):
        for path in ("out", "bench/core", "core.123", "tests/run.log"):
            self.assertEqual(self.found(path, "x\n", "outputs"), ["a run's output is no source: git rm it"], path)
            (self.root / path).unlink()
        self.write("src/cohort/core/user.cpp", HEAD + '#include "cohort/core/log.h"\n')
        self.assertEqual(self.found("include/cohort/core/log.h", HEAD), [])

    def test_words(self):
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + "// FIX" "ME\n"), ["words"])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + "// TO" "DO: later\n"), ["words"])
        self.assertEqual(self.found("src/cohort/rpc/a.cpp", HEAD + "// TO" "DO(perf): later\n"), [])
        self.assertEqual(self.found("docs/a.md", "in /wo" "rk/main/x\n"), ["words"])


if __name__ == "__main__":
    unittest.main()
