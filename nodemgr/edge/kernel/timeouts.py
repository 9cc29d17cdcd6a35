"""Reads that may not return, bounded by a timeout.

Knows: threads. Must not know: the question, its reason.

/proc/PID/cmdline and environ are read out of the process's own memory. If that is a page of a file
system in user space, the read waits for the server of that file system, without end if it likes.
The name of a user may have to come over a network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 0.1
MAX_STUCK = 8
"""That wait at once; beyond them nothing is asked."""
T = TypeVar("T")

_stuck: set[threading.Thread] = set()


def read_within(path: str, size: int, timeout_s: float = TIMEOUT_S) -> bytes:
    """The first bytes of a file. Raises OSError, TimeoutError among them."""

    def read() -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read(size) or b""

    return within(read, path, timeout_s)


def within(work: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """The result or exception of `work`; TimeoutError if it has neither in time.

    The work may then continue without end, in its thread.
    """
    _stuck.difference_update([thread for thread in _stuck if not thread.is_alive()])
    if len(_stuck) >= MAX_STUCK:
        raise TimeoutError(f"{what} is not asked: too many others do not answer")
    answers: list[T] = []
    faults: list[Exception] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as fault:
            faults.append(fault)

    thread = threading.Thread(target=run, name="timeout", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if faults:
        raise faults[0]
    if not answers:
        _stuck.add(thread)
        raise TimeoutError(f"{what} does not answer")
    return answers[0]
