# SPDX-License-Identifier: Apache-2.0
"""The files that a build folder compiles, by its compile_commands.json, also where several sources are compiled as one."""

import json
import pathlib
import re


def compiled_files(path):
    """(file, command) of every source; those that CMake joined have the command of what includes them."""
    for entry in json.loads(pathlib.Path(path).read_text()):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if file.parent.name == "Unity" and file.exists():
            for joined in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
                yield pathlib.Path(joined).resolve(), entry["command"]
        else:
            yield file, entry.get("command", "")
