"""Everything that can happen to a node, as values.

The edges make them; `manager.step` answers each with effects.

The kernel or a verified MAC gives the identity (env, process, user, ancestors), never the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from nodemgr.core.model.entities import (
    Cause,
    ConnectionId,
    FailureKind,
    Gpu,
    HostFigures,
    Job,
    JobPayload,
    JobSpec,
    JobState,
    Offence,
    ProcessKey,
    QueueRow,
    Quota,
    Ranges,
    RunSpec,
    TaskClass,
    Transport,
    Uuid,
    Word,
)
from nodemgr.core.model.values import value


@value
class Caller:
    """The sender of a message, as the edge knows it."""

    connection: ConnectionId
    env: str
    process: ProcessKey
    transport: Transport
    pid: int | None
    user: str
    ancestors: tuple[int, ...] = ()
    """PIDs from parent to init: a process without a token joins the task of an ancestor,"""
    job_id: str | None = None
    """or the task of this job, if the job's supervisor is an ancestor."""


@value
class Acquire:
    caller: Caller
    rid: str
    token: str
    run: RunSpec
    world: int
    wait_ms: int | None
    """None: without limit; 0: answer at once."""
    wall_ns: int
    unkept_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """Bytes in use by the env's ledger now, per GPU, beyond what is kept for their tasks.

    Read only with named memory, and over UDP.
    """
    is_default: bool = False
    """It names no number of GPUs: its env's default replaces `run.gpus`."""
    task_class: TaskClass | None = None
    """None: the quota's class. It replaces the class of `run`."""
    compute_percent: int | None = None
    """The percent of each GPU; None: the quota's. It replaces the share of `run`."""
    gated: bool = False
    """The launches of the process pass the gate."""
    worker_gpu: Uuid | None = None
    """The process joins an elastic task for this GPU of the lease alone."""
    starts: bool = False
    """The process asks for the program that it becomes, which asks again at its use of CUDA."""


@value
class ElasticWord:
    """The leader of an elastic task speaks about one GPU of the lease."""

    caller: Caller
    rid: str
    word: Word
    uuid: Uuid
    wall_ns: int


@value
class LimitLowered:
    """The ledger's answer to an order (effects.LowerLimit)."""

    env: str
    uuid: Uuid
    number: int
    """The order's number."""
    limit_bytes: int | None
    """The limit that the ledger enforces since then; None: the env has no ledger now."""
    wall_ns: int


@value
class Cancel:
    """Stops waiting; the answer is DENY cancelled. A grant of this rid on its way is returned."""

    caller: Caller
    rid: str
    wall_ns: int


@value
class Rejoin:
    """A process comes back after a lost connection or a restarted manager."""

    caller: Caller
    rid: str
    token: str
    task_id: str
    slot: int | None
    generation: int
    wall_ns: int


@value
class Beat:
    """A beat of a process of a stalled task, or of a process without a task.

    The answer to the latter is FENCE. All other beats stay at the edge.
    """

    caller: Caller
    rid: str | None
    wall_ns: int


@value
class Heard:
    """A member of a stalled task has raised its word in the ledger again."""

    process: ProcessKey
    wall_ns: int


@value
class Release:
    """The process leaves its task."""

    caller: Caller
    rid: str
    wall_ns: int
    peak_bytes: int | None = 0
    """As in ProcessGone."""


@value
class Disconnected:
    """EOF: a hint. A lease stays (the pidfd decides); a waiter has timeout_ms to come back."""

    connection: ConnectionId
    wall_ns: int = 0


@value
class ProcessGone:
    process: ProcessKey
    wall_ns: int
    unreclaimed_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """Bytes that the driver still shows for its PID, per GPU."""
    peak_bytes: int | None = 0
    """Of a job's process: the most that the task's processes of now had together on one GPU.

    None: not known. 0: the process had no memory, or it is no job's.
    """


@value
class UnreclaimedChanged:
    """A reading of the driver: 0 ends the unreclaimed memory.

    Sent after a change, and until the row is `told`.
    """

    process: ProcessKey
    uuid: Uuid
    memory_bytes: int
    wall_ns: int


