"""Asking what may not answer, without waiting for it.

Knows: threads. Must not know: what is asked, why.

/proc/PID/cmdline and environ are read out of the process's own memory. Where that is a page of a
file system in user space, reading waits for whoever serves it, for ever if he likes. The name of a
user may have to come over a network.
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
    """What `work` returns or raises; TimeoutError where it does neither in time.

    It may then go on for ever, in its thread.
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
