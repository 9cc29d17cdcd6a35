"""The manager's output as values: rows and events to store (Save, Publish), and effects.

The edges carry out the effects after that, in the given order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodemgr.core.model.causes import Standing
from nodemgr.core.model.entities import (
    ConnectionId,
    DenyCode,
    Process,
    ProcessKey,
    RunSpec,
    Task,
    Uuid,
)
from nodemgr.core.model.values import value


@value
class Save:
    """Put (or with None delete) one row.

    `kind` is a table of the state; the value is its dataclass.
    """

    kind: str
    """A kind of node_state.STORED, "history" (entities.Ended) or "payload" (JobPayload).

    A payload's key is its spec_id.

    A record is never deleted: it is put again when the lease ends. A row of the history is deleted
    when its job is to run again. A payload is put once and is not in the state. The store deletes
    it some time after its spec.
    """
    key: str
    value: object | None


@value
class Publish:
    """An event for the stream and the store, e.g.

    `task.granted`. Integers are bytes, ns or counts.
    """

    name: str
    fields: Mapping[str, object]


@value
class SendGrant:
    """The answer consists of the rows of the task and of its process, and of figures per GPU."""

    connection: ConnectionId
    rid: str
    task: Task
    process: Process
    rows: tuple[int, ...]
    """The ledger's row of each GPU."""
    limits: tuple[int, ...]
    """Bytes per GPU: the ledger's limit, or over UDP the process's cap."""


@value
class SendWait:
    connection: ConnectionId
    rid: str
    standing: Standing


@value
class SendDeny:
    connection: ConnectionId
    rid: str
    code: DenyCode
    reason: str


@value
class SendFence:
    connection: ConnectionId
    task_id: str
    reason: str
    rid: str | None = None


@value
class SendNote:
    connection: ConnectionId
    text: str


@value
class SendOffer:
    """A GPU was added to the lease of an elastic task. Goes to its leader."""

    connection: ConnectionId
    task_id: str
    uuid: Uuid


@value
class SendRecall:
    """A GPU of an elastic task is to be left within this time. Goes to its leader."""

    connection: ConnectionId
    task_id: str
    uuid: Uuid
    in_ms: int
    reason: str


@value
class SendWithdrawn:
    """A recall is taken back: the task keeps the GPU."""

    connection: ConnectionId
    task_id: str
    uuid: Uuid


@value
class SendAck:
    connection: ConnectionId
    rid: str


@value
class OpenLedger:
    """Before the first grant of an env: make its ledger unless it is there."""

    env: str


@value
class SetLimit:
    env: str
    uuid: Uuid
    row: int
    limit_bytes: int
    total_bytes: int


@value
class LowerLimit:
    """The ledger lowers a limit as far as the memory in use allows; LimitLowered is the answer."""

    env: str
    uuid: Uuid
    row: int
    least_bytes: int
    """The limit if no more is in use."""
    number: int
    """The answer carries it."""


@value
class SetCap:
    """The ledger keeps memory for a task on these rows, and gives it no more than the most."""

    env: str
    task_id: str
    rows: tuple[int, ...]
    kept_bytes: int
    most_bytes: int


@value
class DropCap:
    env: str
    task_id: str


@value
class BeginSlot:
    """A new process's slot: its words become zero and carry this generation, and it lives."""

    env: str
    slot: int
    generation: int
    capped: str = ""
    """The task with the cap that bounds it; empty: none."""


@value
class SetSlot:
    env: str
    slot: int
    generation: int
    state: str  # "live", "stalled", "fenced"
    capped: str = ""
    """As in BeginSlot; empty also for a fenced process."""


@value
class ClearSlot:
    """After a process's death: its words become zero and carry the generation after this one."""

    env: str
    slot: int
    generation: int


@value
class CloseLedger:
    """The env's last process is gone (also of those that left their lease and lived on)."""

    env: str


@value
class Watch:
    """From now on report this process's death and read its beats.

    It is a waiter, a holder, or a former holder that lives on.
    """

    process: ProcessKey
    pid: int | None


@value
class Unwatch:
    process: ProcessKey


@value
class WatchUnreclaimed:
    """Watch the driver until this process's memory on this GPU is gone.

    Send UnreclaimedChanged for the first reading (until then the whole grant is charged) and for
    each change.
    """

    process: ProcessKey
    pid: int
    uuid: Uuid


@value
class Kill:
    """By policy only (`stalled = "kill"`, `enforce = "kill"`): end this process."""

    process: ProcessKey
    pid: int
    gently: bool = False
    """Ask it to (SIGTERM)."""


