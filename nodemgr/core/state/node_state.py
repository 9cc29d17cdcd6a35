"""The state of the manager: its tables, each declared once, and one step's changes in them.

A table is declared with its name, the types of its keys and rows, and its kind in the store. A
State has it as a dictionary; a Draft sees it through the changes of one step (Overlay, Groups), so
`step` is pure and costs no more than its change. With its first change a table enters itself into
the step's list of changed tables. Any module may read; only Draft.settle writes into the state.

Knows: the tables, and the values that follow from them at once. Must not know: how and why a row
changes (draft.py, and the modules beside manager.py), nor clocks, sockets, files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, overload

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
from nodemgr.core.model.values import filler
from nodemgr.core.state.job_index import JobIndex
from nodemgr.core.state.work_queue import WorkQueue

K = TypeVar("K")
V = TypeVar("V")
K_in = TypeVar("K_in", contravariant=True)
V_out = TypeVar("V_out", covariant=True)


class Readable(Protocol[K_in, V_out]):
    """The reads that a plain dictionary and an Overlay offer."""

    def get(self, key: K_in, /) -> V_out | None: ...
    def __getitem__(self, key: K_in, /) -> V_out: ...
    def values(self) -> Iterable[V_out]: ...
    def __len__(self) -> int: ...


class Overlay(Generic[K, V]):
    """A dictionary and what one step changes in it.

    None stands for nothing there, so no value is None. As long as nothing is changed, `get` is the
    dictionary's own.
    """

    __slots__ = ("base", "changed", "changes", "get", "stored")

    def __init__(self, base: dict[K, V], changed: list[Table]) -> None:
        self.base = base
        self.changed = changed
        self.changes: dict[K, V | None] = {}
        self.get: Callable[[K], V | None] = base.get
        self.stored: tuple[str, Callable[[Any], str]] | None = None
        """Its kind in the store, and how a key is written there; None: it follows from others."""

    def __getitem__(self, key: K, /) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self) if self.changes else len(self.base)

    def __iter__(self) -> Iterator[K]:
        changes = self.changes
        if not changes:
            yield from self.base
            return
        for key in self.base:
            if key not in changes:
                yield key
        for key, value in changes.items():
            if value is not None:
                yield key

    def values(self) -> Iterator[V]:
        if not self.changes:
            return iter(self.base.values())
        return (self[key] for key in self)

    def put(self, key: K, value: V) -> None:
        if not self.changes:
            self._begin()
        self.changes[key] = value

    def drop(self, key: K) -> None:
        """Drops the key; an absent key is no error."""
        if not self.changes:
            self._begin()
        self.changes[key] = None

    def _begin(self) -> None:
        """From now on `get` sees changes."""
        self.get = partial(_through, self.changes, self.base)
        self.changed.append(self)

    def settle(self) -> None:
        base = self.base
        for key, value in self.changes.items():
            if value is None:
                base.pop(key, None)
            else:
                base[key] = value


def _through(changes: dict[K, V | None], base: dict[K, V], key: K) -> V | None:
    return changes[key] if key in changes else base.get(key)


class Groups(Generic[K, V]):
    """Sets of members by key, and what one step changes in them.

    A member is added and removed at most once a step.
    """

    __slots__ = ("added", "base", "changed", "removed", "stored")

    def __init__(self, base: dict[K, dict[V, None]], changed: list[Table]) -> None:
        self.base = base
        self.changed = changed
        self.added: dict[K, dict[V, None]] = {}
        self.removed: dict[K, set[V]] = {}
        self.stored = None

    def members(self, key: K) -> Iterator[V]:
        removed: set[V] | frozenset[V] = self.removed.get(key, frozenset())
        for member in self.base.get(key, ()):
            if member not in removed:
                yield member
        yield from self.added.get(key, ())

    def count(self, key: K) -> int:
        """How many members there are, without looking at each."""
        return (
            len(self.base.get(key, ()))
            - len(self.removed.get(key, ()))
            + len(self.added.get(key, ()))
        )

    def add(self, key: K, member: V) -> None:
        self._begin()
        self.added.setdefault(key, {})[member] = None

    def remove(self, key: K, member: V) -> None:
        self._begin()
        added = self.added.get(key)
        if added is not None and member in added:
            del added[member]
        else:
            self.removed.setdefault(key, set()).add(member)

    def _begin(self) -> None:
        if not self.added and not self.removed:
            self.changed.append(self)

    def settle(self) -> None:
        base = self.base
        for key, members in self.removed.items():
            group = base[key]
            for member in members:
                del group[member]
            if not group:
                del base[key]
        for key, added in self.added.items():
            if added:
                base.setdefault(key, {}).update(added)


Table = Overlay[Any, Any] | Groups[Any, Any]


def first(members: Iterable[V]) -> V | None:
    """The first of them, or None where there is none."""
    return next(iter(members), None)


class Declared:
    """A table.

    `kind` is its kind in the store, None if it follows from others or a restart forgets it;
    `key_text` writes a key there.
    `seldom`: a draft makes it at a step's first access. A grant, a join, a release and a death use
    none of these tables, and each step's duration delays a client.
    """

    view: type[Any]

    def __init__(
        self,
        kind: str | None = None,
        key_text: Callable[[Any], str] = str,
        *,
        seldom: bool = False,
    ) -> None:
        self.stored = None if kind is None else (kind, key_text)
        self.seldom = seldom


class Of(Declared, Generic[K, V]):
    """Rows by key. The overloads are for the type checker alone (see DECLARED)."""

    view = Overlay

    @overload
    def __get__(self, owner: Rows, kind: type) -> dict[K, V]: ...
    @overload
    def __get__(self, owner: Overlays, kind: type) -> Overlay[K, V]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        raise AttributeError


class GroupsOf(Declared, Generic[K, V]):
    """Sets of members by key, in the order of their arrival."""

    view = Groups

    @overload
    def __get__(self, owner: Rows, kind: type) -> dict[K, dict[V, None]]: ...
    @overload
    def __get__(self, owner: Overlays, kind: type) -> Groups[K, V]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        raise AttributeError


class Tables:
    """The stored tables come first, in the order in which a restart restores them."""

    __slots__ = ()

    gpus = Of[Uuid, Gpu]("gpu")
    envs = Of[str, Env]("env")
    tasks = Of[str, Task]("task")
    processes = Of[ProcessKey, Process]("process")
    grants = Of[EnvGpu, Grant]("grant", "/".join)
    requests = Of[str, Request]("request")
    unreclaimed = Of[tuple[ProcessKey, Uuid], UnreclaimedMemory]("residue", "/".join)
    records = Of[str, Record]("record")
    """Records of leases that have not ended, by task."""
    queues = Of[str, QueueRow]("queue", seldom=True)
    """Queues as they were set; empty: Config's presets."""
    gpu_records = Of[Uuid, GpuRecord]("gpu_record", seldom=True)
    failures = Of[str, Failure]("failure", seldom=True)
    """The failures of the GPUs that count."""
    specs = Of[str, JobSpec]("spec", seldom=True)
    """The specs of living jobs."""
    jobs = Of[str, Job]("job", seldom=True)
    """Jobs that have not ended."""
    elastics = Of[str, ElasticLease]("elastic", seldom=True)
    """The elastic leases, by task."""
    assignments = Of[str, Assignment]("assignment", seldom=True)
    """The answers to heads, by key."""
    counters = Of[str, int]("counter")
    """schema.IDS, schema.GENERATION, schema.JOBS, schema.FAILURES and schema.SERVICE.

    And schema.assigned_below of each head.
    """

    connections = Of[ProcessKey, ConnectionId]()
    process_of_connection = Of[ConnectionId, ProcessKey]()
    away = Of[ProcessKey, int](seldom=True)
    """Waiters without a connection, and the time it was lost (ns)."""
    parted = Of[ProcessKey, int](seldom=True)
    """Living members of tasks whose connection has ended, and the time of it (wall clock, ns).

    Such a process runs another program (exec).
    """
    reasons = Of[str, str]()
    """The reason a request waits: the line sent to its askers."""
    positions = Of[str, int]()
    """A request's position in its queue, as sent to its askers."""
    timers = Of[str, int]()
    """The time (ns) a Tick is needed for things without a row.

    The keys are "silence", "figures", ASIDE, EXEMPT, RESIZES and GRANTS.
    """
    agenda = Of[Deadline, int]()

    task_of_token = Of[tuple[str, str], str]()
    request_of_token = Of[tuple[str, str], str](seldom=True)
    request_of = Of[ProcessKey, str]()
    process_of_pid = Of[tuple[str, int], ProcessKey]()
    slots = Of[str, int]()
    """Per env, one bit for each ledger slot that belongs to a process."""
    members = Of[str, int]()
    """The number of process rows per env. The env's ledger exists while there is one."""
    charged = Of[Uuid, int]()
    """Promised bytes of each GPU: accounting.gpu_charge over all envs."""
    env_charged = Of[str, int]()
    active = Of[Uuid, int]()
    """Tasks on each GPU that are neither stalled nor suspended."""
    unreclaimed_alive = Of[EnvGpu, int]()
    unreclaimed_dead = Of[EnvGpu, int]()
    stalled = Of[str, bool]()
    unsettled = Of[EnvGpu, bool]()
    """Grants that differ from the quota's terms: pending, or waiting for memory to be freed."""
    udp_askers = Of[ProcessKey, bool](seldom=True)
    wants_figures = Of[str, bool]()
    """Requests that wait for memory to become free in their own env's ledger."""
    gpu_tasks = GroupsOf[Uuid, str]()
    env_tasks = GroupsOf[str, str]()
    outlook = Of[Uuid, Outlook](seldom=True)
    """The estimates for all GPUs, once a failure is recorded; else empty."""
    violations = Of[tuple[ProcessKey, Uuid], Violation](seldom=True)
    """The audit's findings, certain or not yet."""
    progress = Of[str, Progress](seldom=True)
    """By task: its last report."""
    unbooked = Of[Uuid, int]()
    """Per GPU, the bytes that the driver shows and no charge covers, if above the tolerance."""

    set_aside = Of[str, SetAside](seldom=True)
    """By request id: entries whose decision failed (scheduler/set_aside.py)."""

    silent_jobs = Of[str, tuple[int, int]](seldom=True)
    """By task of a job: since when (ns, wall clock ns) all its processes are silent, and live.

    It is shown as stalled, and keeps all that it holds.
    """

    idle_since = Of[str, int](seldom=True)
    """By task: the time (ns) since which it is known to use no GPU."""
    idle_warned = Of[str, int](seldom=True)
    """By task: the time (ns) at which its idle policy warned it."""

    calm_since = Of[Uuid, int](seldom=True)
    """By GPU: the time (ns) since which it is idle and wanted by no request."""
    left_until = Of[Uuid, int](seldom=True)
    """By GPU that left an elastic lease: until then (ns) its processes' memory there may go."""
    declined_until = Of[str, int](seldom=True)
    """By elastic task: the time (ns) until which it is offered no GPU."""

    elastic_grants = Of[EnvGpu, bool](seldom=True)
    """The grants with a task that asked for a range of memory."""
    lowerings = Of[EnvGpu, Lowering](seldom=True)
    """By elastic grant: an order to lower it that is open, or that found its memory in use."""
    room_since = Of[Uuid, int](seldom=True)
    """By GPU: the time (ns) since which it has room for an elastic grant that wants more."""

    job_of_key = Of[tuple[str, str], str](seldom=True)
    """By env and the submitter's key: the job or array."""
    elements = GroupsOf[str, str](seldom=True)
    """By array: its rows: of the elements that wait together, and of others that have not ended."""
    dependents = GroupsOf[str, str](seldom=True)
    """By job: the jobs that wait for its end."""
    awaited = GroupsOf[str, str](seldom=True)
    """By array: its elements that have dependents of their own."""
    job_bytes = Of[str, int](seldom=True)
    """Per env, the bytes of its living jobs: rows and payloads."""
    spec_jobs = Of[str, int](seldom=True)
    """The number of rows of living jobs of each spec; and of each env, the number of jobs:"""
    env_jobs = Of[str, int](seldom=True)
    cpu_jobs = Of[str, int](seldom=True)
    """Per env, the number of jobs without a GPU that are under way."""
    host_cpus = Of[str, int](seldom=True)
    """Per env, the processors that its jobs under way reserve; and their host memory:"""
    host_bytes = Of[str, int](seldom=True)
    queued = Of[str, int](seldom=True)
    """The number that wait in each queue: requests, and jobs."""
    compute = Of[Uuid, int](seldom=True)
    """Per GPU, the percent of its compute that tasks with a share have (state/compute.py)."""
    shrunk = Of[str, bool](seldom=True)
    """Tasks that have less compute than they asked for."""
    unconfirmed = Of[str, bool](seldom=True)
    """The assigned jobs that their head has not named since the manager's start."""
    launch_hosts = Of[str, str](seldom=True)
    """By place, as reported since the manager's start: empty if up, else why it is down."""


