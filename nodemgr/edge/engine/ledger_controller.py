"""The ledgers' side of the engine: effects on ledgers, and their recovery after a restart.

Knows: the effects on ledgers, the sources of a ledger after a restart, the timeout. Must not know:
the memory of a ledger (edge/ledger), the reason for a limit.

After a restart, the service manager has usually kept the ledger, or it is found in a living
process, and nothing waits. Otherwise (descriptors closed, no right to read mappings) the first
REJOIN brings it. Grants are held back until then. After the timeout the ledger is lost, and its env
begins with a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nodemgr.core.model import effects, events
from nodemgr.core.model.effects import SendGrant
from nodemgr.core.model.entities import Process, ProcessKey, TaskState, Transport, Uuid
from nodemgr.core.state import members
from nodemgr.core.state.node_state import State
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.host import stderr_log
from nodemgr.edge.ledger.native_ledger import SlotHold, SlotState
from nodemgr.edge.ledger.registry import HOLDS, Cap, LedgerFiles, LedgerRow, Ledgers, Slot

LEDGER_META = "ledger:"
"""Prefix of the store's key for an env's ledger files; the env's name follows."""
SLOT_STATES = {"live": SlotState.LIVE, "stalled": SlotState.STALLED, "fenced": SlotState.FENCED}
RELEASED_BY = "the manager, which lost the memory ledger when it was restarted"


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
    """A ledger that is still missing after a restart."""

    files: LedgerFiles
    timer: asyncio.TimerHandle
    grants: list[SendGrant] = field(default_factory=list)


