#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python's safetensors reads the files of checkpoints, and cohort::Checkpoint restores what it writes.

    tests/interop/safetensors_files_test.py PROGRAM COHORT [ARGUMENTS OF UNITTEST]

PROGRAM is interop_files, COHORT the command. Run by `./dev test --interop` with a Python that has safetensors and numpy.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

TIMEOUT_SECONDS = 120
program = ""
cohort = ""


def run(*command, values=None):
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(tensors):
    return {name: [str(value.dtype), list(value.shape), value.tobytes().hex()] for name, value in tensors.items()}


def example():
    draw = numpy.random.default_rng(7)
    return {
        "conv1.weight": draw.normal(size=(4, 3, 2)).astype(numpy.float32),
        "conv1.bias": draw.normal(size=4).astype(numpy.float32),
        "double": draw.normal(size=(2, 2)),
        "half": draw.normal(size=5).astype(numpy.float16),
        "norm.num_batches_tracked": numpy.array(12, numpy.int64),
        "ids": draw.integers(-9, 9, 7).astype(numpy.int32),
        "bytes": draw.integers(0, 255, 3).astype(numpy.uint8),
        "mask": numpy.array([True, False, True]),
        "empty": numpy.zeros((0, 3), numpy.float32),
    }


class SafetensorsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def expect_equal(self, got, expected):
        self.assertEqual(got.dtype, expected.dtype)
        self.assertEqual(got.shape, expected.shape)
        self.assertEqual(got.tobytes(), expected.tobytes())

    def test_python_reads_a_checkpoint(self):
        expected = {name: value for name, value in example().items() if name != "empty"}
        run(program, "write-checkpoint", str(self.folder / "c"), values=json_of(expected))
        got = {}
        for file in (self.folder / "c").glob("*.safetensors"):
            got.update(load_file(file))
        for name, value in expected.items():
            self.expect_equal(got[name], value)
        for name in ("conv1.weight", "conv1.bias"):
            self.expect_equal(got[f"{name}@sgd/momentum_buffer"], numpy.ones_like(expected[name]))

    def test_python_reads_an_export(self):
        expected = {f"model/{name}": value for name, value in example().items() if name != "empty"}
        run(program, "write-checkpoint", str(self.folder / "c"), values=json_of(expected))
        exported = self.folder / "weights.safetensors"
        run(cohort, "checkpoint", "export", str(self.folder / "c"), str(exported))
        with safe_open(exported, "numpy") as file:
            self.assertEqual({f"model/{name}" for name in file.keys()}, set(expected))
            for name in file.keys():
                self.expect_equal(file.get_tensor(name), expected[f"model/{name}"])

    def test_a_checkpoint_reads_what_python_writes(self):
        tensors = example()
        path = self.folder / "state.safetensors"
        save_file(tensors, path, metadata={"format": "pt"})
        self.assertEqual(json.loads(run(program, "restore-checkpoint", str(path), values=json_of(tensors))), json_of(tensors))


if __name__ == "__main__":
    program, cohort = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
