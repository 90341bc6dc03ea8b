#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins the C++ blocks of the documentation into one source, so that the tests compile every one.

    tools/doc_blocks.py --contexts DIR --output FILE.cpp PAGE...

A block is the text between ```cpp and ```. A comment on the line before it, which a rendered page
does not show, says how it is compiled:

    <!-- cpp: context=step -->    in DIR/step.cpp.in, in place of its line @BLOCK@
    <!-- cpp: name=train -->      the program runs it, as `PROGRAM train [ARGUMENTS]`; `PROGRAM tests`
                                  runs the tests that blocks have
    <!-- cpp: continues -->       after the block before it, in the same scope
    <!-- cpp: skip: REASON -->    not compiled

Without a context, a block with an `int main` is compiled as it is, any other one as statements of a
function. An ellipsis (…) is left out. Errors of the compiler name the page and its line.

In a header, a block is the lines of a comment that begin with `//   `, after an empty line of that comment.
Its context is DIR/headers/cohort_MODULE_NAME_2.cpp.in for the second block of cohort/MODULE/NAME.h,
cohort_MODULE_NAME.cpp.in for its first block and every other one, else default.cpp.in.
"""

import argparse
import pathlib
import re
import sys

HEADER_CODE = re.compile(r"^ *//   ")
FENCE = re.compile(r"^( *)(```+)(.*)$")
MARK = re.compile(r"^<!-- cpp: (.+) -->$")
INCLUDE = re.compile(r"^#include (<[^>]+>)\s*$")
MAIN = re.compile(r"^int main\(", re.MULTILINE)
TOKEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|…')
PREAMBLE = ("cohort/cohort.h", "cohort/testing/cluster/test_cluster.h", "gtest/gtest.h", "torch/torch.h",
            "chrono", "cstdint", "cstdio", "string", "tuple", "utility", "vector")
# A page's variables and functions are not always used, and names of a context may be used again.
IGNORED = ("unused-variable", "unused-parameter", "unused-but-set-variable", "unused-function", "shadow")


class PageError(Exception):
    """Names the page and the line."""


class Block:
    """One block: its page and first line there, its text, and what its mark says."""

    def __init__(self, page, line, text, mark):
        self.page, self.line, self.text = page, line, text
        self.context, self.name, self.is_skipped, self.is_continued = None, None, False, False
        if mark.startswith("skip:") and mark[len("skip:"):].strip():
            self.is_skipped = True
            return
        for word in mark.split():
            if word == "continues":
                self.is_continued = True
            elif word.startswith("context="):
                self.context = word[len("context="):]
            elif word.startswith("name="):
                self.name = word[len("name="):]
            else:
                raise PageError(f"{page}:{line - 2}: expected context=NAME, name=NAME, continues or skip: REASON, "
                                f"got '{mark}'")
        if self.is_continued and (self.context or self.name):
            raise PageError(f"{page}:{line - 2}: a block that continues another has its context and name")


def blocks_of(page, text):
    """The blocks of a page, those that are skipped too."""
    lines = text.splitlines()
    found, number = [], 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if not opening:
            if MARK.match(lines[number]) and not (number + 1 < len(lines) and lines[number + 1].startswith("```cpp")):
                raise PageError(f"{page}:{number + 1}: expected ```cpp on the line after this mark")
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != opening.group(2):
            end += 1
        if end == len(lines):
            raise PageError(f"{page}:{number + 1}: this block has no end")
        language = opening.group(3).strip()
        if language.lower() in ("c++", "cc", "cxx", "c") or (language == "cpp" and opening.group(1)):
            raise PageError(f"{page}:{number + 1}: a C++ block begins with ```cpp at the start of its line")
        if language == "cpp":
            mark = MARK.match(lines[number - 1]) if number else None
            found.append(Block(page, number + 2, "\n".join(lines[number + 1:end]), mark.group(1) if mark else ""))
        number = end + 1
    return found


def blocks_of_header(page, text, contexts):
    """The blocks of a header's comments."""
    lines = text.splitlines()
    found, number = [], 0
    name = re.sub(r"^.*?(cohort/)", r"\1", page).removesuffix(".h").replace("/", "_")
    while number < len(lines):
        is_start = number > 0 and lines[number - 1].strip() == "//" and HEADER_CODE.match(lines[number])
        end = number + 1
        while is_start and end < len(lines) and HEADER_CODE.match(lines[end]):
            end += 1
        if is_start:
            code = "\n".join(HEADER_CODE.sub("", line) for line in lines[number:end])
            block = Block(page, number + 1, f"#include <{page[page.index('cohort/'):]}>\n{code}", "")
            block.line -= 1  # of the include
            candidates = (f"{name}_{len(found) + 1}", name, "default")
            block.context = next((f"headers/{one}" for one in candidates
                                  if (contexts / "headers" / f"{one}.cpp.in").is_file()), None)
            found.append(block)
        number = end
    return found


