"""The questions and orders of an env over its clients' way.

These are its part of the status, its release, its jobs, its doctor.

Knows: the verbs of ASK, how an answer is cut into packets. Must not know: transports, frames, the
meaning of a figure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodemgr.core.model.entities import Transport
from nodemgr.edge.api.output_reads import LOG_READ_NS
from nodemgr.edge.api.release_names import release
from nodemgr.edge.api.views import Views
from nodemgr.edge.clients.client_sessions import ASK_NS, Session
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import FileReply, JsonText, Later, OperationError, parse
from nodemgr.edge.rpc.shared_buffers import SHEET_BYTES, SheetRange, Sheets
from nodemgr.edge.rpc.turns import InTurn, Work, in_turns
from nodemgr.edge.store.database import StoreFailed
from nodemgr.messages import orders as messages

PART_BYTES = 960
"""Bytes of an answer in one packet; the rest is for its head and, over UDP, the MAC."""
MAX_PARTS = 4_000
PARTS_IN_TURN = Units.PART.within()
"""The packets of an answer in one turn of the loop."""
MAX_RECORDS = 2_000
"""The most records of an env's past, the last ones: they fit the parts and take some 20 ms."""
NEED_NO_READING = frozenset({"release", "resume", "keep", "holdings", "sheet", "order", "figures"})
"""They use the last reading of NVML, or ask for their own."""
FIGURED = frozenset({"status", "figures"})
"""They show the figures of GPUs and tasks."""
AT_ONCE = frozenset({"release", "holdings", "sheet"})
"""The others wait their turn."""
MAX_FILES = 8
"""Descriptors that one connection may be sent: an unread one stays open in the socket."""

VERB_NS = {"job_submit": 0, "job_log_read": LOG_READ_NS}
"""The cost of an order beyond that of its packet; of any other it is ASK_NS."""
READ_NS = 10
"""The cost of each byte of an order for its env: a full sheet of JSON takes some 10 ms to read."""

Ordered = Callable[[Session, str, object], Any]
"""Carries an order out: (session, verb, arguments as given). Raises OperationError."""


