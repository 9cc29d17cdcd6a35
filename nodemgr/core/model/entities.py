"""The manager's entities: GPUs, environments, tasks, grants, requests, jobs. Plain values only.

Knows: the terms of docs/glossary.md as frozen dataclasses (values.py).
Must not know: clocks, sockets, files, the wire.
Times are integers in nanoseconds. `_ns` is the node's clock (edge/host/clock.py): deadlines and
durations. `_wall_ns` counts from the Unix epoch (for people; never subtracted). Memory is in bytes.
UUIDs name GPUs everywhere.
Every dataclass here except Config, Violation, Progress and Outlook is a row of the store
(core/model/encoding.py).
Tables of the state hold the data that a restart loses: connections, disconnected waiters, reasons.
"""

from __future__ import annotations

import enum
from json.encoder import encode_basestring_ascii as quoted

from nodemgr.core.model.values import terms, value

MS = 1_000_000
"""Nanoseconds in a millisecond."""
END_GRACE_MS = 30_000
"""Between the request to end and the forced end of a job: a training may have something to save."""

Uuid = str
ConnectionId = int
ProcessKey = str
"""`unix:<pid>:<start ticks>` or `udp:<client id>`: names one process and is never reused."""

LEDGER_SLOTS = 1024
"""The number of processes of one env that a ledger has words for (csrc/ledger/ledger.h)."""
GENERATIONS = 1 << 16
"""The generation of a ledger slot wraps at this number (csrc/ledger/ledger.h)."""

RETAINED_ATTEMPTS = 10
RETAINED_HISTORY_ENTRIES = 32
RETAINED_RESIZES = 50
"""A job keeps this many of its last attempts and history entries."""
LOG_TAIL_CHARACTERS = 4_096
JOB_ROW_BYTES, AWAITED_BYTES = 4_096, 512
"""The size of a job without its payload, its request included, and of each job it waits for."""
BARE_BYTES, ATTEMPT_BYTES, PER_GPU_BYTES, ENTRY_BYTES, PREDICTED_BYTES = 1_792, 512, 64, 64, 512
"""Its parts without their texts; together they may be more (Job.row_bytes)."""


class DenyCode(enum.StrEnum):
    """The only table of reasons to refuse a request."""

    NO_GPU = "no_gpu"
    OVER_QUOTA = "over_quota"
    MORE_THAN_NODE = "more_than_node"
    UNKNOWN_ENV = "unknown_env"
    MEMORY_ABOVE_LIMIT = "memory_above_limit"
    CLASS_ABOVE_LIMIT = "class_above_limit"
    COMPUTE_ABOVE_LIMIT = "compute_above_limit"
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
    """The offences that the audit finds in a process (lifecycle/audit.py has the rules)."""

    NO_LEASE = "no_lease"
    OVER_QUOTA = "over_quota"
    OVER_SHARE = "over_share"
    GARBLED_GATE = "garbled_gate"


OF_COMPUTE = frozenset((Offence.OVER_SHARE, Offence.GARBLED_GATE))
"""Offences against a launch gate (sharing/compute_audit.py)."""


class TaskState(enum.StrEnum):
    RUNNING = "running"
    STALLED = "stalled"


class TaskClass(enum.StrEnum):
    """The class of a task, in the order of service: the first is served first."""

    LATENCY_SENSITIVE = "latency-sensitive"
    NORMAL = "normal"
    BEST_EFFORT = "best-effort"


CLASS_ORDER = {task_class: number for number, task_class in enumerate(TaskClass)}
"""A lower number is served first, and may take what a higher one may not."""
WHOLE_PERCENT = 100
"""A whole GPU's compute; the sum of the granted shares on a GPU never exceeds it."""


@value
class PredictedRun:
    """The forecast of a run on one GPU model. None: not predicted."""

    gpu_model: str
    memory_bytes: int | None
    percent: int | None
    """The utilisation of each GPU."""
    step_ns: int | None
    run_ms: int | None
    expected_ms: int | None
    """The run time with the margin that past errors ask for."""
    share_percent: int | None = None
    """The share that it needs of a GPU of this model.

    None: its user has named one, or no utilisation is known.
    """
    most_ms: int | None = None
    """The upper end of a measured or learned run time; None: it has no interval."""

    @property
    def steps(self) -> int | None:
        """The steps of the whole run."""
        if not self.step_ns or self.run_ms is None:
            return None
        return round(self.run_ms * MS / self.step_ns) or None


class Word(enum.StrEnum):
    """The words of an elastic task about a GPU of its lease."""

    ACCEPTED = "accepted"
    """A worker runs on an offered GPU."""
    DECLINED = "declined"
    """It cannot use an offered GPU now, and gives it back."""
    LEFT = "left"
    """No process of it is on the GPU any more."""


