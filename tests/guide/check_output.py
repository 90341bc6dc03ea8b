#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ version of one of the guide's programs and compares its output.

    check_output.py PROGRAM EXPECTED [--guide FILE] [--workers N [--ps N]]

EXPECTED is a text file. With --guide, each of its lines must occur in the guide, in this order; some guides have lost
the blanks at the beginning of lines. This checks that the expected output is the guide's, and not just an earlier
output of the program.

With --workers, the program runs in N processes, the workers of a cluster on this machine, and its output is what they
write one after the other. --ps names servers in the cluster that do not run.
"""

import argparse
import difflib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE = 100  # seconds


def first_line_not_in(guide, lines):
    """The number of the first line that does not follow in the guide after the lines before it; None if all do."""
    left = (line.strip() for line in guide)
    for number, line in enumerate(lines, 1):
        if line.strip() not in left:
            return number
    return None


def reserved_ports(count):
    """Sockets bound to free ports, which nobody else gets while they are open (decision 0035)."""
    sockets = [socket.socket() for _ in range(count)]
    for reserved in sockets:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
    return sockets


def environments(ports, workers):
    """The environment of each worker, on these ports; what is left of them belongs to servers."""
    addresses = [f"127.0.0.1:{reserved.getsockname()[1]}" for reserved in ports]
    cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
    cluster = {job: tasks for job, tasks in cluster.items() if tasks}
    for index in range(workers):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        yield {**os.environ, "TF_CONFIG": config, "OMP_NUM_THREADS": "1"}


def output_of(program, environment_of_each):
    """The output of the program in processes with these environments, one after the other."""
    running = []
    try:
        for environment in environment_of_each:
            out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
            process = subprocess.Popen([program], stdout=out, stderr=err, env=environment)
            running.append((process, out, err))
        deadline = time.monotonic() + PATIENCE
        codes = [process.wait(max(0, deadline - time.monotonic())) for process, _, _ in running]
    finally:
        for process, _, _ in running:
            process.kill()
            process.wait()
    for _, out, err in running:
        out.seek(0)
        err.seek(0)
    errors = [f"exit code {code}\n{err.read()}" for code, (_, _, err) in zip(codes, running) if code != 0]
    if errors:
        sys.exit("\n".join([program, *errors]))
    return "".join(out.read() for _, out, _ in running)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--guide", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ps", type=int, default=0)
    arguments = parser.parse_args()
    expected = arguments.expected.read_text(encoding="utf-8").splitlines()
    if arguments.guide:
        guide = arguments.guide.read_text(encoding="utf-8").splitlines()
        number = first_line_not_in(guide, expected)
        if number is not None:
            sys.exit(f"{arguments.expected}:{number}: not in the guide: {expected[number - 1]}")
    ports = reserved_ports(arguments.workers + arguments.ps)
    alone = [dict(os.environ)]
    written = output_of(arguments.program, environments(ports, arguments.workers) if arguments.workers else alone)
    difference = list(difflib.unified_diff(expected, written.splitlines(), "expected", "got", lineterm=""))
    if difference:
        sys.exit("\n".join(difference[:60]))


if __name__ == "__main__":
    main()