@value
class Seen:
    """A reading of the driver for one process on one GPU."""

    process: ProcessKey
    pid: int
    uuid: Uuid
    memory_bytes: int
    env: str | None
    """The env proven to own it; None: unknown."""
    charged_bytes: int = 0
    """Its own word in its env's ledger; zero if it has none."""
    command: str = ""
    context_bytes: int = 0
    """Bytes of its context beyond the estimate that it was charged by."""


@value
class EndedUse:
    """The most that a process had on one GPU, when it ended since the last reading."""

    uuid: Uuid
    env: str | None
    """None: unknown."""
    memory_bytes: int
    """By the driver's last figure, or by its word if that is more."""
    word_bytes: int
    """By its word in the ledger."""


@value
class Progressed:
    """A process of a task reports the part of the task's work that is done."""

    process: ProcessKey
    done: int
    total: int | None
    """None: not known."""
    wall_ns: int


@value
class Audited:
    """A reading of the driver, to find memory and processes that the charges do not explain."""

    read: frozenset[Uuid]
    """The GPUs that could be read."""
    seen: tuple[Seen, ...]
    wall_ns: int
    ownerless_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """Memory in use of which the driver shows no process and no charge tells, by GPU.

    Zero within the tolerance. Without the GPUs of which it is unknown.
    """
    ended: tuple[EndedUse, ...] = ()
    stayed_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """By how much such memory grew when these processes ended."""


@value
class ComputeFinding:
    """A process that a launch gate shows to break a rule."""

    offence: Offence
    process: ProcessKey
    uuid: Uuid
    used_percent: int = 0
    allowed_percent: int = 0
    """Of the GPU's compute, where its share is exceeded."""


@value
class ComputeAudited:
    """A reading of all launch gates: all findings there are now."""

    findings: tuple[ComputeFinding, ...]
    wall_ns: int


@value
class GateMissed:
    """A gated process was granted GPUs without a place in their launch gates."""

    process: ProcessKey
    reason: str
    wall_ns: int


@value
class Tick:
    """Time passed. The edge sends it no later than `State.wake_ns`."""

    wall_ns: int
    silent: frozenset[ProcessKey]
    """Processes that hold or wait and were last heard `timeout_ms` ago or earlier."""
    oldest_ns: int | None
    """The earliest time one of the others was last heard; None: all are heard now."""
    used_bytes: Mapping[tuple[str, Uuid], int] = field(default_factory=dict)
    """The larger of ledger and driver, for each grant in timers.watched_grants."""
    unkept_bytes: Mapping[tuple[str, Uuid], int] = field(default_factory=dict)
    """The part of it that is beyond what is kept for its task."""


@value
class SetQuota:
    env: str
    quota: Quota
    by: str
    wall_ns: int


@value
class RemoveQuota:
    """The env is forgotten: waiting requests are denied, leases are fenced."""

    env: str
    by: str
    wall_ns: int


@value
class GpusChanged:
    """The whole inventory, as NVML shows it now.

    A missing or ill GPU is not healthy; no GPU is forgotten.
    """

    gpus: tuple[Gpu, ...]
    wall_ns: int


@value
class GpuFault:
    """The driver reports an error of the hardware."""

    uuid: Uuid
    kind: FailureKind
    detail: str
    """One line of evidence."""
    wall_ns: int


@value
class ReportFailure:
    """An administrator reports that a GPU failed."""

    uuid: Uuid
    by: str
    note: str
    wall_ns: int


@value
class RepairGpu:
    """Its failures no longer count, and it gets tasks again."""

    uuid: Uuid
    by: str
    note: str
    wall_ns: int


@value
class DrainGpu:
    """It gets no new task; its tasks go on."""

    uuid: Uuid
    by: str
    note: str
    wall_ns: int


@value
class ResumeGpu:
    """It gets tasks again."""

    uuid: Uuid
    by: str
    wall_ns: int


@value
class ServiceTime:
    """The manager ran for a while: the records of the GPUs grow older."""

    wall_ns: int


@value
class SuspendTask:
    """Take a task's device memory to the host, by order."""

    task_id: str
    by: str
    wall_ns: int
    env: str | None = None
    """The env that may order it; None: any."""


@value
class ResumeTask:
    """Bring it back as soon as its turn comes."""

    task_id: str
    by: str
    wall_ns: int
    env: str | None = None


