#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libtorch_wheel.py with wheels of a few bytes: what it unpacks, that it fetches once, what it leaves after a failure."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import libtorch_wheel  # noqa: E402

VERSION = dict(libtorch_wheel.requirements())["torch"]
NEEDED = ["torch/include/torch/version.h", "torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1",
          "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13"]
NOT_NEEDED = ["torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "torch/__init__.py", "torch/share/cmake/Torch/TorchConfig.cmake",
              "nvidia/cu13/lib/libcheckpoint.so", "nvidia/cu13/include/cupti.h"]


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "cohort"
        patcher = mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder.name})
        patcher.start()
        self.addCleanup(patcher.stop)
        self.downloads = 0

    def run_main(self, names):
        def download(folder):
            self.downloads += 1
            if not names:
                raise libtorch_wheel.Unavailable("pip download failed: no network")
            with zipfile.ZipFile(folder / "all.whl", "w") as wheel:
                for name in names:
                    wheel.writestr(name, name)
            return [folder / "all.whl"]

        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(libtorch_wheel, "download", download), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = libtorch_wheel.main()
        return code, out.getvalue(), err.getvalue()

    def test_unpacks_what_a_cpu_program_needs_once(self):
        folder = self.cache / f"libtorch-{VERSION}"
        for _ in range(2):
            code, output, _ = self.run_main(NEEDED + NOT_NEEDED)
            self.assertEqual((code, output), (0, f"{folder}/torch/share/cmake/Torch\n"))
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        made = {"layout", "torch/share/cmake/Torch/TorchConfig.cmake", "torch/share/cmake/Torch/TorchConfigVersion.cmake"}
        self.assertEqual(found, set(NEEDED) | made)
        self.assertIn(VERSION, (folder / "torch/share/cmake/Torch/TorchConfig.cmake").read_text())
        self.assertEqual(self.downloads, 1)

    def test_leaves_nothing_after_a_failure(self):
        for names, why in (([], "no network"), (NOT_NEEDED, "its layout is another one")):
            code, output, errors = self.run_main(names)
            self.assertEqual((code, output), (libtorch_wheel.UNAVAILABLE, ""))
            self.assertIn(why, errors)
            self.assertEqual(list(self.cache.iterdir()), [])

    def test_another_layout_is_made_again(self):
        self.run_main(NEEDED)
        with mock.patch.object(libtorch_wheel, "LAYOUT", libtorch_wheel.LAYOUT + 1):
            self.assertEqual(self.run_main(NEEDED)[0], 0)
        self.assertEqual(self.downloads, 2)


if __name__ == "__main__":
    unittest.main()
