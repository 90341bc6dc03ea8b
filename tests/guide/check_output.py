#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ version of one of the guide's programs and compares its output.

    check_output.py PROGRAM EXPECTED [--guide FILE]

EXPECTED is a text file. With --guide, each of its lines must occur in the guide, in this order; some guides have lost
the blanks at the beginning of lines. This checks that the expected output is the guide's, and not just an earlier
output of the program.
"""

import argparse
import difflib
import pathlib
import subprocess
import sys


def first_line_not_in(guide, lines):
    """The number of the first line that does not follow in the guide after the lines before it; None if all do."""
    left = (line.strip() for line in guide)
    for number, line in enumerate(lines, 1):
        if line.strip() not in left:
            return number
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--guide", type=pathlib.Path)
    arguments = parser.parse_args()
    expected = arguments.expected.read_text(encoding="utf-8").splitlines()
    if arguments.guide:
        guide = arguments.guide.read_text(encoding="utf-8").splitlines()
        number = first_line_not_in(guide, expected)
        if number is not None:
            sys.exit(f"{arguments.expected}:{number}: not in the guide: {expected[number - 1]}")
    run = subprocess.run([arguments.program], capture_output=True, text=True, timeout=100, check=False)
    if run.returncode != 0:
        sys.exit(f"{arguments.program}: exit code {run.returncode}\n{run.stderr}")
    difference = list(difflib.unified_diff(expected, run.stdout.splitlines(), "expected", "got", lineterm=""))
    if difference:
        sys.exit("\n".join(difference[:60]))


if __name__ == "__main__":
    main()