@value
class KeepTask:
    """No idle policy acts on the task for this time."""

    task_id: str
    by: str
    for_ms: int
    wall_ns: int
    env: str | None = None


@value
class IdleSeen:
    """The time since each task last used a GPU, as far as it is known."""

    idle_ms: Mapping[str, int]
    """By task; an idle time may be longer than what is known."""
    wall_ns: int


@value
class SuspensionMeasured:
    """The device memory that the suspension of the task moves to the host."""

    task_id: str
    memory_bytes: int
    wall_ns: int


@value
class Suspended:
    """No process of the task has device memory any more."""

    task_id: str
    wall_ns: int


@value
class SuspendFailed:
    """The suspension was undone."""

    task_id: str
    reason: str
    wall_ns: int
    is_out: bool = False
    """No process has device memory all the same: the undoing failed."""


@value
class Resumed:
    """The processes of the task go on."""

    task_id: str
    wall_ns: int


@value
class ResumeFailed:
    """The memory of a process did not come back."""

    task_id: str
    reason: str
    wall_ns: int
    is_out: bool = False
    """No process has device memory."""
    again: bool = False
    """Others used the room, and no call was made: it waits in the queue again."""


@value
class ReleaseTask:
    """`nodemgr release TASK`: fences a lease, or denies a waiting request of that id."""

    task_id: str
    by: str
    wall_ns: int
    env: str | None = None
    """Set if a user asks: only tasks of this env."""
    connection: ConnectionId | None = None


@value
class Match:
    """A scheduling pass: grants what fits now.

    It comes as `Transition.then`. The edge makes one itself after a restart, and when a failed
    store is back. It is a separate event: releases and deaths hold even if the store cannot commit,
    grants do not.
    """

    wall_ns: int
    unkept_bytes: Mapping[tuple[str, Uuid], int] | None = None
    """As in the Tick before it, if a Tick precedes it."""


@value
class Assigned:
    """The head's part of a submission: a job of the cluster whose attempt this node is given."""

    key: str
    """Its name there (entities.Assignment)."""
    number: int
    waited_ns: int = 0
    """The time it has waited at the head: its place in its queue here counts it."""
    refusal: str = ""
    """Why the edge cannot take it; it is the answer to the key. Empty: the core decides."""

    @property
    def head(self) -> str:
        """The name of the head."""
        return self.key.partition("/")[0]


@value
class AcknowledgeEnds:
    """A head has stored the ends of these assignments: their answers may go."""

    head: str
    keys: tuple[str, ...]
    below: int
    """This node has answered each assignment of the head with a smaller number."""
    wall_ns: int


@value
class Submission:
    """One job, or an array of jobs, as submitted."""

    ref: int
    """The edge's own number for it: effects.SubmitAnswered carries it back."""
    by: str
    env: str
    spec: JobSpec
    """Its `spec_id` and `payload_bytes` are ignored."""
    payload: JobPayload
    name: str
    run: RunSpec
    """`gpus` 0: a job without a GPU."""
    priority: str | None
    """None: the quota's queue."""
    is_default: bool = False
    """It names no number of GPUs: its env's default replaces `run.gpus`."""
    after: tuple[str, ...] = ()
    """Dependencies: jobs or arrays of its env that must end well before it may start."""
    array: Ranges = ()
    """The indices of an array; empty: one job."""
    max_restarts: int | None = None
    """None: its queue's default."""
    hold: bool = False
    key: str = ""
    task_class: TaskClass | None = None
    """None: the quota's class. It replaces the class of `run`."""
    compute_percent: int | None = None
    """The percent of each GPU; None: the quota's. It replaces the share of `run`."""
    ended: Mapping[str, JobState] = field(default_factory=dict)
    """Final states from the history: of jobs in `after`, and of elements of its arrays.

    They ended in the env of the submission.
    """
    assigned: Assigned | None = None
    """A head's assignment: one job, without dependencies, restarts or a hold."""

    @property
    def size(self) -> int:
        """The number of jobs."""
        return sum([last - first + 1 for first, last in self.array]) if self.array else 1


@value
class SubmitJobs:
    """All submissions of one event are one commit."""

    submissions: tuple[Submission, ...]
    wall_ns: int