class Suspension(enum.StrEnum):
    """The state of a task whose device memory goes to host memory and comes back."""

    NONE = "none"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"


class JobState(enum.StrEnum):
    """The state of a job; the last three are final (FINAL)."""

    HELD = "held"
    """An order holds the job until another order."""
    PAUSED = "paused"
    """Its last attempt ended by no fault of the job.

    After the pause it enters its queue again, at its old place.
    """
    DEPENDENCY = "after"
    """It waits for other jobs to end well."""
    QUEUED = "queued"
    STARTING = "starting"
    """It has its GPUs and is about to start. The store has this state before the start."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was asked to end; `Job.then` is its next state."""
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


FINAL = frozenset((JobState.DONE, JobState.FAILED, JobState.WITHDRAWN))
HELD_OR_DEPENDENT = frozenset((JobState.HELD, JobState.PAUSED, JobState.DEPENDENCY))
"""States in which a job waits and is in no queue."""
UNDER_WAY = frozenset((JobState.STARTING, JobState.RUNNING, JobState.STOPPING))
"""States in which an attempt runs, or may run."""


class Cause(enum.StrEnum):
    """The cause that ended an attempt, or prevented its start. endings.py has the consequences."""

    OWN = "own"
    """Its process, by exit code or signal."""
    TIME_LIMIT = "time_limit"
    CANNOT_RUN = "cannot_run"
    """Its command, directory, user or group does not exist, or may not be used."""
    GPU_LOST = "gpu_lost"
    """Its process ended badly, and one of its GPUs was lost while the attempt ran."""
    SUPERVISOR_LOST = "supervisor_lost"
    """Its supervisor was killed or told to end, or its files are gone."""
    HOST_MEMORY = "host_memory"
    """The kernel ended it at the limit on its host memory, or on its environment's."""
    GPU_MEMORY = "gpu_memory"
    """Its process ended badly after its lease had no more GPU memory for it."""
    NODE_DOWN = "node_down"
    """The node went down: the end was found in a later boot."""
    CONTAINER_STOPPED = "container_stopped"
    NOT_STARTED = "not_started"
    """The node had no process, memory or disk space to start it."""
    POLICY = "policy"
    """The manager ended it, as `stalled = "kill"` or the environment's `--enforce` says."""
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
    # name, rank
    queues: tuple[tuple[str, int], ...] = (
        ("high", 300),
        ("normal", 200),
        ("low", 100),
    )
    placement: str = "auto"
    """The order of fresh GPUs: a name in placement/orders.py."""
    enforce: str = "warn"
    """The action on processes that the audit finds, where a quota sets none: a name in ENFORCE."""
    enforce_grace_ms: int = 10_000
    """The time a process has to end by itself before it is killed."""
    audit_tolerance_bytes: int = 1 << 30
    """The bytes of an env that the driver may show on a GPU beyond its grant.

    They are modules and local memory (lifecycle/audit.py).
    """
    requeue_pause_ms: int = 10_000
    """The pause before a job is queued again after its attempt ended by no fault of the job.

    Each such end in a row doubles it, up to:
    """
    max_requeue_pause_ms: int = 3_600_000
    ageing_ms: int = 36_000
    """A waiting request gains one point of rank in this time; 0: strictly by rank."""
    backfill_depth: int = 100
    """The limit on waiting requests that are tried for an earlier start behind a blocked one."""
    max_jobs: int = 1_000_000
    """The limit on unfinished jobs of the node; and of one env:"""
    max_env_jobs: int = 200_000
    max_env_job_bytes: int = 1 << 30
    """The limit on the stored size of one env's unfinished jobs: rows, commands and variables."""
    max_cpu_jobs: int = 256
    """The limit on jobs without a GPU that run at once on the node; and of one env:"""
    max_env_cpu_jobs: int = 64
    plain_tasks_share: bool = False
    """Tasks without a share of compute may run beside tasks with one, on one GPU.

    Else such a task counts as the whole GPU beside those.
    """
    drain_failures: int = 3
    """A GPU that failed so often within an hour is drained; 0: none is."""
    offer_calm_ms: int = 2_000
    """The time a GPU is idle and wanted by no request before an elastic task is offered it."""
    preempt_exempt_ms: int = 0
    """The time that a best-effort task keeps its GPUs after it started or came back.

    Until then it is neither suspended nor ended for a latency-sensitive request.
    """
    cpus_per_gpu: int = 0
    """The processors of a job that names none, for each of its GPUs; 0: without limit."""
    host_memory_per_gpu_bytes: int = 0
    """The host memory of a job that names none, for each of its GPUs; 0: without limit."""
    node_cpus: int = 0
    """The processors that all jobs may reserve together; 0: not known, no bound. Its memory:"""
    node_memory_bytes: int = 0
    recall_ms: int = 10_000
    """The time an elastic task has to leave a recalled GPU before its processes there are ended."""


