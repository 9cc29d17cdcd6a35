"""Writes the reports of supervisors in containers into the files of their attempts.

A thread of its own does it, so that a slow disk delays no client.

Knows: a log with a hole in it, lines of a record. Must not know: the reporter, the attempt's state.

The offset of a byte in the log is its place in the job's output: a piece that is said again changes
nothing, and output that was dropped is a hole. The log keeps to its room as the keeper's does on
the node (csrc/jobs/log.c): the middle is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from nodemgr.edge.host import threads

CHUNK_BYTES = 2**16
HEAD_PARTS, TAIL_PARTS = 8, 2
MOST_OFFSET_BYTES = 2**42
"""No output is as long; a place beyond is a false one."""
_PUNCH, _KEEP_SIZE = 2, 1
_Work = tuple[Callable[[], bool], Callable[[bool], None]]


class OutputWriter:
    """`then` of each call is called in the loop, with whether the disk took it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        threads.start(self._run, "job output")

    def output(
        self, log: Path, at: int, data: bytes, most_bytes: int, then: Callable[[bool], None]
    ) -> None:
        self._queue.put((lambda: write_output(log, at, data, most_bytes), then))

    def record(self, record: Path, line: bytes, offset: int, then: Callable[[bool], None]) -> None:
        self._queue.put((lambda: _write_line(record, line, offset), then))

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            is_done = False
            with contextlib.suppress(OSError):
                is_done = work[0]()
            with contextlib.suppress(RuntimeError):  # the manager has ended meanwhile
                self._loop.call_soon_threadsafe(work[1], is_done)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _write_line(record: Path, line: bytes, offset: int) -> bool:
    descriptor = _open(record)
    try:
        is_whole = os.pwrite(descriptor, line, offset) == len(line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return is_whole


def write_output(log: Path, at: int, data: bytes, most_bytes: int) -> bool:
    """Raises OSError where the disk refuses: the output is dropped."""
    descriptor = _open(log)
    try:
        size = os.fstat(descriptor).st_size
        data = data[max(0, size - at) :]  # a part of it is there already
        at = max(at, size)
        while data and at <= MOST_OFFSET_BYTES:
            count = os.pwrite(descriptor, data, at)
            at, data = at + count, data[count:]
        _bound(descriptor, most_bytes)
    finally:
        os.close(descriptor)
    return True


def _bound(descriptor: int, most_bytes: int) -> None:
    status = os.fstat(descriptor)
    room = min(status.st_blocks * 512, status.st_size)
    if most_bytes <= 0 or room + 2 * CHUNK_BYTES <= most_bytes:
        return
    start = -(-most_bytes // HEAD_PARTS // CHUNK_BYTES) * CHUNK_BYTES
    stop = (status.st_size - most_bytes // TAIL_PARTS) // CHUNK_BYTES * CHUNK_BYTES
    if stop <= start:
        return
    offset, length = ctypes.c_int64(start), ctypes.c_int64(stop - start)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, _PUNCH | _KEEP_SIZE, offset, length) != 0 and (
        ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS) or room > 2 * most_bytes
    ):
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, status.st_size)
