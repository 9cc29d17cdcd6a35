"""The manager's events as they come, for administrators' programs.

Knows: the verb `events`, which answers once there is one. Must not know: the events' content.
"""

from __future__ import annotations

import time

from client_plugin.ways.control import TIMEOUT_S, ControlConnection
from client_plugin.ways.conversation import wait_readable
from client_plugin.ways.faults import Away, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional

    from client_plugin.ways.locations import AnyPath

PAGE = 1_000
RETRY_S = 0.1
"""Between two looks for a manager that is away."""


class EventStream:
    """The events after a number: none twice, none left out, over the manager's restarts."""

    def __init__(
        self, run_dir: AnyPath, since: Optional[int] = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`since` None: from now on. Raises Fault where no manager answers within `timeout_s`."""
        self._control = ControlConnection(run_dir, timeout_s)
        self._is_asked = False
        self._found: List[Dict[str, Any]] = []
        """Those that `follow` has read and not given yet."""
        if since is None:
            last = self._control.call("events", limit=1)["events"]
            since = last[0]["sequence"] if last else 0
        self._last: int = since

    def next(self, timeout_s: Optional[float]) -> List[Dict[str, Any]]:
        """The next events; none: there was none within `timeout_s`. Raises Fault: Away."""
        if not self._is_asked:
            self._control.ask("events", since=self._last, limit=PAGE, wait=True)
            self._is_asked = True
        if not wait_readable(self._control, timeout_s):
            return []
        self._is_asked = False
        found: List[Dict[str, Any]] = self._control.answer()["events"]
        if found:
            self._last = found[-1]["sequence"]
        return found

    def follow(self, timeout_s: Optional[float] = None) -> Iterator[Dict[str, Any]]:
        """Each event as it comes; ends if none comes for `timeout_s`. Outlasts the manager."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._found:
                yield self._found.pop(0)
                end_s = None if timeout_s is None else time.monotonic() + timeout_s
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            try:
                self._found = self.next(left_s)
            except Away:
                self._is_asked = False
                time.sleep(RETRY_S)
                if left_s == 0:
                    return
                continue
            if not self._found:
                return

    def close(self) -> None:
        self._control.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventSignals:
    """Whether something happened: for a program that asks for the state that it shows."""

    def __init__(self, run_dir: Optional[AnyPath]) -> None:
        """`run_dir` None: there is no stream for this user, and `wait` only waits."""
        self._run_dir = run_dir
        self._stream: Optional[EventStream] = None

    def wait(self, timeout_s: float) -> bool:
        """Returns at the next event or at the timeout; whether there was an event.

        The end of the stream counts as one.
        """
        if self._run_dir is None:
            time.sleep(timeout_s)
            return False
        try:
            if self._stream is None:
                self._stream = EventStream(self._run_dir)
            return bool(self._stream.next(timeout_s))
        except Fault:
            was_there = self._stream is not None
            self.close()
            if not was_there:
                time.sleep(timeout_s)
            return was_there

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