@value
class Gpu:
    uuid: Uuid
    index: int
    """NVML's index, in PCI order: the ledger's row, and the number shown to people."""
    name: str
    memory_total_bytes: int
    healthy: bool = True
    drained: bool = False
    """It gets no new task: by order, or because it failed again and again (GpuRecord)."""

    @property
    def usable(self) -> bool:
        """Healthy and not drained: it may be granted."""
        return self.healthy and not self.drained


class FailureKind(enum.StrEnum):
    """The evidence of a GPU's failure."""

    XID = "xid"
    """An XID of the hardware (core/placement/xids.py)."""
    ECC = "ecc"
    """Uncorrectable errors of its memory."""
    VANISHED = "vanished"
    """The driver no longer shows it, and shows others."""
    REPORTED = "reported"
    """An administrator reported it (`nodemgr gpu failed`)."""


@value
class Evidence:
    """A sign of a GPU's failure: an event, or an attempt of a job that ended badly beside one."""

    what: str = ""
    """The event in words, one line; empty: it is an attempt."""
    job_id: str = ""
    attempt: int = 0


@value
class Failure:
    """One failure of a GPU; evidence of the same kind or another within a minute is part of it."""

    failure_id: str
    uuid: Uuid
    kind: FailureKind
    """Of the first evidence."""
    wall_ns: int
    service_ns: int
    """On the clock of the manager's service (State.service_now), by which it ages."""
    evidence: tuple[Evidence, ...]
    """The first MAX_EVIDENCE."""
    last_service_ns: int
    """Of its last evidence."""
    by: str = ""
    """The administrator; empty: the driver."""


@value
class GpuRecord:
    """A GPU since its first sight or its last repair."""

    uuid: Uuid
    since_service_ns: int
    since_wall_ns: int
    drained_by: str = ""
    """An administrator, or `nodemgr`; empty: it is not drained."""
    why: str = ""
    """The reason of the drain, or the note of the last repair."""
    flapped: bool = False
    """An event reported that it fails again and again and stays, as the last usable GPU."""


BY_MANAGER = "nodemgr"
"""GpuRecord.drained_by of a GPU that failed again and again."""
BY_LENDER = "Slurm"
"""The same of the GPUs of a node that is lent, while it is not."""
MAX_EVIDENCE = 4
MAX_EVIDENCE_CHARACTERS = 200
MAX_FAILURES = 64
"""A GPU keeps this many of its last failures."""
FAILURE_GAP_NS = 60_000_000_000
"""Evidence within this time of the last one belongs to the same failure."""
FLAPPING_NS = 3_600_000_000_000


@value
class Outlook:
    """The estimate of a GPU's failures, as decisions use it. It follows from the records."""

    rate_per_hour: float
    low_per_hour: float
    high_per_hour: float
    """The bounds of its rate (core/placement/rates.py, LEVEL)."""
    since_service_ns: int
    last_service_ns: int | None
    """Of its last failure."""


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
    """The action on its processes that bypass the quota; None: the node's default (Config)."""
    compute_percent: int | None = None
    """The percent of each GPU's compute that a task may have, and has by default.

    None: no limit, and no share by default.
    """
    task_class: TaskClass = TaskClass.NORMAL
    """The highest class of the env's tasks, and the class of a task that names none."""
    idle_ms: int | None = None
    """A task without a launch or copy for this time is idle; None: no task ever is."""
    when_idle: str = "keep"  # or "suspend", "release"
    """The action on an idle task."""
    max_keep_ms: int = 8 * 3_600_000
    """The longest time that a user may keep an idle task from this action."""
    placement: str | None = None
    """The order of its fresh GPUs; None: its queue's, else the node's default (Config)."""
    borrow: int = 0
    """The number of idle GPUs beyond the quota that the env's elastic tasks may use."""
    cpus: int | None = None
    """The processors of all its jobs together; None: no limit. The same of host memory:"""
    host_memory_bytes: int | None = None
    forecast: str = "on"  # or "off"
    """Whether figures of earlier runs are kept, and filled in."""

    @property
    def memory_per_gpu_bytes(self) -> int | None:
        """A fresh GPU's grant (docs/allocation.md: `memory // gpus`)."""
        if self.memory_bytes is None or self.gpus == 0:
            return None
        return self.memory_bytes // self.gpus

    @property
    def borrowed_bytes(self) -> int:
        """The memory beyond the quota that borrowed GPUs may take."""
        return self.borrow * (self.memory_per_gpu_bytes or 0)

    @property
    def has_shares(self) -> bool:
        """Its env's tasks have a class or a share, unless they name another one."""
        return self.task_class is not TaskClass.NORMAL or self.compute_percent is not None

    @property
    def is_gated(self) -> bool:
        """Its env's processes pass the launch gate: it has a class, a share or an idle policy."""
        return self.has_shares or self.idle_ms is not None

    def terms(self) -> dict[str, object]:
        """Every field but the number of GPUs, by name, as events and answers carry them."""
        return {**terms(self, "gpus"), "memory_per_gpu_bytes": self.memory_per_gpu_bytes}


