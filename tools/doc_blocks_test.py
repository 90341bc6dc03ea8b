#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""doc_blocks.py over small pages."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from doc_blocks import PageError, blocks_of, blocks_of_header, source_of  # noqa: E402

FENCE = "```"


def page(*blocks):
    """A page of (mark, code) pairs."""
    return "\n".join(f"Text.\n{mark}\n{FENCE}cpp\n{code}\n{FENCE}" for mark, code in blocks)


def source(text, **contexts):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for context, content in contexts.items():
            (folder / f"{context}.cpp.in").write_text(content)
        return source_of(blocks_of("a.md", text), folder)[0]


class DocBlocks(unittest.TestCase):
    def test_statements_are_a_function_and_programs_stay(self):
        text = source(page(("", "int x = 1;"), ("", "int main() { return 0; }")))
        self.assertIn('namespace block_0 {\nvoid block() {\n#line 4 "a.md"\nint x = 1;\n}\n}', text)
        self.assertIn('namespace block_1 {\n#line 9 "a.md"\nint main() { return 0; }\n}', text)

    def test_a_context_stands_around_its_block(self):
        text = source(page(("<!-- cpp: context=step -->", "use(y);")), step="void f(int y) {\n@BLOCK@\n}\n")
        self.assertIn('void f(int y) {\n#line 4 "a.md"\nuse(y);\n}', text)

    def test_includes_come_first_and_lines_keep_their_numbers(self):
        text = source(page(("", "#include <deque>\nint x;")))
        self.assertLess(text.index("#include <deque>"), text.index("namespace"))
        self.assertIn('#line 4 "a.md"\n\nint x;', text)

    def test_a_block_that_continues_is_in_the_scope_before_it(self):
        text = source(page(("", "int x = 1;"), ("<!-- cpp: continues -->", "++x;")))
        self.assertIn('int x = 1;\n#line 9 "a.md"\n++x;\n}', text)
        with self.assertRaisesRegex(PageError, "a.md:2: there is no block to continue"):
            source(page(("<!-- cpp: continues -->", "++x;")))

    def test_a_block_with_a_name_is_run(self):
        text = source(page(("<!-- cpp: name=one -->", "int main() { return 0; }"), ("<!-- cpp: name=two -->", "f();")))
        self.assertIn('if (name == "one") return doc::run(block_0::main, argc, argv);', text)
        self.assertIn('if (name == "two") return doc::run(block_1::block, argc, argv);', text)
        with self.assertRaisesRegex(PageError, "another block named 'one'"):
            source(page(("<!-- cpp: name=one -->", "f();"), ("<!-- cpp: name=one -->", "g();")))

    def test_the_examples_of_a_header_have_contexts_by_its_name(self):
        header = ("// Text.\n//\n//   f(1);\n//   g();\n#pragma once\n"
                  "// - a list\n//   goes on\nstruct A {\n  // Text.\n  //\n  //   h();\n};\n")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "headers"
            folder.mkdir()
            (folder / "default.cpp.in").write_text("default {\n@BLOCK@\n}")
            (folder / "cohort_core_a_2.cpp.in").write_text("second {\n@BLOCK@\n}")
            text = source_of(blocks_of_header("src/cohort/core/a.h", header, folder.parent), folder.parent)[0]
        self.assertIn("#include <cohort/core/a.h>", text)
        self.assertIn('default {\n#line 2 "src/cohort/core/a.h"\n\nf(1);\ng();\n}', text)
        self.assertIn('second {\n#line 10 "src/cohort/core/a.h"\n\nh();\n}', text)
        self.assertNotIn("goes on", text)

    def test_a_block_is_skipped_for_a_reason(self):
        self.assertNotIn("pseudo", source(page(("<!-- cpp: skip: pseudo code -->", "pseudo"))))
        with self.assertRaisesRegex(PageError, "a.md:2: expected context=NAME"):
            source(page(("<!-- cpp: skip: -->", "pseudo")))

    def test_ellipses_are_left_out_but_in_texts(self):
        self.assertIn('f({  }, "…"); // …', source(page(("", 'f({ … }, "…"); // …'))))

    def test_other_languages_and_longer_fences_are_not_taken(self):
        text = f"{FENCE}\nint x;\n{FENCE}\n````md\n{FENCE}cpp\nint y;\n{FENCE}\n````\n"
        self.assertEqual(blocks_of("a.md", text), [])

    def test_mistakes_of_a_page_are_named(self):
        for text, message in (
                (f"{FENCE}cpp\nint x;", "a.md:1: this block has no end"),
                (f"{FENCE}c++\nint x;\n{FENCE}", "a.md:1: a C\\+\\+ block begins with"),
                (f"- item\n  {FENCE}cpp\n  int x;\n  {FENCE}", "a.md:2: a C\\+\\+ block begins with"),
                (f"<!-- cpp: context=a -->\n\n{FENCE}cpp\n{FENCE}", "a.md:1: expected ```cpp on the line after"),
                (page(("<!-- cpp: contxt=a -->", "f();")), "a.md:2: expected context=NAME"),
                (page(("<!-- cpp: context=a -->", "f();")), "a.md:2: there is no context 'a'")):
            with self.assertRaisesRegex(PageError, message):
                source(text)


if __name__ == "__main__":
    unittest.main()
