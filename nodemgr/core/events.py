"""What can happen to a node, as values. The edges make them; `manager.step` answers each with effects.

Identity (env, process, user, ancestors) is what the kernel or a verified MAC says, never a client's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from nodemgr.core.model import ConnectionId, Gpu, ProcessKey, Quota, Transport, Uuid
from nodemgr.core.values import value


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
    """PIDs from parent to init: a process without a token joins the task of an ancestor."""


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
    residue_bytes: Mapping[Uuid, int] = field(default_factory=dict)
    """What the driver still shows for its PID, per GPU."""


@value
class ResidueChanged:
    """A look at the driver: 0 ends the residue. Told where it changed, and until one was `told`."""

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
    """A look at the driver, for what the books do not explain."""

    read: frozenset[Uuid]
    """The GPUs that could be read."""
    seen: tuple[Seen, ...]
    wall_ns: int


@value
class Tick:
    """Time passed. The edge sends it at the latest when `State.wake_ns` says."""

    wall_ns: int
    last_beat_ns: Mapping[ProcessKey, int]
    """Of every process that holds or waits, over both transports; one that is missing counts as heard now."""
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


Event = (
    Acquire | Cancel | Rejoin | Beat | Release | Disconnected | ProcessGone | ResidueChanged | Tick | SetQuota
    | RemoveQuota | GpusChanged | ReleaseTask | Match | Audited
)
