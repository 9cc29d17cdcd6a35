"""Envs whose ledger must be found again after a restart, and the grants that wait for it.

Knows: where a ledger may come from and how long to wait. Must not know: what a grant means.

Most often a living process shows the ledger and nothing waits. Where none does (descriptors closed and no right to look at
mappings), the first REJOIN brings it; after `timeout_s` it is lost, and its env begins with a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nodemgr.core.effects import SendGrant
from nodemgr.core.model import Transport
from nodemgr.edge.ledgers import LedgerFiles, Ledgers
from nodemgr.edge.sessions import Session

WAITING_LINE = "the manager was restarted and waits for the memory ledger of {env} to come back with its running tasks"


@dataclass(slots=True)
class _Pending:
    files: LedgerFiles
    timer: asyncio.TimerHandle
    grants: list[SendGrant] = field(default_factory=list)


class Recovery:
    """Which ledgers are still missing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledgers: Ledgers,
        on_ready: Callable[[str, list[SendGrant]], None],
        on_lost: Callable[[str, list[SendGrant]], None],
    ) -> None:
        """Both are called in the loop, between steps, with the grants that were held back."""
        self._loop = loop
        self._ledgers = ledgers
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._pending: dict[str, _Pending] = {}

    def begin(self, env: str, files: LedgerFiles, pids: Iterable[int], timeout_s: float) -> None:
        """At the start: takes the ledger from a process, or waits for one to bring it."""
        if self._ledgers.adopt_from_processes(env, files, pids):
            self._on_ready(env, [])
        else:
            self._pending[env] = _Pending(files, self._loop.call_later(timeout_s, self._lost, env))

    def is_pending(self, env: str) -> bool:
        return env in self._pending

    def offer(self, env: str, fds: list[int]) -> list[int]:
        """Descriptors that came with REJOIN; returns those that nobody took."""
        pending = self._pending.get(env)
        if pending is None or not fds:
            return fds
        if self._ledgers.adopt(env, pending.files, fds):
            del self._pending[env]
            pending.timer.cancel()
            self._on_ready(env, pending.grants)
        return []

    def holds_back(self, session: Session, grant: SendGrant) -> bool:
        """True: the grant is kept until the ledger is there, and its asker told so."""
        pending = self._pending.get(grant.env)
        if pending is None or session.transport is not Transport.UNIX:
            return False
        pending.grants.append(grant)
        session.answer("WAIT", rid=int(grant.rid), position=1, reason=WAITING_LINE.format(env=grant.env))
        return True

    def give_up(self, env: str) -> None:
        """Nobody is left who could bring it."""
        pending = self._pending.pop(env, None)
        if pending is not None:
            pending.timer.cancel()

    def _lost(self, env: str) -> None:
        self._on_lost(env, self._pending.pop(env).grants)

    @staticmethod
    def close_all(fds: Iterable[int]) -> None:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
