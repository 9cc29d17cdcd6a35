"""What the manager believes, as tables: plain dictionaries, to be read by anybody, written by Draft.settle alone.

Knows: which tables there are, and what can be read off them at once.
Must not know: how and why a row changes (draft.py, and the modules beside manager.py), nor clocks, sockets, files.
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
    """Everything the manager believes. The tables are plain dictionaries."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.queue_ahead_ns = 0
        """How far the queue's clock is ahead of the monotonic one, which a boot sets back."""
        self.stamped_ns = 0
        """The last stamp that the queue's clock gave: no two requests have the same, so each can go back to its very place."""
        self.version = 0
        """How many transitions were applied: one made for another version is refused."""
        self.gpus: dict[Uuid, Gpu] = {}
        self.envs: dict[str, Env] = {}
        self.tasks: dict[str, Task] = {}
        self.processes: dict[ProcessKey, Process] = {}
        self.grants: dict[EnvGpu, Grant] = {}
        self.requests: dict[str, Request] = {}
        self.unreclaimed: dict[tuple[ProcessKey, Uuid], UnreclaimedMemory] = {}
        self.records: dict[str, Record] = {}
        """Of leases that have not ended, by task."""
        self.counters: dict[str, int] = {}
        """schema.IDS, schema.GENERATION and schema.JOBS."""

        self.connections: dict[ProcessKey, ConnectionId] = {}
        self.process_of_connection: dict[ConnectionId, ProcessKey] = {}
        self.away: dict[ProcessKey, int] = {}
        """Waiters without a connection, and since when (ns)."""
        self.reasons: dict[str, str] = {}
        """Why a request waits: the line that its askers were told."""
        self.positions: dict[str, int] = {}
        """Its position in its queue, as they were told."""
        self.timers: dict[str, int] = {}
        """When (ns) a Tick is needed for what has no row: "silence", "figures"."""
        self.agenda: dict[Deadline, int] = {}
        self.deadlines: list[tuple[int, Deadline]] = []
        """The agenda, earliest first."""
        self._no_sums_yet()
        self._no_jobs_yet()

    def _no_sums_yet(self) -> None:
        """The tables that follow from the others."""
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
        self.unreclaimed_alive: dict[EnvGpu, int] = {}
        self.unreclaimed_dead: dict[EnvGpu, int] = {}
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

    def _no_jobs_yet(self) -> None:
        self.queues: dict[str, QueueRow] = {}
        """As they were set; none: Config's presets."""
        self.specs: dict[str, JobSpec] = {}
        """What living jobs run."""
        self.jobs: dict[str, Job] = {}
        """Those that have not ended."""
        self.job_of_key: dict[tuple[str, str], str] = {}
        """By env and the submitter's key: the job or array."""
        self.elements: dict[str, dict[str, None]] = {}
        """Of each array, those that have not ended."""
        self.dependents: dict[str, dict[str, None]] = {}
        """By job: those who wait for its end."""
        self.job_bytes: dict[str, int] = {}
        """Per env, the bytes of its living jobs: rows and payloads."""
        self.spec_jobs: dict[str, int] = {}
        """How many living jobs run each spec; and how many there are of each env:"""
        self.env_jobs: dict[str, int] = {}
        self.cpu_jobs: dict[str, int] = {}
        """Of each env, how many jobs without a GPU are under way."""
        self.held_or_dependent: dict[str, tuple[int, int]] = {}
        """Jobs that wait and stand in no queue, for an order or for other jobs, with the order of their ids;"""
        self.under_way: dict[str, tuple[int, int]] = {}
        """and those that have been taken from their queue."""
        self.queued: dict[str, int] = {}
        """How many requests wait in each queue."""
        self.launch_hosts: dict[str, str] = {}
        """Where jobs run, as far as anybody told since the manager's start: empty for a place that is up, else why it is not."""
        self.queue = WorkQueue(self.config.queues, self.config.ageing_ms * MS)

    def wake_ns(self) -> int | None:
        """When a Tick is due at the latest; None: nothing is waited for."""
        times = [*self.timers.values(), *(due_ns for due_ns, _ in self.deadlines[:1])]
        return min(times) if times else None

    def is_up(self, place: str) -> bool:
        """Could a job be started there now?"""
        return self.launch_hosts.get(place) == ""

    def queue_now(self, now_ns: int) -> int:
        """The queue's clock: for the order of those who wait, over restarts and boots."""
        return now_ns + self.queue_ahead_ns

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Every waiting request in the order of service, with its position in its queue."""
        return ((self.requests[request_id], position) for request_id, position, _ in self.queue.listed())

    def used_gpus(self, env: str) -> tuple[Uuid, ...]:
        """The healthy GPUs that the env holds through tasks that are not stalled (DESIGN.md, `used`)."""
        return tuple(uuid for uuid in self.gpus if accounting.is_used(self, env, uuid))

    def remaining_bytes(self, uuid: Uuid) -> int:
        """What of a GPU's memory is promised to nobody."""
        return accounting.gpu_remaining(self, self.gpus[uuid])

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
            shrinks = (grant.env, grant.uuid) in self.unsettled and accounting.target(self, grant) < grant.memory_bytes
            if shrinks or grant.env in envs:
                yield grant

    def rows(self) -> Iterator[tuple[str, str, object]]:
        """What the store should hold: (kind, key, value)."""
        for name, (kind, key_text) in STORED.items():
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value
