"""The head's own socket: orders of administrators, as a node's manager takes them.

Knows: which packets are orders. Must not know: a verb.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nodemgr.core.model.entities import ConnectionId, ProcessKey
from nodemgr.edge.api.client_verbs import Questions
from nodemgr.edge.api.verb_table import Speaker, VerbRow
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.client_sessions import ADMINS, Session
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.host import rundir
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.kernel.processes import Credentials, Identity, ProcessTable
from nodemgr.edge.rpc.operation import OperationError, Reply
from nodemgr.edge.rpc.wire import Fields
from nodemgr.messages import orders as messages

MAX_CONNECTIONS = 1_000

BeginOrder = Callable[[str, str, dict[str, Any], Reply], None]
"""Carries an order of this administrator out: (who, verb, arguments), and calls the last."""


class ControlSocket:
    """The socket, in the loop. The Hub of its transport."""

    rows: MappingProxyType[str, VerbRow] = MappingProxyType({})
    """The head's verbs take no questions in words."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        selector: SwallowingSelector,
        clock: Clock,
        path: Path,
        group: str,
        begin: BeginOrder,
    ) -> None:
        """Raises OSError where the socket cannot be bound."""
        self.loop, self.clock, self._begin = loop, clock, begin
        self.last_beat_ns: dict[ProcessKey, int] = {}
        self.counters: Counter[str] = Counter()
        self._sessions: set[Session] = set()
        self._numbers = itertools.count(1)
        self._questions = Questions(self, self)
        self._processes = ProcessTable(loop)
        self._server = ClientServer(loop, selector, self, self._processes, clock, MAX_CONNECTIONS)
        self._server.open(
            ADMINS, path, for_all=True, let_in=lambda path: rundir.give_to_group(path, group)
        )

    def close(self) -> None:
        self._server.close_all()
        self._processes.close()

    # -- the Hub of the transport --

    def next_connection(self) -> ConnectionId:
        return next(self._numbers)

    def opened(self, session: Session) -> None:
        self._sessions.add(session)

    def closed(self, session: Session) -> None:
        self._sessions.discard(session)
        self._questions.closed(session)

    def received(self, session: Session, verb: str, fields: Fields, fds: list[int]) -> None:
        close_all(fds)
        if verb == "ASK":
            self._questions.received(session, fields)

    def may_enter(self, _env: str, _who: Identity | Credentials) -> bool:
        return True

    def entitled(self, _env: str) -> tuple[frozenset[int], frozenset[int]]:
        return frozenset(), frozenset()

    def expects_files(self, _env: str) -> bool:
        return False

    # -- the host and the orders of Questions --

    def knows(self, session: Session) -> bool:
        return session in self._sessions

    def container_of(self, _session: Session) -> str:
        return ""

    def begin(
        self,
        caller: Speaker,
        name: str,
        given: Any,
        reply: Reply,
        _in_turn: Callable[[Callable[[], None]], None],
        *,
        has_turn: bool,
    ) -> None:
        if isinstance(given, dict):
            self._begin(caller.name, name, given, reply)
        else:
            reply(OperationError(messages.ARGUMENTS_NOT_OBJECT()))