@value
class GpuRange:
    """The numbers of GPUs beyond the least one that a request accepts."""

    most: int
    is_elastic: bool = False
    """The number changes while the task runs; else it is decided once, at the start."""


@value
class WorkerBinding:
    """A process of an elastic task that uses one GPU of the lease alone."""

    process: ProcessKey
    uuid: Uuid


@value
class Recall:
    """A GPU that an elastic task is asked to leave."""

    uuid: Uuid
    receiver: str
    """The id of the request that gets it; empty: the env's quota was lowered."""


@value
class ElasticLease:
    """The range of an elastic task, and what is under way about its GPUs.

    It exists as long as the task.
    """

    task_id: str
    least: int
    most: int
    arrivals: tuple[Uuid, ...]
    """The task's GPUs in the order in which it got them: the last one is recalled first."""
    leader: ProcessKey = ""
    """The process that gets offers and recalls; empty: it has not asked yet, or is gone."""
    offered: tuple[Uuid, ...] = ()
    """GPUs that were added, and that the leader has not accepted yet."""
    recalls: tuple[Recall, ...] = ()
    workers: tuple[WorkerBinding, ...] = ()


@value
class Process:
    """A member of a task that holds a lease, or a process that left its lease and still lives."""

    key: ProcessKey
    env: str
    task_id: str
    transport: Transport
    pid: int | None
    """The PID on the host; None over UDP."""
    user: str
    slot: int | None
    """Its slot in the env's ledger, kept until the process is dead; None over UDP."""
    generation: int
    rid: str
    """The id of the granted request."""
    cap_bytes: int | None = None
    """UDP only: the fixed share of each GPU's grant that this process may take."""
    fenced: bool = False
    """It holds nothing any more (it released, or lost its lease), but may still have memory.

    It keeps its slot, and its allocations are refused. A new request gets the same slot and
    generation, so that the ledger counts the memory it frees.
    """
    gated: bool = False
    """Its launches pass the gate: it chose so at its first look-up of a launch function."""
    starts: bool = False
    """It holds the lease for the program that it becomes, without beats until that one asks."""


@value
class Task:
    """A lease and its owner. It exists exactly while it holds GPUs."""

    task_id: str
    env: str
    token: str
    gpus: tuple[Uuid, ...]
    fresh: tuple[Uuid, ...]
    """The GPUs in `gpus` that the env did not hold before."""
    state: TaskState
    run: RunSpec
    """Of its request, with the share and the expected time for the model of its GPUs."""
    since_ns: int
    since_wall_ns: int
    processes: tuple[ProcessKey, ...] = ()
    kept_bytes: int = 0
    """Bytes kept free for it in each of its grants.

    This is the named memory of a request over the UNIX socket or of a job, else 0. The ledger
    keeps it, and gives the task no more than `cap_bytes`.
    """
    world: int = 1
    """The number of announced processes.

    Without named memory, each UDP process may take 1/world of a grant.
    """
    stalled_since_ns: int | None = None
    job_id: str | None = None
    """The job that holds it.

    The task lasts as long as the job's attempt, whichever processes join and leave.
    """
    expected_steps: int | None = None
    """The steps that it is expected to run for, by its forecast."""
    granted_percent: int | None = None
    """The percent of each of its GPUs that it has now; None: a plain task.

    Best effort may have less than it asked for; 0 closes its gate.
    """
    suspension: Suspension = Suspension.NONE
    suspension_fault: str = ""
    """Why its last suspension or resume failed. No policy suspends it again."""
    suspended_since_ns: int | None = None
    """Since then its memory is on the host; None: it is not suspended."""
    suspended_bytes: int | None = None
    """Host memory that its suspension takes, measured before the first call; None: none does."""
    suspended_ms: int = 0
    """The length of its suspensions until now: its time limit and deadline move by it."""
    restored_ns: int | None = None
    """When it had its memory again after its last suspension."""
    exempt_until_ns: int | None = None
    """Until then the idle policy takes nothing from it (`nodemgr keep`)."""
    had_process: bool = False
    """Of a job: a process has held the lease. So its attempt may end by a fault of the GPU."""
    peak_bytes: int | None = 0
    """Of a job: the most that its processes had on one GPU, as of the last that left.

    None: not known, since the memory of one of them was not.
    """

    @property
    def is_plain(self) -> bool:
        """Has it neither a class nor a share?"""
        return self.run.compute_percent is None

    @property
    def cap_bytes(self) -> int:
        """The most that its processes in the ledger have together on each GPU; 0: no cap."""
        return (self.run.memory_most_bytes or self.kept_bytes) if self.kept_bytes else 0

    @property
    def extended_limit_ms(self) -> int | None:
        """The time after its start when its time limit ends it.

        None: it has no limit, or the clock stands still, since it is suspended.
        """
        limit_ms = self.run.time_limit_ms
        if limit_ms is None or self.suspended_since_ns is not None:
            return None
        return limit_ms + self.suspended_ms

    def ran_ns(self, now_ns: int) -> int:
        """The time since its start, without its suspensions."""
        until_ns = now_ns if self.suspended_since_ns is None else self.suspended_since_ns
        return max(0, until_ns - self.since_ns - self.suspended_ms * MS)


