#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks ROWS.md: each row has a case or a test that exists, or says why it has none.

One table has the rows of the specification of input pipelines, the other those of that of strategies.
"""

import json
import pathlib
import re
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPEC = ROOT.parent / "shared" / "spec" / "input.md"
ROW = re.compile(r"^\| ([A-M]\d\d) \|(.*)\|$", re.MULTILINE)
STRATEGY_SPEC = SPEC.with_name("strategy.md")
STRATEGY_ROW = re.compile(r"^\| ([A-Z]+\d?-\d\d|4\.3 [a-z ]+) \|(.*)\|$", re.MULTILINE)


def table(row_of=ROW):
    """{row: (case ids, test names, note)}"""
    rows = {}
    for row, rest in row_of.findall((HERE / "ROWS.md").read_text(encoding="utf-8")):
        cases, tests, note = (cell.strip() for cell in rest.split("|"))
        rows[row] = (re.findall(r"[^ ,]+", cases), re.findall(r"`([^`]+)`", tests), note)
    return rows


def both_tables():
    return {**table(), **table(STRATEGY_ROW)}


def known_cases():
    folders = (HERE / "input" / "cases", HERE / "rows" / "cases", HERE / "strategy")
    files = [file for folder in folders for file in folder.glob("*.json")]
    return [case["id"] for file in files for case in json.loads(file.read_text(encoding="utf-8"))]


def known_tests():
    names = set()
    for file in [*(ROOT / "src").rglob("*_test.cpp"), *(ROOT / "tests").rglob("*_test.cpp")]:
        text = file.read_text(encoding="utf-8")
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}
    return names


class Rows(unittest.TestCase):
    def test_have_a_case_a_test_or_a_reason(self):
        for row, (cases, tests, note) in both_tables().items():
            self.assertTrue(cases or tests or note, row)

    def test_name_cases_that_exist(self):
        known = known_cases()
        self.assertEqual(len(known), len(set(known)), "an id is there twice")
        for row, (cases, _, _) in both_tables().items():
            self.assertLessEqual(set(cases), set(known), row)

    def test_name_tests_that_exist(self):
        known = known_tests()
        for row, (_, tests, _) in both_tables().items():
            self.assertLessEqual(set(tests), known, row)

    @unittest.skipUnless(SPEC.exists(), "the specification is not beside the project")
    def test_are_those_of_the_specification(self):
        text = SPEC.read_text(encoding="utf-8")
        rows = [row for row, _ in ROW.findall(text[text.index("## 9. Conformance cases"):])]
        self.assertEqual(rows, list(table()))

    @unittest.skipUnless(STRATEGY_SPEC.exists(), "the specification is not beside the project")
    def test_of_strategies_are_those_of_the_specification(self):
        text = STRATEGY_SPEC.read_text(encoding="utf-8")
        text = text[text.index("## 8. Conformance cases"):text.index("## 9.")]
        rows = [row for row, _ in STRATEGY_ROW.findall(text)]
        self.assertEqual(rows, [row for row in table(STRATEGY_ROW) if not row.startswith("4.3")])

    def test_of_strategies_name_all_cases_that_say_so(self):
        named = table(STRATEGY_ROW)
        for file in (HERE / "strategy").glob("*.json"):
            for case in json.loads(file.read_text(encoding="utf-8")):
                for row in re.findall(r"[A-Z]+\d?-\d\d", case["spec"]):
                    if row in named:
                        self.assertIn(case["id"], named[row][0], row)


if __name__ == "__main__":
    unittest.main()
