#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's EventAccumulator reads what cohort::SummaryWriter writes.

    tests/interop/tensorboard_files_test.py PROGRAM [ARGUMENTS OF UNITTEST]

PROGRAM is interop_files. Run by `./dev test --interop` with a Python that has TensorBoard.
"""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from tensorboard.backend import process_graph
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TIMEOUT_SECONDS = 120
program = ""
PROGRAM = """program 1 of 1:
%0 = input: float32[4, 3]
%1 = variable #0 'model/w': float32[3, 2]
#0 %2 = aten::mm(%0, %1): float32[4, ?]
#1 cohort::apply("adam", "adam_1", 0, %2, [])
return %2
"""


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def png_bytes(png, height, row_bytes, channels):
    """The bytes of the pixels of a PNG of 8-bit samples whose rows have the filters none, sub or up."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:8]
    packed, at = b"", 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IDAT":
            packed += png[at + 8:at + 8 + size]
        at += 12 + size
    raw, rows = zlib.decompress(packed), []
    for y in range(height):
        kind, *row = raw[y * (row_bytes + 1):(y + 1) * (row_bytes + 1)]
        above = rows[-1] if rows else [0] * row_bytes
        for x in range(row_bytes):
            left = row[x - channels] if x >= channels else 0
            row[x] = (row[x] + {0: 0, 1: left, 2: above[x]}[kind]) % 256
        rows.append(row)
    return bytes(value for row in rows for value in row)


class SummariesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        draw = random.Random(7)
        cls.scalars = [(step, draw.uniform(-1e6, 1e6)) for step in range(300)] + [(1 << 40, 0.1)]
        cls.numbers = [draw.gauss(0, 1e-3) for _ in range(2000)] + [0.0] * 10 + [-5e7, 1e30]
        cls.pixels = draw.randbytes(9 * 5 * 3)
        summaries = [{"kind": "scalar", "tag": "loss/train", "step": step, "value": value}
                     for step, value in cls.scalars]
        summaries += [{"kind": "histogram", "tag": "weights", "step": 3, "value": cls.numbers},
                      {"kind": "text", "tag": "note", "step": 4, "value": "# Größe\n10 µs"},
                      {"kind": "image", "tag": "digit", "step": 5,
                       "value": {"sizes": [9, 5, 3], "bytes": cls.pixels.hex()}},
                      {"kind": "graph", "tag": "", "step": 0, "value": PROGRAM}]
        done = subprocess.run([program, "write-summaries", folder.name], input=json.dumps(summaries),
                              capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if done.returncode != 0:
            raise AssertionError(f"interop_files write-summaries failed: {done.stderr.strip()}")
        cls.folder = pathlib.Path(folder.name)
        cls.events = EventAccumulator(folder.name, size_guidance={"scalars": 0, "histograms": 0, "images": 0,
                                                                  "tensors": 0})
        cls.events.Reload()

    def test_scalars(self):
        read = [(event.step, event.value) for event in self.events.Scalars("loss/train")]
        self.assertEqual(read, [(step, float32(value)) for step, value in self.scalars])

    def test_lines_of_json_have_all_digits(self):
        lines = next(self.folder.glob("scalars.*.jsonl")).read_text(encoding="utf-8").splitlines()
        read = [(line["step"], line["value"]) for line in map(json.loads, lines)]
        self.assertEqual(read, self.scalars)

    def test_histogram(self):
        event, = self.events.Histograms("weights")
        value = event.histogram_value
        self.assertEqual((event.step, value.num, value.min, value.max), (3, 2012, -5e7, 1e30))
        self.assertAlmostEqual(value.sum / sum(self.numbers), 1)
        below = 0
        for limit, count in zip(value.bucket_limit, value.bucket):
            below += count
            self.assertEqual(below, sum(number < limit for number in self.numbers), limit)

    def test_text(self):
        event, = self.events.Tensors("note")
        self.assertEqual(event.step, 4)
        self.assertEqual(list(event.tensor_proto.string_val), ["# Größe\n10 µs".encode()])
        metadata = self.events.SummaryMetadata("note")
        self.assertEqual(metadata.plugin_data.plugin_name, "text")

    def test_image(self):
        event, = self.events.Images("digit")
        self.assertEqual((event.step, event.height, event.width), (5, 9, 5))
        self.assertEqual(png_bytes(event.encoded_image_string, 9, 15, 3), self.pixels)

    def test_graph(self):
        graph = self.events.Graph()
        self.assertEqual({node.name: (node.op, list(node.input)) for node in graph.node},
                         {"input_0": ("input", []), "model/w": ("variable", []),
                          "mm_0": ("aten::mm", ["input_0", "model/w"]),
                          "apply_1": ("cohort::apply", ["model/w", "mm_0"]), "return": ("return", ["mm_0"])})
        mm, = (node for node in graph.node if node.name == "mm_0")
        shape, = mm.attr["_output_shapes"].list.shape
        self.assertEqual([dim.size for dim in shape.dim], [4, -1])
        process_graph.prepare_graph_for_ui(graph, 1024, [])  # as the server of the page "Graphs" does


if __name__ == "__main__":
    program = sys.argv.pop(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
