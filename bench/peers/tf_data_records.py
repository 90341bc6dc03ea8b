#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tf.data for record_scan_bench: answers each line with a line that holds a figure.

    mark PATH               what the records of a file are, as Summary::mark
    rate BATCH SHARE PATH   of one pass in batches of BATCH, a record counting for SHARE millionths of a millionth
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # noqa: E402

counts = {}


def mark(path):
    value, count = 0xCBF29CE484222325, 0
    for batch in tf.data.TFRecordDataset(path).batch(4096).as_numpy_iterator():
        for record in batch:
            count += 1
            words = (len(record), int.from_bytes(record[:8], "little"), int.from_bytes(record[-8:], "little"))
            for word in words:
                value = ((value ^ word) * 0x100000001B3) % (1 << 64)
    counts[path] = count
    return value >> 12


def rate(batch, share, path):
    """The time until the last batch."""
    began = last = time.perf_counter()
    for _ in tf.data.TFRecordDataset(path).batch(int(batch)):
        last = time.perf_counter()
    return counts[path] * float(share) / 1e12 / (last - began)


for line in sys.stdin:
    what, *arguments = line.split()
    print({"mark": mark, "rate": rate}[what](*arguments), flush=True)
