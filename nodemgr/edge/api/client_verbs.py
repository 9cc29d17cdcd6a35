"""The questions and orders of an env over its clients' way.

Knows: the forms of ASK, how an answer is cut into packets. Must not know: transports, the meaning
of a verb.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from nodemgr.core.model.entities import Transport
from nodemgr.edge.api.verb_table import ENV, Speaker, Verbs
from nodemgr.edge.api.views import internal_fault
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import ASK_NS, Session
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import JsonText, OperationError, parse, parse_in_turns
from nodemgr.edge.rpc.shared_buffers import SHEET_BYTES, SheetRange, Sheets
from nodemgr.edge.rpc.turns import InTurn, Work, in_turns
from nodemgr.messages import orders as messages

PART_BYTES = 960
"""Bytes of an answer in one packet; the rest is for its head and, over UDP, the MAC."""
MAX_PARTS = 4_000
PARTS_IN_TURN = Units.PART.within()
"""The packets of an answer in one turn of the loop."""
AT_ONCE = frozenset({"release", "holdings", "sheet"})
"""The others wait their turn."""
MAX_FILES = 8
"""Descriptors that one connection may be sent: an unread one stays open in the socket."""
SHORT = {"resume": "task_resume", "keep": "task_keep"}
"""Questions that have another name than their verb."""
LONG_BYTES = 2**15
"""An order of more bytes is read in turns of the loop."""
READ_NS = 10
"""The cost of each byte of an order for its env: a full sheet of JSON takes some 10 ms to read."""


class Questions:
    """Answers ASK: `what` is a verb, or an order in JSON."""

    def __init__(self, daemon: Daemon, verbs: Verbs) -> None:
        self._daemon = daemon
        self._verbs = verbs
        self._waiting: InTurn[tuple[Session, Callable[[], None]]] = InTurn()
        self._is_due = False
        """A turn comes."""
        self._sheets = Sheets()
        self._files: dict[int, int] = {}
        """By connection: how many descriptors it was sent."""

    def received(self, session: Session, fields: Mapping[str, Any]) -> None:
        """One question; the answer comes when what it shows is fresh.

        A wait is before the queue of questions: there each has a turn of its own.
        """
        what = fields["what"]
        if what == "sheet":
            self._lend(session, fields["rid"])
        elif what == "order":
            self._enqueue(session, partial(self._order, session, fields))
        else:
            verb = SHORT.get(what, what)
            given = self._given(verb, fields.get("argument", ""))
            self._begin(session, fields["rid"], verb, given, has_turn=what in AT_ONCE)

    def _given(self, verb: str, argument: str) -> dict[str, object]:
        """`t17 7200000`: the arguments of the row in their order."""
        row = self._verbs.rows.get(verb)
        words = argument.split(" ") if argument else ()
        return {
            name: int(word) if word.isascii() and word.isdecimal() else word
            for name, word in zip(() if row is None else row.arguments, words, strict=False)
        }

    def _begin(
        self, session: Session, rid: int, verb: str, given: object, *, has_turn: bool
    ) -> None:
        self._verbs.begin(
            self._caller(session),
            verb,
            given,
            partial(self._send, session, rid),
            partial(self._enqueue, session),
            has_turn=has_turn,
        )

    def _caller(self, session: Session) -> Speaker:
        """The user as the kernel identifies it."""
        name = session.user
        if isinstance(session, Connection):
            name = f"{name} (uid {session.identity.uid})"
            if session.listener.for_all:
                place = self._daemon.process_locations.of(session.key)
                if place.container:
                    name = f"{name} in container {place.container_name or place.container}"
        return Speaker(ENV, name, session.user, session.env, session)

    def closed(self, session: Session) -> None:
        """Forgets a connection that has closed."""
        self._sheets.forget(session.connection)
        self._files.pop(session.connection, None)

    def _enqueue(self, session: Session, work: Callable[[], None]) -> None:
        self._waiting.add(session.env, (session, work))
        self._work_soon()

    def _work_soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._daemon.loop.call_soon(self._work_next)

    def _work_next(self) -> None:
        """Do the work of one question in each turn of the loop, of each environment in turn.

        A thousand questions at once delay no beats of others, and no question of another.
        """
        clock, began_ns = self._daemon.clock, self._daemon.clock.monotonic_ns()
        self._is_due = False
        session, work = self._waiting.take()
        self._work_soon()
        if self._daemon.hub.knows(session):
            work()  # it may wait for a reading, and take another turn
            session.took(clock.monotonic_ns() - began_ns)

    def _order(self, session: Session, fields: Mapping[str, Any]) -> None:
        """An order in the packet, or on the connection's sheet at the range of the argument."""
        argument: str | None = fields.get("argument")
        try:
            if argument is None:
                body: bytes | str = self._sheets.take(session.connection)
            elif (place := SheetRange.parse(argument)) is not None:
                body = self._sheets.read(session.connection, place)
            else:
                body = argument
            session.spend(len(body) * READ_NS)
            if len(body) <= LONG_BYTES:
                self._carry_out(session, fields["rid"], *parse(body))
                return
        except OperationError as error:
            self._send(session, fields["rid"], error)
            return
        in_turns(
            self._daemon.loop,
            parse_in_turns(body),
            lambda order: self._carry_out(session, fields["rid"], *order),
            lambda error: self._send(session, fields["rid"], internal_fault(error)),
            session.took,
        )

    def _carry_out(self, session: Session, rid: int, verb: str, given: object) -> None:
        row = self._verbs.rows.get(verb)
        session.spend(ASK_NS if row is None else row.cost_ns)
        self._begin(session, rid, verb, given, has_turn=True)

    def _send(self, session: Session, rid: int, answer: Any) -> None:
        """Sends an answer; if its client has gone, the answer is dropped."""
        if isinstance(answer, OperationError):
            answer = answer.answer()
        parts = list(pages(answer))
        if len(parts) > MAX_PARTS:
            line = messages.LONG_ANSWER()
            parts = list(pages({"error": line, "code": line.code}))
        in_turns(
            self._daemon.loop,
            self._sending(session, rid, parts),
            lambda _: None,
            lambda error: stderr_log.fault("in an answer", error),
        )

    def _sending(self, session: Session, rid: int, parts: list[str]) -> Work[None]:
        clock, began_ns = self._daemon.clock, self._daemon.clock.monotonic_ns()
        for index, data in enumerate(parts):
            if index and index % PARTS_IN_TURN == 0:
                session.took(clock.monotonic_ns() - began_ns)
                yield
                began_ns = clock.monotonic_ns()
            session.answer("PART", rid=rid, index=index, count=len(parts), data=data)

    def _lend(self, session: Session, rid: int) -> None:
        """Sends the connection's sheet. A short answer: it fits one packet."""
        try:
            if session.transport is not Transport.UNIX:
                raise OperationError(messages.NO_FILE_OVER_UDP())
            sheet = self._sheets.lend(session.connection, session.env)
            sent = self._files[session.connection] = self._files.get(session.connection, 0) + 1
            if sent > MAX_FILES:
                raise OperationError(messages.MANY_FILES(limit=MAX_FILES))
            data = "".join(pages({"sheet_bytes": SHEET_BYTES}))
            session.answer("PART", (sheet,), rid=rid, index=0, count=1, data=data)
        except OperationError as error:
            self._send(session, rid, error)
        except OSError as error:
            stderr_log.fault("in a question", error)
            self._send(session, rid, OperationError(messages.INTERNAL_FAULT(error=repr(error))))


def pages(answer: object) -> Iterator[str]:
    """JSON in pieces that fit a packet.

    It is plain ASCII, with `%` in its JSON escape, so that the wire's encoding adds no byte.
    """
    text = answer if isinstance(answer, JsonText) else json.dumps(answer, separators=(",", ":"))
    text = text.replace("%", "\\u0025")
    for start in range(0, len(text), PART_BYTES):
        yield text[start : start + PART_BYTES]