@value
class Progress:
    """The part of its work that a task has done, as it reports it. A restart forgets it."""

    done: int
    total: int | None
    """None: not known."""
    at_ns: int
    from_done: int
    """The report that the pace is measured from, and its time: the first with the present share."""
    from_ns: int


@value
class Grant:
    """An env's share of one GPU's memory; exists while a task of the env holds the GPU."""

    env: str
    uuid: Uuid
    memory_bytes: int
    """Subtracted from the GPU's remaining memory and from the env's remaining quota."""
    limit_bytes: int
    """The limit that the ledger enforces now.

    It is below memory_bytes while a lowered quota or a stall waits for memory to be freed, and
    always by the caps that UDP processes hold.
    """
    tasks: int
    stalled_tasks: int = 0
    suspended_tasks: int = 0
    """If all its tasks are suspended, its memory is charged to the quota and not to the GPU."""
    kept_bytes: int = 0
    """The sum of its tasks' kept_bytes. No other task uses it."""
    caps_bytes: int = 0
    """The sum of its UDP processes' fixed caps."""
    elastic_tasks: int = 0
    """Those of its tasks that asked for a range of memory."""
    most_bytes: int = 0
    """The sum of the greatest memory that these tasks asked for. The grant is elastic if not 0.

    After the end of its last range: the size that it had then, until it is lowered to the promised
    part. Other tasks may have more than that in use.
    """


@value
class Lowering:
    """The last order to lower an elastic grant. A restart forgets it, and nothing is lost.

    The grant keeps its size until the ledger has answered.
    """

    number: int | None
    """The step that gave the order; None: the ledger has answered."""
    at_ns: int
    """The time of the order."""
    asked_bytes: int
    """The size that the grant is to have."""
    is_repeated: bool = False
    """An earlier one found the memory in use, so plans do not count on this one."""


EXPORTED = "exported:"
"""Begins the key of exported memory's row, in the place of a process's."""


@value
class UnreclaimedMemory:
    """Memory of a process that lost its lease, or that ended processes of the env exported.

    The GPU is charged until the driver shows it gone (promise 5).
    """

    env: str
    uuid: Uuid
    process: ProcessKey
    pid: int
    memory_bytes: int
    """Before the first reading of the driver: the upper bound, the whole grant."""
    alive: bool = True
    """The env's ledger still sums the words of a living process.

    Its memory counts inside the env's grant, if there is one.
    """
    told: bool = False
    """A reading of the driver found that it stays, and an event reported it."""

    @property
    def is_exported(self) -> bool:
        """Of processes that have ended; the driver shows it for none (lifecycle/exported.py)."""
        return self.process.startswith(EXPORTED)


@value
class SetAside:
    """An entry whose decision failed by a fault of this program. A restart forgets it."""

    entry: str
    why: str
    facts: int
    """A number that changes with what the decision rests on."""
    again_ns: int
    """It is tried again no earlier than this."""


