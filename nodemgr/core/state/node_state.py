"""The state of the manager: its tables, each declared once, and what the open step changes in them.

A step changes the tables in place. Each table keeps the rows that the step has changed as they were
before it; so the step is undone, or kept, at the cost of its change. With its first change a table
enters itself into the state's list of changed tables. Any module may read; rows are written by
draft.py alone.

Knows: the tables, and the values that follow from them at once. Must not know: how and why a row
changes (draft.py, and the modules beside manager.py), nor clocks, sockets, files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nodemgr.core.model.causes import Standing
from nodemgr.core.model.entities import (
    MS,
    Assignment,
    Config,
    ConnectionId,
    ElasticLease,
    Env,
    Failure,
    Gpu,
    GpuRecord,
    Grant,
    Job,
    JobSpec,
    Lowering,
    Outlook,
    Process,
    ProcessKey,
    Progress,
    QueueRow,
    Record,
    Request,
    SetAside,
    Task,
    UnreclaimedMemory,
    Uuid,
    Violation,
)
from nodemgr.core.model.schema import Deadline, EnvGpu
from nodemgr.core.state.job_index import JobIndex
from nodemgr.core.state.work_queue import WorkQueue

K = TypeVar("K")
V = TypeVar("V")


class Table(dict[K, V]):
    """Rows by key. None stands for nothing there, so no row is None."""

    __slots__ = ("changed", "old", "stored")

    def __init__(
        self, changed: list[AnyTable], stored: tuple[str, Callable[[Any], str]] | None = None
    ) -> None:
        super().__init__()
        self.changed = changed
        self.old: dict[K, V | None] = {}
        """The rows that the open step has changed, as they were before it."""
        self.stored = stored
        """Its kind in the store, and how a key is written there; None: it follows from others."""

    def put(self, key: K, value: V) -> None:
        old = self.old
        if key not in old:
            if not old:
                self.changed.append(self)
            old[key] = self.get(key)
        self[key] = value

    def drop(self, key: K) -> None:
        """Drops the key; an absent key is no error."""
        if key in self:
            before, old = self.pop(key), self.old
            if key not in old:
                if not old:
                    self.changed.append(self)
                old[key] = before

    def before(self, key: K) -> V | None:
        """The row as it was before the open step."""
        return self.old[key] if key in self.old else self.get(key)

    def changes(self) -> Sequence[tuple[K, V | None, V | None]]:
        """Each row that the open step has changed: its key, as it was, and as it is."""
        if not self.old:
            return ()
        now = self.get
        return [(key, before, now(key)) for key, before in self.old.items()]

    def is_used(self) -> bool:
        """Whether it has a row, or had one before the open step."""
        return bool(self or self.old)

    def undo(self) -> None:
        """A row that the step dropped comes back at the end: nothing depends on their order."""
        for key, before in self.old.items():
            if before is None:
                self.pop(key, None)
            else:
                self[key] = before
        self.old.clear()


class Groups(dict[K, dict[V, int]]):
    """Sets of members by key, in the order of their arrival; each member has its number in it."""

    __slots__ = ("arrivals", "changed", "old")

    stored = None

    def __init__(self, changed: list[AnyTable], _stored: None = None) -> None:
        super().__init__()
        self.changed = changed
        self.arrivals = 0
        self.old: list[tuple[K, V, int]] = []
        """The open step's changes in turn: a member came (0), or that of this number went."""

    def members(self, key: K) -> Iterator[V]:
        return iter(self.get(key, ()))

    def count(self, key: K) -> int:
        return len(self.get(key, ()))

    def add(self, key: K, member: V) -> None:
        self._keep(key, member, 0)
        self.arrivals += 1
        self.setdefault(key, {})[member] = self.arrivals

    def remove(self, key: K, member: V) -> None:
        self._keep(key, member, self._take(key, member))

    def _take(self, key: K, member: V) -> int:
        group = self[key]
        number = group.pop(member)
        if not group:
            del self[key]
        return number

    def _keep(self, key: K, member: V, number: int) -> None:
        if not self.old:
            self.changed.append(self)
        self.old.append((key, member, number))

    def undo(self) -> None:
        """Each member is at its place again: the first of a GPU's tasks is named as its holder."""
        for key, member, number in reversed(self.old):
            if number:
                self.setdefault(key, {})[member] = number
            else:
                self._take(key, member)
        for key in {key for key, _, number in self.old if number} & self.keys():
            self[key] = dict(sorted(self[key].items(), key=lambda row: row[1]))
        self.old.clear()


