"""A hub that only writes down what the transports tell it, in a loop that the test turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from nodemgr.core.model.entities import ConnectionId, ProcessKey
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.kernel.processes import Credentials, Identity
from nodemgr.edge.rpc.wire import Fields
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet


class StubHub:
    def __init__(self) -> None:
        self.last_beat_ns: dict[ProcessKey, int] = {}
        self.counters: Counter[str] = Counter()
        self.messages: list[tuple[Session, Packet, list[int]]] = []
        self.sessions: list[Session] = []
        self.files_expected = False
        self.ended: list[Session] = []
        self.allowed: Callable[[str, Identity | Credentials], bool] = lambda env, who: True
        self.entitled_ids: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self.on_message: Callable[[Session, Packet], None] = lambda session, message: None

    def next_connection(self) -> ConnectionId:
        return len(self.sessions) + 1

    def opened(self, session: Session) -> None:
        self.sessions.append(session)

    def received(self, session: Session, verb: str, fields: Fields, fds: list[int]) -> None:
        message = Packet(verb, fields)
        self.messages.append((session, message, fds))
        self.on_message(session, message)

    def closed(self, session: Session) -> None:
        self.ended.append(session)

    def may_enter(self, env: str, who: Identity | Credentials) -> bool:
        return self.allowed(env, who)

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        return self.entitled_ids

    def expects_files(self, env: str) -> bool:
        return self.files_expected

    def verbs(self) -> list[str]:
        return [message.verb for _, message, _ in self.messages]


def turn(
    loop: asyncio.AbstractEventLoop, until: Callable[[], object], timeout_s: float = WAIT_LIMIT_S
) -> None:
    """Runs the loop until something holds; fails where it never does."""

    async def wait() -> None:
        async with asyncio.timeout(timeout_s):
            while not until():
                await asyncio.sleep(0.001)

    loop.run_until_complete(wait())


def settle(loop: asyncio.AbstractEventLoop, rounds: int = 5) -> None:
    """Runs what is ready now, and what that makes ready."""

    async def some_rounds() -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    loop.run_until_complete(some_rounds())
