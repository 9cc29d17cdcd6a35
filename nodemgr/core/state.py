"""What the manager believes, as tables; a Draft of what one step would change in them; the Transition that comes of it.

Knows: which tables there are, which of them are stored, and the sums and indices that follow from their rows.
Must not know: why a row changes (the modules beside manager.py), nor clocks, sockets, files.

A step reads and writes a Draft; the State stays as it is until `State.apply`. All writing of rows goes through the
methods of Draft that are named after them, which keep every index and every sum true, so that a reader never counts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nodemgr.core import books, effects
from nodemgr.core.effects import Effect, Publish, Save
from nodemgr.core.events import Match
from nodemgr.core.model import (
    LEDGER_SLOTS,
    MS,
    Asker,
    Config,
    ConnectionId,
    Env,
    Gpu,
    Grant,
    Process,
    ProcessKey,
    Record,
    Request,
    Residue,
    Task,
    TaskState,
    Transport,
    Uuid,
)
from nodemgr.core.tables import Groups, Overlay
from nodemgr.core.work_queue import WorkQueue

K = TypeVar("K")
EnvGpu = tuple[str, Uuid]
Deadline = tuple[str, str]
"""What is due, and for whom: ("wait", request), ("away", process), ("kill", task)."""

STORED: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("gpu", "gpus", str),
    ("env", "envs", str),
    ("task", "tasks", str),
    ("process", "processes", str),
    ("grant", "grants", "/".join),
    ("request", "requests", str),
    ("residue", "residues", "/".join),
    ("record", "records", str),
    ("counter", "counters", str),
)
"""Each stored table: its kind in the store, its name here, and how a key of it is written."""

FOLLOWING = (
    "connections", "process_of_connection", "away", "reasons", "places", "timers", "agenda",
    "task_of_token", "request_of_token", "request_of", "process_of_pid", "slots", "members",
    "charged", "env_charged", "active", "residue_alive", "residue_dead",
    "stalled", "unsettled", "udp_askers", "wants_figures",
)  # fmt: skip
"""The tables that follow from stored ones, or that a restart forgets."""
GROUPS = ("gpu_tasks", "env_tasks")

IDS = "ids"
GENERATION = "generation"
"""The counters: of tasks and requests together, and of the generations of ledger slots."""


class State:
    """Everything the manager believes. The tables are plain dictionaries, to be read by anybody, written by `apply`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version = 0
        """How many transitions were applied: one made for another version is refused."""
        self.gpus: dict[Uuid, Gpu] = {}
        self.envs: dict[str, Env] = {}
        self.tasks: dict[str, Task] = {}
        self.processes: dict[ProcessKey, Process] = {}
        self.grants: dict[EnvGpu, Grant] = {}
        self.requests: dict[str, Request] = {}
        self.residues: dict[tuple[ProcessKey, Uuid], Residue] = {}
        self.records: dict[str, Record] = {}
        """Of leases that have not ended, by task."""
        self.counters: dict[str, int] = {}

        self.connections: dict[ProcessKey, ConnectionId] = {}
        self.process_of_connection: dict[ConnectionId, ProcessKey] = {}
        self.away: dict[ProcessKey, int] = {}
        """Waiters without a connection, and since when (ns)."""
        self.reasons: dict[str, str] = {}
        """Why a request waits: the line that its askers were told."""
        self.places: dict[str, int] = {}
        """Its position in its queue, as they were told."""
        self.timers: dict[str, int] = {}
        """When (ns) a Tick is needed for what has no row: "silence", "figures"; and "wake", what the edge was told."""
        self.agenda: dict[Deadline, int] = {}
        self.deadlines: list[tuple[int, Deadline]] = []
        """The agenda, earliest first."""

        self.task_of_token: dict[tuple[str, str], str] = {}
        self.request_of_token: dict[tuple[str, str], str] = {}
        self.request_of: dict[ProcessKey, str] = {}
        self.process_of_pid: dict[tuple[str, int], ProcessKey] = {}
        self.slots: dict[str, int] = {}
        """Per env, one bit for each ledger slot that belongs to a process."""
        self.members: dict[str, int] = {}
        """Per env, how many rows of processes it has: its ledger exists while there is one."""
        self.charged: dict[Uuid, int] = {}
        """Bytes of each GPU that are promised to somebody: books.charge over all envs."""
        self.env_charged: dict[str, int] = {}
        self.active: dict[Uuid, int] = {}
        """Tasks on each GPU that are not stalled."""
        self.residue_alive: dict[EnvGpu, int] = {}
        self.residue_dead: dict[EnvGpu, int] = {}
        self.stalled: dict[str, bool] = {}
        self.unsettled: dict[EnvGpu, bool] = {}
        """Grants that are not what the quota says: pending, or waiting for memory to be freed."""
        self.udp_askers: dict[ProcessKey, bool] = {}
        self.wants_figures: dict[str, bool] = {}
        """Requests that wait for memory to become free in their own env's ledger."""
        self.gpu_tasks: dict[Uuid, dict[str, None]] = {}
        self.env_tasks: dict[str, dict[str, None]] = {}
        self.queue = WorkQueue(config.queues)

    @classmethod
    def empty(cls, config: Config) -> State:
        return cls(config)

    @classmethod
    def restore(cls, config: Config, rows: Iterable[tuple[str, str, object]], now_ns: int) -> State:
        """The state of the store's rows (kind, key, dataclass), with every deadline started anew, nobody connected and
        every waiter away. The edge then tells of GPUs (GpusChanged) and of the dead (ProcessGone), and sends Match.
        Raises ValueError for a row of an unknown kind."""
        state = cls(config)
        draft = Draft(state, now_ns)
        order = {kind: place for place, (kind, _, _) in enumerate(STORED)}
        for kind, key, value in sorted(_known(rows), key=lambda row: order[row[0]]):
            _RESTORE[kind](draft, key, value, now_ns)
        draft.restart_timers(now_ns)
        state.apply(draft.finish(must_apply=True))
        state.timers.pop("wake", None)  # nobody was told yet
        return state

    def apply(self, transition: Transition) -> None:
        """Takes the transition over. Raises ValueError if it was made for another state than this one is now."""
        draft = transition.draft
        if draft.state is not self or draft.version != self.version:
            raise ValueError("a transition is applied to the state that it was made for, once")
        self.version += 1
        for deadline, due_ns in draft.agenda.changes.items():
            self._reschedule(deadline, due_ns)
        for request_id, request in draft.requests.changes.items():
            self._requeue(request_id, request)
        for task_id, record in draft.records.changes.items():
            if record is not None and record.ended_wall_ns is not None:
                draft.records.changes[task_id] = None
        for _, name, _ in STORED:
            getattr(draft, name).settle()
        for name in FOLLOWING + GROUPS:
            getattr(draft, name).settle()

    def _reschedule(self, deadline: Deadline, due_ns: int | None) -> None:
        before = self.agenda.get(deadline)
        if before is not None:
            del self.deadlines[bisect_left(self.deadlines, (before, deadline))]
        if due_ns is not None:
            insort(self.deadlines, (due_ns, deadline))

    def _requeue(self, request_id: str, request: Request | None) -> None:
        if request is None:
            if request_id in self.queue:
                self.queue.withdraw(request_id)
        elif request_id not in self.queue:
            self.queue.insert(request.priority, request_id)

    def waiting(self) -> Iterator[tuple[Request, int, str]]:
        """Every waiting request in the order of service, with its position in its queue and why it waits."""
        for name in self.queue.names():
            for position, request_id in enumerate(self.queue.entries(name), 1):
                yield self.requests[request_id], position, self.reasons.get(request_id, "")

    def used_gpus(self, env: str) -> tuple[Uuid, ...]:
        """The healthy GPUs that the env holds through tasks that are not stalled (DESIGN.md, `used`)."""
        return tuple(uuid for uuid in self.gpus if books.is_used(self, env, uuid))

    def remaining_bytes(self, uuid: Uuid) -> int:
        """What of a GPU's memory is promised to nobody."""
        return books.gpu_remaining(self, self.gpus[uuid])

    def env_remaining_bytes(self, env: str) -> int | None:
        """What of an env's memory quota is promised to none of its GPUs; None without a memory quota."""
        return books.env_remaining(self, env)

    def watched(self) -> Iterator[tuple[ProcessKey, int | None]]:
        """The processes whose death and beats matter, with their PIDs."""
        for process in self.processes.values():
            yield process.key, process.pid
        for request in self.requests.values():
            for asker in request.askers:
                if asker.process not in self.processes:
                    yield asker.process, asker.pid

    def watched_grants(self) -> Iterator[Grant]:
        """The grants whose memory figures the next Tick must bring."""
        envs = {self.requests[request_id].env for request_id in self.wants_figures}
        for grant in self.grants.values():
            shrinks = (grant.env, grant.uuid) in self.unsettled and books.target(self, grant) < grant.memory_bytes
            if shrinks or grant.env in envs:
                yield grant

    def rows(self) -> Iterator[tuple[str, str, object]]:
        """What the store should hold: (kind, key, value)."""
        for kind, name, key_text in STORED:
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value


