#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a program of a page, such as "Save and resume" of docs/guide/workers.md, trains the same values in two parts as in one.

    check_resume.py COHORT PROGRAM NAME
"""

import pathlib
import subprocess
import sys
import tempfile


def train(command, folder, epochs):
    done = subprocess.run([*command, str(epochs)], cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} {epochs} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    saved = pathlib.Path(folder) / "checkpoints" / f"step-{epochs}"
    return [(saved / name).read_bytes() for name in ("float32.safetensors", "int64.safetensors", "uint8.safetensors")]


def main():
    cohort, program, name = sys.argv[1:]
    for workers in (1, 2):
        command = [program, name]
        if workers > 1:
            command = [cohort, "launch", "--workers", str(workers), "--ps", "0", "--", *command]
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
            expected = train(command, whole, 4)
            first = train(command, parts, 1)
            got = train(command, parts, 4)
        if first == got:
            sys.exit(f"{workers} workers: the second start has not trained")
        if got != expected:
            sys.exit(f"{workers} workers: expected the values of one start, got others")
    print("the values are the same")


main()
