#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the IDX files of this folder from scikit-learn's digits.csv.gz (README.md says where that is).

    convert.py digits.csv.gz

Pixels 0..16 become min(16 * value, 255). Rows 0, 5, 10, … are the test set, the others the training set.
"""

import gzip
import pathlib
import struct
import sys

SIDE = 8


def write_idx(path, type_and_dims, shape, values):
    path.write_bytes(struct.pack(f">I{len(shape)}I", type_and_dims, *shape) + bytes(values))


def main():
    with gzip.open(sys.argv[1], "rt") as file:
        rows = [[int(float(cell)) for cell in line.split(",")] for line in file]
    folder = pathlib.Path(__file__).resolve().parent
    for name, part in (("train", [r for i, r in enumerate(rows) if i % 5]), ("t10k", rows[::5])):
        pixels = (min(16 * value, 255) for row in part for value in row[:-1])
        write_idx(folder / f"{name}-images-idx3-ubyte", 0x0803, (len(part), SIDE, SIDE), pixels)
        write_idx(folder / f"{name}-labels-idx1-ubyte", 0x0801, (len(part),), (row[-1] for row in part))
        print(name, len(part))


if __name__ == "__main__":
    main()
