"""The manager's state as tables: plain dictionaries. Any module may read; only Draft.settle writes.

Knows: the tables, and the values that follow from them at once.
Must not know: how and why a row changes (draft.py, and the modules beside manager.py), nor clocks,
sockets, files.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.model.entities import (
    MS,
    Config,
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
from nodemgr.core.model.schema import STORED, Deadline, EnvGpu
from nodemgr.core.state import accounting
from nodemgr.core.state.work_queue import WorkQueue


class State:
    """The whole state of the manager. The tables are plain dictionaries."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.queue_ahead_ns = 0
        """The lead of the queue's clock over the monotonic clock, which a boot sets back."""
        self.stamped_ns = 0
        """The last stamp of the queue's clock.

        Stamps are unique, so each request can return to its exact place.
        """
        self.version = 0
        """The number of applied transitions. A transition made for another version is refused."""
        self.gpus: dict[Uuid, Gpu] = {}
        self.envs: dict[str, Env] = {}
        self.tasks: dict[str, Task] = {}
        self.processes: dict[ProcessKey, Process] = {}
        self.grants: dict[EnvGpu, Grant] = {}
        self.requests: dict[str, Request] = {}
        self.unreclaimed: dict[tuple[ProcessKey, Uuid], UnreclaimedMemory] = {}
        self.records: dict[str, Record] = {}
        """Records of leases that have not ended, by task."""
        self.counters: dict[str, int] = {}
        """schema.IDS, schema.GENERATION and schema.JOBS."""

        self.connections: dict[ProcessKey, ConnectionId] = {}
        self.process_of_connection: dict[ConnectionId, ProcessKey] = {}
        self.away: dict[ProcessKey, int] = {}
        """Waiters without a connection, and the time it was lost (ns)."""
        self.reasons: dict[str, str] = {}
        """The reason a request waits: the line sent to its askers."""
        self.positions: dict[str, int] = {}
        """A request's position in its queue, as sent to its askers."""
        self.timers: dict[str, int] = {}
        """The time (ns) a Tick is needed for things without a row: "silence", "figures"."""
        self.agenda: dict[Deadline, int] = {}
        self.deadlines: list[tuple[int, Deadline]] = []
        """The agenda, earliest first."""
        self._no_sums_yet()
        self._no_jobs_yet()

    def _no_sums_yet(self) -> None:
        """The tables derived from the others."""
        self.task_of_token: dict[tuple[str, str], str] = {}
        self.request_of_token: dict[tuple[str, str], str] = {}
        self.request_of: dict[ProcessKey, str] = {}
        self.process_of_pid: dict[tuple[str, int], ProcessKey] = {}
        self.slots: dict[str, int] = {}
        """Per env, one bit for each ledger slot that belongs to a process."""
        self.members: dict[str, int] = {}
        """The number of process rows per env. The env's ledger exists while there is one."""
        self.charged: dict[Uuid, int] = {}
        """Promised bytes of each GPU: accounting.charge over all envs."""
        self.env_charged: dict[str, int] = {}
        self.active: dict[Uuid, int] = {}
        """Tasks on each GPU that are not stalled."""
        self.unreclaimed_alive: dict[EnvGpu, int] = {}
        self.unreclaimed_dead: dict[EnvGpu, int] = {}
        self.stalled: dict[str, bool] = {}
        self.unsettled: dict[EnvGpu, bool] = {}
        """Grants that differ from the quota's terms: pending, or waiting for memory to be freed."""
        self.udp_askers: dict[ProcessKey, bool] = {}
        self.wants_figures: dict[str, bool] = {}
        """Requests that wait for memory to become free in their own env's ledger."""
        self.gpu_tasks: dict[Uuid, dict[str, None]] = {}
        self.env_tasks: dict[str, dict[str, None]] = {}
        self.violations: dict[tuple[ProcessKey, Uuid], Violation] = {}
        """The audit's findings, certain or not yet."""
        self.unbooked: dict[Uuid, int] = {}
        """Per GPU, the bytes that the driver shows and no charge covers, if above the tolerance."""

    def _no_jobs_yet(self) -> None:
        self.queues: dict[str, QueueRow] = {}
        """Queues as they were set; empty: Config's presets."""
        self.specs: dict[str, JobSpec] = {}
        """The specs of living jobs."""
        self.jobs: dict[str, Job] = {}
        """Jobs that have not ended."""
        self.job_of_key: dict[tuple[str, str], str] = {}
        """By env and the submitter's key: the job or array."""
        self.elements: dict[str, dict[str, None]] = {}
        """By array: its elements that have not ended."""
        self.dependents: dict[str, dict[str, None]] = {}
        """By job: the jobs that wait for its end."""
        self.job_bytes: dict[str, int] = {}
        """Per env, the bytes of its living jobs: rows and payloads."""
        self.spec_jobs: dict[str, int] = {}
        """The number of living jobs of each spec; and of each env:"""
        self.env_jobs: dict[str, int] = {}
        self.cpu_jobs: dict[str, int] = {}
        """Per env, the number of jobs without a GPU that are under way."""
        self.held_or_dependent: dict[str, tuple[int, int]] = {}
        """Jobs that wait outside a queue (HELD_OR_DEPENDENT), with the order of their ids;"""
        self.under_way: dict[str, tuple[int, int]] = {}
        """and the jobs that have left their queue."""
        self.queued: dict[str, int] = {}
        """The number of requests that wait in each queue."""
        self.launch_hosts: dict[str, str] = {}
        """By place, as reported since the manager's start: empty if up, else why it is down."""
        self.queue = WorkQueue(self.config.queues, self.config.ageing_ms * MS)

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

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Every waiting request in the order of service, with its position in its queue."""
        return (
            (self.requests[request_id], position) for request_id, position, _ in self.queue.listed()
        )

    def used_gpus(self, env: str) -> tuple[Uuid, ...]:
        """The healthy GPUs that the env holds through tasks that are not stalled.

        This is `used` in DESIGN.md.
        """
        return tuple(uuid for uuid in self.gpus if accounting.is_used(self, env, uuid))

    def remaining_bytes(self, uuid: Uuid) -> int:
        """The bytes of a GPU's memory that can still be promised."""
        return accounting.gpu_remaining(self, self.gpus[uuid])

    def watched(self) -> Iterator[tuple[ProcessKey, int | None]]:
        """The processes with watched deaths and beats, with their PIDs."""
        for process in self.processes.values():
            yield process.key, process.pid
        for request in self.requests.values():
            for asker in request.askers:
                if asker.process not in self.processes:
                    yield asker.process, asker.pid

    def watched_grants(self) -> Iterator[Grant]:
        """The grants with memory figures that the next Tick must bring."""
        envs = {self.requests[request_id].env for request_id in self.wants_figures}
        for grant in self.grants.values():
            shrinks = (grant.env, grant.uuid) in self.unsettled and accounting.target(
                self, grant
            ) < grant.memory_bytes
            if shrinks or grant.env in envs:
                yield grant

    def rows(self) -> Iterator[tuple[str, str, object]]:
        """The rows that the store should hold: (kind, key, value)."""
        for name, (kind, key_text) in STORED.items():
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value