class Draft:
    """A state as one step would leave it. Reads like a State; `finish` makes a Transition of it."""

    def __init__(self, state: State, now_ns: int) -> None:
        self.state = state
        self.now_ns = now_ns
        self.version = state.version
        self.config = state.config
        self.gpus = Overlay(state.gpus)
        self.envs = Overlay(state.envs)
        self.tasks = Overlay(state.tasks)
        self.processes = Overlay(state.processes)
        self.grants = Overlay(state.grants)
        self.requests = Overlay(state.requests)
        self.residues = Overlay(state.residues)
        self.records = Overlay(state.records)
        self.counters = Overlay(state.counters)
        self.connections = Overlay(state.connections)
        self.process_of_connection = Overlay(state.process_of_connection)
        self.away = Overlay(state.away)
        self.reasons = Overlay(state.reasons)
        self.places = Overlay(state.places)
        self.timers = Overlay(state.timers)
        self.agenda = Overlay(state.agenda)
        self.task_of_token = Overlay(state.task_of_token)
        self.request_of_token = Overlay(state.request_of_token)
        self.request_of = Overlay(state.request_of)
        self.process_of_pid = Overlay(state.process_of_pid)
        self.slots = Overlay(state.slots)
        self.members = Overlay(state.members)
        self.charged = Overlay(state.charged)
        self.env_charged = Overlay(state.env_charged)
        self.active = Overlay(state.active)
        self.residue_alive = Overlay(state.residue_alive)
        self.residue_dead = Overlay(state.residue_dead)
        self.stalled = Overlay(state.stalled)
        self.unsettled = Overlay(state.unsettled)
        self.udp_askers = Overlay(state.udp_askers)
        self.wants_figures = Overlay(state.wants_figures)
        self.gpu_tasks = Groups(state.gpu_tasks)
        self.env_tasks = Groups(state.env_tasks)
        self.effects: list[Effect] = []
        self.published: list[Publish] = []
        self.figures: Mapping[EnvGpu, int] = {}
        """Memory in use in each grant, as far as this step was told."""
        self.told = False
        """Whether it follows a Tick, which told all that was waited for: no use in asking again at once."""
        self.rescan = False
        """Something became free, or the queue changed: who waits may be served now."""

    # Rows: each method writes one table and all that follows from it.

    def put_gpu(self, gpu: Gpu) -> None:
        self.gpus.put(gpu.uuid, gpu)

    def put_env(self, env: Env) -> None:
        self.envs.put(env.name, env)
        for uuid in self.gpus:
            grant = self.grants.get((env.name, uuid))
            if grant is not None:
                self.put_grant(grant)

    def put_task(self, task: Task) -> None:
        before = self.tasks.get(task.task_id)
        self.tasks.put(task.task_id, task)
        if before is None:
            self.task_of_token.put((task.env, task.token), task.task_id)
            self.env_tasks.add(task.env, task.task_id)
            for uuid in task.gpus:
                self.gpu_tasks.add(uuid, task.task_id)
        if task.state is TaskState.STALLED:
            self.stalled.put(task.task_id, True)
        elif before is not None and before.state is TaskState.STALLED:
            self.stalled.drop(task.task_id)
            self.schedule(("kill", task.task_id), None)

    def drop_task(self, task: Task) -> None:
        self.tasks.drop(task.task_id)
        self.task_of_token.drop((task.env, task.token))
        self.env_tasks.remove(task.env, task.task_id)
        for uuid in task.gpus:
            self.gpu_tasks.remove(uuid, task.task_id)
        self.stalled.drop(task.task_id)
        self.schedule(("kill", task.task_id), None)

    def put_process(self, process: Process) -> None:
        if process.key not in self.processes:
            _add(self.members, process.env, 1)
            if process.slot is not None:
                _add(self.slots, process.env, 1 << process.slot)
        self.processes.put(process.key, process)
        if process.pid is not None:
            self.process_of_pid.put((process.env, process.pid), process.key)

    def drop_process(self, process: Process) -> None:
        self.processes.drop(process.key)
        _add(self.members, process.env, -1)
        if process.slot is not None:
            _add(self.slots, process.env, -(1 << process.slot))
        self._forget_pid(process.env, process.pid, process.key)

    def put_grant(self, grant: Grant) -> None:
        """`limit_bytes` follows from the rest: it is written here, whatever the caller left in it."""
        target_bytes = books.target(self, grant)
        limit_bytes = max(0, min(grant.memory_bytes, target_bytes) - grant.caps_bytes)
        if limit_bytes != grant.limit_bytes:
            grant = replace(grant, limit_bytes=limit_bytes)
        self._write_grant(grant.env, grant.uuid, grant)
        if grant.memory_bytes == target_bytes:
            self.unsettled.drop((grant.env, grant.uuid))
        else:
            self.unsettled.put((grant.env, grant.uuid), True)

    def drop_grant(self, grant: Grant) -> None:
        self._write_grant(grant.env, grant.uuid, None)
        self.unsettled.drop((grant.env, grant.uuid))

    def _write_grant(self, env: str, uuid: Uuid, grant: Grant | None) -> None:
        before = self.grants.get((env, uuid))
        charge_bytes = books.charge(self, env, uuid)
        if grant is None:
            self.grants.drop((env, uuid))
        else:
            self.grants.put((env, uuid), grant)
        self._recharge(env, uuid, charge_bytes)
        _add(self.active, uuid, books.active_tasks(grant) - books.active_tasks(before))

    def put_residue(self, residue: Residue) -> None:
        self._write_residue(residue, residue)

    def drop_residue(self, residue: Residue) -> None:
        self._write_residue(residue, None)

    def _write_residue(self, residue: Residue, after: Residue | None) -> None:
        env, uuid, key = residue.env, residue.uuid, (residue.process, residue.uuid)
        charge_bytes = books.charge(self, env, uuid)
        before = self.residues.get(key)
        if before is not None:
            _add(self._sum_of(before), (env, uuid), -before.memory_bytes)
        if after is None:
            self.residues.drop(key)
        else:
            _add(self._sum_of(after), (env, uuid), after.memory_bytes)
            self.residues.put(key, after)
        self._recharge(env, uuid, charge_bytes)

    def _sum_of(self, residue: Residue) -> Overlay[EnvGpu, int]:
        return self.residue_alive if residue.alive else self.residue_dead

    def _recharge(self, env: str, uuid: Uuid, before_bytes: int) -> None:
        more_bytes = books.charge(self, env, uuid) - before_bytes
        _add(self.charged, uuid, more_bytes)
        _add(self.env_charged, env, more_bytes)

    def put_request(self, request: Request) -> None:
        before = self.requests.get(request.request_id)
        self.requests.put(request.request_id, request)
        self.request_of_token.put((request.env, request.token), request.request_id)
        for asker in () if before is None else before.askers:
            if asker not in request.askers:
                self._forget_asker(request.env, asker)
        for asker in request.askers:
            self.request_of.put(asker.process, request.request_id)
            if asker.pid is not None:
                self.process_of_pid.put((request.env, asker.pid), asker.process)
            if asker.transport is Transport.UDP:
                self.udp_askers.put(asker.process, True)

    def drop_request(self, request: Request) -> None:
        self.requests.drop(request.request_id)
        self.request_of_token.drop((request.env, request.token))
        self.reasons.drop(request.request_id)
        self.places.drop(request.request_id)
        self.wants_figures.drop(request.request_id)
        self.schedule(("wait", request.request_id), None)
        for asker in request.askers:
            self._forget_asker(request.env, asker)

    def _forget_asker(self, env: str, asker: Asker) -> None:
        self.request_of.drop(asker.process)
        self.udp_askers.drop(asker.process)
        self.come_back(asker.process)
        if asker.process not in self.processes:
            self._forget_pid(env, asker.pid, asker.process)

    def _forget_pid(self, env: str, pid: int | None, process: ProcessKey) -> None:
        if pid is not None and self.process_of_pid.get((env, pid)) == process:
            self.process_of_pid.drop((env, pid))

    # What a restart forgets.

    def connect(self, process: ProcessKey, connection: ConnectionId) -> None:
        before = self.connections.get(process)
        if before != connection:
            self.disconnect(process)
            self.connections.put(process, connection)
            self.process_of_connection.put(connection, process)
        self.come_back(process)

    def disconnect(self, process: ProcessKey) -> None:
        connection = self.connections.get(process)
        if connection is not None:
            self.connections.drop(process)
            self.process_of_connection.drop(connection)

    def go_away(self, process: ProcessKey, now_ns: int) -> None:
        self.away.put(process, now_ns)
        self.schedule(("away", process), now_ns + self.config.timeout_ms * MS)

    def come_back(self, process: ProcessKey) -> None:
        if process in self.away:
            self.away.drop(process)
            self.schedule(("away", process), None)

    def schedule(self, deadline: Deadline, due_ns: int | None) -> None:
        if due_ns is not None:
            self.agenda.put(deadline, due_ns)
        elif deadline in self.agenda:
            self.agenda.drop(deadline)

    def due(self, now_ns: int) -> list[Deadline]:
        """What the applied state's agenda says is due, earliest first."""
        end = bisect_left(self.state.deadlines, (now_ns + 1, ("", "")))
        return [deadline for _, deadline in self.state.deadlines[:end]]

    def at_latest(self, timer: str, due_ns: int) -> None:
        """Sets a timer, unless it is set to an earlier time."""
        before = self.timers.get(timer)
        if before is None or due_ns < before:
            self.timers.put(timer, due_ns)

    def restart_timers(self, now_ns: int) -> None:
        """After a restart: everybody is heard now, and every waiter is away."""
        for process in self.request_of:
            self.go_away(process, now_ns)
        if self.tasks.changes or self.udp_askers.changes:
            self.timers.put("silence", now_ns + self.config.timeout_ms * MS)

    # What handlers ask for.

    def count(self, counter: str) -> int:
        """The next number of a counter, from 1."""
        number = (self.counters.get(counter) or 0) + 1
        self.counters.put(counter, number)
        return number

    def free_slot(self, env: str) -> int | None:
        """The lowest free slot of the env's ledger."""
        taken = self.slots.get(env) or 0
        slot = (~taken & (taken + 1)).bit_length() - 1
        return slot if slot < LEDGER_SLOTS else None

    def in_queue(self, name: str) -> Iterator[str]:
        """The requests of one queue in order, with those of this step at its end."""
        changes = self.requests.changes
        for request_id in self.state.queue.entries(name):
            if request_id not in changes or changes[request_id] is not None:
                yield request_id
        for request_id, request in changes.items():
            if request is not None and request.priority == name and request_id not in self.state.queue:
                yield request_id

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def publish(self, name: str, fields: dict[str, object]) -> None:
        self.published.append(Publish(name, fields))

    def finish(self, *, must_apply: bool, then: Match | None = None, ticked: bool = False) -> Transition:
        """The transition, its effects in the order that the edge needs: rows and events to store, the ledger and the
        processes to watch, the handlers' own in their order, what ends, and the next time to wake."""
        every: list[Effect] = [*self._saves(), *self.published]
        opened = [env for env in self.members.changes if self._lives(env) and not self.state.members.get(env)]
        closed = [env for env in self.members.changes if not self._lives(env) and self.state.members.get(env)]
        every += map(effects.OpenLedger, opened)
        every += self._limits()
        every += self._watches()
        every += self.effects
        every += self._unwatches()
        every += map(effects.CloseLedger, closed)
        self._set_timers()
        wake_ns = self._next_wake()
        if ticked or wake_ns != self.timers.get("wake"):
            every.append(effects.WakeAt(wake_ns))
        if wake_ns is None:
            self.timers.drop("wake")
        else:
            self.timers.put("wake", wake_ns)
        return Transition(tuple(every), must_apply, then, self)

    def _lives(self, env: str) -> bool:
        return bool(self.members.get(env))

    def _saves(self) -> Iterator[Save]:
        for kind, name, key_text in STORED:
            table: Overlay[Any, object] = getattr(self, name)
            for key, value in table.changes.items():
                if value != table.base.get(key):
                    yield Save(kind, key_text(key), value)

    def _limits(self) -> Iterator[effects.SetLimit]:
        for (env, uuid), grant in self.grants.changes.items():
            before = self.grants.base.get((env, uuid))
            limit_bytes = grant.limit_bytes if grant is not None else 0
            if self._lives(env) and (before is None or before.limit_bytes != limit_bytes):
                gpu = self.gpus[uuid]
                yield effects.SetLimit(env, uuid, gpu.index, limit_bytes, gpu.memory_total_bytes)

    def _pid_of(self, process: ProcessKey) -> int | None:
        member = self.processes.get(process)
        if member is not None:
            return member.pid
        request = self.requests[self.request_of[process]]
        return next(asker.pid for asker in request.askers if asker.process == process)

    def _touched(self) -> Iterator[tuple[ProcessKey, bool, bool]]:
        for process in {**self.processes.changes, **self.request_of.changes}:
            before = process in self.processes.base or process in self.request_of.base
            yield process, before, process in self.processes or process in self.request_of

    def _watches(self) -> Iterator[effects.Watch]:
        for process, before, after in self._touched():
            if after and not before:
                yield effects.Watch(process, self._pid_of(process))

    def _unwatches(self) -> Iterator[effects.Unwatch]:
        for process, before, after in self._touched():
            if before and not after:
                yield effects.Unwatch(process)

    def _set_timers(self) -> None:
        """Figures are asked for at once, for a grant that may shrink further than before. A timer stops with the last row
        that needs it."""
        if any(self._may_shrink(key) for key in self.grants.changes):
            self.at_latest("figures", self.now_ns)
        for timer, rows in (("silence", (self.tasks, self.udp_askers)), ("figures", (self.unsettled, self.wants_figures))):
            if timer in self.timers and not any(True for table in rows for _ in table):
                self.timers.drop(timer)

    def _may_shrink(self, key: EnvGpu) -> bool:
        grant, before = self.grants.get(key), self.grants.base.get(key)
        if grant is None:
            return False
        least_bytes = max(books.target(self, grant), grant.caps_bytes)
        return least_bytes < grant.memory_bytes and (
            before is None or least_bytes < max(books.target(self.state, before), before.caps_bytes)
        )

    def _next_wake(self) -> int | None:
        times = [due_ns for due_ns in self.agenda.changes.values() if due_ns is not None]
        times += [self.timers[name] for name in ("silence", "figures") if name in self.timers]
        for due_ns, deadline in self.state.deadlines:
            if deadline not in self.agenda.changes:
                times.append(due_ns)
                break
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one event does. Nothing is done yet: the edge stores the Save and Publish effects in one transaction, applies
    the transition, then runs the other effects in their order."""

    effects: tuple[Effect, ...]
    must_apply: bool
    """A fact (a death, a release, a fence): applied even when the store cannot commit. Else it is then discarded."""
    then: Match | None
    """Who waits may be served now: the edge steps this next, as a transition of its own."""
    draft: Draft


def _known(rows: Iterable[tuple[str, str, object]]) -> Iterator[tuple[str, str, object]]:
    for kind, key, value in rows:
        if kind not in _RESTORE:
            raise ValueError(f"the store has a row of an unknown kind: {kind} {key}")
        yield kind, key, value


def _add(sums: Overlay[K, int], key: K, more: int) -> None:
    """A sum of zero has no row."""
    if more:
        total = (sums.get(key) or 0) + more
        if total:
            sums.put(key, total)
        else:
            sums.drop(key)


def _restore_task(draft: Draft, _key: str, task: Task, now_ns: int) -> None:
    draft.put_task(task)
    if task.state is TaskState.STALLED and draft.config.stalled == "kill":
        draft.schedule(("kill", task.task_id), now_ns + draft.config.stalled_grace_ms * MS)


def _restore_request(draft: Draft, _key: str, request: Request, now_ns: int) -> None:
    draft.put_request(request)
    if request.wait_ms is not None:
        draft.schedule(("wait", request.request_id), now_ns + request.wait_ms * MS)


def _restore_record(draft: Draft, key: str, record: Record, _now_ns: int) -> None:
    if record.ended_wall_ns is None:
        draft.records.put(record.task_id, record)


_RESTORE: dict[str, Callable[[Draft, str, Any, int], None]] = {
    "gpu": lambda draft, _key, gpu, _now_ns: draft.put_gpu(gpu),
    "env": lambda draft, _key, env, _now_ns: draft.put_env(env),
    "task": _restore_task,
    "process": lambda draft, _key, process, _now_ns: draft.put_process(process),
    "grant": lambda draft, _key, grant, _now_ns: draft.put_grant(grant),
    "request": _restore_request,
    "residue": lambda draft, _key, residue, _now_ns: draft.put_residue(residue),
    "record": _restore_record,
    "counter": lambda draft, key, count, _now_ns: draft.counters.put(key, count),
}
