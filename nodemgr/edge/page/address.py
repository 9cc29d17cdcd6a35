"""The page's address: its listening sockets, and the page process that was started there by hand.

Knows: sockets. Must not know: HTTP, the life of a process.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

BACKLOG = 128
GO, END = b"go", b"end"
"""Of the manager: it answers, and the process may serve; it ends, and the process with it."""


class ByHand(NamedTuple):
    """A page process that no manager has started."""

    told: Mapping[str, Any]
    """Its address and settings, as its manager had them."""
    url: str
    uid: int | None
    """The user that it becomes; None: it stays the one that started it."""


def listen(host: str, port: int) -> list[socket.socket]:
    """One for every address of the host. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind)
            listeners.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(BACKLOG)
    except OSError:
        for sock in listeners:
            sock.close()
        raise
    return listeners


def url(listeners: list[socket.socket], base: str) -> str:
    """As a browser takes it."""
    host, port = listeners[0].getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{base}"
