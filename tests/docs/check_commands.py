#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether the commands that the pages show exist: sub-commands and options of `cohort`, sub-commands of `./dev`.

    check_commands.py COHORT DEV PAGE...
"""

import functools
import pathlib
import re
import subprocess
import sys

COHORT = re.compile(r"\bcohort ([a-z]+)((?: (?!-- )[^`|;&#\n]*)?)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
DEV = re.compile(r"\./dev ([a-z]+)")


@functools.cache
def help_of(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)


def code_of(text):
    """(line number, code) of each block that is no C++ and of each code span."""
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language is None:
            yield from ((number, span) for span in re.findall(r"`([^`]+)`", line))
        elif language != "cpp":
            yield number, line


def faults(text, cohort, dev):
    """(line number, what is wrong)."""
    commands = re.findall(r"^  ([a-z]+) ", help_of(cohort).stdout, re.MULTILINE)
    for number, code in code_of(text.replace("\\\n", " ")):
        for name, rest in COHORT.findall(code):
            if name not in commands:
                if code.lstrip().startswith("cohort "):
                    yield number, f"there is no `cohort {name}`"
                continue
            known = OPTION.findall(help_of(cohort, name).stdout)
            for option in OPTION.findall(rest.split(" -- ")[0]):
                if option not in known and option != "--help":
                    yield number, f"`cohort {name}` has no option {option}"
        for name in DEV.findall(code):
            if not re.search(rf"^ *{name}\b", help_of(dev).stdout, re.MULTILINE):
                yield number, f"there is no `./dev {name}`"


def main():
    cohort, dev, *pages = sys.argv[1:]
    found = [f"{page}:{number}: {fault}" for page in pages
             for number, fault in faults(pathlib.Path(page).read_text(encoding="utf-8"), cohort, dev)]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
