"""The runners, which start jobs inside containers: one runner for each place.

Knows: the words of csrc/runner on the wire, which session speaks for which place. Must not know:
attempts' files, the content of a job, the queue.

A runner is a program of the container's user, and is trusted as little as that user. It gets the
names of attempts and nothing else. The order goes to the process that claims an attempt, after a
check of that process's identity (local.py). A place is up while its runner is connected. An
unneeded runner is sent away after a while, so that a submission in between still finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import ConnectionId, DenyCode
from nodemgr.edge.clients import client_sessions
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.kernel.processes import one_line
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.wire import Fields
from nodemgr.messages import executor
from nodemgr.messages import jobs as messages

IDLE_S = 300.0
"""How long a runner stays when no job of its place is left."""
WORDS_FORM = 2
"""The form of the words with a supervisor (csrc/runner/runner.c)."""
NOT_NEEDED = "no job of this place is left"
AttemptName = tuple[str, int]


class Handout(NamedTuple):
    """The answer to a claim in a container: its files are memory (docs/security.md)."""

    order: int
    """The caller's to close."""
    sheet: int
    """For its output; not the caller's."""
    log_bytes: int
    """It already has that much of the output."""
    most_bytes: int
    """Of the output, the most that it keeps; 0: no limit."""
    limit_ms: int | None


class Attempts(Protocol):
    """The owner of the attempts that runners start."""

    def launch_host_changed(self, place: str, is_up: bool) -> None: ...

    def claimed(self, name: AttemptName, place: str, session: Connection) -> Handout:
        """The attempt is this process's from now on. Raises OperationError."""

    def reported(
        self,
        name: AttemptName,
        session: Connection,
        verb: str,
        fields: Fields,
        then: Callable[[bool], None],
    ) -> None:
        """A word of the supervisor; `then` is told whether it is known for good.

        Raises OperationError.
        """

    def failed(
        self, name: AttemptName, runs_for: str | None, session: Connection, why: str
    ) -> None:
        """`runs_for`: the place whose runner says so; None: it is no runner."""

    def disconnected(self, session: Session) -> None:
        """Everything that a supervisor has said on it was read."""