@value
class SuspendProcesses:
    """Take the device memory of these processes to the host; Suspended or SuspendFailed follows.

    `memory_bytes` is stored: limits on host memory are raised by it before the first call. None:
    measure it, and SuspensionMeasured follows.
    """

    task_id: str
    processes: tuple[ProcessKey, ...]
    memory_bytes: int | None = None


@value
class ResumeProcesses:
    """Bring it back: its room is charged again. Resumed or ResumeFailed follows."""

    task_id: str
    processes: tuple[ProcessKey, ...]


@value
class EnvChanged:
    """The env's quota is new or gone: its directory, client.conf and key follow."""

    env: str


@value
class SharesChanged:
    """A task with a share has this percent of each of its GPUs from now on; 0 closes its gate."""

    task_id: str
    env: str
    gpus: tuple[Uuid, ...]
    granted_percent: int


@value
class GpusHeld:
    """The env holds other GPUs than before.

    The device gate follows before any process gets its answer.
    """

    env: str


@value
class StartJob:
    """Run it, once: an attempt that was begun is not begun again."""

    job_id: str
    attempt: int
    env: str
    spec_id: str
    run: RunSpec
    token: str
    """The lease that its processes join."""
    gpus: tuple[Uuid, ...]
    """The GPUs of the lease at the start."""
    array_index: int | None


@value
class StopJob:
    """Ask it to end, then end it. JobEnded follows in any case."""

    job_id: str
    attempt: int
    why: str
    warns: bool = False
    """The signal that its run names comes first."""


@value
class LimitJob:
    """From now on this is its time limit, from the attempt's start on; None: the clock is stopped.

    Its task is suspended, or goes on.
    """

    job_id: str
    attempt: int
    time_limit_ms: int | None


@value
class ForgetJob:
    """It is final: its files may go."""

    job_id: str
    env: str


@value
class SubmitAnswered:
    """`job_id` is the job's or the array's; None: refused."""

    ref: int
    job_id: str | None
    code: DenyCode | None
    reason: str


Effect = (
    SendGrant
    | SendWait
    | SendDeny
    | SendFence
    | SendNote
    | SendAck
    | SendOffer
    | SendRecall
    | SendWithdrawn
    | OpenLedger
    | SetLimit
    | LowerLimit
    | SetCap
    | DropCap
    | BeginSlot
    | SetSlot
    | ClearSlot
    | CloseLedger
    | Watch
    | Unwatch
    | WatchUnreclaimed
    | Kill
    | SuspendProcesses
    | ResumeProcesses
    | EnvChanged
    | SharesChanged
    | GpusHeld
    | StartJob
    | StopJob
    | LimitJob
    | ForgetJob
    | SubmitAnswered
)


class Handling(NamedTuple):
    """How the edge carries out a kind of effect."""

    prompt: bool = False
    """An answer, or a ledger write that precedes one.

    It carries all its data and does not read the state. So no client waits until a stored step has
    been applied to the state.
    """
    durable: bool = False
    """A step with it survives a power failure."""


HANDLING: Mapping[type, Handling] = {
    SendGrant: Handling(prompt=True),
    SendWait: Handling(prompt=True),
    SendDeny: Handling(prompt=True),
    SendFence: Handling(prompt=True),
    SendNote: Handling(prompt=True),
    SendAck: Handling(prompt=True),
    SendOffer: Handling(prompt=True),
    SendRecall: Handling(prompt=True),
    SendWithdrawn: Handling(prompt=True),
    OpenLedger: Handling(),
    SetLimit: Handling(prompt=True),
    LowerLimit: Handling(),
    SetCap: Handling(prompt=True),
    DropCap: Handling(),
    BeginSlot: Handling(prompt=True),
    SetSlot: Handling(prompt=True),
    ClearSlot: Handling(),
    CloseLedger: Handling(),
    Watch: Handling(),
    Unwatch: Handling(),
    WatchUnreclaimed: Handling(),
    Kill: Handling(),
    SuspendProcesses: Handling(),
    ResumeProcesses: Handling(),
    EnvChanged: Handling(),
    SharesChanged: Handling(prompt=True),
    GpusHeld: Handling(),
    StartJob: Handling(durable=True),
    StopJob: Handling(),
    LimitJob: Handling(),
    ForgetJob: Handling(),
    SubmitAnswered: Handling(),
}
"""Every kind of effect. Save and Publish are not among them: they are a part of the commit."""

PROMPT = frozenset(kind for kind, handling in HANDLING.items() if handling.prompt)
DURABLE = frozenset(kind for kind, handling in HANDLING.items() if handling.durable)
