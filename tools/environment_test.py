#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md has every environment variable that the sources read, and no other."""

import pathlib
import re
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "examples", "tools", "bench", "dev", ".ci/run", "CMakePresets.json")
PAGE = "docs/environment.md"
# Has the names that programs read, to compare misspelled ones with.
SPELLING = "src/cohort/core/spelling.cpp"
OURS = r"(?:COHORT|TF)_[A-Z0-9_]+"
# How each kind of file names a variable. In C++ functions take the name, so a literal of ours is one.
IN_CPP = (rf'"({OURS})"', r'getenv\("([A-Z0-9_]+)"\)')
IN_PYTHON = (r'environ(?:\.get\(|\.setdefault\(|\[)\s*"([A-Z0-9_]+)"',)
IN_SHELL = (rf"\$\{{?({OURS})",)
KINDS = {".cpp": IN_CPP + IN_SHELL, ".h": IN_CPP + IN_SHELL, ".py": IN_PYTHON, ".sh": IN_SHELL, "": IN_SHELL,
         ".json": (r"\$env\{([A-Z0-9_]+)\}",)}


def sources(root):
    for name in FOLDERS:
        path = root / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            others = (pathlib.Path(__file__).resolve(), (root / SPELLING).resolve())
            if file.is_file() and file.suffix in KINDS and file.resolve() not in others:
                yield file


def read_by(root):
    """Each variable, with a file that reads it."""
    found = {}
    for file in sources(root):
        text = file.read_text(errors="replace")
        for pattern in KINDS[file.suffix]:
            for name in re.findall(pattern, text):
                found.setdefault(name, file.relative_to(root))
    return found


def documented(root):
    return re.findall(r"^\| `([A-Z0-9_]+)` \|", (root / PAGE).read_text(), re.MULTILINE)


def named_anywhere(root, name):
    """Names without our prefix may be read by way of a list or by another library."""
    pattern = re.compile(rf"[\"${{]{name}\b")
    return any(pattern.search(file.read_text(errors="replace")) for file in sources(root))


def problems(root):
    read = read_by(root)
    rows = documented(root)
    missing = [f"{PAGE} has no row for {name}, which {file} reads" for name, file in sorted(read.items()) if name not in rows]
    stale = [f"{PAGE} has a row for {name}, which nothing reads any more"
             for name in rows if name not in read and (re.fullmatch(OURS, name) or not named_anywhere(root, name))]
    twice = [f"{PAGE} has two rows for {name}" for name in sorted({name for name in rows if rows.count(name) > 1})]
    return missing + stale + twice


class Page(unittest.TestCase):
    def test_has_each_variable_once(self):
        self.assertEqual(problems(ROOT), [])

    def test_programs_know_the_names_of_its_first_table(self):
        first = (ROOT / PAGE).read_text().split("\n## ")[1]
        known = re.findall(r'"(COHORT_[A-Z_]+)"', (ROOT / SPELLING).read_text())
        self.assertCountEqual(known, re.findall(r"^\| `(COHORT_[A-Z_]+)` \|", first, re.MULTILINE))


class Comparison(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(PAGE, "| `COHORT_A` | x | y | z |\n")
        self.write("src/a.cpp", 'getenv("COHORT_A")')

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def test_equal_ones_have_no_problem(self):
        self.assertEqual(problems(self.root), [])

    def test_a_variable_without_a_row_is_a_problem(self):
        for path, text in [("src/b.cpp", 'number("COHORT_B")'), ("tests/b.h", 'std::getenv("COHORT_B")'),
                           ("dev", 'echo "${COHORT_B:-2}"'), ("tools/b.py", 'os.environ.get("COHORT_B")'),
                           ("src/c.cpp", 'script("echo $COHORT_B")')]:
            self.write(path, text)
            self.assertEqual(problems(self.root), [f"{PAGE} has no row for COHORT_B, which {path} reads"])
            (self.root / path).unlink()

    def test_a_row_without_a_reader_is_a_problem(self):
        self.write(PAGE, "| `COHORT_A` | |\n| `COHORT_OLD` | |\n| `OLD_ONE` | |\n")
        self.assertEqual(problems(self.root), [f"{PAGE} has a row for {name}, which nothing reads any more"
                                               for name in ("COHORT_OLD", "OLD_ONE")])

    def test_a_name_in_a_list_is_read(self):
        self.write(PAGE, "| `COHORT_A` | |\n| `MALLOC_X_` | |\n")
        self.write("src/b.cpp", 'for (const char* name : {"MALLOC_X_"}) getenv(name)')
        self.assertEqual(problems(self.root), [])

    def test_two_rows_are_a_problem(self):
        self.write(PAGE, "| `COHORT_A` | |\n| `COHORT_A` | |\n")
        self.assertEqual(problems(self.root), [f"{PAGE} has two rows for COHORT_A"])


if __name__ == "__main__":
    unittest.main()
