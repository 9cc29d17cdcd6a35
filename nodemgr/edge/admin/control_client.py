"""Orders to the manager and its stream of events, from an administrator's program.

Knows: the control sockets of a run directory, JSON. Must not know: what a verb does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from client_plugin.messages.form import MessageLine, relayed
from nodemgr.edge.host.interruptible import readable
from nodemgr.messages import admins as messages

CONTROL_SOCKET = "control.sock"
EVENTS_SOCKET = "events.sock"
SYNC_PREFIX = b"sync-"
"""A subscriber subscribes to everything, then to a topic of its own with this prefix.

When the manager has taken the subscription, it publishes that topic as the only frame of a message.
Every event that is published afterwards reaches the subscriber.
"""
MAX_SYNC_BYTES = 64
PAGE = 1_000


class ControlError(Exception):
    """One line."""

    def __init__(self, line: MessageLine) -> None:
        super().__init__(line)
        self.line = line


class ManagerUnreachable(ControlError):
    """No manager answers on that run directory (exit code 69)."""


class ManagerLost(ManagerUnreachable):
    """The manager ended after the request and before its answer."""


class ManagerRefused(ControlError):
    """The manager answered no."""

    def __init__(self, line: MessageLine, code: str) -> None:
        super().__init__(line)
        self.code = code
        """usage, not_found, unknown_env, refused, quota, store, internal."""


def _check_socket(path: Path) -> str:
    """The zmq address. Raises ManagerUnreachable at once, where zmq would try for ever."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
    except PermissionError:
        raise ManagerUnreachable(messages.SOCKET_CLOSED_TO_USER(path=path)) from None
    except OSError:
        raise ManagerUnreachable(messages.NO_MANAGER(path=path.parent)) from None
    return f"ipc://{path}"


class ControlClient:
    """One conversation with the manager of a run directory."""

    def __init__(self, run_dir: Path, timeout_s: float | None = 10.0) -> None:
        """`timeout_s`: for each answer; None: however long it takes."""
        self._path = run_dir / CONTROL_SOCKET
        self._timeout_ms = None if timeout_s is None else int(timeout_s * 1_000)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    def call(self, verb: str, **args: object) -> dict[str, Any]:
        """The verb's result. Raises ManagerUnreachable or ManagerRefused."""
        channel, monitor = self._connect()
        channel.send(json.dumps({"verb": verb, "args": args}).encode())
        try:
            self._wait_for_answer(channel, monitor)
        except ManagerUnreachable:
            self.close()  # a late answer must not be taken for the next one's
            raise
        reply = json.loads(channel.recv())
        if not reply["ok"]:
            raise ManagerRefused(relayed(str(reply["error"])), str(reply["code"]))
        result: dict[str, Any] = reply["result"]
        return result

    def _wait_for_answer(self, channel: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        """Raises ManagerUnreachable, also where the manager ended before zmq had connected."""
        end_s = None if self._timeout_ms is None else time.monotonic() + self._timeout_ms / 1_000
        left_ms = self._timeout_ms
        while channel not in (ready := readable((channel, monitor), left_ms)):
            if not ready:
                raise ManagerUnreachable(messages.MANAGER_SILENT(path=self._path.parent))
            if parse_monitor_message(monitor.recv_multipart())["event"] == zmq.EVENT_DISCONNECTED:
                raise ManagerLost(messages.MANAGER_ENDED(path=self._path.parent))
            _check_socket(self._path)  # zmq tries again: the manager may only be busy
            left_ms = None if end_s is None else max(0, int((end_s - time.monotonic()) * 1_000))

    def _connect(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """The conversation, and word of its end."""
        if self._socket is None or self._monitor is None:
            address = _check_socket(self._path)
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._monitor = self._socket.get_monitor_socket(
                zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
            )
            self._socket.connect(address)
        return self._socket, self._monitor

    def close(self) -> None:
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._socket = self._monitor = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EventStream:
    """The manager's events, past and coming, none twice and none left out."""

    def __init__(self, run_dir: Path, timeout_s: float = 10.0) -> None:
        """Subscribes and waits until the subscription holds. Raises ManagerUnreachable.

        `timeout_s`: for that, and for each page of past events.
        """
        self._run_dir, self._timeout_s = run_dir, timeout_s
        address = _check_socket(run_dir / EVENTS_SOCKET)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 100_000)
        self._sync = SYNC_PREFIX + os.urandom(16).hex().encode()
        for topic in (b"", self._sync):
            self._socket.setsockopt(zmq.SUBSCRIBE, topic)
        self._socket.connect(address)
        if not readable((self._socket,), int(timeout_s * 1_000)):
            self.close()
            raise ManagerUnreachable(messages.MANAGER_SILENT(path=run_dir))

    def follow(
        self, since: int | None = None, timeout_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Events with a sequence above `since` as they come (None: only new ones).

        Ends if no event comes for `timeout_s`.

        A manager that ends while past events are read leaves them to the next one, which has them
        in its store: its sync asks again.
        """
        last = since
        while readable((self._socket,), None if timeout_s is None else int(timeout_s * 1_000)):
            with contextlib.suppress(ManagerUnreachable):
                for event in self._news(self._socket.recv_multipart(), last):
                    if last is None or event["sequence"] > last:
                        last = event["sequence"]
                        yield event

    def _news(self, frames: list[bytes], last: int | None) -> Iterator[dict[str, Any]]:
        if len(frames) > 1:
            event = json.loads(frames[-1])
            if last is not None and event["sequence"] > last + 1:
                yield from self._past(last)  # some were dropped on their way
            yield event
        elif frames[0] == self._sync and last is not None:
            # at the beginning, and again when a restarted manager takes the subscription
            yield from self._past(last)

    def _past(self, since: int) -> Iterator[dict[str, Any]]:
        with ControlClient(self._run_dir, self._timeout_s) as client:
            while True:
                page = client.call("events", since=since, limit=PAGE)["events"]
                yield from page
                if len(page) < PAGE:
                    return
                since = page[-1]["sequence"]

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
