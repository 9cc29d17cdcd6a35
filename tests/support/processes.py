"""The facts that psutil tells of other processes, as the tests ask for it; our own descriptors.

Knows: PIDs. Must not know: nodemgr. A test of the start time in clock ticks, of a file in /proc or
of a thread reads /proc itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Sequence

import psutil


def is_running(pid: int) -> bool:
    """A zombie is not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Raises psutil.NoSuchProcess."""
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def children(pid: int) -> list[int]:
    """Zombies too. Raises psutil.NoSuchProcess."""
    return [child.pid for child in psutil.Process(pid).children()]


def named(pids: Iterable[int], name: str) -> list[int]:
    """The living processes with this name, of which the kernel keeps 15 bytes.

    A zombie does not live: its parent may collect it much later on a busy machine.
    """
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def with_command(words: Sequence[str]) -> list[int]:
    """The processes of this machine with a command that begins so."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[: len(words)] == list(words)
    ]


def open_fds() -> set[int]:
    """This process's."""
    numbers = os.listdir("/proc/self/fd")
    return {int(each) for each in numbers if os.path.lexists(f"/proc/self/fd/{each}")}


def lasting_fds() -> set[int]:
    """Without those of an earlier test's garbage, which may go at any time."""
    gc.collect()
    return open_fds()
