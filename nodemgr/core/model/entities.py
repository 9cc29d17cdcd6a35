"""What the manager believes: GPUs, environments, tasks, grants, requests. Plain values only.

Knows: the words of DESIGN.md as frozen dataclasses (values.py). Must not know: clocks, sockets, files, the wire.
Times are integers of nanoseconds: `_ns` on the monotonic clock (deadlines), `_wall_ns` since the Unix
epoch (what a person reads; never compared). Memory is in bytes. A GPU is named by its UUID everywhere.
Every dataclass here is a row of the store as it stands (core/model/encoding.py), but for Config and Violation: what a restart
forgets (connections, who is away, why somebody waits) lives in tables of the state instead.
"""

from __future__ import annotations

import enum

from nodemgr.core.model.values import value

MS = 1_000_000
"""Nanoseconds of a millisecond."""

Uuid = str
ConnectionId = int
ProcessKey = str
"""`unix:<pid>:<start ticks>` or `udp:<client id>`: one process, never another one later."""

LEDGER_SLOTS = 1024
"""Processes of one env that a ledger has words for (csrc/ledger/ledger.h)."""
GENERATIONS = 1 << 16
"""Generations of a ledger's slot wrap here (csrc/ledger/ledger.h)."""

RETAINED_ATTEMPTS = 10
RETAINED_HISTORY_ENTRIES = 32
"""Of a job, so many of its last attempts and of what was done to it are remembered."""
LOG_TAIL_CHARACTERS = 4_096
JOB_ROW_BYTES, AWAITED_BYTES = 1_024, 512
"""What a job counts for beside its payload, and each job that it waits for (Job.row_bytes)."""


class DenyCode(enum.StrEnum):
    """Why a request is refused: the one table of reasons (DESIGN.md, life of a request, 5)."""

    NO_GPU = "no_gpu"
    OVER_QUOTA = "over_quota"
    MORE_THAN_NODE = "more_than_node"
    UNKNOWN_ENV = "unknown_env"
    MEMORY_ABOVE_LIMIT = "memory_above_limit"
    FORBIDDEN_USER = "forbidden_user"
    WAIT_TIMEOUT = "wait_timeout"
    CANCELLED = "cancelled"
    STORE_FULL = "store_full"
    BAD_REQUEST = "bad_request"
    RELEASED = "released"
    TOO_MANY_PROCESSES = "too_many_processes"
    QUEUE_FULL = "queue_full"
    UNKNOWN_QUEUE = "unknown_queue"
    UNKNOWN_JOB = "unknown_job"
    TOO_MANY_JOBS = "too_many_jobs"


class Transport(enum.StrEnum):
    UNIX = "unix"
    UDP = "udp"


class Offence(enum.StrEnum):
    """What the audit finds of a process (lifecycle/audit.py has the rules)."""

    NO_LEASE = "no_lease"
    OVER_QUOTA = "over_quota"


class TaskState(enum.StrEnum):
    RUNNING = "running"
    STALLED = "stalled"


class JobState(enum.StrEnum):
    """Where a job is in its life; the last three end it (FINAL)."""

    HELD = "held"
    """By order: it waits for another order."""
    PAUSED = "paused"
    """Its last attempt ended by no fault of the job; it enters its queue again, at its old place, when the pause is over."""
    DEPENDENCY = "after"
    """It waits for other jobs to end well."""
    QUEUED = "queued"
    STARTING = "starting"
    """It has its GPUs, and is about to be started: stored before it is started."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was asked to end; `Job.then` says what it is after that."""
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


FINAL = frozenset((JobState.DONE, JobState.FAILED, JobState.WITHDRAWN))
HELD_OR_DEPENDENT = frozenset((JobState.HELD, JobState.PAUSED, JobState.DEPENDENCY))
"""States in which a job waits and stands in no queue."""
UNDER_WAY = frozenset((JobState.STARTING, JobState.RUNNING, JobState.STOPPING))
"""States in which an attempt is, or may be, running somewhere."""


class Cause(enum.StrEnum):
    """What ended an attempt, or kept it from starting. endings.py says what follows for the job."""

    OWN = "own"
    """Its process: by exit code or signal."""
    TIME_LIMIT = "time_limit"
    CANNOT_RUN = "cannot_run"
    """Its command, directory, user or group does not exist, or may not be used."""
    GPU_LOST = "gpu_lost"
    """Its process ended badly, and one of its GPUs was lost while the attempt ran."""
    SUPERVISOR_LOST = "supervisor_lost"
    """Its supervisor was killed, or its files are gone."""
    NODE_DOWN = "node_down"
    """The node went down, or asked its supervisor to end."""
    CONTAINER_STOPPED = "container_stopped"
    NOT_STARTED = "not_started"
    """The node had no process, memory or disk space to start it."""
    PREEMPTED = "preempted"
    """An administrator requeued it while it ran."""


