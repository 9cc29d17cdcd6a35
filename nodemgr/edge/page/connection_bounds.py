"""The bounds of the page's connections: their number, and how long an answer stays unread.

Knows: tornado's streams, descriptors of this process. Must not know: HTTP, tokens, views. The
streams of viewers have a bound of their own (viewers.py).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Container

from tornado import iostream

MAX_CONNECTIONS = 600
RESERVED_DESCRIPTORS = 64
"""For the listening sockets, the channel and the loop."""
IDLE_S = 5.0
"""A connection has so long to send a request: the first, and each that follows."""
BODY_S = 10.0
"""A request's body has so long to come."""
UNREAD_S = 10.0
"""An answer of which the peer has read nothing for so long ends its connection."""
PERIOD_S = 1.0
"""Unread answers are checked for so often, while there are connections."""


def limit() -> int:
    """The most connections of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_DESCRIPTORS))


class _Progress:
    """How much of the present answer a peer has read."""

    def __init__(self, now_s: float) -> None:
        self.written = 0
        self.since_s = now_s


class Connections:
    """The open connections, the oldest first."""

    def __init__(
        self, most: int, viewer_streams: Callable[[], Container[iostream.IOStream]]
    ) -> None:
        """`viewer_streams`: the connections that carry events; they are left alone."""
        self._most = most
        self._viewer_streams = viewer_streams
        self._open: dict[iostream.IOStream, _Progress] = {}
        self._next_check: asyncio.TimerHandle | None = None

    def admit(self, stream: iostream.IOStream) -> bool:
        """Whether the new connection is served.

        Where there are too many, the oldest that is no viewer's makes room: a connection that is
        served needs milliseconds, one that is kept open to lock others out becomes the oldest.
        """
        if len(self._open) >= self._most and not self._make_room():
            return False
        self._open[stream] = _Progress(time.monotonic())
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(PERIOD_S, self._check)
        return True

    def forget(self, stream: iostream.IOStream) -> None:
        """The connection has ended."""
        self._open.pop(stream, None)

    def _make_room(self) -> bool:
        for stream in [stream for stream in self._open if stream.closed()]:
            del self._open[stream]  # its end is not reported yet
        if len(self._open) < self._most:
            return True
        viewers = self._viewer_streams()
        oldest = next((stream for stream in self._open if stream not in viewers), None)
        if oldest is None:
            return False
        del self._open[oldest]
        oldest.close()
        return True

    def _check(self) -> None:
        self._next_check = None
        self.close_unread(time.monotonic())
        if self._open:
            self._next_check = asyncio.get_running_loop().call_later(PERIOD_S, self._check)

    def close_unread(self, now_s: float) -> None:
        """Closes connections whose peer reads nothing of an answer."""
        viewers = self._viewer_streams()
        for stream, progress in list(self._open.items()):
            written = stream._total_write_done_index  # tornado tells it nowhere else
            if not stream.writing() or written != progress.written or stream in viewers:
                progress.written, progress.since_s = written, now_s
            elif now_s - progress.since_s >= UNREAD_S:
                stream.close()
