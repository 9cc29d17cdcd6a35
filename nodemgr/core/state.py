"""What the manager believes, as tables: plain dictionaries, to be read by anybody, written by `apply` alone.

Knows: which tables there are, how they are restored from the store's rows, and how a transition is taken over.
Must not know: why a row changes (the modules beside manager.py), nor clocks, sockets, files.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nodemgr.core import books
from nodemgr.core.draft import Draft
from nodemgr.core.model import (
    MS,
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
    Uuid,
    Violation,
)
from nodemgr.core.outcome import Transition, finish
from nodemgr.core.schema import STORED, Deadline, EnvGpu
from nodemgr.core.work_queue import WorkQueue


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
        """schema.IDS and schema.GENERATION."""

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
        self.violations: dict[tuple[ProcessKey, Uuid], Violation] = {}
        """What the audit found, sure or not yet."""
        self.unbooked: dict[Uuid, int] = {}
        """Bytes on each GPU that the driver shows and nobody was promised, where that is more than can be overlooked."""
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
        draft = Draft(state)
        draft.now_ns = now_ns
        order = {kind: place for place, (kind, _) in enumerate(STORED.values())}
        for kind, key, value in sorted(_known(rows), key=lambda row: order[row[0]]):
            _RESTORE[kind](draft, key, value, now_ns)
        draft.restart_timers(now_ns)
        state.apply(finish(draft, must_apply=True))
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
        records = draft.records.changes
        for task_id, record in records.items():
            if record is not None and record.ended_wall_ns is not None:
                records[task_id] = None
        for table in draft.changed:
            table.settle()

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
        for name, (kind, key_text) in STORED.items():
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value


def _known(rows: Iterable[tuple[str, str, object]]) -> Iterator[tuple[str, str, object]]:
    for kind, key, value in rows:
        if kind not in _RESTORE:
            raise ValueError(f"the store has a row of an unknown kind: {kind} {key}")
        yield kind, key, value


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