@value
class Violation:
    """A process that the driver shows where it should not be, and the action taken.

    A restart forgets it; the next audits find it again.
    """

    offence: Offence
    uuid: Uuid
    process: ProcessKey
    pid: int
    command: str
    since_ns: int
    last_ns: int = 0
    """The time it was last seen."""
    env: str | None = None
    """None: no env is proven to own it."""
    task_id: str | None = None
    memory_bytes: int = 0
    """The bytes that the driver shows for it."""
    allowed_bytes: int = 0
    """The bytes that its env may use there."""
    used_percent: int = 0
    """Of the GPU's compute, where its share is exceeded; and the share:"""
    allowed_percent: int = 0
    told: bool = False
    """It is certain, and an event reported it."""
    done: str = ""
    """The policy that was carried out."""
    term_ns: int | None = None
    """The time it was asked to end."""
    killed: bool = False


@value
class Asker:
    """One process that waits for a request's answer."""

    process: ProcessKey
    rid: str
    transport: Transport
    pid: int | None
    user: str
    gated: bool = False
    """Its launches pass the gate."""
    starts: bool = False
    """It asks for the program that it becomes."""


@value
class EarlySignal:
    """A signal to a job's process, so long before it is ended."""

    name: str
    """Without SIG."""
    before_ms: int


@value
class RunSpec:
    """The program of a job, its resources and its limit.

    A submission, its jobs, their attempts and the executor's orders share it.
    """

    command: str
    """One line for people. The executor runs the payload's argv."""
    gpus: int
    memory_bytes: int | None
    """Per GPU, if it was named."""
    time_limit_ms: int | None
    """The longest time of an attempt; None: no limit."""
    place: str = ""
    """The place it runs: empty for this node itself, else a container, as ENV/UID/CONTAINER."""
    task_class: TaskClass = TaskClass.NORMAL
    compute_percent: int | None = None
    """The percent of each GPU that it asks for; None: a plain task."""
    deadline_ms: int | None = None
    """The time after its start in which its user wants it to end."""
    expected_ms: int | None = None
    """The time that an attempt is expected to run, with a margin; nothing ends it then."""
    predicted: tuple[PredictedRun, ...] = ()
    """The forecast for each GPU model of the node, if it was asked for."""
    gpu_range: GpuRange | None = None
    """None: it wants exactly `gpus`, else at least so many."""
    memory_most_bytes: int | None = None
    """Per GPU: `memory_bytes` is the least of a range that ends here; None: no range."""
    cpus: int | None = None
    """The processors that it reserves and may use; None: no limit. The same of host memory:"""
    host_memory_bytes: int | None = None
    signal: EarlySignal | None = None
    is_memory_filled: bool = False
    """`memory_bytes` is that of earlier runs: lack of memory takes it away."""


@value
class Request:
    """A task that waits in the queue."""

    request_id: str
    env: str
    token: str
    run: RunSpec
    priority: str
    sequence: int
    since_ns: int
    since_wall_ns: int
    wait_ms: int | None
    """Its timeout, from its start or from a restart of the manager; None: without limit."""
    askers: tuple[Asker, ...]
    """Empty for a job's request."""
    world: int = 1
    job_id: str | None = None
    """The job that the request is made for."""
    queued_ns: int = 0
    """The time it entered its queue, on the queue's clock (State.queue_now).

    It orders by age, also across restarts.
    """
    is_default: bool = False
    """It named no number of GPUs: `run.gpus` is its env's default."""
    resumes: str | None = None
    """The suspended task that waits for its memory on its GPUs. It may have no asker."""
    avoids: tuple[Uuid, ...] = ()
    """GPUs that failed under earlier attempts of the job. It gets others, as far as there are."""
    size: int = 1
    """The number of jobs that wait in it: of an array's row, its elements.

    They stand one behind the other from `queued_ns` on.
    """
    is_assigned: bool = False
    """The job is one that a head assigned to this node: it may have to be confirmed."""

    @property
    def planned_ms(self) -> int | None:
        """The time that plans count with: its limit, else the expected time; None: unknown."""
        run = self.run
        return run.expected_ms if run.time_limit_ms is None else run.time_limit_ms

    def predicted_on(self, gpu_model: str) -> PredictedRun | None:
        """The forecast for this model."""
        return next((row for row in self.run.predicted if row.gpu_model == gpu_model), None)

    @property
    def owner(self) -> str:
        """The env: its holdings and quota decide the request.

        Empty for a job without a GPU, and for a suspended task, whose GPUs are in the quota.
        """
        return self.env if self.run.gpus and self.resumes is None else ""

    @property
    def equivalence_group(self) -> str:
        """Requests with the same key ask for the same.

        If one of them does not get it, no later one does. An interactive request has a key of its
        own, and so has an assigned job, of which some are confirmed.
        """
        if self.job_id is None or self.is_assigned:
            return self.request_id
        run = self.run
        same = f"{self.env}/{run.gpus}/{run.memory_bytes}/{run.time_limit_ms}/{run.place}"
        if run.predicted or run.expected_ms is not None:
            same = f"{same}/{run.expected_ms}/{run.predicted}"
        if self.avoids:
            same = f"{same}/{self.avoids}"
        if run.gpu_range is not None:
            same = f"{same}/{run.gpu_range}"
        if run.memory_most_bytes is not None:
            same = f"{same}/{run.memory_most_bytes}"
        if run.cpus is not None or run.host_memory_bytes is not None:
            same = f"{same}/{run.cpus}/{run.host_memory_bytes}"
        if run.compute_percent is None:
            return same
        return f"{same}/{run.task_class}/{run.compute_percent}"


