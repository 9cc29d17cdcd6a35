"""TCP ports of the loopback address for the workers of one round.

A port that was free a moment ago may be taken before a worker listens on it. So the leader keeps
each port bound and does not listen: Linux then gives it to nobody else, and lets a worker listen on
it, as TCPStore and gRPC do, with SO_REUSEADDR.
"""

from __future__ import annotations

import socket
from typing import List

LOOPBACK = "127.0.0.1"


class HeldPorts:
    """The ports of the present round."""

    def __init__(self) -> None:
        self._sockets: List[socket.socket] = []

    def renew(self, count: int) -> List[int]:
        """As many ports, others than those of the round before. Raises OSError."""
        old, self._sockets = self._sockets, []
        try:
            for _ in range(count):
                held = socket.socket()
                self._sockets.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((LOOPBACK, 0))
        finally:
            _close(old)
        return [int(held.getsockname()[1]) for held in self._sockets]

    def close(self) -> None:
        _close(self._sockets)
        self._sockets = []


def _close(sockets: List[socket.socket]) -> None:
    for each in sockets:
        each.close()
