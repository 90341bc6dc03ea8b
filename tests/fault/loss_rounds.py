#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loses one of three workers at random steps, many times, and says how long the others need.

  loss_rounds.py TRAINING_WORKER kill|stop|link BACKEND [--rounds N] [--seed N]

kill: SIGKILL. stop: SIGSTOP, and SIGCONT when the others have formed a new group. link: the worker's
network goes down (needs root: each worker has a network namespace of its own; use it with tcp).
For each round it prints the victim, its step, when each of the others named it, and how far their
weights are from those of one process at the end. It exits with 1 if anything is not as it should be.
The workers' deadline is 3 s. Not part of the tests of the build, since it measures time.
"""
import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

WORKERS = 3
STEPS = 400
DEADLINE = 3.0
PATIENCE = 90.0


class Worker:
    """A process whose lines are kept with the time at which they came."""

    def __init__(self, command, environment):
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line.rstrip()))
                self.changed.notify_all()
        with self.changed:
            self.lines.append((time.monotonic(), "(end of output)"))
            self.changed.notify_all()

    def find(self, words):
        return next(((when, line) for when, line in self.lines if words in line), None)

    def wait_for(self, words):
        """The first line with these words, and its time; None if the output ends without it."""
        with self.changed:
            self.changed.wait_for(lambda: self.find(words) or self.find("(end of output)"), PATIENCE)
            return self.find(words)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.reader.join()


def run(*command):
    subprocess.run(command, check=True)


class Network:
    """Namespaces of workers, each with a link to a bridge in one more."""

    def __init__(self):
        self.names = [f"loss{os.getpid()}w{i}" for i in range(WORKERS)]
        self.hub = f"loss{os.getpid()}hub"
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", self.hub, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.hub, "link", "set", f"port{i}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def addresses(self):
        return [f"10.77.0.{i + 1}:4000" for i in range(WORKERS)]

    def command(self, i):
        return ["ip", "netns", "exec", self.names[i]]

    def cut(self, i):
        run("ip", "-n", self.hub, "link", "set", f"port{i}", "down")

    def end(self):
        for name in self.names + [self.hub]:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Loopback:
    def addresses(self):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        return [f"127.0.0.1:{port}" for port in ports]

    def command(self, i):
        return []

    def end(self):
        pass


def play_round(options, number, choose):
    victim = 0 if number % 3 == 0 else 1 + choose.randrange(WORKERS - 1)
    step = 1 + choose.randrange(STEPS - 100)
    network = Network() if options.loss == "link" else Loopback()
    addresses = network.addresses()
    workers = []
    try:
        for i in range(WORKERS):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
            environment = dict(os.environ, TF_CONFIG=json.dumps(task), OMP_NUM_THREADS="1")
            command = network.command(i) + [options.program, str(STEPS), str(int(DEADLINE * 1000)), options.backend]
            workers.append(Worker(command, environment))
        others = [worker for i, worker in enumerate(workers) if i != victim]
        if not workers[victim].wait_for(f"step {step}"):
            return [f"round {number}: the workers do not train"] + [line for _, line in workers[victim].lines[-5:]]
        lost_at = time.monotonic()
        if options.loss == "link":
            network.cut(victim)
        else:
            workers[victim].process.send_signal(signal.SIGKILL if options.loss == "kill" else signal.SIGSTOP)
        problems, told = [], []
        for worker in others:
            line = worker.wait_for("lost: ")
            if not line or f"worker:{victim}" not in line[1]:
                problems.append(f"does not name worker:{victim}: {line}")
                continue
            told.append(line[0] - lost_at)
            if told[-1] > DEADLINE + 2:
                problems.append(f"named it after {told[-1]:.1f} s")
            if not worker.wait_for(" of 2 at step "):
                problems.append("did not go on with two")
        if options.loss == "stop":
            workers[victim].process.send_signal(signal.SIGCONT)
        distances = []
        for worker in others:
            end = worker.wait_for("ends with distance ")
            distances.append(float(end[1].split()[-1]) if end else float("nan"))
            if not distances[-1] < 1e-6:
                problems.append(f"ends otherwise: {[line for _, line in worker.lines[-5:]]}")
        print(f"round {number}: worker {victim} at step {step}; named after "
              f"{', '.join(f'{each:.2f}' for each in told)} s; distances {distances}", flush=True)
        return [f"round {number}: {problem}" for problem in problems]
    finally:
        for worker in workers:
            worker.end()
        network.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("loss", choices=["kill", "stop", "link"])
    parser.add_argument("backend", choices=["shared_memory", "tcp", "shared_memory+overlap", "tcp+overlap"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    choose = random.Random(options.seed)
    problems = []
    for number in range(options.rounds):
        problems += play_round(options, number, choose)
    for problem in problems:
        print(problem)
    print(f"{options.rounds} rounds of {options.loss} on {options.backend}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
