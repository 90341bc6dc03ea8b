# SPDX-License-Identifier: Apache-2.0
"""tf.data for input_pipeline_bench: reads names, one per line, runs one round of each, prints its figure.

Started by the benchmark; its figures are nanoseconds an element, or microseconds a batch for `deal`.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf  # noqa: E402

AUTO = tf.data.AUTOTUNE
VECTORS = 262_144


def seconds(dataset):
    """The time until the last element; without the end of the iterator, which waits for a sleeping thread."""
    began = last = time.perf_counter()
    for _ in dataset:
        last = time.perf_counter()
    return last - began


def vectors():
    return tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(VECTORS * 64, dtype=tf.float32), [VECTORS, 64]))


def mirrored():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


STRATEGY = mirrored()
RANGES = {
    "range_map_batch": (tf.data.Dataset.range(100_000).map(lambda x: x + 1).batch(128), 100_000),
    "range_batch_map": (tf.data.Dataset.range(1_000_000).batch(128).map(lambda x: x + 1), 1_000_000),
    "range_batch": (tf.data.Dataset.range(1_000_000).batch(128), 1_000_000),
}
DATASETS = {name: (lambda kind=kind: kind) for name, kind in RANGES.items()}
DATASETS["shuffle"] = lambda: (vectors().shuffle(1 << 16).batch(128).prefetch(AUTO), VECTORS)
DATASETS["plain"] = lambda: (vectors().batch(128), VECTORS // 128 * 1000)
DATASETS["deal"] = lambda: (STRATEGY.experimental_distribute_dataset(vectors().batch(128)), VECTORS // 128 * 1000)

made = {}
first = next(iter(RANGES["range_map_batch"][0])).numpy()
assert list(first) == list(range(1, 129))
for line in sys.stdin:
    name = line.strip()
    if name not in made:
        made[name] = DATASETS[name]()
    dataset, count = made[name]
    print(1e9 * seconds(dataset) / count, flush=True)