DECLARED = {name: table for name, table in vars(Tables).items() if isinstance(table, Declared)}
STORED = {name: table.stored for name, table in DECLARED.items() if table.stored is not None}
"""Each stored table: its kind in the store, and the function that writes a key there."""

for _name in DECLARED:
    delattr(Tables, _name)  # else each access to a table would look at the class first


class Rows(Tables):
    """The tables of a state."""

    def __init__(self) -> None:
        for name in DECLARED:
            setattr(self, name, {})


class Overlays(Tables):
    """The tables of a draft."""

    # too many attributes for a key-sharing dict: without slots each is looked up anew
    __slots__ = (
        *(name for name, table in DECLARED.items() if not table.seldom),
        "changed",
        "seldom",
        "state",
    )

    def __init__(self, state: Rows) -> None:
        self.state = state
        self.changed: list[Table] = []
        """The tables with changes."""
        self.seldom: dict[str, Any] = {}
        """The seldom tables that were accessed."""
        _fill(self, state, self.changed)


class Seldom:
    """A seldom table of a draft. (A descriptor, since __getattr__ makes every attribute slow.)"""

    def __init__(self, name: str) -> None:
        self._name = name
        self._declared = DECLARED[name]

    def __get__(self, draft: Overlays, _owner: type) -> Any:
        table = draft.seldom.get(self._name)
        if table is None:
            table = draft.seldom[self._name] = self._declared.view(
                getattr(draft.state, self._name), draft.changed
            )
            table.stored = self._declared.stored
        return table


for _name, _table in DECLARED.items():
    if _table.seldom:
        setattr(Overlays, _name, Seldom(_name))

_fill = filler(
    {name: (table.view, table.stored) for name, table in DECLARED.items() if not table.seldom}
)
"""Makes the tables of an Overlays that every step uses, each over the state's."""


class GpuScorer(Protocol):
    """The scores of the policy `learned`, which the edge computes."""

    @property
    def fault(self) -> str:
        """Why it gives no scores, one line; empty: it gives them."""

    def __call__(self, candidates: Sequence[Any], job: Any, /) -> list[float] | None:
        """Scores for candidates and a job (core/placement/policies.py); None: it has a fault."""


class State(Rows):
    """The whole state of the manager. The tables are plain dictionaries."""

    def __init__(self, config: Config) -> None:
        super().__init__()
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
        """The number of applied transitions. A transition made for another version is refused."""
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
