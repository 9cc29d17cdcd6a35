"""Signals that something happened on the node: the manager's stream of events, unread.

Knows: ZMTP 3.0 as far as one SUB without security needs it. Must not know: the events' content. A
program that has been told asks for the state that it shows.
"""

from __future__ import annotations

import os
import select
import time
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket

from client_plugin.ways.control import COMMAND, GREETING, SUBSCRIBER, exactly, frame, receive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from client_plugin.ways.locations import AnyPath

EVENTS_SOCKET = "events.sock"
ALL_EVENTS = b"\x01"
"""A subscription: this byte and the beginning of the names, here of all."""
PIECE_BYTES = 2**16
HANDSHAKE_S = 5.0
"""It is answered by a thread of its own: longer, and the manager hangs."""


class EventSignals:
    """One subscription, made anew where the manager was away."""

    def __init__(self, run_dir: Optional[AnyPath]) -> None:
        """`run_dir` None: there is no stream for this user, and `wait` only waits."""
        self._path = None if run_dir is None else os.path.join(run_dir, EVENTS_SOCKET)
        self._socket: Optional[Socket] = None

    def wait(self, timeout_s: float) -> bool:
        """Returns at the next event or at the timeout; whether there was an event.

        The end of the stream counts as one.
        """
        sock = self._socket or self._connect()
        if sock is None:
            time.sleep(timeout_s)
            return False
        if not select.select([sock], [], [], timeout_s)[0]:
            return False
        try:
            while sock.recv(PIECE_BYTES):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()
        return True

    def _connect(self) -> Optional[Socket]:
        """None where no manager is there."""
        if self._path is None:
            return None
        sock = Socket(AF_UNIX, SOCK_STREAM)
        sock.settimeout(HANDSHAKE_S)
        try:
            sock.connect(self._path)
            sock.sendall(GREETING + frame(SUBSCRIBER, COMMAND))
            exactly(sock, len(GREETING))
            receive(sock)
            sock.sendall(frame(ALL_EVENTS))  # with the handshake, libzmq closes the connection
        except OSError:
            sock.close()
            return None
        sock.setblocking(False)
        self._socket = sock
        return sock

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
