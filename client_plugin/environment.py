"""The environment variables of a user's process: os.environ without putenv, the task token, what they wish for.

Knows: the names in os.environ and their rules. Must not know: the library, the frameworks.
"""

from __future__ import annotations

import os
from typing import Mapping

TASK = "NODEMGR_TASK"
# What a grant sets in the C environment; os.environ follows.
GRANTED = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NODEMGR_VISIBLE", TASK)


def put(name: str, value: str) -> None:
    """Set os.environ[name] alone. The C environment is the library's business: setenv would race with other threads' getenv."""
    environ = os.environ
    data = getattr(environ, "_data", None)
    if isinstance(data, dict):
        data[os.fsencode(name)] = os.fsencode(value)
    else:
        environ[name] = value


def new_token() -> str:
    """A task token: 32 hex digits."""
    return os.urandom(16).hex()


def visible_devices(value: str) -> list[str]:
    """The entries of a CUDA_VISIBLE_DEVICES; like the driver's, the list ends at the first that is empty or negative."""
    entries = [entry.strip() for entry in value.split(",")]
    ends = (index for index, entry in enumerate(entries) if not entry or entry.startswith("-"))
    return entries[: next(ends, len(entries))]


def wished_gpus(environ: Mapping[str, str], default_gpus: int) -> int:
    """How many GPUs the process would see if it asked now; 0 means CPU. `default_gpus`: what a request without a wish gets.

    The client in C reads the same wish when it asks (nodemgr_begin); this one answers is_available() and device_count() before.
    """
    asked = _number(environ.get("NODEMGR_GPUS"), default_gpus)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if asked == 0 or listed is None:
        return max(asked, _number(environ.get("LOCAL_WORLD_SIZE"), 0)) if asked else 0
    return len(visible_devices(listed))


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else default
