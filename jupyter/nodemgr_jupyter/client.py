"""nodemgr's client in the server's process: the one of an installed nodemgr, else of a container.

Knows: where both lie. Must not know: what they are asked.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

MOUNTED = "/opt/nodemgr"
"""Where a container of an environment has the client."""


def locations() -> Any:
    return _module("client_plugin.ways.locations")


def choice() -> Any:
    return _module("client_plugin.ways.choice")


def faults() -> Any:
    return _module("client_plugin.ways.faults")


def summary() -> Any:
    return _module("client_plugin.summary")


def _module(name: str) -> Any:
    """Raises ImportError where there is no client."""
    found = sys.modules.get(name)
    if found is not None:
        return found
    if "client_plugin" not in sys.modules:
        _find()
    return importlib.import_module(name)


def _find() -> None:
    try:
        import nodemgr  # noqa: F401 (it makes client_plugin importable)
    except ImportError:
        if not os.path.isdir(os.path.join(MOUNTED, "client_plugin")):
            raise
    else:
        return
    # not kept on sys.path: a sitecustomize lies beside it
    sys.path.insert(0, MOUNTED)
    try:
        importlib.import_module("client_plugin")
    finally:
        sys.path.remove(MOUNTED)