AnyTable = Table[Any, Any] | Groups[Any, Any]


def first(members: Iterable[V]) -> V | None:
    """The first of them, or None where there is none."""
    return next(iter(members), None)


class Declared(NamedTuple):
    """How a state makes a table."""

    kind: type[Any]
    stored: tuple[str, Callable[[Any], str]] | None


def table(kind: str | None = None, key_text: Callable[[Any], str] = str) -> Any:
    """A table of rows by key.

    `kind` is its kind in the store, None if it follows from others or a restart forgets it;
    `key_text` writes a key there.
    """
    return Declared(Table, None if kind is None else (kind, key_text))


def groups() -> Any:
    return Declared(Groups, None)


class Tables:
    """The stored tables come first, in the order in which a restart restores them."""

    gpus: Table[Uuid, Gpu] = table("gpu")
    envs: Table[str, Env] = table("env")
    tasks: Table[str, Task] = table("task")
    processes: Table[ProcessKey, Process] = table("process")
    grants: Table[EnvGpu, Grant] = table("grant", "/".join)
    requests: Table[str, Request] = table("request")
    unreclaimed: Table[tuple[ProcessKey, Uuid], UnreclaimedMemory] = table("residue", "/".join)
    records: Table[str, Record] = table("record")
    """Records of leases that have not ended, by task."""
    queues: Table[str, QueueRow] = table("queue")
    """Queues as they were set; empty: Config's presets."""
    gpu_records: Table[Uuid, GpuRecord] = table("gpu_record")
    failures: Table[str, Failure] = table("failure")
    """The failures of the GPUs that count."""
    specs: Table[str, JobSpec] = table("spec")
    """The specs of living jobs."""
    jobs: Table[str, Job] = table("job")
    """Jobs that have not ended."""
    elastics: Table[str, ElasticLease] = table("elastic")
    """The elastic leases, by task."""
    assignments: Table[str, Assignment] = table("assignment")
    """The answers to heads, by key."""
    counters: Table[str, int] = table("counter")
    """schema.IDS, schema.GENERATION, schema.JOBS, schema.FAILURES and schema.SERVICE.

    And schema.assigned_below of each head.
    """

    connections: Table[ProcessKey, ConnectionId] = table()
    process_of_connection: Table[ConnectionId, ProcessKey] = table()
    away: Table[ProcessKey, int] = table()
    """Waiters without a connection, and the time it was lost (ns)."""
    parted: Table[ProcessKey, int] = table()
    """Living members of tasks whose connection has ended, and the time of it (wall clock, ns).

    Such a process runs another program (exec).
    """
    standings: Table[str, Standing] = table()
    """The place of a request and why it waits, as sent to its askers."""
    timers: Table[str, int] = table()
    """The time (ns) a Tick is needed for things without a row.

    The keys are "silence", "figures", ASIDE, EXEMPT, RESIZES and GRANTS.
    """
    agenda: Table[Deadline, int] = table()

    task_of_token: Table[tuple[str, str], str] = table()
    request_of_token: Table[tuple[str, str], str] = table()
    request_of: Table[ProcessKey, str] = table()
    process_of_pid: Table[tuple[str, int], ProcessKey] = table()
    slots: Table[str, int] = table()
    """Per env, one bit for each ledger slot that belongs to a process."""
    members: Table[str, int] = table()
    """The number of process rows per env. The env's ledger exists while there is one."""
    charged: Table[Uuid, int] = table()
    """Promised bytes of each GPU: accounting.gpu_charge over all envs."""
    env_charged: Table[str, int] = table()
    active: Table[Uuid, int] = table()
    """Tasks on each GPU that are neither stalled nor suspended."""
    unreclaimed_alive: Table[EnvGpu, int] = table()
    unreclaimed_dead: Table[EnvGpu, int] = table()
    stalled: Table[str, bool] = table()
    unsettled: Table[EnvGpu, bool] = table()
    """Grants that differ from the quota's terms: pending, or waiting for memory to be freed."""
    udp_askers: Table[ProcessKey, bool] = table()
    wants_figures: Table[str, bool] = table()
    """Requests that wait for memory to become free in their own env's ledger."""
    gpu_tasks: Groups[Uuid, str] = groups()
    env_tasks: Groups[str, str] = groups()
    outlook: Table[Uuid, Outlook] = table()
    """The estimates for all GPUs, once a failure is recorded; else empty."""
    violations: Table[tuple[ProcessKey, Uuid], Violation] = table()
    """The audit's findings, certain or not yet."""
    progress: Table[str, Progress] = table()
    """By task: its last report."""
    unbooked: Table[Uuid, int] = table()
    """Per GPU, the bytes that the driver shows and no charge covers, if above the tolerance."""

    set_aside: Table[str, SetAside] = table()
    """By request id: entries whose decision failed (scheduler/set_aside.py)."""

    silent_jobs: Table[str, tuple[int, int]] = table()
    """By task of a job: since when (ns, wall clock ns) all its processes are silent, and live.

    It is shown as stalled, and keeps all that it holds.
    """

    idle_since: Table[str, int] = table()
    """By task: the time (ns) since which it is known to use no GPU."""
    idle_warned: Table[str, int] = table()
    """By task: the time (ns) at which its idle policy warned it."""

    calm_since: Table[Uuid, int] = table()
    """By GPU: the time (ns) since which it is idle and wanted by no request."""
    left_until: Table[Uuid, int] = table()
    """By GPU that left an elastic lease: until then (ns) its processes' memory there may go."""
    declined_until: Table[str, int] = table()
    """By elastic task: the time (ns) until which it is offered no GPU."""

    elastic_grants: Table[EnvGpu, bool] = table()
    """The grants with a task that asked for a range of memory."""
    lowerings: Table[EnvGpu, Lowering] = table()
    """By elastic grant: an order to lower it that is open, or that found its memory in use."""
    room_since: Table[Uuid, int] = table()
    """By GPU: the time (ns) since which it has room for an elastic grant that wants more."""

    job_of_key: Table[tuple[str, str], str] = table()
    """By env and the submitter's key: the job or array."""
    elements: Groups[str, str] = groups()
    """By array: its rows: of the elements that wait together, and of others that have not ended."""
    dependents: Groups[str, str] = groups()
    """By job: the jobs that wait for its end."""
    awaited: Groups[str, str] = groups()
    """By array: its elements that have dependents of their own."""
    job_bytes: Table[str, int] = table()
    """Per env, the bytes of its living jobs: rows and payloads."""
    spec_jobs: Table[str, int] = table()
    """The number of rows of living jobs of each spec; and of each env, the number of jobs:"""
    env_jobs: Table[str, int] = table()
    cpu_jobs: Table[str, int] = table()
    """Per env, the number of jobs without a GPU that are under way."""
    host_cpus: Table[str, int] = table()
    """Per env, the processors that its jobs under way reserve; and their host memory.

    Under "" stands the GPU memory of suspended tasks, which is in host memory.
    """
    host_bytes: Table[str, int] = table()
    queued: Table[str, int] = table()
    """The number that wait in each queue: requests, and jobs."""
    compute: Table[Uuid, int] = table()
    """Per GPU, the percent of its compute that tasks with a share have (state/compute.py)."""
    reserved: Table[Uuid, bool] = table()
    """GPUs that a request of this node's own keeps from later ones (scheduler/passes.py, G)."""
    shrunk: Table[str, bool] = table()
    """Tasks that have less compute than they asked for."""
    unconfirmed: Table[str, bool] = table()
    """The assigned jobs that their head has not named since the manager's start."""
    launch_hosts: Table[str, str] = table()
    """By place, as reported since the manager's start: empty if up, else why it is down."""


