#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files written by TensorFlow read back equal by Cohort, and the other way round.

    tests/interop/tensorflow_files_test.py PROGRAM [ARGUMENTS OF UNITTEST]

PROGRAM is interop_files. Run by `./dev test --interop` with a Python that has TensorFlow.
"""

import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

COMPRESSIONS = ("", "GZIP", "ZLIB")
TIMEOUT_SECONDS = 120
program = ""


def cohort(command, *arguments, given=None):
    """The answer of interop_files; its error message fails the test."""
    done = subprocess.run([program, command, *map(str, arguments)], input=json.dumps(given), capture_output=True,
                          text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode != 0:
        raise AssertionError(f"interop_files {command} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def hexes(values):
    return [bytes(value).hex() for value in values]


def float_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def bits_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


# --- values to write ------------------------------------------------------------------------------
def some_records():
    draw = random.Random(4)
    fixed = [b"", b"a", b"\0", b"\n\r\n", "žluťoučký 🐎".encode(), bytes(range(256)), b"x" * 4096]
    # Sizes close to those of buffers, and one that is larger than any buffer.
    sized = [draw.randbytes(size) for size in (1023, 65535, 65536, 262131, 262144, 1 << 20)]
    return fixed + sized + [draw.randbytes(draw.randrange(300)) for _ in range(500)]


BIG = (1 << 63) - 1
FEATURES = [
    {},
    {"int64": {"int64": [-1, 0, 1, BIG, -BIG - 1, 127, 128, -128, 300]}},
    {"float": {"float": [float_bits(v) for v in (0.0, -0.0, 1.5, -3.25e-38, 1e-45, float("inf"), float("-inf"))]}},
    {"nan": {"float": [float_bits(float("nan"))]}},
    {"bytes": {"bytes": hexes([b"", b"\0\xff\xfe", "日本語".encode(), b"x" * 70000])}},
    {"no int64": {"int64": []}, "no float": {"float": []}, "no bytes": {"bytes": []}, "nothing": {}},
    {"": {"int64": [7]}, "ключ": {"bytes": ["00"]}, "a b/c": {"float": [float_bits(2.0)]}},
    {"label": {"int64": [-5]}, "image": {"bytes": [bytes(range(256)).hex()]}, "weights": {"float": [0, 1, 2]}},
]


def random_features(draw):
    made = {}
    for number in range(draw.randrange(6)):
        count = draw.choice((0, 1, 2, 50))
        kind = draw.choice(("int64", "float", "bytes"))
        value = {"int64": lambda: draw.randrange(-(1 << 63), 1 << 63) >> draw.randrange(64),
                 "float": lambda: float_bits(draw.uniform(-1e6, 1e6)),
                 "bytes": lambda: draw.randbytes(draw.randrange(40)).hex()}[kind]
        made[f"feature {number}"] = {kind: [value() for _ in range(count)]}
    return made


def some_features():
    draw = random.Random(5)
    return FEATURES + [random_features(draw) for _ in range(200)]


def some_sequences():
    draw = random.Random(6)
    kinds = [{"context": features, "feature_lists": {}} for features in FEATURES]
    lists = {"words": [{"bytes": hexes([b"a"])}, {"bytes": []}, {}], "none": [], "numbers": [{"int64": [-1, 2]}]}
    drawn = [{"context": random_features(draw),
              "feature_lists": {"steps": list(random_features(draw).values())}} for _ in range(50)]
    return kinds + [{"context": {}, "feature_lists": lists}] + drawn


# --- Examples of TensorFlow from and to the JSON form ------------------------------------------------
def feature_message(json_feature):
    made = tf.train.Feature()
    for kind, values in json_feature.items():
        if kind == "int64":
            made.int64_list.SetInParent()
            made.int64_list.value.extend(values)
        elif kind == "float":
            made.float_list.SetInParent()
            made.float_list.value.extend(bits_float(bits) for bits in values)
        else:
            made.bytes_list.SetInParent()
            made.bytes_list.value.extend(bytes.fromhex(value) for value in values)
    return made


def feature_json(message):
    kind = message.WhichOneof("kind")
    if kind == "int64_list":
        return {"int64": list(message.int64_list.value)}
    if kind == "float_list":
        return {"float": [float_bits(value) for value in message.float_list.value]}
    if kind == "bytes_list":
        return {"bytes": hexes(message.bytes_list.value)}
    return {}


def features_message(features):
    return tf.train.Features(feature={name: feature_message(feature) for name, feature in features.items()})


def features_json(message):
    return {name: feature_json(feature) for name, feature in message.feature.items()}


def sequence_message(sequence):
    lists = {name: tf.train.FeatureList(feature=map(feature_message, features))
             for name, features in sequence["feature_lists"].items()}
    return tf.train.SequenceExample(context=features_message(sequence["context"]),
                                    feature_lists=tf.train.FeatureLists(feature_list=lists))


def sequence_json(message):
    return {"context": features_json(message.context),
            "feature_lists": {name: [feature_json(feature) for feature in features.feature]
                              for name, features in message.feature_lists.feature_list.items()}}


def field_json(value):
    """A tensor as interop_files prints it."""
    if isinstance(value, bytes):  # numpy drops zeros at its end
        return ["string", [], [value.hex()]]
    value = np.asarray(value)
    shape, flat = list(value.shape), value.reshape(-1)
    if value.dtype.kind in "OS":
        return ["string", shape, hexes(flat)]
    if value.dtype.kind == "f":
        return [value.dtype.name, shape, flat.view(f"u{value.dtype.itemsize}").tolist()]
    return [value.dtype.name, shape, flat.tolist()]


def elements_json(dataset):
    return [[field_json(field) for field in tf.nest.flatten(element)] for element in dataset.as_numpy_iterator()]


class FilesTest(unittest.TestCase):
    maxDiff = 2000

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name="file"):
        return str(self.folder / name)

    def write_with_tensorflow(self, records, compression="", name="file"):
        with tf.io.TFRecordWriter(self.path(name), compression) as writer:
            for record in records:
                writer.write(record)
        return self.path(name)

    def read_with_tensorflow(self, compression):
        return list(tf.data.TFRecordDataset(self.path(), compression).as_numpy_iterator())

    def for_each_compression(self, test):
        for compression in COMPRESSIONS:
            with self.subTest(compression=compression or "none"):
                test(compression, [f"--compression={compression}"] if compression else [])


class RecordTest(FilesTest):
    def test_cohort_reads_what_tensorflow_wrote(self):
        def test(compression, flags):
            path = self.write_with_tensorflow(some_records(), compression)
            self.assertEqual(cohort("read-records", path, *flags), hexes(some_records()))
            pipeline = {"op": "tf_record", "files": [path], "compression": compression}
            self.assertEqual(cohort("read-elements", given=pipeline),
                             elements_json(tf.data.TFRecordDataset(path, compression)))

        self.for_each_compression(test)

    def test_tensorflow_reads_what_cohort_wrote(self):
        def test(compression, flags):
            cohort("write-records", self.path(), *flags, given=hexes(some_records()))
            self.assertEqual(self.read_with_tensorflow(compression), some_records())

        self.for_each_compression(test)

    def test_plain_files_are_equal_byte_by_byte(self):
        expected = pathlib.Path(self.write_with_tensorflow(some_records(), "", "theirs")).read_bytes()
        cohort("write-records", self.path("ours"), given=hexes(some_records()))
        self.assertEqual(pathlib.Path(self.path("ours")).read_bytes(), expected)

    def test_files_without_records(self):
        def test(compression, flags):
            self.assertEqual(cohort("read-records", self.write_with_tensorflow([], compression), *flags), [])
            cohort("write-records", self.path(), *flags, given=[])
            self.assertEqual(self.read_with_tensorflow(compression), [])

        self.for_each_compression(test)

    def test_an_index_deals_out_the_same_records(self):
        files = [self.write_with_tensorflow(some_records()[at::3], "", f"part-{at}") for at in range(3)]
        for path in files:
            cohort("write-index", path)
        for index in range(4):
            pipeline = {"op": "tf_record", "files": files, "shard": [4, index]}
            self.assertEqual(cohort("read-elements", given=pipeline),
                             elements_json(tf.data.TFRecordDataset(files).shard(4, index)))


class ExampleTest(FilesTest):
    def test_cohort_reads_what_tensorflow_wrote(self):
        messages = [tf.train.Example(features=features_message(each)) for each in some_features()]

        def test(compression, flags):
            path = self.write_with_tensorflow([each.SerializeToString() for each in messages], compression)
            self.assertEqual(cohort("read-examples", path, *flags), [features_json(m.features) for m in messages])

        self.for_each_compression(test)

    def test_tensorflow_reads_what_cohort_wrote(self):
        def test(compression, flags):
            cohort("write-examples", self.path(), *flags, given=some_features())
            read = [tf.train.Example.FromString(record) for record in self.read_with_tensorflow(compression)]
            self.assertEqual([features_json(message.features) for message in read], some_features())

        self.for_each_compression(test)

    def test_sequences_both_ways(self):
        records = [sequence_message(each).SerializeToString() for each in some_sequences()]
        path = self.write_with_tensorflow(records)
        self.assertEqual(cohort("read-sequences", path), some_sequences())
        cohort("write-sequences", self.path(), given=some_sequences())
        read = [tf.train.SequenceExample.FromString(record) for record in self.read_with_tensorflow("")]
        self.assertEqual([sequence_json(message) for message in read], some_sequences())

    def test_both_parse_the_same_tensors(self):
        draw = random.Random(7)
        examples = [{"id": {"int64": [draw.randrange(-9, 9)]},
                     "point": {"float": [float_bits(draw.random()) for _ in range(6)]},
                     "tags": {"bytes": [draw.randbytes(3).hex() for _ in range(draw.randrange(4))]},
                     **({"note": {"bytes": hexes(["ñ".encode()])}} if draw.random() < 0.5 else {})}
                    for _ in range(50)]
        cohort("write-examples", self.path(), given=examples)
        ours = cohort("read-elements", given={
            "op": "tf_record", "files": [self.path()], "batch": 16,
            "features": {"id": {"dtype": "int64"}, "point": {"dtype": "float32", "sizes": [2, 3]},
                         "tags": {"dtype": "string", "is_variable": True},
                         "note": {"dtype": "string", "default": b"none".hex()}}})
        specification = {"id": tf.io.FixedLenFeature([], tf.int64),
                         "point": tf.io.FixedLenFeature([2, 3], tf.float32),
                         "tags": tf.io.VarLenFeature(tf.string),
                         "note": tf.io.FixedLenFeature([], tf.string, "none")}

        def parse(batch):
            parsed = tf.io.parse_example(batch, specification)
            return {**parsed, "tags": tf.sparse.to_dense(parsed["tags"], default_value="")}

        self.assertEqual(ours, elements_json(tf.data.TFRecordDataset(self.path()).batch(16).map(parse)))


class TextTest(FilesTest):
    def write(self, data, compression=""):
        pack = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}[compression]
        pathlib.Path(self.path()).write_bytes(pack(data))

    def test_lines(self):
        for text in ("", "one", "one\n", "\n\n", "a\r\nb\n\nžluť\r\nlast", "x" * 300000 + "\ny"):
            def test(compression, _):
                self.write(text.encode(), compression)
                pipeline = {"op": "text_line", "files": [self.path()], "compression": compression}
                self.assertEqual(cohort("read-elements", given=pipeline),
                                 elements_json(tf.data.TextLineDataset(self.path(), compression)))

            self.for_each_compression(test)

    def test_chunks(self):
        data = random.Random(8).randbytes(5 + 7 * 1000 + 3)

        def test(compression, _):
            self.write(data, compression)
            ours = {"op": "fixed_length_record", "files": [self.path()], "compression": compression,
                    "record_bytes": 7, "header_bytes": 5, "footer_bytes": 3}
            theirs = tf.data.FixedLengthRecordDataset(self.path(), 7, 5, 3, compression_type=compression)
            self.assertEqual(cohort("read-elements", given=ours), elements_json(theirs))
            self.assertEqual(cohort("read-elements", given={**ours, "shard": [3, 1]}),
                             elements_json(theirs.shard(3, 1)))

        self.for_each_compression(test)

    def check_csv(self, text, columns, defaults, theirs=None, **ours):
        def test(compression, _):
            self.write(text.encode(), compression)
            pipeline = {"op": "csv", "files": [self.path()], "compression": compression, "columns": columns, **ours}
            dataset = tf.data.experimental.CsvDataset(self.path(), defaults, compression_type=compression or None,
                                                      **(theirs or {}))
            self.assertEqual(cohort("read-elements", given=pipeline), elements_json(dataset))

        self.for_each_compression(test)

    def test_csv_of_every_dtype(self):
        names = ("int32", "int64", "float32", "float64", "string")
        rows = ["-1,9223372036854775807,1.5,-2.5e300,plain", '7,-9223372036854775808,0.1,0.1,"a, ""b"""',
                '0,0,-0.0,1e-310," "', "2147483647,1,3.4e38,3,žluť", '5,6,7,8,"two\nlines"']
        self.check_csv("\n".join(rows), [{"dtype": name} for name in names], [getattr(tf, name) for name in names])

    def test_csv_with_defaults_header_delimiter_and_columns(self):
        self.check_csv("id;x;name\r\n1;;a\r\n;2.5;NA\r\n3;NA;\r\n",
                       [{"dtype": "int64", "default": -1}, {"dtype": "string", "default": b"?".hex()}],
                       [tf.constant([-1], tf.int64), tf.constant(["?"])],
                       theirs={"header": True, "field_delim": ";", "na_value": "NA", "select_cols": [0, 2]},
                       header=True, delimiter=";", na_value="NA", select_columns=[0, 2])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = os.path.abspath(sys.argv.pop(1))
    unittest.main()