@value
class Config:
    """The manager's own settings that decisions depend on."""

    beat_ms: int = 1_000
    timeout_ms: int = 5_000
    max_tasks_per_gpu: int = 8
    memory_overcommit: float = 1.0
    stalled: str = "keep"  # or "kill"
    stalled_grace_ms: int = 600_000
    queues: tuple[tuple[str, int], ...] = (("high", 300), ("normal", 200), ("low", 100))  # name, rank
    placement: str = "spread"
    """The order of fresh GPUs: a name in allocator.POLICIES."""
    enforce: str = "warn"
    """What is done about processes that the audit finds, where a quota says nothing: a name in ENFORCE."""
    enforce_grace_ms: int = 10_000
    """How long a process that is to be killed has to end by itself."""
    audit_tolerance_bytes: int = 1 << 30
    """What the driver may show of a process beyond its charges: contexts, modules, local memory (lifecycle/audit.py)."""
    requeue_pause_ms: int = 10_000
    """A job whose attempt ended by no fault of the job waits this long before it is queued again; each such end in a row doubles it,
    up to:"""
    max_requeue_pause_ms: int = 3_600_000
    ageing_ms: int = 36_000
    """Who waits gains one point of rank in so long; 0: strictly by rank."""
    backfill_depth: int = 100
    """So many of those who wait may be looked at for an earlier start behind one that cannot start."""
    max_jobs: int = 1_000_000
    """Jobs of the node that have not ended; and of one env:"""
    max_env_jobs: int = 200_000
    max_env_job_bytes: int = 1 << 30
    """What the store holds of one env's jobs that have not ended: their rows, commands and variables."""
    max_cpu_jobs: int = 256
    """Jobs without a GPU that run at once on the node; and of one env:"""
    max_env_cpu_jobs: int = 64


@value
class Gpu:
    uuid: Uuid
    index: int
    """NVML's index, in PCI order: the ledger's row, and what is shown to people."""
    name: str
    memory_total_bytes: int
    healthy: bool = True


@value
class Quota:
    gpus: int
    memory_bytes: int | None = None
    """The env's total over all its GPUs; None: no memory quota, a grant is a whole GPU."""
    default_gpus: int | None = None
    priority: str = "normal"
    max_priority: str | None = None
    """The highest queue that the env's users may ask for; None: `priority`."""
    acquire: str = "first-use"  # or "import"
    no_gpu: str = "error"  # or "cpu"
    no_manager: str = "wait"  # or "cpu", "error"
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    enforce: str | None = None
    """What is done about its processes that go round the quota: None is the node's default (Config)."""

    @property
    def memory_per_gpu_bytes(self) -> int | None:
        """A fresh GPU's grant (DESIGN.md: `memory // gpus`)."""
        if self.memory_bytes is None or self.gpus == 0:
            return None
        return self.memory_bytes // self.gpus

    def terms(self) -> dict[str, object]:
        """All but the number of GPUs, by name, as events and answers carry them."""
        return {
            "memory_bytes": self.memory_bytes,
            "memory_per_gpu_bytes": self.memory_per_gpu_bytes,
            "default_gpus": self.default_gpus,
            "priority": self.priority,
            "max_priority": self.max_priority,
            "acquire": self.acquire,
            "no_gpu": self.no_gpu,
            "no_manager": self.no_manager,
            "users": list(self.users),
            "groups": list(self.groups),
            "enforce": self.enforce,
        }


@value
class Process:
    """A member of a task that holds a lease, or one that left its lease and lives on."""

    key: ProcessKey
    env: str
    task_id: str
    transport: Transport
    pid: int | None
    """As the host sees it; None over UDP."""
    user: str
    slot: int | None
    """Its slot in the env's ledger, its own until it is dead; None over UDP."""
    generation: int
    rid: str
    """Of the request that was granted."""
    cap_bytes: int | None = None
    """UDP only: the fixed share of each GPU's grant that this process may take."""
    fenced: bool = False
    """It holds nothing any more (it released, or lost its lease), but may still have memory: its slot is kept, its
    allocations are refused. When it asks anew it gets the same slot and generation, so that what it frees is counted."""


