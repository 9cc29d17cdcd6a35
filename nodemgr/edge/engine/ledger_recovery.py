"""Recovers the ledgers of envs after a restart, and holds back the grants that wait for them.

Knows: the sources of a ledger and the timeout. Must not know: the meaning of a grant.

Usually the service manager has kept the ledger, or it is found in a living process, and nothing
waits. Otherwise (descriptors closed, no right to read mappings) the first REJOIN brings it. After
`timeout_s` the ledger is lost, and its env begins with a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nodemgr.core.model.effects import SendGrant
from nodemgr.core.model.entities import Process, ProcessKey, Transport, Uuid
from nodemgr.core.state.node_state import State
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.ledger.registry import LedgerFiles, Ledgers

WAITING_LINE = (
    "the manager was restarted and waits for the memory ledger of {env} to come back with its"
    " running tasks"
)


class OlderLimits:
    """Limits of an earlier manager that processes may still use.

    A process that was stopped during the restart uses the old limits file, in which its lease is
    still live, until its thread sees the end of the connection and rejoins. So the memory that this
    file allows counts as used until the process rejoins or is dead.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._unheard: set[ProcessKey] = set()
        self._limits: dict[tuple[str, Uuid], int] = {}

    def begin(self, members: Iterable[Process]) -> None:
        """At the start: take the processes with leases, and the earlier manager's limits."""
        self._unheard = {member.key for member in members}
        self._limits = {key: grant.limit_bytes for key, grant in self._state.grants.items()}

    def of_process(self, key: ProcessKey, uuid: Uuid) -> int:
        """The bytes of the env's limit that this process may still use.

        0 if it has rejoined or is dead.
        """
        member = self._state.processes.get(key)
        if key not in self._unheard or member is None or key in self._state.connections:
            self._unheard.discard(key)
            return 0
        return self._limits.get((member.env, uuid), 0)

    def of_env(self, env: str, uuid: Uuid) -> int:
        """The largest `of_process` of the env's processes."""
        believers = [
            key
            for key in self._unheard
            if (member := self._state.processes.get(key)) is None or member.env == env
        ]
        return max((self.of_process(key, uuid) for key in believers), default=0)


@dataclass(slots=True)
class _Pending:
    files: LedgerFiles
    timer: asyncio.TimerHandle
    grants: list[SendGrant] = field(default_factory=list)


class Recovery:
    """Tracks the ledgers that are still missing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledgers: Ledgers,
        on_ready: Callable[[str, list[SendGrant]], None],
        on_lost: Callable[[str, list[SendGrant]], None],
    ) -> None:
        """Both callbacks run in the loop, between steps, with the held-back grants."""
        self._loop = loop
        self._ledgers = ledgers
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._pending: dict[str, _Pending] = {}

    def begin(self, env: str, files: LedgerFiles, pids: Iterable[int], timeout_s: float) -> None:
        """At the start: take the ledger from the service manager or a process.

        Else wait for a REJOIN.
        """
        if self._ledgers.adopt_stored(env, files) or self._ledgers.adopt_from_processes(
            env, files, pids
        ):
            self._on_ready(env, [])
        else:
            self._pending[env] = _Pending(files, self._loop.call_later(timeout_s, self._lost, env))

    def is_pending(self, env: str) -> bool:
        return env in self._pending

    def offer(self, env: str, fds: list[int]) -> list[int]:
        """Takes the descriptors of a REJOIN. Returns them if the env's ledger is not missing."""
        pending = self._pending.get(env)
        if pending is None or not fds:
            return fds
        if self._ledgers.adopt(env, pending.files, fds):
            del self._pending[env]
            pending.timer.cancel()
            self._on_ready(env, pending.grants)
        return []

    def holds_back(self, session: Session, grant: SendGrant) -> bool:
        """True if the grant is kept until the ledger is found; the client is then sent a WAIT."""
        pending = self._pending.get(grant.task.env)
        if pending is None or session.transport is not Transport.UNIX:
            return False
        pending.grants.append(grant)
        session.answer(
            "WAIT", rid=int(grant.rid), position=1, reason=WAITING_LINE.format(env=grant.task.env)
        )
        return True

    def give_up(self, env: str) -> None:
        """Stops the wait: no process that could bring the ledger is left."""
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
