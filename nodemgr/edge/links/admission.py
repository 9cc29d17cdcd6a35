"""The keys that may connect to a head: ZeroMQ asks for each connection, before its first frame.

Knows: the form of these questions (ZeroMQ's RFC 27). Must not know: which keys those are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils import z85

from nodemgr.edge.links.sockets import Socket, SocketReader

_ASKED_AT = "inproc://zeromq.zap.01"
_VERSION, _CURVE = b"1.0", b"CURVE"
_FIELDS = 7


class Admission:
    """Answers each question at once: a known key, or a stranger."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[Socket],
        is_known: Callable[[str], bool],
    ) -> None:
        """It comes before the socket that it guards."""
        self.refused = 0
        self._is_known = is_known
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ASKED_AT)
        self._reader = SocketReader(loop, self._socket, self._asked)

    def _asked(self, frames: list[zmq.Frame]) -> None:
        asked = [frame.bytes for frame in frames]
        key = ""
        if len(asked) == _FIELDS and (asked[0], asked[5]) == (_VERSION, _CURVE):
            key = z85.encode(asked[6]).decode()
        known = bool(key) and self._is_known(key)
        self.refused += not known
        status = (b"200", b"", key.encode()) if known else (b"400", b"unknown key", b"")
        question = asked[1] if len(asked) > 1 else b""
        self._socket.send_multipart([_VERSION, question, *status, b""], zmq.NOBLOCK)
        self._reader.read_soon()

    def close(self) -> None:
        self._reader.close()
