"""A wait that a signal ends, even a signal just before the wait.

Knows: Python's wakeup descriptor. Must not know: what is waited for.

Python's own handler of a signal only leaves a note, which the interpreter reads between two steps
of the program. A signal that comes between the last reading and the system call is noted, and the
call sleeps all the same: Ctrl-C would act with the next packet, or never. The interpreter also
writes a byte to a descriptor when a signal comes. A wait for that descriptor, too, misses no
signal.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import zmq


@contextlib.contextmanager
def signals_told() -> Iterator[list[int]]:
    """A descriptor that can be read as soon as a signal has come.

    Empty outside of the main thread, which alone runs handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield [ours.fileno()]
        finally:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            if before >= 0:  # an outer wait gets the signal, too
                with contextlib.suppress(OSError):
                    os.write(before, ours.recv(4096))


PollSource = zmq.Socket[bytes] | int
"""A socket of zmq's, or a descriptor."""


def readable(sockets: Sequence[PollSource], timeout_ms: int | None) -> set[PollSource]:
    """The sources with something to read; empty after `timeout_ms` (None: no timeout).

    A signal's handler runs meanwhile.
    """
    end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
    while True:
        with signals_told() as signals:
            poller = zmq.Poller()
            for one in (*sockets, *signals):
                poller.register(one, zmq.POLLIN)
            ready = dict(
                poller.poll(
                    None if end is None else max(0, math.ceil((end - time.monotonic()) * 1_000))
                )
            )
        found = {one for one in sockets if one in ready}
        if found or not ready:
            return found