class Questions:
    """Answers ASK."""

    def __init__(self, daemon: Daemon, views: Views, ordered: Ordered) -> None:
        self._daemon = daemon
        self._views = views
        self._ordered = ordered
        self._waiting: InTurn[tuple[Session, Mapping[str, Any]]] = InTurn()
        self._sheets = Sheets()
        self._files: dict[int, int] = {}
        """By connection: how many descriptors it was sent."""
        self._kinds: dict[str, Callable[[Session, Mapping[str, Any]], Any]] = {
            "status": lambda session, _: self._views.status(session.env),
            "figures": lambda session, _: self._views.figures(session.env),
            "holdings": lambda session, _: self._views.holdings(session.env),
            "doctor": lambda session, _: {
                "schema_version": 1,
                "checks": self._views.env_checks(session.env, session.pid),
            },
            "allocations": lambda session, _: self._views.allocations(session.env, 0, MAX_RECORDS),
            "release": lambda session, fields: release(
                daemon, fields.get("argument", ""), session.user, session.env
            ),
            "resume": lambda session, fields: self._ordered(
                session, "task_resume", {"task": fields.get("argument", "")}
            ),
            "keep": self._keep,
            "sheet": self._sheet,
            "order": self._order,
        }

    def received(self, session: Session, fields: Mapping[str, Any]) -> None:
        """One question; the answer comes when what it shows is fresh.

        All waiting is before the queue of questions: there each has a turn of its own.
        """
        what = fields["what"]
        if what in AT_ONCE:
            self._answer(session, fields)
            return

        def enqueue() -> None:
            self._enqueue(session, fields)

        def begin() -> None:
            if what in FIGURED:
                self._views.when_figures(enqueue)
            else:
                enqueue()

        if what in NEED_NO_READING:
            begin()
        elif what == "doctor":
            self._daemon.node.when_audited(begin, reuse=True)
        else:
            self._daemon.node.when_fresh(begin)

    def closed(self, session: Session) -> None:
        """Forgets a connection that has closed."""
        self._sheets.forget(session.connection)
        self._files.pop(session.connection, None)

    def _enqueue(self, session: Session, fields: Mapping[str, Any]) -> None:
        self._waiting.add(session.env, (session, fields))
        if len(self._waiting) == 1:
            self._daemon.loop.call_soon(self._answer_next)

    def _answer_next(self) -> None:
        """Answer one question in each turn of the loop, of each environment in turn.

        A thousand questions at once delay no beats of others, and no question of another.
        """
        clock, began_ns = self._daemon.clock, self._daemon.clock.monotonic_ns()
        session, fields = self._waiting.take()
        if self._daemon.hub.knows(session):
            self._answer(session, fields)
            session.took(clock.monotonic_ns() - began_ns)
        if self._waiting:
            self._daemon.loop.call_soon(self._answer_next)

    def _answer(self, session: Session, fields: Mapping[str, Any]) -> None:
        try:
            kind = self._kinds.get(fields["what"])
            if kind is None:
                raise OperationError(
                    messages.UNKNOWN_QUESTION(
                        question=fields["what"][:40], known=", ".join(sorted(self._kinds))
                    )
                )
            answer = kind(session, fields)
            if isinstance(answer, Later):
                answer.begin(lambda result: self._send(session, fields["rid"], result))
                return
        except OperationError as error:
            answer = error
        except StoreFailed as error:
            answer = OperationError(messages.STORE_FAILED(fault=error))
        except Exception as error:  # an answer is owed in any case
            stderr_log.fault("in a question", error)
            answer = OperationError(messages.INTERNAL_FAULT(error=repr(error)))
        self._send(session, fields["rid"], answer)

    def _send(self, session: Session, rid: int, answer: Any) -> None:
        """Sends an answer; if its client has gone, the answer is dropped."""
        if isinstance(answer, FileReply):
            self._send_file(session, rid, answer)
            return
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

    def _send_file(self, session: Session, rid: int, file: FileReply) -> None:
        """A short answer: it fits one packet."""
        try:
            if session.transport is not Transport.UNIX:
                raise OperationError(messages.NO_FILE_OVER_UDP())
            sent = self._files[session.connection] = self._files.get(session.connection, 0) + 1
            if sent > MAX_FILES:
                raise OperationError(messages.MANY_FILES(limit=MAX_FILES))
            session.answer(
                "PART",
                (file.descriptor,),
                rid=rid,
                index=0,
                count=1,
                data="".join(pages(file.answer)),
            )
        except OperationError as error:
            self._send(session, rid, error)
        finally:
            os.close(file.descriptor)

    def _sheet(self, session: Session, _fields: Mapping[str, Any]) -> FileReply:
        sheet = self._sheets.lend(session.connection, session.env)
        return FileReply({"sheet_bytes": SHEET_BYTES}, os.dup(sheet))

    def _order(self, session: Session, fields: Mapping[str, Any]) -> Any:
        """An order in the packet, or on the connection's sheet at the range of the argument."""
        argument: str | None = fields.get("argument")
        if argument is None:
            body: bytes | str = self._sheets.take(session.connection)
        elif (place := SheetRange.parse(argument)) is not None:
            body = self._sheets.read(session.connection, place)
        else:
            body = argument
        session.spend(len(body) * READ_NS)
        verb, arguments = parse(body)
        session.spend(VERB_NS.get(verb, ASK_NS))
        return self._ordered(session, verb, arguments)

    def _keep(self, session: Session, fields: Mapping[str, Any]) -> Any:
        """`t17 7200000`: the task and milliseconds."""
        task, _, for_ms = fields.get("argument", "").partition(" ")
        number = int(for_ms) if for_ms.isascii() and for_ms.isdecimal() else 0
        return self._ordered(session, "task_keep", {"task": task, "for_ms": number})


def pages(answer: object) -> Iterator[str]:
    """JSON in pieces that fit a packet.

    It is plain ASCII, with `%` in its JSON escape, so that the wire's encoding adds no byte.
    """
    text = answer if isinstance(answer, JsonText) else json.dumps(answer, separators=(",", ":"))
    text = text.replace("%", "\\u0025")
    for start in range(0, len(text), PART_BYTES):
        yield text[start : start + PART_BYTES]