@value
class JobSpec:
    """The user that runs a job, and the payload's size.

    One per submission: an array's elements share it.
    """

    spec_id: str
    user: str
    uid: int
    gid: int
    umask: int = 0o022
    payload_bytes: int = 0
    """The size of the JobPayload that the store keeps under the same id."""


@value
class JobPayload:
    """The input of a job's process. Only the store keeps it; it is read when the job starts."""

    argv: tuple[str, ...]
    cwd: str
    environ: tuple[str, ...]
    """Each is `KEY=value`."""
    features: str = ""
    """The features of its training as JSON (core/forecast/features.py); empty: none."""

    @property
    def size_bytes(self) -> int:
        """Its size in the store."""
        words = (self.cwd, self.features, *self.argv, *self.environ)
        if (text := "\0".join(words)).isascii():
            return len(text)
        return sum([
            len(word) if word.isascii() else len(word.encode("utf-8", "surrogateescape"))
            for word in words
        ]) + len(words) - 1  # fmt: skip


@value
class Resize:
    """An elastic task got a GPU, or left one."""

    wall_ns: int
    uuid: Uuid
    before: int
    """The number of its GPUs until then, and"""
    after: int
    """from then on."""
    why: str


@value
class HostFigures:
    """The use of the host by the processes of an attempt, as their cgroup counts it."""

    cpu_ms: int
    memory_bytes: int | None
    """The most at a time."""
    read_bytes: int
    written_bytes: int


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
    """The reason for its end, if it did not end by itself."""
    log_tail: str
    cause: Cause = Cause.OWN
    """Valid once it has ended."""
    lost_gpu: Uuid | None = None
    """One of its GPUs that was lost or failed while it ran, or just after its end."""
    chosen: str = ""
    """Why its GPUs were chosen, one line; empty: no GPU, or an attempt of an older version."""
    resizes: tuple[Resize, ...] = ()
    """Of an elastic job: the last RETAINED_RESIZES."""
    peak_bytes: int | None = None
    """The most that it had on one of its GPUs, by the ledger; None: not known, or not ended."""
    started_ns: int | None = None
    ended_ns: int | None = None
    host: HostFigures | None = None

    @property
    def row_bytes(self) -> int:
        """At least its size in the row of its job."""
        parts = len(self.gpus) + 4 * len(self.resizes)
        words = _stored(self.why, self.log_tail, self.chosen, *(row.why for row in self.resizes))
        return ATTEMPT_BYTES + PER_GPU_BYTES * parts + words


def _stored(*texts: str) -> int:
    """The bytes of texts in a row of the store, where a character may take twelve."""
    return sum([len(quoted(text)) for text in texts])


@value
class HistoryEntry:
    """An action on a job, and its author."""

    wall_ns: int
    who: str
    """`root (uid 0)`, or `nodemgr`."""
    what: str


Ranges = tuple[tuple[int, int], ...]
"""A set of numbers: the first and the last of each run of them, in order."""


