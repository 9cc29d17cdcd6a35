"""The environment variables of a user's process: os.environ without putenv, task token, wishes.

Knows: the names in os.environ and their rules. Must not know: the library, the frameworks.
"""

from __future__ import annotations

import os
from typing import Mapping

TASK = "NODEMGR_TASK"
# Variables that a grant sets in the C environment; os.environ follows.
GRANTED = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NODEMGR_VISIBLE", TASK)


def put(name: str, value: str) -> None:
    """Set os.environ[name] alone.

    The C environment is the library's business: setenv would race with other threads' getenv.
    """
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
    """The entries of a CUDA_VISIBLE_DEVICES.

    As in the driver, the list ends at the first entry that is neither an index nor a UUID.
    """
    entries = [entry.strip(" \t") for entry in value.split(",")]
    bad = (
        index
        for index, entry in enumerate(entries)
        if not (_is_number(entry) or entry[:4] in ("GPU-", "MIG-"))
    )
    return entries[: next(bad, len(entries))]


def wished_gpus(environ: Mapping[str, str], default_gpus: int) -> int:
    """How many GPUs the process would see if it asked now; 0 means CPU.

    `default_gpus`: what a request without a wish gets.

    The client in C reads the same wish when it asks (csrc/client/wish.h); this one answers
    is_available() and device_count() before.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    seen = None if value is None else len(visible_devices(value))
    if seen is not None and "NODEMGR_VISIBLE" in environ:
        return seen  # all or a part of what was granted
    asked = _number(environ.get("NODEMGR_GPUS"), default_gpus if seen is None else seen)
    granted = max(asked, _number(environ.get("LOCAL_WORLD_SIZE"), 0)) if asked else 0
    return granted if seen is None else min(seen, granted)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and _is_number(text) else default
