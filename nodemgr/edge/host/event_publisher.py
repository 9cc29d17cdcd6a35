"""The events for programs of others: a zmq PUB socket in the run directory.

Knows: that socket. Must not know: the events. The manager's own programs read events on the control
socket (the verb `events`), without gaps.
"""

from __future__ import annotations

from pathlib import Path

import zmq

from nodemgr.edge.host.rundir import EVENTS_SOCKET, give_to_group

SEND_HWM = 100_000
"""Events that one slow subscriber may lag behind before it misses some (their numbers show it)."""
LINGER_MS = 200


class EventPublisher:
    def __init__(self, run_dir: Path, group: str) -> None:
        """Raises zmq.ZMQError where the socket cannot be bound."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HWM)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        path = run_dir / EVENTS_SOCKET
        path.unlink(missing_ok=True)
        # under the manager's umask: no client connects before the group is set
        self._socket.bind(f"ipc://{path}")
        give_to_group(path, group)

    def publish(self, name: str, text: str) -> None:
        self._socket.send_multipart((name.encode(), text.encode()), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
