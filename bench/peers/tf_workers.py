#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's MultiWorkerMirroredStrategy for workers_bench (workers.py): train and call, which
call a tf.function for each step, and graph, 50 steps inside of one."""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import workers  # noqa: E402

rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if rank == 0:
    os.environ["PEER_TASKS"] = ",".join(f"127.0.0.1:{workers.free_port()}" for _ in range(workers.WORKERS))
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": os.environ["PEER_TASKS"].split(",")}, "task": {"type": "worker", "index": rank}})
STEPS_IN_GRAPH = 50
state = {}


def make(problem):
    import tensorflow as tf

    if not state:
        state["strategy"] = tf.distribute.MultiWorkerMirroredStrategy()
    strategy = state["strategy"]
    with strategy.scope():
        variables = [tf.Variable(weight) for weight in problem.weights]
    x, y = tf.constant(problem.x), tf.constant(problem.y)

    def replica(x, y):
        with tf.GradientTape() as tape:
            h = x
            for i in range(0, len(variables), 2):
                h = tf.matmul(h if i == 0 else tf.nn.relu(h), variables[i], transpose_b=True) + variables[i + 1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)) / workers.WORKERS
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, variables))

        def update(own, variables, gradients):
            for variable, gradient in zip(variables, gradients):
                own.extended.update(variable, lambda v, g: v.assign_sub(workers.RATE * g), args=(gradient,))

        context.merge_call(update, args=(variables, gradients))

    @tf.function
    def one():
        strategy.run(replica, args=(x, y))

    @tf.function
    def many(steps):
        for _ in tf.range(steps):
            strategy.run(replica, args=(x, y))

    def graph():
        many(tf.constant(STEPS_IN_GRAPH))

    def total():
        return sum(float(abs(variable.numpy().astype("float64")).sum()) for variable in variables)

    return {"train": one, "call": one, "graph": graph}, total


workers.serve(rank, make)
