"""The module path of every process that runs our own code, and the command that starts one.

Such a process finds the standard library, this package, and the directories in which this process
found the packages that ours need. It reads no PYTHON variable, no .pth file and no module of its
working directory: any user may have written these. Must not know: what the processes do.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from importlib.machinery import PathFinder

from nodemgr.paths import package_dir

NEEDED = (
    *("_cffi_backend", "click", "psutil", "pynvml", "zmq"),
    *("prometheus_client", "rich", "textual", "tornado"),  # the extra `faces`
)
"""The packages outside the standard library; each may be absent."""
START = (
    "import sys; from json import loads; from importlib import import_module;"
    " path, module, *words = sys.argv[1:]; sys.path += loads(path);"
    " sys.exit(import_module(module).main(*words))"
)


@cache
def module_path() -> tuple[str, ...]:
    """The absolute directories that follow the standard library's on a process's module path."""
    found = (str(package_dir().parent), *map(_directory_of, NEEDED))
    return tuple(dict.fromkeys(directory for directory in found if directory is not None))


def _directory_of(name: str) -> str | None:
    """Where this process imported the module, or would; never the working directory by its sign."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    spec = spec or PathFinder.find_spec(name, [entry for entry in sys.path if entry])
    if spec is None or spec.origin is None:
        return None
    file = os.path.abspath(spec.origin)
    return os.path.dirname(os.path.dirname(file) if spec.submodule_search_locations else file)


def command(module: str, *words: str) -> list[str]:
    """The command line of a new process that calls `main(*words)` of a module of ours."""
    return [sys.executable, "-I", "-S", "-c", START, json.dumps(module_path()), module, *words]
