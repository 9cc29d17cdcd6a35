"""What an env may ask about itself over its clients' way: its part of the status, its release, its doctor.

Knows: the verbs of ASK, how an answer is cut into packets. Must not know: transports, frames, what a figure means.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodemgr.core import events
from nodemgr.edge import log
from nodemgr.edge.control import WhenFresh
from nodemgr.edge.daemon import Daemon
from nodemgr.edge.order import JsonText, OrderError
from nodemgr.edge.sessions import Session
from nodemgr.edge.views import Views

PART_BYTES = 960
"""Of a packet: the rest is for its head and, over UDP, for the MAC."""
MAX_PARTS = 4_000
MAX_RECORDS = 2_000
"""Of an env's past, the last: what fits the parts, and is made in some 20 ms."""
NEED_NO_FIGURES = frozenset({"release", "holdings"})
"""Of NVML: these are answered at once."""


class Questions:
    """Answers ASK."""

    def __init__(self, daemon: Daemon, views: Views, when_fresh: WhenFresh) -> None:
        self._daemon = daemon
        self._views = views
        self._when_fresh = when_fresh
        self._waiting: deque[tuple[Session, Mapping[str, Any]]] = deque()
        self._kinds: dict[str, Callable[[Session, Mapping[str, Any]], Any]] = {
            "status": lambda session, _: self._views.status(session.env),
            "holdings": lambda session, _: self._views.holdings(session.env),
            "doctor": lambda session, _: {"schema_version": 1, "checks": self._views.env_checks(session.env, session.pid)},
            "allocations": lambda session, _: self._views.allocations(session.env, 0, MAX_RECORDS),
            "release": self._release,
        }

    def received(self, session: Session, fields: Mapping[str, Any]) -> None:
        """One question; the answer comes when the figures are fresh."""
        if fields["what"] in NEED_NO_FIGURES:
            self._answer(session, fields)
        else:
            self._when_fresh(lambda: self._enqueue(session, fields))

    def _enqueue(self, session: Session, fields: Mapping[str, Any]) -> None:
        self._waiting.append((session, fields))
        if len(self._waiting) == 1:
            self._daemon.loop.call_soon(self._answer_next)

    def _answer_next(self) -> None:
        """One in each turn of the loop: a thousand who ask at once do not hold up those who beat."""
        clock, began_ns = self._daemon.clock, self._daemon.clock.monotonic_ns()
        session, fields = self._waiting.popleft()
        if self._daemon.knows(session):
            self._answer(session, fields)
            session.took(clock.monotonic_ns() - began_ns)
        if self._waiting:
            self._daemon.loop.call_soon(self._answer_next)

    def _answer(self, session: Session, fields: Mapping[str, Any]) -> None:
        try:
            kind = self._kinds.get(fields["what"])
            if kind is None:
                raise OrderError(f"unknown question {fields['what'][:40]!r} (known: {', '.join(sorted(self._kinds))})")
            answer = kind(session, fields)
        except OrderError as error:
            answer = {"error": " ".join(str(error).split()), "code": error.code}
        except Exception as error:  # an answer is owed whatever happens
            log.fault("in a question", error)
            answer = {"error": f"internal fault: {error!r} (the manager's log has more)", "code": "internal"}
        parts = list(pages(answer))
        if len(parts) > MAX_PARTS:
            parts = list(pages({"error": "the answer is too long for this way; an administrator's nodemgr gives it", "code": "refused"}))
        for index, data in enumerate(parts):
            session.answer("PART", rid=fields["rid"], index=index, count=len(parts), data=data)

    def _release(self, session: Session, fields: Mapping[str, Any]) -> dict[str, Any]:
        task_id, state = fields.get("argument", ""), self._daemon.state
        owner = state.tasks.get(task_id) or state.requests.get(task_id)
        if owner is None or owner.env != session.env:
            raise OrderError(f"{session.env} has no task or waiting request {task_id[:40]!r} (nodemgr status lists them)", "not_found")
        event = events.ReleaseTask(task_id, session.user, self._daemon.clock.wall_ns(), env=session.env)
        if not self._daemon.submit(event):
            raise OrderError(f"not done, since it cannot be stored: {self._daemon.journal.fault}", "store")
        return {"task": task_id}


def pages(answer: object) -> Iterator[str]:
    """JSON in pieces that fit a packet: plain ASCII, and `%` written as JSON may write it, so that nothing grows on the wire."""
    text = answer if isinstance(answer, JsonText) else json.dumps(answer, separators=(",", ":"))
    text = text.replace("%", "\\u0025")
    for start in range(0, len(text), PART_BYTES):
        yield text[start : start + PART_BYTES]
