#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tf.data reading record files, for record_scan_bench: answers each line of JSON with one.

    {"do": "check", "path": …}              {"records": …, "bytes": …, "mark": …} of Summary
    {"do": "draw", "path": …, "batch": n}   {"seconds": …} of one pass in batches of n
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import tensorflow as tf  # noqa: E402

WORD = (1 << 64) - 1


def check(path):
    records, size, mark = 0, 0, 0xCBF29CE484222325
    for batch in tf.data.TFRecordDataset(path).batch(4096).as_numpy_iterator():
        for record in batch:
            records += 1
            size += len(record)
            for word in (record[:8], record[-8:]):
                mark = ((mark ^ int.from_bytes(word, "little")) * 0x100000001B3) & WORD
    return {"records": records, "bytes": size, "mark": mark}


def draw(path, batch):
    dataset = tf.data.TFRecordDataset(path).batch(batch)
    start = time.perf_counter()
    for _ in dataset:
        pass
    return {"seconds": time.perf_counter() - start}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        action = {"check": check, "draw": draw}[question.pop("do")]
        print(json.dumps(action(**question)), flush=True)


if __name__ == "__main__":
    main()
