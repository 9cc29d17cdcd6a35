"""Connections to a head's port that have said nothing yet, and an end to the oldest of too many.

Knows: descriptors, their order. Must not know: keys, frames.

A stranger's connection lasts until the handshake's time limit. Without a bound, strangers take all
descriptors, and no node finds the port open. A node's handshake takes milliseconds, so its
connection is not the oldest of MAX_UNPROVED.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import zmq
from zmq.utils.monitor import parse_monitor_message

from nodemgr.edge.links.pace import MAX_UNPROVED
from nodemgr.edge.links.sockets import Socket, SocketReader

_AT = "inproc://unproved"
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Unproved:
    """Watches one bound socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: zmq.Context[Socket], watched: Socket
    ) -> None:
        self.ended = 0
        self._watched = watched
        self._open: dict[int, None] = {}
        """Descriptors, the oldest first."""
        reports = context.socket(zmq.PAIR)
        reports.setsockopt(zmq.RCVHWM, 0)  # else ZeroMQ's own thread waits for this one
        watched.monitor(_AT, _EVENTS)
        reports.connect(_AT)
        self._reader = SocketReader(loop, reports, self._reported)

    def proved(self, frame: zmq.Frame) -> None:
        """A frame has come over a connection: its peer has a known key."""
        with contextlib.suppress(zmq.ZMQError):
            self._open.pop(int(frame.get(zmq.SRCFD)), None)

    def __len__(self) -> int:
        return len(self._open)

    def _reported(self, parts: list[zmq.Frame]) -> None:
        report = parse_monitor_message([part.bytes for part in parts])
        descriptor = int(report["value"])
        self._open.pop(descriptor, None)
        if report["event"] == zmq.EVENT_ACCEPTED:
            self._open[descriptor] = None
            if len(self._open) > MAX_UNPROVED:
                self._end(next(iter(self._open)))

    def _end(self, descriptor: int) -> None:
        """ZeroMQ sees the end and closes it.

        The number may stand for another connection by now: one to this port alone is ended, and a
        node that it meets connects again.
        """
        del self._open[descriptor]
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(descriptor))
            with one:
                if one.getsockname()[1] == self._own_port() and one.getpeername():
                    one.shutdown(socket.SHUT_RDWR)
                    self.ended += 1

    def _own_port(self) -> int:
        bound = self._watched.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return int(bound.rstrip(b"\0").rpartition(b":")[2])

    def close(self) -> None:
        """Before the watched socket."""
        self._watched.disable_monitor()
        self._reader.close()
