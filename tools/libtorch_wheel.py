#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the folder with the TorchConfig.cmake of PyPI's LibTorch 2, fetching it where it is not there yet.

    tools/libtorch_wheel.py

pip downloads the wheels of libtorch_requirements.txt into ${XDG_CACHE_HOME:-~/.cache}/cohort/libtorch-VERSION. Only what
a CPU program needs is unpacked: the headers, libtorch_cpu, libc10 and the libraries that these two load (500 MB; the CUDA
parts of the wheel would be ten times that). The wheel's own TorchConfig.cmake asks for an installed CUDA toolkit, so this
script writes one that does not. Exit code 69 and one line on stderr when the wheels cannot be had.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "libtorch_requirements.txt"
TIMEOUT_SECONDS = 1800
UNAVAILABLE = 69

# Bump it when `write_config` or `is_needed` changes: a folder of another layout is made again.
LAYOUT = 1

CONFIG = """# Made by tools/libtorch_wheel.py: LibTorch @VERSION@ of PyPI's wheel, for programs that use the CPU alone.
get_filename_component(TORCH_INSTALL_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(TORCH_INCLUDE_DIRS ${TORCH_INSTALL_PREFIX}/include ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
set(c10_LIBRARY ${TORCH_INSTALL_PREFIX}/lib/libc10.so)
if(NOT TARGET torch)
  foreach(library c10 torch_cpu)
    add_library(${library} SHARED IMPORTED)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${TORCH_INSTALL_PREFIX}/lib/lib${library}.so
      IMPORTED_SONAME lib${library}.so)
  endforeach()
  add_library(torch INTERFACE IMPORTED)
  # Nothing names the kernels, which register themselves when the library is loaded.
  set_target_properties(torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_COMPILE_OPTIONS ${TORCH_CXX_FLAGS} INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed;torch_cpu;c10")
endif()
set(TORCH_LIBRARIES torch)
set(TORCH_FOUND TRUE)
"""

CONFIG_VERSION = """set(PACKAGE_VERSION "@VERSION@")
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


class Unavailable(Exception):
    """The wheels cannot be had here and now; the text says why."""


def requirements():
    """(name, version) of every line."""
    lines = [line.strip() for line in REQUIREMENTS.read_text().splitlines()]
    return [tuple(line.split("==")) for line in lines if line and not line.startswith("#")]


def cache_folder(version):
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "cohort" / f"libtorch-{version}"


def run(what, command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} took longer than {TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{what} failed: {lines[-1] if lines else done.returncode}")


def download(folder):
    """The wheels, by a pip of its own: Debian's python3 has none."""
    run("python3 -m venv", [sys.executable, "-m", "venv", str(folder / "pip")])
    run("pip download", [str(folder / "pip" / "bin" / "pip"), "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                         "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(REQUIREMENTS)])
    return sorted(folder.glob("*.whl"))


def is_needed(name):
    """The layout of the wheels is kept: the libraries find each other by paths relative to their own."""
    if name.startswith("torch/"):
        libraries = ("libtorch_cpu.so", "libc10.so", "libgomp")
        return name.startswith(("torch/include/", *(f"torch/lib/{library}" for library in libraries)))
    return name.startswith("nvidia/") and "/lib/lib" in name and ("libcudart.so" in name or "libcupti.so" in name)


def write_config(prefix, version):
    folder = prefix / "share" / "cmake" / "Torch"
    folder.mkdir(parents=True)
    (folder / "TorchConfig.cmake").write_text(CONFIG.replace("@VERSION@", version))
    (folder / "TorchConfigVersion.cmake").write_text(CONFIG_VERSION.replace("@VERSION@", version))


def unpack(wheels, folder, version):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(is_needed, archive.namelist()):
                archive.extract(name, folder)
    if not (folder / "torch/lib/libtorch_cpu.so").exists():
        raise Unavailable(f"the wheel of torch {version} has no torch/lib/libtorch_cpu.so; its layout is another one")
    write_config(folder / "torch", version)


def install(folder, version):
    print(f"libtorch: fetching LibTorch {version} (500 MB) into {folder}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and renamed: an interrupted installation leaves nothing that looks complete.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as work:
        made = pathlib.Path(work) / "made"
        made.mkdir()
        unpack(download(pathlib.Path(work)), made, version)
        (made / "layout").write_text(str(LAYOUT))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def find():
    version = dict(requirements())["torch"]
    folder = cache_folder(version)
    layout = folder / "layout"
    if not layout.exists() or layout.read_text() != str(LAYOUT):
        install(folder, version)
    return folder / "torch" / "share" / "cmake" / "Torch"


def main():
    try:
        print(find())
    except (Unavailable, OSError) as reason:
        print(f"libtorch: LibTorch 2 cannot be had from PyPI: {reason}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
