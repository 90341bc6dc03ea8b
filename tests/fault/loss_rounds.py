#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loses one of three workers at random steps, many times, and says how long the others need.

  loss_rounds.py TRAINING_WORKER kill|stop|link|proxy BACKEND [--rounds N] [--seed N]

kill: SIGKILL. stop: SIGSTOP, and SIGCONT when the others have formed a new group. link: the worker's
network goes down (needs root: each worker has a network namespace of its own; use it with tcp).
proxy: all connections between the workers, also those that form groups, pass through proxies that damage
them once or twice a round (damaging_proxy.py; use it with tcp). All three workers must end.
For each round it prints the victim, its step, when each of the others named it, and how far their
weights are from those of one process at the end: 0, since the steps are exact. It exits with 1 if
anything is not as it should be.
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

import damaging_proxy

WORKERS = 3
STEPS = 400
DEADLINE = 3.0
PATIENCE = 90.0


class Worker:
    """A process whose lines are kept with the time at which they came."""

    def __init__(self, command, addresses, index, **environment):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = dict(os.environ, TF_CONFIG=json.dumps(task), OMP_NUM_THREADS="1", **environment)
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


def command_of(options):
    return [options.program, str(STEPS), str(int(DEADLINE * 1000)), options.backend]


def random_fault(choose):
    return damaging_proxy.Fault(choose.choice(damaging_proxy.KINDS), choose.choice(damaging_proxy.DIRECTIONS),
                                choose.randrange(40), choose.randrange(1 << 30))


def await_beginning(workers, start, problems):
    """Starts workers again that a fault, or others that were slow, kept from the first group, as `cohort launch`
    does."""
    patience = time.monotonic() + PATIENCE
    while not all(worker.find("begins at step") for worker in workers) and time.monotonic() < patience:
        for i, worker in enumerate(workers):
            if not worker.find("(end of output)") or worker.find("begins at step"):
                continue
            worker.end()
            why = "; ".join(line for _, line in worker.lines)
            print(f"  worker {i} begins again: {why}")
            if "worker:" not in why:
                problems.append(f"worker {i} names nobody: {why}")
            workers[i] = start(i)
        time.sleep(0.02)


def check_errors(workers, faults, problems):
    """All of a group hear of a fault in time, and whom they miss."""
    happened = [fault.happened_at for fault in faults if fault.happened_at]
    told = []
    for i, worker in enumerate(workers):
        for when, line in worker.lines:
            if line.startswith("lost: "):
                cause = max((each for each in happened if each <= when), default=None)
                told.append(f"{i}: " + (f"{when - cause:.2f}" if cause else "without a fault"))
                if cause is None or when - cause > DEADLINE + 2:
                    problems.append(f"worker {i} told {told[-1]} s after a fault: {line}")
                if not line.split(" ")[2].startswith("worker:"):
                    problems.append(f"worker {i} names nobody: {line}")
    return told


def play_damage(options, number, choose):
    """One fault at a random place of the training or of the forming of the first group; in a third of
    the rounds a second one when the first was noticed, in which a new group is formed."""
    proxies = [damaging_proxy.Proxy() for _ in range(WORKERS)]
    addresses = [proxy.address for proxy in proxies]
    faults = [random_fault(choose) for _ in range(2 if number % 3 == 2 else 1)]
    # Nobody connects to the last worker but to ask whether it lives.
    places = [proxies[choose.randrange(WORKERS - 1 if choose.random() < 0.8 else WORKERS)] for _ in faults]
    step = 1 + choose.randrange(STEPS - 100)
    first = choose.randrange(WORKERS)
    is_of_forming = number % 4 == 3
    problems, workers = [], []
    try:
        if is_of_forming:
            faults[0].skip %= 8
            places[0].arm(faults[0])
        def start(i):
            return Worker(command_of(options) + ["50"], addresses, i, LISTEN_AT=str(proxies[i].port))
        workers = [start(i) for i in range(WORKERS)]
        await_beginning(workers, start, problems)
        if not is_of_forming and workers[first].wait_for(f"step {step}"):
            places[0].arm(faults[0])
        if len(faults) > 1 and workers[first].wait_for("lost: "):
            faults[1].skip %= 8
            places[1].arm(faults[1])
        distances = []
        for worker in workers:
            end = worker.wait_for("ends with distance ")
            distances.append(float(end[1].split()[-1]) if end else float("nan"))
            if distances[-1] != 0:
                problems.append(f"ends otherwise: {[line for _, line in worker.lines if not line.startswith('step ')]}")
        told = check_errors(workers, faults, problems)
        where = "while forming" if is_of_forming else f"from step {step}"
        what = "; ".join(f"{fault}{'' if fault.happened_at else ' (did not happen)'}" for fault in faults)
        print(f"round {number}: {where}: {what}; told after [{', '.join(told)}] s; distances {distances}", flush=True)
        return [f"round {number}: {problem}" for problem in problems]
    finally:
        for worker in workers:
            worker.end()
        for proxy in proxies:
            proxy.end()


def play_round(options, number, choose):
    victim = 0 if number % 3 == 0 else 1 + choose.randrange(WORKERS - 1)
    step = 1 + choose.randrange(STEPS - 100)
    network = Network() if options.loss == "link" else Loopback()
    addresses = network.addresses()
    workers = []
    try:
        for i in range(WORKERS):
            workers.append(Worker(network.command(i) + command_of(options), addresses, i))
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
            if distances[-1] != 0:
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
    parser.add_argument("loss", choices=["kill", "stop", "link", "proxy"])
    parser.add_argument("backend", choices=["shared_memory", "tcp", "shared_memory+overlap", "tcp+overlap"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    choose = random.Random(options.seed)
    problems = []
    for number in range(options.rounds):
        play = play_damage if options.loss == "proxy" else play_round
        problems += play(options, number, choose)
    for problem in problems:
        print(problem)
    print(f"{options.rounds} rounds of {options.loss} on {options.backend}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