@value
class Task:
    """A lease and whose it is. It exists exactly while it holds GPUs."""

    task_id: str
    env: str
    token: str
    gpus: tuple[Uuid, ...]
    fresh: tuple[Uuid, ...]
    """Those of `gpus` that the env did not hold before."""
    state: TaskState
    command: str
    since_ns: int
    since_wall_ns: int
    processes: tuple[ProcessKey, ...] = ()
    memory_bytes: int | None = None
    """Per GPU, if its request named it."""
    kept_bytes: int = 0
    """What is kept free for it in each of its grants: the same, if it was asked for over the UNIX socket."""
    world: int = 1
    """Processes that were announced: without a named memory, each one over UDP may take this part of a grant."""
    stalled_since_ns: int | None = None
    job_id: str | None = None
    """The job that holds it: it lasts as long as the job's attempt, whoever joins and leaves."""
    time_limit_ms: int | None = None
    """The job's."""


@value
class Grant:
    """An env's share of one GPU's memory; exists while a task of the env holds the GPU."""

    env: str
    uuid: Uuid
    memory_bytes: int
    """Taken out of the GPU's remaining memory and the env's remaining quota."""
    limit_bytes: int
    """What the ledger enforces now: below memory_bytes while a lowered quota or a stall waits for memory to be freed,
    and always by the caps that UDP processes hold."""
    tasks: int
    stalled_tasks: int = 0
    kept_bytes: int = 0
    """The sum of its tasks' kept_bytes: other requests that name their memory leave it alone."""
    caps_bytes: int = 0
    """The sum of its UDP processes' fixed caps."""


@value
class UnreclaimedMemory:
    """Memory of a process that lost its lease, charged to the GPU until the driver shows it gone (promise 5)."""

    env: str
    uuid: Uuid
    process: ProcessKey
    pid: int
    memory_bytes: int
    """Until the driver was asked: as much as it can be, the whole grant."""
    alive: bool = True
    """A living process's words are still summed by the env's ledger: counted inside the env's grant, if there is one."""
    told: bool = False
    """A reading of the driver found that it stays, and an event said so."""


@value
class Violation:
    """A process that the driver shows where it should not be, and what was done about it. A restart forgets it: the next
    looks find it again."""

    offence: Offence
    uuid: Uuid
    process: ProcessKey
    pid: int
    command: str
    since_ns: int
    last_ns: int = 0
    """When it was last seen."""
    env: str | None = None
    """None: nobody can prove that it belongs to any."""
    task_id: str | None = None
    memory_bytes: int = 0
    """What the driver shows of it."""
    allowed_bytes: int = 0
    """What its env may use there."""
    told: bool = False
    """It is sure, and an event said so."""
    done: str = ""
    """The policy that was carried out."""
    term_ns: int | None = None
    """When it was asked to end."""
    killed: bool = False


@value
class Asker:
    """One process that waits for a request's answer."""

    process: ProcessKey
    rid: str
    transport: Transport
    pid: int | None
    user: str


@value
class Request:
    """A task that waits in the queue."""

    request_id: str
    env: str
    token: str
    gpus: int
    memory_bytes: int | None
    """Per GPU, if the request names it."""
    command: str
    priority: str
    sequence: int
    since_ns: int
    since_wall_ns: int
    wait_ms: int | None
    """How long it waits at most, from its start or a restart of the manager on; None: without limit."""
    askers: tuple[Asker, ...]
    """Nobody, for a job's request."""
    world: int = 1
    job_id: str | None = None
    """The job that it is for."""
    time_limit_ms: int | None = None
    """The job's."""
    queued_ns: int = 0
    """When it entered its queue, by the queue's own clock (State.queue_now): orders by age, also over restarts."""
    place: str = ""
    """The job's."""
    is_default: bool = False
    """It named no number of GPUs: `gpus` is what its env's requests get by default."""

    @property
    def owner(self) -> str:
        """Whose holdings and quota decide about it: the env; nobody's for a job that takes no GPU."""
        return self.env if self.gpus else ""

    @property
    def equivalence_group(self) -> str:
        """Requests of one name here ask the same, and what one of them cannot be given, no later one can. Interactive ones are each
        by themselves."""
        if self.job_id is None:
            return self.request_id
        return f"{self.env}/{self.gpus}/{self.memory_bytes}/{self.time_limit_ms}/{self.place}"


@value
class JobSpec:
    """Who runs a job, and how large its payload is. One for each submission: an array's elements share it."""

    spec_id: str
    user: str
    uid: int
    gid: int
    umask: int = 0o022
    payload_bytes: int = 0
    """Of the JobPayload that the store keeps under the same id."""


