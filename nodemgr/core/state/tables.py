"""Every table of the state, declared once: its name, its keys and rows, its kind in the store.

A state has each of them as a dictionary (Rows); a draft sees each through one step's changes
(Overlays). Knows: the types of keys and rows. Must not know: how and why a row changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from nodemgr.core.model.entities import (
    ConnectionId,
    Env,
    Gpu,
    Grant,
    Job,
    JobSpec,
    Process,
    ProcessKey,
    QueueRow,
    Record,
    Request,
    Task,
    UnreclaimedMemory,
    Uuid,
    Violation,
)
from nodemgr.core.model.schema import Deadline, EnvGpu
from nodemgr.core.model.values import filler
from nodemgr.core.state.overlay import Groups, Overlay, Table

K = TypeVar("K")
V = TypeVar("V")


class Declared:
    """A table.

    `kind` is its kind in the store, None if it follows from others or a restart forgets it;
    `key_text` writes a key there.
    `seldom`: a draft makes it at a step's first access. Most steps use no jobs or queues, and each
    step's duration delays a client.
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
    specs = Of[str, JobSpec]("spec", seldom=True)
    """The specs of living jobs."""
    jobs = Of[str, Job]("job", seldom=True)
    """Jobs that have not ended."""
    counters = Of[str, int]("counter")
    """schema.IDS, schema.GENERATION and schema.JOBS."""

    connections = Of[ProcessKey, ConnectionId]()
    process_of_connection = Of[ConnectionId, ProcessKey]()
    away = Of[ProcessKey, int]()
    """Waiters without a connection, and the time it was lost (ns)."""
    reasons = Of[str, str]()
    """The reason a request waits: the line sent to its askers."""
    positions = Of[str, int]()
    """A request's position in its queue, as sent to its askers."""
    timers = Of[str, int]()
    """The time (ns) a Tick is needed for things without a row: "silence", "figures"."""
    agenda = Of[Deadline, int]()

    task_of_token = Of[tuple[str, str], str]()
    request_of_token = Of[tuple[str, str], str]()
    request_of = Of[ProcessKey, str]()
    process_of_pid = Of[tuple[str, int], ProcessKey]()
    slots = Of[str, int]()
    """Per env, one bit for each ledger slot that belongs to a process."""
    members = Of[str, int]()
    """The number of process rows per env. The env's ledger exists while there is one."""
    charged = Of[Uuid, int]()
    """Promised bytes of each GPU: accounting.charge over all envs."""
    env_charged = Of[str, int]()
    active = Of[Uuid, int]()
    """Tasks on each GPU that are not stalled."""
    unreclaimed_alive = Of[EnvGpu, int]()
    unreclaimed_dead = Of[EnvGpu, int]()
    stalled = Of[str, bool]()
    unsettled = Of[EnvGpu, bool]()
    """Grants that differ from the quota's terms: pending, or waiting for memory to be freed."""
    udp_askers = Of[ProcessKey, bool]()
    wants_figures = Of[str, bool]()
    """Requests that wait for memory to become free in their own env's ledger."""
    gpu_tasks = GroupsOf[Uuid, str]()
    env_tasks = GroupsOf[str, str]()
    violations = Of[tuple[ProcessKey, Uuid], Violation]()
    """The audit's findings, certain or not yet."""
    unbooked = Of[Uuid, int]()
    """Per GPU, the bytes that the driver shows and no charge covers, if above the tolerance."""

    job_of_key = Of[tuple[str, str], str](seldom=True)
    """By env and the submitter's key: the job or array."""
    elements = GroupsOf[str, str](seldom=True)
    """By array: its elements that have not ended."""
    dependents = GroupsOf[str, str](seldom=True)
    """By job: the jobs that wait for its end."""
    job_bytes = Of[str, int](seldom=True)
    """Per env, the bytes of its living jobs: rows and payloads."""
    spec_jobs = Of[str, int](seldom=True)
    """The number of living jobs of each spec; and of each env:"""
    env_jobs = Of[str, int](seldom=True)
    cpu_jobs = Of[str, int](seldom=True)
    """Per env, the number of jobs without a GPU that are under way."""
    held_or_dependent = Of[str, tuple[int, int]](seldom=True)
    """Jobs that wait outside a queue (HELD_OR_DEPENDENT), with the order of their ids;"""
    under_way = Of[str, tuple[int, int]](seldom=True)
    """and the jobs that have left their queue."""
    queued = Of[str, int](seldom=True)
    """The number of requests that wait in each queue."""
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