@value
class Job:
    """A program that runs when its turn comes. A final job leaves the state for the history."""

    job_id: str
    """`j12`; the elements of an array are `j12.0` and so on, and `j12` means all of them.

    `j12` is also the id of the array's row.
    """
    env: str
    name: str
    run: RunSpec
    user: str
    spec_id: str
    priority: str
    """Its queue."""
    submitted_wall_ns: int
    state: JobState
    after: tuple[str, ...] = ()
    """Its unfinished dependencies: jobs that must end well before it may start.

    An array stands for all of its elements.
    """
    max_restarts: int = 0
    attempt: int = 0
    """The number of its last start; 0 before the first."""
    restarts: int = 0
    """The number of restarts that followed a failure of its own."""
    interruptions: int = 0
    """Attempts in a row that ended by no fault of the job: the pause grows with them."""
    resumes_wall_ns: int | None = None
    """While PAUSED: the time it enters its queue again."""
    key: str = ""
    """The submitter's own random name for it: the same submission again is the same job."""
    request_id: str | None = None
    """While QUEUED."""
    task_id: str | None = None
    """Its lease, while it has GPUs."""
    then: JobState | None = None
    """While STOPPING: its next state. QUEUED for a job that is to start again."""
    yields: bool = False
    """While STOPPING: it ends for a latency-sensitive task, and keeps its place in its queue."""
    entered_wall_ns: int | None = None
    """The time it last entered its queue."""
    queued_ns: int = 0
    """The same on the queue's clock: its place there, kept if an attempt never starts."""
    started_wall_ns: int | None = None
    """Its last run, from this time"""
    ended_wall_ns: int | None = None
    """to this time."""
    why: str = ""
    """The reason it is held, ends, or last failed."""
    attempts: tuple[Attempt, ...] = ()
    """The last RETAINED_ATTEMPTS. The last one is under way in STARTING, RUNNING and STOPPING."""
    deeds: tuple[HistoryEntry, ...] = ()
    """The last RETAINED_HISTORY_ENTRIES."""
    entered_ns: int | None = None
    resumes_ns: int | None = None
    indices: Ranges = ()
    """Of the row of an array: its elements that wait; empty for a job and for an element."""
    assigned: str = ""
    """The key under which a head assigned it (Assignment); empty: it is a job of this node."""

    @property
    def size(self) -> int:
        """The number of jobs that the row stands for."""
        return sum([last - first + 1 for first, last in self.indices]) if self.indices else 1

    @property
    def row_bytes(self) -> int:
        """At least the size of its row and of its request's, in the store and in memory.

        Each element of an array counts, since it gets a row once it starts.
        """
        entries = sum([ENTRY_BYTES + _stored(entry.who, entry.what) for entry in self.deeds])
        attempts = sum([attempt.row_bytes for attempt in self.attempts])
        words = 2 * _stored(self.run.command) + _stored(self.name, self.why)
        more = PREDICTED_BYTES * len(self.run.predicted)
        parts = BARE_BYTES + words + more + entries + attempts
        return (max(JOB_ROW_BYTES, parts) + AWAITED_BYTES * len(self.after)) * self.size


NEVER_RAN = frozenset((Cause.NOT_STARTED, Cause.CANNOT_RUN))
"""Causes for which no process of an attempt has run."""


@value
class Assignment:
    """The answer to a head that assigned a job, kept until the head acknowledges its end."""

    key: str
    """HEAD/GENERATION/JOB/ATTEMPT, in the head's words."""
    number: int
    """The number of the assignment: a later one of the same head has a greater one."""
    env: str
    job_id: str
    """The job here; empty: it was refused."""
    state: JobState = JobState.QUEUED
    """Of a job that has ended: how. Else QUEUED, whatever the job does now."""
    why: str = ""
    attempt: Attempt | None = None
    """Of a job that has ended: its attempt; None: it had none."""
    is_acknowledged: bool = False
    """The head has stored the end. The row goes once its number is below the head's."""

    @property
    def head(self) -> str:
        """The name of the head."""
        return self.key.partition("/")[0]

    @property
    def is_over(self) -> bool:
        return self.state in FINAL

    @property
    def began(self) -> bool:
        """Of one that is over: whether a process of it may have run."""
        last = self.attempt
        return last is not None and (
            last.started_wall_ns is not None or last.cause not in NEVER_RAN
        )


@value
class Ended:
    """A final job in the history. It can run again while the store has the payload of its spec."""

    job: Job
    spec: JobSpec


@value
class QueueRow:
    """A queue as it was set. Without any row, the queues are Config's presets."""

    name: str
    rank: int
    cap: int | None = None
    """The limit on requests (also jobs') that wait in it. One more is refused. None: no limit."""
    max_restarts: int = 0
    """The default for a job that is submitted to it and names no number."""
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """The users and groups that may ask for it; all users if both are empty."""
    placement: str | None = None
    """The order of fresh GPUs for its requests; None: the node's default (Config)."""


@value
class Record:
    """One allocation, for `nodemgr allocations` (docs/allocation.md, which GPUs)."""

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
    user: str = ""
    """The user of the process that asked, or of the job; empty: a record of an older version."""
    job_id: str | None = None
    chosen: str = ""
    """Why its fresh GPUs were chosen, one line; empty: by the order `spread`."""
    resizes: tuple[Resize, ...] = ()
    """Of an elastic task: the last RETAINED_RESIZES."""
    asked_ns: int = 0
    granted_ns: int = 0
    ended_ns: int | None = None


@value
class Env:
    name: str
    quota: Quota
