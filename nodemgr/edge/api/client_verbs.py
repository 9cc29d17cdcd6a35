"""The questions and orders of an env over its clients' way.

Knows: the forms of ASK, how an answer is cut into packets. Must not know: transports, the meaning
of a verb.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Transport
from nodemgr.edge.api.verb_table import ADMIN, ENV, Speaker, VerbRow
from nodemgr.edge.api.views import internal_fault
from nodemgr.edge.clients.client_server import Connection
from nodemgr.edge.clients.client_sessions import ADMINS, ASK_NS, PAGES, Session
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import (
    GivenOrder,
    JsonText,
    OperationError,
    Reply,
    parse,
    parse_in_turns,
)
from nodemgr.edge.rpc.shared_buffers import SHEET_BYTES, SheetRange, Sheets
from nodemgr.edge.rpc.turns import InTurn, Work, in_turns
from nodemgr.messages import orders as messages

PART_BYTES = 960
"""Bytes of an answer in one packet; the rest is for its head and, over UDP, the MAC."""
LONG_PART_BYTES = 60_000
"""The same for administrators and the web page, whose clients read longer packets."""
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


class Host(Protocol):
    """The part of a daemon that this needs."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def clock(self) -> Clock: ...

    def knows(self, session: Session) -> bool:
        """Whether the session is open."""
        ...

    def container_of(self, session: Session) -> str:
        """The container of its process; empty: none."""
        ...


class Orders(Protocol):
    """The part of a table of verbs that this needs."""

    @property
    def rows(self) -> Mapping[str, VerbRow]: ...

    def begin(
        self,
        caller: Speaker,
        name: str,
        given: Any,
        reply: Reply,
        in_turn: Callable[[Callable[[], None]], None],
        *,
        has_turn: bool,
    ) -> None: ...