DECLARED = {name: table for name, table in vars(Tables).items() if isinstance(table, Declared)}
STORED = {name: table.stored for name, table in DECLARED.items() if table.stored is not None}
"""Each stored table: its kind in the store, and the function that writes a key there."""

for _name in DECLARED:
    delattr(Tables, _name)  # else each access to a table would look at the class first


class GpuScorer(Protocol):
    """The scores of the policy `learned`, which the edge computes."""

    @property
    def fault(self) -> str:
        """Why it gives no scores, one line; empty: it gives them."""

    def __call__(self, candidates: Sequence[Any], job: Any, /) -> list[float] | None:
        """Scores for candidates and a job (core/placement/policies.py); None: it has a fault."""


class State(Tables):
    """The whole state of the manager, to be read. Draft (draft.py) changes it."""

    def __init__(self, config: Config) -> None:
        self.changed: list[AnyTable] = []
        """The tables that the open step has changed."""
        for name, table in DECLARED.items():
            setattr(self, name, table.kind(self.changed, table.stored))
        self.config = config
        self.learned: GpuScorer | None = None
        """Of the policy `learned` (core/scheduler/preference.py); None: there is none."""
        self.service_ahead_ns = 0
        """The lead of the service clock over the monotonic clock."""
        self.queue_ahead_ns = 0
        """The lead of the queue's clock over the monotonic clock, which a boot sets back."""
        self.stamped_ns = 0
        """The last stamp of the queue's clock.

        Stamps are unique, so each request can return to its exact place.
        """
        self.version = 0
        """The number of applied transitions."""
        self.deadlines: list[tuple[int, Deadline]] = []
        """The agenda, earliest first."""
        self.queue = WorkQueue(config.queues, config.ageing_ms * MS)
        self.living = JobIndex()
        """All jobs,"""
        self.held_or_dependent = JobIndex()
        """those that wait outside a queue (HELD_OR_DEPENDENT),"""
        self.under_way = JobIndex()
        """and those that have left their queue."""

    def learn(self, scorer: GpuScorer) -> None:
        """Sets the scorer of the policy `learned`."""
        self.learned = scorer

    def wake_ns(self) -> int | None:
        """The time a Tick is due at the latest; None: no Tick is needed."""
        times = [*self.timers.values(), *(due_ns for due_ns, _ in self.deadlines[:1])]
        return min(times) if times else None

    def is_up(self, place: str) -> bool:
        """Can a job be started there now?"""
        return self.launch_hosts.get(place) == ""

    def queue_now(self, now_ns: int) -> int:
        """The queue's clock: it orders waiting requests across restarts and boots."""
        return now_ns + self.queue_ahead_ns

    def service_now(self, now_ns: int) -> int:
        """The service clock: the time for which managers have run on this store.

        No jump of the wall clock moves it, and no boot sets it back.
        """
        return now_ns + self.service_ahead_ns

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Every waiting request in the order of service, with its position in its queue."""
        return (
            (self.requests[request_id], position) for request_id, position, _ in self.queue.listed()
        )

    def watched(self) -> Iterator[tuple[ProcessKey, int | None]]:
        """The processes with watched deaths and beats, with their PIDs."""
        for process in self.processes.values():
            yield process.key, process.pid
        for request in self.requests.values():
            for asker in request.askers:
                if asker.process not in self.processes:
                    yield asker.process, asker.pid

    def rows(self) -> Iterator[tuple[str, str, object]]:
        """The rows that the store should hold: (kind, key, value)."""
        for name, (kind, key_text) in STORED.items():
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value
