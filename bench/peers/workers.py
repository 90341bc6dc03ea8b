# SPDX-License-Identifier: Apache-2.0
"""The common part of the peers of workers_bench: two processes that make the same steps.

The first process reads requests from stdin and passes each on to the second one, which it starts:
    load PATH WIDTHS    the weights and the rows of both workers, of a network of these widths
    train STEPS         trains, and answers with the sum of the absolute values of all weights
    NAME STEPS          microseconds a step of one way to train
"""

import itertools
import os
import socket
import subprocess
import sys
import time

import numpy as np

WORKERS, ROWS, RATE = 2, 32, 0.001


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Problem:
    """Weights [rows, columns] and biases of each layer; this worker's rows and their labels."""

    def __init__(self, path, widths, worker):
        values, first = np.fromfile(path, np.float32), 0

        def take(*sizes):
            nonlocal first
            first += int(np.prod(sizes))
            return values[first - int(np.prod(sizes)):first].reshape(sizes).copy()

        widths = [int(width) for width in widths.split(",")]
        self.weights = []
        for columns, rows in itertools.pairwise(widths):
            self.weights += [take(rows, columns), take(rows)]
        for other in range(WORKERS):
            x, y = take(ROWS, widths[0]), take(ROWS).astype(np.int64)
            if other == worker:
                self.x, self.y = x, y


def serve(worker, make):
    """make(problem) returns the ways to train, of which "train" is the first: name -> step, and a
    function for the sum of the weights."""
    ways, total = {}, None
    second = None
    if worker == 0:
        second = subprocess.Popen([sys.executable, sys.argv[0], "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  text=True, env=os.environ)
    for line in sys.stdin:
        if second:
            second.stdin.write(line)
            second.stdin.flush()
        name, *arguments = line.split()
        figure = 0.0
        if name == "load":
            ways, total = make(Problem(arguments[0], arguments[1], worker))
        else:
            steps = int(arguments[0])
            began = time.perf_counter()
            for _ in range(steps):
                ways[name]()
            figure = 1e6 * (time.perf_counter() - began) / steps
            if name == "train":
                figure = float(total())
        if worker == 0:
            print(repr(figure), flush=True)
    if second:
        second.stdin.close()
        second.wait()
