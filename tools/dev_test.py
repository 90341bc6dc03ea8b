#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The answer of ./dev to wrong arguments: exit code 64 and a line that names them, before it does anything."""

import pathlib
import subprocess
import unittest

DEV = pathlib.Path(__file__).resolve().parent.parent / "dev"


def run(*arguments):
    done = subprocess.run([DEV, *arguments], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class DevTest(unittest.TestCase):
    def test_refuses_wrong_arguments(self):
        for arguments in (["fly"], ["build", "debug"], ["build", "--target"], ["train", "--workers"], ["train", "--ps"],
                          ["train", "--kill-at"], ["train", "--strategy", "multi"], ["train", "--data"], ["train", "--data-dir"], ["test", "--preset"],
                          ["test", "--torch"], ["test", "--torch", "3"], ["train", "--torch", "1.13"], ["train", "--preset", "quick"],
                          ["build", "--torch"], ["fuzz", "--seconds"], ["fuzz", "nothing"],
                          ["check", "spelling"], ["check", "--since"], ["test", "--since"], ["conformance"], ["conformance", "/no/such/folder"], ["setup", "--fast"]):
            with self.subTest(arguments=arguments):
                code, output, errors = run(*arguments)
                self.assertEqual(code, 64, errors)
                self.assertEqual(output, "")
                self.assertIn(arguments[-1], errors)

    def test_helps(self):
        commands = [line.split()[0] for line in run("--help")[1].splitlines() if line.startswith("  ")]
        self.assertIn("train", commands)
        for command in commands:
            with self.subTest(command=command):
                code, output, errors = run(command, "--help")
                self.assertEqual((code, errors), (0, ""))
                self.assertTrue(output.startswith(f"usage: ./dev {command}"), output)


if __name__ == "__main__":
    unittest.main()
