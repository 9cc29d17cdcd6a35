"""The socket between the leader and its workers: one JSON object in each packet.

Knows: sockets, the form of the words. Must not know: what a word leads to. A packet that is no
word of the protocol is ignored, so that a script cannot harm the leader.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .orders import (
    BlockFailed,
    Coming,
    Done,
    Failed,
    Hello,
    Leaving,
    Members,
    Parked,
    PlanEvent,
    Quit,
    Resized,
    Saved,
)

PACKET_BYTES = 65_536
PREFIX = "nodemgr-elastic-"
_CREDENTIALS = struct.Struct("3i")

WORDS: Dict[str, Tuple[Callable[..., PlanEvent], Tuple[str, ...]]] = {
    "coming": (Coming, ()),
    "spare": (Parked, ()),
    "hello": (Hello, ("phase",)),
    "resized": (Resized, ("generation",)),
    "failed": (Failed, ("generation",)),
    "leaving": (Leaving, ("generation",)),
    "block failed": (BlockFailed, ("phase", "step", "own")),
    "done": (Done, ("phase",)),
    "quit": (Quit, ("phase",)),
    "checkpoint": (Saved, ("step",)),
}
"""A worker's word, its event, the fields with the event's numbers."""


class WorkerSockets:
    """The listening socket, and one connection per worker."""

    def __init__(self) -> None:
        """Raises OSError."""
        _sweep()
        self.directory = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = os.open(os.path.join(self.directory, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = os.path.join(self.directory, "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.listener.bind(self.path)
            self.listener.listen(64)
        except OSError:
            self.close()
            raise
        self._connections: Dict[int, socket.socket] = {}

    def accept(self) -> Optional[socket.socket]:
        """A new connection of a process of this user; None: there is none."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return None
        connection.setblocking(False)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] not in (0, os.geteuid()):
            connection.close()
            return None
        return connection

    def read(self, connection: socket.socket) -> Optional[List[PlanEvent]]:
        """The words that have come; None: the connection has ended."""
        events: List[PlanEvent] = []
        while True:
            try:
                packet = connection.recv(PACKET_BYTES)
            except BlockingIOError:
                return events
            except OSError:
                packet = b""
            if not packet:
                return events or None
            event = word_of(packet)
            if isinstance(event, (Hello, Parked)):
                self._connections[event.worker] = connection
            events += [] if event is None else [event]

    def words_of(self, worker: int) -> List[PlanEvent]:
        """The last words of a worker whose process has ended."""
        connection = self._connections.get(worker)
        return [] if connection is None else self.read(connection) or []

    def send(self, worker: int, message: Dict[str, Any]) -> bool:
        """Whether the worker's socket took it."""
        connection = self._connections.get(worker)
        if connection is None:
            return False
        try:
            connection.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def forget(self, worker: int) -> Optional[socket.socket]:
        return self._connections.pop(worker, None)

    def store(self, generation: int) -> str:
        return os.path.join(self.directory, f"g{generation}")

    def clean(self, generation: int) -> None:
        """Remove the files of the generations before this one."""
        for name in os.listdir(self.directory):
            number = name[1:].partition(".")[0]
            if name.startswith("g") and number.isdigit() and int(number) < generation:
                _remove(os.path.join(self.directory, name))

    def close(self) -> None:
        self.listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)


def word_of(packet: bytes) -> Optional[PlanEvent]:
    """The event of a packet; None: it is no word of the protocol, or one that changes nothing."""
    try:
        message = json.loads(packet)
        event, fields = WORDS[message["is"]]
        worker, numbers = message["worker"], [message.get(field, 1) for field in fields]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(worker) is not int or any(type(each) is not int or each < 1 for each in numbers):
        return None
    return event(worker, *numbers)


def members_message(order: Members, store: str, port: int) -> Dict[str, Any]:
    return {
        "is": "members", "generation": order.generation, "root": order.root,
        "workers": [
            {"worker": worker, "rank": rank, "gpu": gpu}
            for rank, (worker, gpu) in enumerate(order.members)
        ],
        "state": order.state, "at": "now" if order.now else "boundary", "phase": order.phase,
        "store": store, "port": port,
    }  # fmt: skip


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _sweep() -> None:
    """Remove the directories that killed leaders of this user have left."""
    for directory in _old_directories():
        lock = os.path.join(directory, "lock")
        try:
            held = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            pass  # its leader lives
        finally:
            os.close(held)


def _old_directories() -> Iterator[str]:
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            for entry in entries:
                own = entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
                if own and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    yield entry.path
    except OSError:
        return
