#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tf.data for csv_bench: answers each line with a line that holds a figure.

    sum COLUMN PATH     of a column's numbers, or of the lengths of its strings
    csv BATCH PATH      nanoseconds a row of one pass of CsvDataset in batches
    lines BATCH PATH    the same of TextLineDataset
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # noqa: E402

DEFAULTS = [tf.int64] + [tf.float32] * 8 + [tf.string]
rows = {}


def dataset(path):
    return tf.data.experimental.CsvDataset(path, DEFAULTS, header=True)


def total(column, path):
    value = count = 0
    for row in dataset(path).batch(4096).as_numpy_iterator():
        values = row[int(column)]
        count += len(values)
        value += sum(map(len, values)) if values.dtype == object else float(values.astype("float64").sum())
    rows[path] = count
    return value


def seconds(batches):
    """The time until the last batch; without the end of the iterator, which waits for a sleeping thread."""
    began = last = time.perf_counter()
    for _ in batches:
        last = time.perf_counter()
    return last - began


def csv(batch, path):
    return 1e9 * seconds(dataset(path).batch(int(batch))) / rows[path]


def lines(batch, path):
    return 1e9 * seconds(tf.data.TextLineDataset(path).batch(int(batch))) / rows[path]


for line in sys.stdin:
    what, *arguments = line.split()
    print({"sum": total, "csv": csv, "lines": lines}[what](*arguments), flush=True)
