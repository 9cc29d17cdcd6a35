"""Reading what a stranger can make wait.

Knows: threads. Must not know: what is read, why.

/proc/PID/cmdline and environ are read out of the process's own memory. Where that is a page of a file system in user space,
reading waits for whoever serves it, for ever if he likes.
"""

from __future__ import annotations

import threading

PATIENCE_S = 0.1
MAX_STUCK = 8
"""Readers that wait at once; beyond them nothing is read."""

_stuck: set[threading.Thread] = set()


def read_within(path: str, size: int, patience_s: float = PATIENCE_S) -> bytes:
    """The first bytes of a file. Raises OSError, TimeoutError among them."""
    _stuck.difference_update([thread for thread in _stuck if not thread.is_alive()])
    if len(_stuck) >= MAX_STUCK:
        raise TimeoutError(f"{path} is not read: too many others do not answer")
    result: list[bytes | OSError] = []
    thread = threading.Thread(target=_read, args=(path, size, result), name="patience", daemon=True)
    thread.start()
    thread.join(patience_s)
    if not result:
        _stuck.add(thread)
        raise TimeoutError(f"{path} does not answer")
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def _read(path: str, size: int, result: list[bytes | OSError]) -> None:
    try:
        with open(path, "rb", buffering=0) as file:
            result.append(file.read(size) or b"")
    except OSError as error:
        result.append(error)