@value
class JobStarted:
    """Its process runs. Sent again after a restart of the manager."""

    job_id: str
    attempt: int
    pid: int | None
    wall_ns: int
    at_ns: int | None = None
    """On the node's clock; None: now."""


@value
class JobEnded:
    """Its process and all that it left behind have ended; or it could not be started."""

    job_id: str
    attempt: int
    exit_code: int | None
    signal: int | None
    why: str
    """The reason it ended or did not start, if not the job itself."""
    cause: Cause
    log_tail: str
    started_wall_ns: int | None
    wall_ns: int
    peak_bytes: int | None = 0
    """The most that the processes that its task still has had together on one GPU.

    None: not known.
    """
    started_ns: int | None = None
    """On the node's clock; None: not known."""
    at_ns: int | None = None
    """On the node's clock; None: now."""
    host: HostFigures | None = None


@value
class JobRequeuedBeforeStart:
    """These attempts were never started and never will be. It is no failure of the jobs."""

    attempts: tuple[tuple[str, int], ...]
    """Job and attempt."""
    why: str
    wall_ns: int


@value
class LaunchHostChanged:
    """Jobs can be started at a place from now on, or cannot.

    Sent for each place after a start of the manager: until then no place is up.
    """

    place: str
    """The place, in the form of RunSpec.place."""
    is_up: bool
    why: str
    """The reason it is down, in words for people, if there is more to say."""
    wall_ns: int


@value
class NamesTaken:
    """Jobs with names up to this number have run here.

    The store may not know: it may be an older copy, or a new one.
    """

    number: int
    wall_ns: int


@value
class WithdrawJob:
    """This order and the next ones name a job, or all living elements of an array."""

    job_id: str
    by: str
    wall_ns: int


@value
class HoldJob:
    job_id: str
    by: str
    wall_ns: int


@value
class UnholdJob:
    job_id: str
    by: str
    wall_ns: int


@value
class RequeueJob:
    job_id: str
    by: str
    wall_ns: int
    job: Job | None = None
    """The history's row of a job that has ended."""
    spec: JobSpec | None = None
    by_admin: bool = False
    """Preempts an attempt under way: the job goes back to its place, after a pause."""
    row: Job | None = None
    """The history's row of an array, if the job ended within it."""
    node_taken: bool = False
    """The node's GPUs are taken away: also a job that a head assigned, which judges its end."""


@value
class MoveJob:
    """Moves a job to the end of another queue, or to the front of its own."""

    job_id: str
    queue: str | None
    first: bool
    by: str
    wall_ns: int


@value
class OrderAll:
    """Several orders of one kind in one step.

    Each sees the results of those before it. An order that makes no sense does nothing.
    """

    orders: tuple[WithdrawJob | HoldJob | UnholdJob | RequeueJob | ReleaseTask | MoveJob, ...]
    wall_ns: int
    goes_on: bool = False
    """A later part is stored on the disk, and this one with it: no client counts it before."""


@value
class SetQueue:
    """Creates or changes a queue."""

    row: QueueRow
    by: str
    wall_ns: int


@value
class RemoveQueue:
    """Refused while something waits in the queue, or a quota names it."""

    name: str
    by: str
    wall_ns: int


Event = (
    Acquire
    | ElasticWord
    | LimitLowered
    | Cancel
    | Rejoin
    | Beat
    | Heard
    | Release
    | Disconnected
    | ProcessGone
    | UnreclaimedChanged
    | Tick
    | SetQuota
    | RemoveQuota
    | GpusChanged
    | ReleaseTask
    | SuspendTask
    | ResumeTask
    | KeepTask
    | IdleSeen
    | SuspensionMeasured
    | Suspended
    | SuspendFailed
    | Resumed
    | ResumeFailed
    | Match
    | Audited
    | ComputeAudited
    | GateMissed
    | Progressed
    | SubmitJobs
    | AcknowledgeEnds
    | JobStarted
    | JobEnded
    | JobRequeuedBeforeStart
    | LaunchHostChanged
    | NamesTaken
    | WithdrawJob
    | HoldJob
    | UnholdJob
    | RequeueJob
    | MoveJob
    | OrderAll
    | SetQueue
    | RemoveQueue
    | GpuFault
    | ReportFailure
    | RepairGpu
    | DrainGpu
    | ResumeGpu
    | ServiceTime
)
