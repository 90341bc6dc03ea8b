#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks ROWS.md: each row has a case or a test that exists, or says why it has none."""

import json
import pathlib
import re
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPEC = ROOT.parent / "shared" / "spec" / "input.md"
ROW = re.compile(r"^\| ([A-M]\d\d) \|(.*)\|$", re.MULTILINE)


def table():
    """{row: (case ids, test names, note)}"""
    rows = {}
    for row, rest in ROW.findall((HERE / "ROWS.md").read_text(encoding="utf-8")):
        cases, tests, note = (cell.strip() for cell in rest.split("|"))
        rows[row] = (re.findall(r"[^ ,]+", cases), re.findall(r"`([^`]+)`", tests), note)
    return rows


def known_cases():
    files = [*(HERE / "input" / "cases").glob("*.json"), *(HERE / "rows" / "cases").glob("*.json")]
    return [case["id"] for file in files for case in json.loads(file.read_text(encoding="utf-8"))]


def known_tests():
    names = set()
    for file in (ROOT / "src").rglob("*_test.cpp"):
        text = file.read_text(encoding="utf-8")
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}
    return names


class Rows(unittest.TestCase):
    def test_have_a_case_a_test_or_a_reason(self):
        for row, (cases, tests, note) in table().items():
            self.assertTrue(cases or tests or note, row)

    def test_name_cases_that_exist(self):
        known = known_cases()
        self.assertEqual(len(known), len(set(known)), "an id is there twice")
        for row, (cases, _, _) in table().items():
            self.assertLessEqual(set(cases), set(known), row)

    def test_name_tests_that_exist(self):
        known = known_tests()
        for row, (_, tests, _) in table().items():
            self.assertLessEqual(set(tests), known, row)

    @unittest.skipUnless(SPEC.exists(), "the specification is not beside the project")
    def test_are_those_of_the_specification(self):
        text = SPEC.read_text(encoding="utf-8")
        rows = [row for row, _ in ROW.findall(text[text.index("## 9. Conformance cases"):])]
        self.assertEqual(rows, list(table()))


if __name__ == "__main__":
    unittest.main()
