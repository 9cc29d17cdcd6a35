"""The manager's events as they happen, in order and without gaps: the PUB socket, and the stored events for what it missed.

Knows: that sequence numbers grow by one. Must not know: what an event means.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from nodemgr.cli.asking import Control
from nodemgr.cli.faults import Fault

Event = Mapping[str, Any]

SETTLE_S = 0.1
"""From a finished handshake until the publisher certainly knows our subscription: one look at the store then."""


class EventStream:
    """Iterates the events after sequence number `after`. Survives a restart of the manager."""

    def __init__(self, run_dir: Path, after: int, on_connection: Callable[[bool], None] | None = None) -> None:
        self.last = after
        self._control = Control(run_dir)
        self._on_connection = on_connection or (lambda connected: None)
        self._ready: deque[Event] = deque()
        self._look_at: float | None = time.monotonic()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(f"ipc://{run_dir}/events.sock")

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._context.term()

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None when `timeout_s` is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ready:
            now = time.monotonic()
            if self._look_at is not None and now >= self._look_at:
                self._look_at = None
                self._catch_up()
                continue
            if deadline is not None and now >= deadline:
                return None
            until = [moment for moment in (deadline, self._look_at) if moment is not None]
            self._wait(None if not until else max(0, int((min(until) - now) * 1_000) + 1))
        return self._ready.popleft()

    def _wait(self, timeout_ms: int | None) -> None:
        ready = dict(self._poller.poll(timeout_ms))
        if self._monitor in ready:
            connected = recv_monitor_message(self._monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if connected:
                self._look_at = time.monotonic() + SETTLE_S
            self._on_connection(connected)
        if self._socket in ready:
            event = json.loads(self._socket.recv_multipart()[-1])
            if event["sequence"] > self.last + 1:
                self._catch_up()
            self._take(event)

    def _catch_up(self) -> None:
        """Fetches what was published while we did not listen."""
        try:
            while missed := self._control.call("events", since=self.last)["events"]:
                for event in missed:
                    self._take(event)
        except Fault:
            self._look_at = None  # the manager is away: the next handshake looks again

    def _take(self, event: Event) -> None:
        if event["sequence"] > self.last:
            self.last = event["sequence"]
            self._ready.append(event)
