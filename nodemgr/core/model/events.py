"""What can happen to a node, as values. The edges make them; `manager.step` answers each with effects.

Identity (env, process, user, ancestors) is what the kernel or a verified MAC says, never a client's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from nodemgr.core.model.entities import (
    Cause,
    ConnectionId,
    Gpu,
    Job,
    JobPayload,
    JobSpec,
    JobState,
    ProcessKey,
    QueueRow,
    Quota,
    Transport,
    Uuid,
)
from nodemgr.core.model.values import value


@value
class Caller:
    """Who speaks, as the edge knows it."""

    connection: ConnectionId
    env: str
    process: ProcessKey
    transport: Transport
    pid: int | None
    user: str
    ancestors: tuple[int, ...] = ()
    """PIDs from parent to init: a process without a token joins the task of an ancestor,"""
    job_id: str | None = None
    """or that of the job whose supervisor is among them."""


@value
class Acquire:
    caller: Caller
    rid: str
    token: str
    gpus: int | None
    memory_bytes: int | None
    world: int
    wait_ms: int | None
    """None: without limit; 0: an answer at once."""
    command: str
    wall_ns: int
    used_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """Per GPU, what the env's ledger holds now: looked at only where memory_bytes is named, and over UDP."""


@value
class Cancel:
    """Gives up waiting; the answer is DENY cancelled. If the grant of this rid was on its way, it is given back."""

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
    """Sent to the core only for a process whose task is stalled, and for one that the state does not know as a member
    of a task (it gets FENCE); the others' beats stay at the edge."""

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


@value
class Disconnected:
    """EOF: a hint. A lease stays (the pidfd is the truth); a waiter has timeout_ms to come back."""

    connection: ConnectionId


@value
class ProcessGone:
    process: ProcessKey
    wall_ns: int
    unreclaimed_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """What the driver still shows for its PID, per GPU."""


@value
class UnreclaimedChanged:
    """A reading of the driver: 0 ends the unreclaimed memory. Told where it changed, and until one was `told`."""

    process: ProcessKey
    uuid: Uuid
    memory_bytes: int
    wall_ns: int


@value
class Seen:
    """What the driver shows of one process on one GPU."""

    process: ProcessKey
    pid: int
    uuid: Uuid
    memory_bytes: int
    env: str | None
    """Whose it provably is; None: nobody can tell."""
    charged_bytes: int = 0
    """Its own word in its env's ledger; zero for one that has none."""
    command: str = ""


@value
class Audited:
    """A reading of the driver, for what the books do not explain."""

    read: frozenset[Uuid]
    """The GPUs that could be read."""
    seen: tuple[Seen, ...]
    wall_ns: int


@value
class Tick:
    """Time passed. The edge sends it at the latest when `State.wake_ns` says."""

    wall_ns: int
    silent: frozenset[ProcessKey]
    """Of the processes that hold or wait: those that were last heard `timeout_ms` ago, or earlier."""
    oldest_ns: int | None
    """When the first of the others was last heard; None: all are heard now."""
    used_bytes: Mapping[tuple[str, Uuid], int] = field(default_factory=dict)
    """The larger of ledger and driver, for each grant in `state.watched_grants()`."""


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
    """The whole inventory, as NVML shows it now. A GPU that is missing or ill is not healthy; it is never forgotten."""

    gpus: tuple[Gpu, ...]
    wall_ns: int


@value
class ReleaseTask:
    """`nodemgr release TASK`: fences a lease, or denies a waiting request of that id."""

    task_id: str
    by: str
    wall_ns: int
    env: str | None = None
    """Set when a user asks: only tasks of his env."""
    connection: ConnectionId | None = None


@value
class Match:
    """Grant what fits now. It comes as `Transition.then`; the edge makes one itself after a restart and when a failed store
    is back. It is an event of its own because releases and deaths hold even when the store cannot commit, and grants do not.
    """

    wall_ns: int
    used_bytes: Mapping[tuple[str, Uuid], int] | None = None
    """As in the Tick that it follows, if it follows one."""


@value
class Submission:
    """One job, or an array of them, as somebody asks for it."""

    ref: int
    """The edge's own number for it: effects.SubmitAnswered carries it back."""
    by: str
    env: str
    spec: JobSpec
    """Its `spec_id` and `payload_bytes` are not looked at."""
    payload: JobPayload
    name: str
    command: str
    gpus: int | None
    """None: as for a request that names none. 0: a job without a GPU."""
    memory_bytes: int | None
    priority: str | None
    """None: the quota's queue."""
    after: tuple[str, ...] = ()
    """Jobs of its env, or arrays, that must end well before it may start."""
    array: tuple[int, ...] = ()
    time_limit_ms: int | None = None
    max_restarts: int | None = None
    """None: as its queue says."""
    hold: bool = False
    key: str = ""
    place: str = ""
    """Where it is to run (Job.place)."""
    ended: Mapping[str, JobState] = field(default_factory=dict)
    """What the history says of the jobs in `after`, and of the elements of arrays there, that have ended in its env."""


@value
class SubmitJobs:
    """Many at once are one commit."""

    submissions: tuple[Submission, ...]
    wall_ns: int


@value
class JobStarted:
    """Its process runs. Told again after a restart of the manager."""

    job_id: str
    attempt: int
    pid: int | None
    wall_ns: int


@value
class JobEnded:
    """Its process has ended, and all that it left behind; or it could not be started."""

    job_id: str
    attempt: int
    exit_code: int | None
    signal: int | None
    why: str
    """What ended it, or kept it from starting, if not itself."""
    cause: Cause
    log_tail: str
    started_wall_ns: int | None
    wall_ns: int


@value
class JobRequeuedBeforeStart:
    """Nobody could begin these attempts, and now nobody ever will: a failure of nobody's, least of all of the jobs."""

    attempts: tuple[tuple[str, int], ...]
    """Job and attempt."""
    why: str
    wall_ns: int


@value
class LaunchHostChanged:
    """Jobs can be started there from now on, or cannot. Told of each place after a start of the manager: until then none is up."""

    place: str
    """As Job.place."""
    is_up: bool
    why: str
    """Why not, in a person's words, if there is more to say than that."""
    wall_ns: int


@value
class NamesTaken:
    """Jobs with names up to this number have run here, whatever the store knows: it may be an older copy, or a new one."""

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
    """Of a job that has ended, what the history has of it."""
    spec: JobSpec | None = None
    by_admin: bool = False
    """An attempt under way is preempted: the job goes back to its place, after a pause."""


@value
class MoveJob:
    """To the end of another queue, or to the front of its own."""

    job_id: str
    queue: str | None
    first: bool
    by: str
    wall_ns: int


@value
class OrderAll:
    """Several orders of one kind in one step: each sees what the ones before it have done, and one that makes no sense does nothing."""

    orders: tuple[WithdrawJob | HoldJob | UnholdJob | RequeueJob | ReleaseTask, ...]
    wall_ns: int


@value
class SetQueue:
    """A queue is made, or changed."""

    row: QueueRow
    by: str
    wall_ns: int


@value
class RemoveQueue:
    """Not while something waits in it, or a quota names it."""

    name: str
    by: str
    wall_ns: int


Event = (
    Acquire
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
    | Match
    | Audited
    | SubmitJobs
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
)