class LedgerController:
    """Carries out effects on ledgers, and recovers the ledgers of an earlier manager."""

    def __init__(
        self,
        base: Foundation,
        engine: StepEngine,
        ledgers: Ledgers,
        older_limits: OlderLimits,
        send_grant: Callable[[SendGrant], None],
        refresh: Callable[[str], None],
        limits_changed: Callable[[], None],
    ) -> None:
        """`send_grant` answers a client whose grant was held back.

        `refresh` writes an env's client.conf again: its clients need not send the ledger any more.
        `limits_changed`: the
        driver's own limits follow at the end of the step.
        """
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._journal, self._engine = base.journal, engine
        self._ledgers, self._older_limits = ledgers, older_limits
        self._send_grant, self._refresh = send_grant, refresh
        self._limits_changed = limits_changed
        self._pending: dict[str, _Pending] = {}
        self._earlier: set[ProcessKey] = set()
        """The processes that held leases under the manager before this one."""
        self._claimed: list[effects.SetCap] = []
        """Caps of the step under way, which are in their ledgers before it is stored."""

    # -- effects --

    def handlers(self) -> Handlers:
        return {
            effects.OpenLedger: self._open,
            effects.CloseLedger: self._close,
            effects.SetLimit: self._set_limit,
            effects.LowerLimit: self._lower_limit,
            effects.SetCap: self._set_cap,
            effects.DropCap: self._drop_cap,
            effects.BeginSlot: self._begin_slot,
            effects.SetSlot: self._set_slot,
            effects.ClearSlot: self._clear_slot,
        }

    def facts(self, planned: Iterable[effects.Effect]) -> Mapping[str, str | None]:
        """The store's facts about the ledgers that a step opens and closes.

        They are part of its commit, because a second one would delay the client.
        """
        facts: dict[str, str | None] = {}
        for effect in planned:
            if type(effect) is effects.CloseLedger:
                facts[LEDGER_META + effect.env] = None
            elif type(effect) is effects.OpenLedger and effect.env not in self._pending:
                files = self._ledgers.prepare(effect.env)
                if files is not None:
                    facts[LEDGER_META + effect.env] = files.to_json()
        return facts

    def claim(self, planned: Iterable[effects.Effect]) -> Collection[tuple[str, Uuid]]:
        """Keeps memory for the new tasks of a step before it is stored.

        Others may have allocated since the step's figures were read. Returns the grants that have
        no room for it; then nothing is kept.
        """
        limits: dict[tuple[str, int], int] = {}
        self._claimed = []
        for effect in planned:
            if type(effect) is effects.SetLimit:
                limits[effect.env, effect.row] = effect.limit_bytes
            elif type(effect) is effects.SetCap and not self._was_there(effect.task_id):
                self._claimed.append(effect)
                self._set_cap(effect)
        short = {
            (cap.env, uuid)
            for cap in self._claimed
            for uuid, gpu in self._state.gpus.items()
            if gpu.index in cap.rows
            and not self._ledgers.has_room(cap.env, gpu.index, limits.get((cap.env, gpu.index)))
        }
        if short:
            self._drop_claimed()
        return short

    def _was_there(self, task_id: str) -> bool:
        """Whether the task held its lease before this step."""
        return self._state.tasks.before(task_id) is not None

    def refused(self) -> None:
        """The store refused the step."""
        self._drop_claimed()
        self._ledgers.drop_prepared()

    def _drop_claimed(self) -> None:
        claimed, self._claimed = self._claimed, []
        for cap in claimed:
            self._ledgers.drop_cap(cap.env, cap.task_id)

    def _open(self, effect: effects.OpenLedger) -> None:
        if effect.env not in self._pending:
            self._ledgers.open(effect.env)
            self._loop.call_soon(self._ledgers.make_spare)

    def _close(self, effect: effects.CloseLedger) -> None:
        """No process that could bring a missing ledger is left, so the wait for it ends, too."""
        pending = self._pending.pop(effect.env, None)
        if pending is not None:
            pending.timer.cancel()
        self._ledgers.close(effect.env)

    def _set_limit(self, effect: effects.SetLimit) -> None:
        self._limits_changed()
        self._ledgers.set_limit(
            effect.env, LedgerRow(effect.row, effect.uuid, effect.total_bytes, effect.limit_bytes)
        )

    def _lower_limit(self, effect: effects.LowerLimit) -> None:
        """Processes that have not come back since a restart may use the earlier limit."""
        env, uuid = effect.env, effect.uuid
        limit_bytes: int | None = None
        try:
            least_bytes = max(effect.least_bytes, self._older_limits.of_env(env, uuid))
            limit_bytes = self._ledgers.lower_limit(env, effect.row, least_bytes)
        finally:
            answer = events.LimitLowered(
                env, uuid, effect.number, limit_bytes, self._clock.wall_ns()
            )
            self._loop.call_soon(self._engine.submit, answer)

    def _set_cap(self, effect: effects.SetCap) -> None:
        cap = Cap(effect.task_id, effect.rows, effect.kept_bytes, effect.most_bytes)
        self._ledgers.set_cap(effect.env, cap)

    def _drop_cap(self, effect: effects.DropCap) -> None:
        self._ledgers.drop_cap(effect.env, effect.task_id)

    def _begin_slot(self, effect: effects.BeginSlot) -> None:
        slot = Slot(effect.slot, effect.generation, SlotState.LIVE, effect.capped)
        self._ledgers.begin_slot(effect.env, slot)

    def _set_slot(self, effect: effects.SetSlot) -> None:
        state = SLOT_STATES[effect.state]
        self._ledgers.set_slot(
            effect.env, Slot(effect.slot, effect.generation, state, effect.capped)
        )

    def _clear_slot(self, effect: effects.ClearSlot) -> None:
        self._ledgers.clear_slot(effect.env, effect.slot, effect.generation)

    # -- for clients --

    def unkept_by(self, env: str) -> Mapping[Uuid, int]:
        """Bytes that the env's processes hold on each GPU beyond what is kept for their tasks."""
        gpus = self._state.gpus.items()
        return {uuid: self._ledgers.unkept(env, gpu.index) for uuid, gpu in gpus}

    def files_of(self, env: str) -> tuple[int, ...]:
        """The descriptors of the env's ledger, for a client on the UNIX socket."""
        if env not in self._ledgers:
            # it could not be made in time: no descriptor was free
            self._engine.apply_stored()
            self._ledgers.open(env)
            self._ready(env, [])
        ledger = self._ledgers.get(env)
        return ledger.fds if ledger is not None else ()

    def is_pending(self, env: str) -> bool:
        """Whether the env's ledger is still missing after a restart."""
        return env in self._pending

    def offer(self, env: str, fds: list[int]) -> list[int]:
        """Takes the descriptors of a REJOIN. Returns them if the env's ledger is not missing."""
        pending = self._pending.get(env)
        if pending is None or not fds:
            return fds
        if self._ledgers.adopt(env, pending.files, fds):
            del self._pending[env]
            pending.timer.cancel()
            self._ready(env, pending.grants)
        return []

    def holds_back(self, session: Session, grant: SendGrant) -> bool:
        """True if the grant is kept until the ledger is found; the client is then sent a WAIT."""
        pending = self._pending.get(grant.task.env)
        if pending is None or session.transport is not Transport.UNIX:
            return False
        pending.grants.append(grant)
        session.answer(
            "WAIT",
            rid=int(grant.rid),
            position=1,
            reason=f"the manager was restarted and waits for the memory ledger of {grant.task.env} "
            "to come back with its running tasks",
        )
        return True

    # -- after a restart --

    def recover(self, gone: set[ProcessKey]) -> None:
        """Recover or replace the ledger of each env with living processes.

        Only processes on the UNIX socket count.
        """
        files = self._stored_files()
        living: dict[str, list[int]] = {}
        having = set()
        for process in self._state.processes.values():
            if process.slot is not None and process.pid is not None and process.key not in gone:
                living.setdefault(process.env, []).append(process.pid)
                if not process.starts:  # else it has become a program that maps no ledger yet
                    having.add(process.env)
        holders = [
            p
            for p in self._state.processes.values()
            if p.slot is not None and not p.fenced and p.key not in gone
        ]
        self._earlier = {process.key for process in holders}
        self._older_limits.begin(holders)
        for env, pids in living.items():
            if env in files and env in having:
                self._recover_one(env, files[env], pids)
            else:  # killed between lease and ledger, or before a use of CUDA: no client has either
                self._ledgers.open(env)
                self._ready(env, [])
        for env in files.keys() - living.keys():
            self._journal.remember(LEDGER_META + env, None)
        self._ledgers.refuse_rest()

    def _stored_files(self) -> dict[str, LedgerFiles]:
        prefix = len(LEDGER_META)
        return {
            key[prefix:]: LedgerFiles.from_json(text)
            for key, text in self._journal.meta().items()
            if key.startswith(LEDGER_META)
        }

    def _recover_one(self, env: str, files: LedgerFiles, pids: Iterable[int]) -> None:
        """Takes the ledger from the service manager or a process; else waits for a REJOIN."""
        if self._ledgers.adopt_stored(env, files) or self._ledgers.adopt_from_processes(
            env, files, pids
        ):
            self._ready(env, [])
        else:
            timeout_s = self._state.config.timeout_ms / 1_000
            self._pending[env] = _Pending(files, self._loop.call_later(timeout_s, self._lost, env))

    def _ready(self, env: str, grants: list[SendGrant]) -> None:
        state = self._state
        rows = [
            LedgerRow(
                state.gpus[uuid].index, uuid, state.gpus[uuid].memory_total_bytes, grant.limit_bytes
            )
            for (owner, uuid), grant in state.grants.items()
            if owner == env
        ]
        slots = [
            Slot(p.slot, p.generation, self._slot_state(p), self._capped(p), self._hold(p))
            for p in state.processes.values()
            if p.env == env and p.slot is not None
        ]
        caps = [
            Cap(
                task.task_id,
                tuple([state.gpus[uuid].index for uuid in task.gpus]),
                task.kept_bytes,
                task.cap_bytes,
            )
            for task in state.tasks.values()
            if task.env == env and task.kept_bytes
        ]
        self._ledgers.rebuild(env, rows, slots, caps)
        self._loop.call_soon(self._refresh, env)
        for grant in grants:
            self._send_grant(grant)

    def _slot_state(self, process: Process) -> SlotState:
        if process.fenced:
            return SlotState.FENCED
        stalled = self._state.tasks[process.task_id].state is TaskState.STALLED
        return SlotState.STALLED if stalled else SlotState.LIVE

    def _capped(self, process: Process) -> str:
        return "" if process.fenced else members.capped(self._state.tasks[process.task_id])

    def _hold(self, process: Process) -> SlotHold:
        if process.fenced:  # its task may have ended
            return SlotHold.NONE
        return HOLDS[self._state.tasks[process.task_id].suspension]

    def _lost(self, env: str) -> None:
        """No process sent the ledger.

        Its tasks are fenced, because nothing can enforce their grants. A process that came back
        gets the new one, unless it is of a version with another layout.
        """
        grants = self._pending.pop(env).grants
        stderr_log.say(
            f"the memory ledger of env {env} is lost: its running tasks are fenced, new ones begin "
            "with a new ledger",
            "start its tasks again",
        )
        unheard = {grant.process.key for grant in grants}
        if env in self._ledgers.of_other_layouts:
            unheard -= self._earlier
        members = (
            p
            for p in self._state.processes.values()
            if p.env == env and p.slot is not None and not p.fenced
        )
        lost = {member.task_id for member in members if member.key not in unheard}
        self._ledgers.open(env)
        self._ready(env, [grant for grant in grants if grant.task.task_id not in lost])
        for task_id in lost:
            self._engine.submit(events.ReleaseTask(task_id, RELEASED_BY, self._clock.wall_ns()))