def without_ellipses(text):
    return TOKEN.sub(lambda token: "" if token.group(0) == "…" else token.group(0), text)


def placed(block, includes):
    """The block's text for the source: its place in the page, its includes taken out."""
    lines = []
    for line in without_ellipses(block.text).splitlines():
        include = INCLUDE.match(line)
        if include:
            includes.add(include.group(1).strip("<>"))
        lines.append("" if include else line)
    return f'#line {block.line} "{block.page}"\n' + "\n".join(lines)


def groups_of(blocks):
    """Lists of blocks that share a scope."""
    groups = []
    for block in blocks:
        if block.is_skipped:
            continue
        if not block.is_continued:
            groups.append([block])
        elif groups and groups[-1][0].page == block.page:
            groups[-1].append(block)
        else:
            raise PageError(f"{block.page}:{block.line - 2}: there is no block to continue")
    return groups


def context_of(block, contexts):
    if block.context is None:
        return "@BLOCK@" if MAIN.search(block.text) else "void block() {\n@BLOCK@\n}"
    file = contexts / f"{block.context}.cpp.in"
    if not file.is_file():
        raise PageError(f"{block.page}:{block.line - 2}: there is no context '{block.context}' in {contexts}")
    text = file.read_text(encoding="utf-8")
    if text.splitlines().count("@BLOCK@") != 1:
        raise PageError(f"{file}: expected one line @BLOCK@")
    return text


def source_of(blocks, contexts):
    """The text of the source, and the names of what its program runs."""
    includes, bodies, rows, names = set(PREAMBLE), [], [], []
    for index, group in enumerate(groups_of(blocks)):
        first = group[0]
        context = context_of(first, contexts)
        text = "\n".join(placed(block, includes) for block in group)
        bodies.append(f"namespace block_{index} {{\n{context.replace('@BLOCK@', text, 1)}\n}}\n")
        if first.name:
            if first.name in names:
                raise PageError(f"{first.page}:{first.line - 2}: there is another block named '{first.name}'")
            names.append(first.name)
            rows.append(f'  if (name == "{first.name}") return doc::run(block_{index}::{entry_of(first)}, argc, argv);\n')
    head = "// Made by tools/doc_blocks.py.\n" + "".join(f"#include <{name}>\n" for name in sorted(includes))
    ignored = "".join(f'#pragma GCC diagnostic ignored "-W{name}"\n' for name in IGNORED)
    return f"{head}{ignored}\n{RUN}\n{''.join(bodies)}\n{MAIN_HEAD}{''.join(rows)}{MAIN_TAIL}", names


def entry_of(block):
    return "main" if MAIN.search(block.text) else "block"


RUN = """namespace doc {
inline int run(int (*program)(int, char**), int argc, char** argv) { return program(argc, argv); }
inline int run(int (*program)(), int, char**) { return program(); }
inline int run(void (*program)(), int, char**) { program(); return 0; }
}  // namespace doc
"""
MAIN_HEAD = """int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "tests") {
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  argc -= argc > 1 ? 1 : 0;
  argv += argc > 0 && !name.empty() ? 1 : 0;
"""
MAIN_TAIL = """  std::fprintf(stderr, "no block is named '%s'\\n", name.c_str());
  return 64;
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("pages", nargs="+")
    arguments = parser.parse_args()
    try:
        blocks = []
        for page in arguments.pages:
            page_text = pathlib.Path(page).read_text(encoding="utf-8")
            blocks += (blocks_of_header(page, page_text, arguments.contexts) if page.endswith(".h")
                       else blocks_of(page, page_text))
        text, _ = source_of(blocks, arguments.contexts)
    except PageError as error:
        sys.exit(f"doc_blocks: {error}")
    if not arguments.output.is_file() or arguments.output.read_text(encoding="utf-8") != text:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
