"""Sums of arrays over the workers of one generation, through sockets and host memory.

TensorFlow's own collectives belong to a cluster that a process joins once, at its start. These
sockets are made anew in milliseconds, so that a resize needs no new process. Rank 0 adds in the
order of the ranks and sends the sum to all, so that every worker has the same bits. Must not know:
TensorFlow, models, steps.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import time
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ..calls import CollectiveThread
from ..channel import GenerationMembers
from .arrays import packed, unpacked

_LENGTH = struct.Struct("!Q")
_RANK = struct.Struct("!I")
_TOKEN_BYTES = 16
_PORT = struct.Struct(f"!H{_TOKEN_BYTES}s")
_GREETING_S = 5.0
_RETRY_S = 0.005


class SocketGroup:
    """One stream socket between each two members."""

    def __init__(
        self, membership: GenerationMembers, rank: int, thread: Optional[CollectiveThread]
    ) -> None:
        self._rank = rank
        self._size = membership.size
        self._thread = thread
        self._is_closed = False
        self._peers: Dict[int, socket.socket] = {}
        if thread is not None and self._size > 1:
            thread.call(lambda: self._connect(membership.store))

    def sum(self, values: Any) -> Any:
        """The sum of all members' arrays, which have one shape and type."""
        if not self._peers or self._thread is None:
            return values
        return self._thread.call(lambda: self._summed(values))

    def gather(self, numbers: Sequence[int]) -> List[List[int]]:
        table = np.zeros((self._size, len(numbers)), np.int64)
        table[self._rank] = numbers
        return [[int(each) for each in row] for row in self.sum(table)]

    def send(self, rank: int, data: Any) -> None:
        if self._thread is not None:
            self._thread.call(lambda: self._write(rank, packed(data)))

    def receive(self, rank: int) -> Any:
        assert self._thread is not None
        return unpacked(self._thread.call(lambda: self._read(rank, _memory_bytes())))

    def close(self, is_broken: bool) -> None:
        """The others' waits for this member end."""
        self._is_closed = True
        for peer in list(self._peers.values()):
            peer.close() if not is_broken else _shut(peer)
        self._peers = {}
        if self._thread is not None:
            self._thread.leave()

    # -- on the thread of collectives --

    def _connect(self, store: str) -> None:
        """Each listens for the ranks above it and connects to those below it.

        The ports, and the token by which members know each other, stand in files of the agent's
        directory, which belongs to this user alone.
        """
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(self._size)
            listener.settimeout(_RETRY_S)
            token = os.urandom(_TOKEN_BYTES)
            port = listener.getsockname()[1]
            _put(f"{store}.{self._rank}", _PORT.pack(port, token))
            for rank in range(self._rank):
                self._peers[rank] = self._connected(f"{store}.{rank}")
            while len(self._peers) < self._size - 1:
                self._accept(listener, token)

    def _connected(self, path: str) -> socket.socket:
        """A connection to a member that may not listen yet."""
        while not os.path.exists(path):
            self._go_on()
            time.sleep(_RETRY_S)
        with open(path, "rb") as file:
            port, token = _PORT.unpack(file.read())
        peer = socket.create_connection(("127.0.0.1", port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(token + _RANK.pack(self._rank))
        return peer

    def _accept(self, listener: socket.socket, token: bytes) -> None:
        try:
            peer, _ = listener.accept()
        except socket.timeout:
            self._go_on()
            return
        peer.settimeout(_GREETING_S)
        try:
            greeting = bytes(_received(peer, _TOKEN_BYTES + _RANK.size))
        except OSError:
            greeting = b""
        if not hmac.compare_digest(greeting[:_TOKEN_BYTES], token):
            peer.close()  # a stranger
            return
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[_RANK.unpack(greeting[_TOKEN_BYTES:])[0]] = peer

    def _go_on(self) -> None:
        if self._is_closed:
            raise ConnectionAbortedError("the generation is over")

    def _summed(self, values: Any) -> Any:
        if self._rank:
            self._write(0, np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            whole = np.frombuffer(self._read(0, values.nbytes), values.dtype)
            return whole.reshape(values.shape)
        total = np.array(values)
        for rank in range(1, self._size):
            total += np.frombuffer(self._read(rank, total.nbytes), total.dtype).reshape(total.shape)
        for rank in range(1, self._size):
            self._write(rank, total.reshape(-1).view(np.uint8).data)
        return total

    def _write(self, rank: int, data: Any) -> None:
        peer = self._peers[rank]
        peer.sendall(_LENGTH.pack(len(data)))
        peer.sendall(data)

    def _read(self, rank: int, most_bytes: int) -> Any:
        peer = self._peers[rank]
        (length,) = _LENGTH.unpack(_received(peer, _LENGTH.size))
        if length > most_bytes:
            raise ConnectionAbortedError(f"worker {rank} sends {length} bytes, not {most_bytes}")
        return _received(peer, length)


def _memory_bytes() -> int:
    """Of this machine: no state is larger."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _put(path: str, data: bytes) -> None:
    """The file appears with all of its contents."""
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


def _received(peer: socket.socket, length: int) -> Any:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = peer.recv_into(view)
        if not count:
            raise ConnectionResetError("a worker has ended")
        view = view[count:]
    return data


def _shut(peer: socket.socket) -> None:
    """A thread may be reading it: its call returns."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    peer.close()