class Questions:
    """Answers ASK: `what` is a verb, or an order in JSON."""

    def __init__(
        self, host: Host, verbs: Orders, viewer: Callable[[object], Speaker] | None = None
    ) -> None:
        """`viewer`: whom an order of the page process is by; it raises OperationError."""
        self._host = host
        self._verbs = verbs
        self._viewer = viewer
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
        session.owes(1)
        if what == "sheet":
            self._lend(session, fields["rid"])
        elif what == "order":
            self._enqueue(session, partial(self._order, session, fields))
        else:
            verb = SHORT.get(what, what)
            order = GivenOrder(verb, self._given(verb, fields.get("argument", "")), None)
            self._begin(session, fields["rid"], order, has_turn=what in AT_ONCE)

    def _given(self, verb: str, argument: str) -> dict[str, object]:
        """`t17 7200000`: the arguments of the row in their order."""
        row = self._verbs.rows.get(verb)
        words = argument.split(" ") if argument else ()
        return {
            name: int(word) if word.isascii() and word.isdecimal() else word
            for name, word in zip(() if row is None else row.arguments, words, strict=False)
        }

    def _begin(self, session: Session, rid: int, order: GivenOrder, *, has_turn: bool) -> None:
        reply, in_turn = partial(self._send, session, rid), partial(self._enqueue, session)
        try:
            caller = self._caller(session, order.by)
        except OperationError as error:
            reply(error)
        else:
            self._verbs.begin(caller, order.verb, order.given, reply, in_turn, has_turn=has_turn)

    def _caller(self, session: Session, by: object) -> Speaker:
        """The user as the kernel identifies it, or the web page's viewer. Raises OperationError."""
        name = session.user
        if session.env == PAGES:
            assert self._viewer is not None
            return self._viewer(by)
        if session.env == ADMINS and isinstance(session, Connection):
            identity = session.identity
            return Speaker(ADMIN, f"{name} (uid {identity.uid})", name, None, caller=identity)
        if isinstance(session, Connection):
            name = f"{name} (uid {session.identity.uid})"
            if session.listener.for_all:
                container = self._host.container_of(session)
                name = f"{name} in container {container}" if container else name
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
            self._host.loop.call_soon(self._work_next)

    def _work_next(self) -> None:
        """Do the work of one question in each turn of the loop, of each environment in turn.

        A thousand questions at once delay no beats of others, and no question of another.
        """
        clock, began_ns = self._host.clock, self._host.clock.monotonic_ns()
        self._is_due = False
        session, work = self._waiting.take()
        self._work_soon()
        if self._host.knows(session):
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
                self._carry_out(session, fields["rid"], parse(body))
                return
        except OperationError as error:
            self._send(session, fields["rid"], error)
            return
        in_turns(
            self._host.loop,
            parse_in_turns(body),
            lambda order: self._carry_out(session, fields["rid"], order),
            lambda error: self._send(session, fields["rid"], internal_fault(error)),
            session.took,
        )

    def _carry_out(self, session: Session, rid: int, order: GivenOrder) -> None:
        row = self._verbs.rows.get(order.verb)
        session.spend(ASK_NS if row is None else row.cost_ns)
        self._begin(session, rid, order, has_turn=True)

    def _send(self, session: Session, rid: int, answer: Any) -> None:
        """Sends an answer; if its client has gone, the answer is dropped."""
        if isinstance(answer, OperationError):
            answer = answer.answer()
        is_long = session.env in (ADMINS, PAGES)
        parts = list(pages(answer, LONG_PART_BYTES if is_long else PART_BYTES))
        if len(parts) > MAX_PARTS:
            line = stated(
                "the answer is too long for this connection",
                "ask for less (--limit, --since), or ask an administrator",
                "refused",
            )
            parts = list(pages({"error": line, "code": line.code}))
        in_turns(
            self._host.loop,
            self._sending(session, rid, parts),
            lambda _: None,
            lambda error: stderr_log.fault("in an answer", error),
        )

    def _sending(self, session: Session, rid: int, parts: list[str]) -> Work[None]:
        clock, began_ns = self._host.clock, self._host.clock.monotonic_ns()
        for index, data in enumerate(parts):
            if index and index % PARTS_IN_TURN == 0:
                session.took(clock.monotonic_ns() - began_ns)
                yield
                began_ns = clock.monotonic_ns()
            if len(data) <= PART_BYTES:
                session.answer("PART", rid=rid, index=index, count=len(parts), data=data)
            elif isinstance(session, Connection):
                head = f"NODEMGR/1 PART\nrid={rid}\nindex={index}\ncount={len(parts)}\ndata="
                session.server.send(session, f"{head}{data}\n".encode())
        session.owes(-1)

    def _lend(self, session: Session, rid: int) -> None:
        """Sends the connection's sheet. A short answer: it fits one packet."""
        try:
            if session.transport is not Transport.UNIX:
                raise OperationError(
                    "this order needs the UNIX socket, since no file can be sent over UDP",
                    "send it from the node or from a container",
                    "refused",
                )
            sheet = self._sheets.lend(session.connection, session.env)
            sent = self._files[session.connection] = self._files.get(session.connection, 0) + 1
            if sent > MAX_FILES:
                raise OperationError(
                    f"this connection was sent {MAX_FILES} files already",
                    "open another connection",
                    "refused",
                )
            data = "".join(pages({"sheet_bytes": SHEET_BYTES}))
            session.answer("PART", (sheet,), rid=rid, index=0, count=1, data=data)
            session.owes(-1)
        except OperationError as error:
            self._send(session, rid, error)
        except OSError as error:
            stderr_log.fault("in a question", error)
            self._send(session, rid, OperationError(messages.INTERNAL_FAULT(error=repr(error))))


def pages(answer: object, part_bytes: int = PART_BYTES) -> Iterator[str]:
    """JSON in pieces that fit a packet.

    It is plain ASCII, with `%` in its JSON escape, so that the wire's encoding adds no byte.
    """
    text = answer if isinstance(answer, JsonText) else json.dumps(answer, separators=(",", ":"))
    text = text.replace("%", "\\u0025")
    for start in range(0, len(text), part_bytes):
        yield text[start : start + part_bytes]