class Runners:
    """`place_of` raises OperationError; `is_needed` says whether a place has a living job."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        attempts: Attempts,
        host_of: Callable[[Session], str],
        is_needed: Callable[[str], bool],
        idle_s: float = IDLE_S,
    ) -> None:
        self._loop, self._attempts, self._host_of = loop, attempts, host_of
        self._is_needed, self._idle_s = is_needed, idle_s
        self._sessions: dict[str, Connection] = {}
        self._host_by_connection: dict[ConnectionId, str] = {}
        self._idle: dict[str, asyncio.TimerHandle] = {}

    def start(self, place: str, name: AttemptName) -> bool:
        """False: there is none to hear it."""
        session = self._sessions.get(place)
        if session is not None:
            session.answer("START", job=name[0], attempt=name[1])
        return session is not None

    def drop(self, place: str) -> None:
        """Drops a runner that does not obey; it may register again."""
        if (session := self._sessions.get(place)) is not None:
            session.server.drop(session)

    def dismiss_idle(self) -> None:
        """A job has ended: send the unneeded runners away after a while."""
        for place in self._sessions:
            if place not in self._idle:
                self._idle[place] = self._loop.call_later(self._idle_s, self._send_away, place)

    def close(self) -> None:
        for timer in self._idle.values():
            timer.cancel()
        self._sessions.clear()
        self._host_by_connection.clear()

    # -- their words (ClientVerbs.on_runner) --

    def received(self, session: Session, verb: str, fields: Fields) -> None:
        rid = client_sessions.rid_of(fields)
        try:
            if not isinstance(session, Connection):
                raise OperationError(messages.RUNNER_ON_NODE())
            name = str(fields.get("job")), fields.get("attempt", 0)
            if verb == "RUNNER":
                place = self._place_of(session)
                if fields.get("form") != WORDS_FORM:
                    raise OperationError(
                        "the client of this container is older than the manager, and starts no "
                        "jobs for it",
                        "start the container anew",
                        "refused",
                    )
                self._register(place, session, rid)
            elif verb == "CLAIM":
                self._claim(name, self._place_of(session), session, rid)
            elif verb in ("RUNNING", "OUTPUT", "ENDED"):
                self._attempts.reported(
                    name, session, verb, fields, lambda is_done: _acknowledge(session, rid, is_done)
                )
            else:
                why = one_line(fields.get("reason", "")) or "it could not be begun"
                runs_for = self._host_by_connection.get(session.connection)
                self._attempts.failed(name, runs_for, session, why)
        except OperationError as error:
            _deny(session, rid, str(error))

    def closed(self, session: Session) -> None:
        self._attempts.disconnected(session)
        place = self._host_by_connection.get(session.connection)
        if place is not None:
            self._leave(place)

    # -- inside --

    def _place_of(self, session: Connection) -> str:
        """Of a living process: what one says of its attempt is heard after its end, too."""
        if not (place := self._host_of(session)):
            raise OperationError(messages.RUNNER_ON_NODE())
        return place

    def _register(self, place: str, session: Connection, rid: int) -> None:
        other = self._sessions.get(place)
        if other is not None and other is not session:
            raise OperationError(
                "jobs are started here by another runner already", "start no second one", "refused"
            )
        if self._host_by_connection.setdefault(session.connection, place) != place:
            raise OperationError(
                "this runner is another place's already", "start one in each container", "refused"
            )
        self._sessions[place] = session
        session.answer("ACK", rid=rid)
        self.dismiss_idle()
        self._loop.call_soon(self._notify_up, place, session)

    def _notify_up(self, place: str, session: Session) -> None:
        if self._sessions.get(place) is session:
            self._attempts.launch_host_changed(place, True)

    def _claim(self, name: AttemptName, place: str, session: Connection, rid: int) -> None:
        handout = self._attempts.claimed(name, place, session)
        try:
            session.answer(
                "CLAIMED",
                [handout.order, handout.sheet],
                rid=rid,
                at=handout.log_bytes,
                size=handout.most_bytes,
                limit_ms=handout.limit_ms,
            )
        finally:
            close_all([handout.order])

    def _send_away(self, place: str) -> None:
        del self._idle[place]
        session = self._sessions.get(place)
        if session is not None and not self._is_needed(place):
            session.answer("DISMISS", reason=NOT_NEEDED)
            self._leave(place)

    def _leave(self, place: str) -> None:
        del self._host_by_connection[self._sessions.pop(place).connection]
        if (timer := self._idle.pop(place, None)) is not None:
            timer.cancel()
        self._loop.call_soon(self._notify_down, place)

    def _notify_down(self, place: str) -> None:
        if place not in self._sessions:
            self._attempts.launch_host_changed(place, False)


def on_the_node(_session: Session) -> str:
    """The launch host of every session, where none is in a container."""
    return ""


def refuse_runner(session: Session, _verb: str, fields: Fields) -> None:
    """Answers a runner of a manager whose executor has no runners."""
    _deny(
        session,
        client_sessions.rid_of(fields),
        stated(
            "this manager starts no jobs in containers",
            "submit the job on the node itself",
            "refused",
        ),
    )


def _acknowledge(session: Session, rid: int, is_done: bool) -> None:
    """Where the disk refuses, the supervisor says it again on its next connection."""
    if is_done:
        session.answer("ACK", rid=rid)
    else:
        _deny(session, rid, executor.REPORT_NOT_WRITTEN())


def _deny(session: Session, rid: int, why: str) -> None:
    session.answer(
        "DENY",
        rid=rid,
        code=DenyCode.BAD_REQUEST.value,
        reason=client_sessions.line(why),
    )
