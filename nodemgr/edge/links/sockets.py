"""A socket of ZeroMQ in an asyncio loop: its options, its readiness, its frames.

Knows: options, the descriptor that reports edges only. Must not know: frames' content, sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from nodemgr.edge.host import stderr_log
from nodemgr.edge.links.frames import MAX_FRAME_BYTES
from nodemgr.edge.links.keys import KeyPair
from nodemgr.edge.links.pace import MAX_PENDING, MAX_UNREAD, READ_BYTES_IN_TURN, READ_IN_TURN

Socket = zmq.Socket[bytes]
_HANDSHAKE_MS = 10_000
"""A connection that has not proved its key by then is closed."""


def bounded(context: zmq.Context[Socket], kind: int, own: KeyPair) -> Socket:
    """A socket with the link's limits and its own keys."""
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.SNDHWM, MAX_PENDING),
        (zmq.RCVHWM, MAX_UNREAD),
        (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
    ):
        socket.setsockopt(option, value)
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
    return socket


class SocketReader:
    """Calls `take` with each message of a socket, in turns of the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: Socket,
        take: Callable[[list[zmq.Frame]], None],
    ) -> None:
        self._loop, self._socket, self._take = loop, socket, take
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._is_due = False
        loop.add_reader(self._descriptor, self.read)
        self.read_soon()

    def read_soon(self) -> None:
        """The descriptor reports edges only, and sending may swallow one."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.read)

    def read(self) -> None:
        self._is_due, size = False, 0
        for _ in range(READ_IN_TURN):
            if self._socket.closed or not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            if size >= READ_BYTES_IN_TURN:
                break
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            size += sum(map(len, frames))
            try:
                self._take(frames)
            except Exception as error:  # the others are read all the same
                stderr_log.fault("in a frame of the cluster", error)
        self.read_soon()

    def close(self) -> None:
        """Closes the socket, too."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close()