@value
class JobPayload:
    """What a job's process is given. The store keeps it, the state does not: it is read when the job starts."""

    argv: tuple[str, ...]
    cwd: str
    environ: tuple[str, ...]
    """`KEY=value`, each."""

    @property
    def size_bytes(self) -> int:
        """Its size in the store."""
        return len("\0".join((self.cwd, *self.argv, *self.environ)).encode("utf-8", "surrogateescape"))


@value
class Attempt:
    """One start of a job."""

    number: int
    """From 1."""
    started_wall_ns: int | None
    """None: it never ran."""
    ended_wall_ns: int | None
    gpus: tuple[Uuid, ...]
    exit_code: int | None
    signal: int | None
    why: str
    """Why it ended as it did, if not by itself."""
    log_tail: str
    cause: Cause = Cause.OWN
    """Once it has ended."""
    lost_gpu: Uuid | None = None
    """One of its GPUs that was lost while it ran."""


@value
class HistoryEntry:
    """Who did what to a job."""

    wall_ns: int
    who: str
    """`root (uid 0)`, or `nodemgr`."""
    what: str


@value
class Job:
    """A program that is run when its turn comes. A final one leaves the state for the history."""

    job_id: str
    """`j12`; the elements of an array are `j12.0` and so on, and `j12` means all of them."""
    env: str
    name: str
    command: str
    """One line for people."""
    user: str
    spec_id: str
    gpus: int
    memory_bytes: int | None
    """Per GPU, if it was named."""
    priority: str
    """Its queue."""
    time_limit_ms: int | None
    submitted_wall_ns: int
    state: JobState
    after: tuple[str, ...] = ()
    """Jobs that must end well before it may start, as far as they have not; an array stands for all of its elements."""
    max_restarts: int = 0
    attempt: int = 0
    """The number of its last start; 0 before the first."""
    restarts: int = 0
    """How many of them followed a failure of its own."""
    interruptions: int = 0
    """How many attempts in a row ended by no fault of the job: the pause grows with them."""
    resumes_wall_ns: int | None = None
    """While PAUSED: when it enters its queue again."""
    key: str = ""
    """The submitter's own random name for it: the same submission again is the same job."""
    request_id: str | None = None
    """While QUEUED."""
    task_id: str | None = None
    """Its lease, while it has GPUs."""
    then: JobState | None = None
    """While STOPPING: what it is after that. QUEUED for one that is to begin anew."""
    entered_wall_ns: int | None = None
    """When it entered its queue last."""
    queued_ns: int = 0
    """The same by the queue's clock: its place there, to which it goes back where nobody could begin it."""
    place: str = ""
    """Where it runs: empty for this node itself, else a container, as ENV/UID/CONTAINER."""
    started_wall_ns: int | None = None
    """When it ran last, from here"""
    ended_wall_ns: int | None = None
    """to here."""
    why: str = ""
    """Why it is held, ends, or failed last."""
    attempts: tuple[Attempt, ...] = ()
    """The last RETAINED_ATTEMPTS; the last of them is under way while it is STARTING, RUNNING or STOPPING."""
    deeds: tuple[HistoryEntry, ...] = ()
    """The last RETAINED_HISTORY_ENTRIES."""

    @property
    def row_bytes(self) -> int:
        """An estimate of what its row takes, in the store and in memory."""
        tails = sum([len(attempt.log_tail) for attempt in self.attempts])
        return JOB_ROW_BYTES + AWAITED_BYTES * len(self.after) + tails


@value
class Ended:
    """A final job as the history keeps it. While the store has the payload of its spec, it can be run again."""

    job: Job
    spec: JobSpec


@value
class QueueRow:
    """A queue as it was set: without any row, Config's presets are the queues."""

    name: str
    rank: int
    cap: int | None = None
    """How many may wait in it; who would be one more is refused. None: no limit."""
    max_restarts: int = 0
    """Of a job that is submitted to it and names no number of its own."""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """The users that may ask for it; with neither, all."""


@value
class Record:
    """One allocation, for `nodemgr allocations` (DESIGN.md, which GPUs)."""

    record_id: int
    """The number in task_id."""
    env: str
    task_id: str
    command: str
    gpus_new: tuple[Uuid, ...]
    gpus_reused: tuple[Uuid, ...]
    grant_bytes: tuple[int, ...]
    remaining_gpus: int
    remaining_memory_bytes: int | None
    asked_wall_ns: int
    granted_wall_ns: int
    ended_wall_ns: int | None = None
    why: str | None = None


@value
class Env:
    name: str
    quota: Quota
