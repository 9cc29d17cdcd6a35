"""The listening sockets of the page. Knows: sockets. Must not know: the process that uses them."""

from __future__ import annotations

import socket

BACKLOG = 128


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
