"""The events of a head: orders of people, words of nodes, time.

Knows: plain values. Must not know: sockets, clocks; what follows from an event.

A node's words come over a session: the edge makes one for each connection, with an id of its own,
and asks the node for all its answers (Synced). Reports carry the session and are numbered in it, so
one that is doubled, late or of an earlier connection is known as such and means nothing.
"""

from __future__ import annotations

from nodemgr.core.cluster.entities import ClusterJob, NodeGpu
from nodemgr.core.cluster.pilots import ListedPilot, PoolConfig
from nodemgr.core.model.entities import Cause, JobState
from nodemgr.core.model.values import value


@value
class SetEnv:
    name: str
    gpus: int
    per_node: int | None = None
    quota: str = "{}"


@value
class DropEnv:
    """An environment without jobs."""

    name: str


@value
class Submit:
    """New jobs, in one commit. Ids, places and stages are the core's; a job to be held is HELD."""

    jobs: tuple[ClusterJob, ...]


@value
class Withdraw:
    """A job, an array, or what waits of it."""

    job_id: str


@value
class HoldWaiting:
    job_id: str
    by: str = ""


@value
class Unhold:
    job_id: str


@value
class Requeue:
    """A job that runs is ended, and is queued again at the end."""

    job_id: str


@value
class ToFront:
    """To the front of its queue."""

    job_id: str


@value
class AddWord:
    """A node of this name may join by the word."""

    public: str
    node: str
    expires_ns: int
    user: str = ""


@value
class AddNode:
    """A node joins, or joins again with another key."""

    name: str
    key: str = ""
    word: str = ""
    user: str = ""
    is_lent: bool = False
    """By the word of a pilot: its GPUs are Slurm's until it says otherwise."""


@value
class RemoveNode:
    """It leaves. A node with assignments does not: it is drained first, or lost."""

    name: str


@value
class DrainNode:
    """No job is assigned there; those that have not begun come back."""

    name: str
    why: str = ""


@value
class ResumeNode:
    name: str


@value
class NodeLost:
    """A person says that nothing runs there any more: its jobs may begin elsewhere."""

    name: str
    wall_ns: int = 0


@value
class Restored:
    """The store is a copy: the head goes on under a later generation when it has heard all nodes.

    `generation`: the latest that is known beside the copy's.
    """

    generation: int = 0


@value
class NodeAnswer:
    """A node's row about one key (core/lifecycle/assignments.py has the node's side)."""

    key: str
    number: int
    over: bool
    began: bool
    is_refusal: bool
    """No job was made of it."""
    confirmed: bool
    """False: the node waits until the head names the key again."""
    state: JobState
    cause: Cause | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str = ""
    node_job: str = ""
    ran_ms: int | None = None
    ended_wall_ns: int = 0


@value
class LentNode:
    """The words of a node that Slurm lends: see PoolFacts."""

    pilot: int
    left_ms: int | None = None
    """Until it must be empty."""
    waits: bool = False


@value
class Synced:
    """A node is connected, and these are all its answers to this head."""

    node: str
    session: int
    generation: str
    boot_id: str
    below: int
    """The number below which the node takes no key that it does not know."""
    gpus: int
    others: tuple[tuple[str, int], ...]
    answers: tuple[NodeAnswer, ...]
    models: tuple[str, ...] = ()
    pool: LentNode | None = None
    shares: tuple[NodeGpu, ...] | None = None
    """Each GPU in service; None: the node is of a version that does not report them."""


@value
class NodeReport:
    """The node's GPUs as they are now, and answers that are new or not acknowledged."""

    node: str
    session: int
    number: int
    gpus: int
    others: tuple[tuple[str, int], ...]
    answers: tuple[NodeAnswer, ...]
    pool: LentNode | None = None
    shares: tuple[NodeGpu, ...] | None = None


@value
class Silent:
    """The session is over."""

    node: str
    session: int


@value
class ClockMoved:
    """Time has passed: pauses may be over."""


@value
class Pass:
    """Queued jobs get nodes, as far as there are."""


@value
class PilotAnswered:
    """sbatch has taken the pilot, or refused it."""

    number: int
    fault: str = ""


@value
class PoolTick:
    """Time to look at the pool. `listed`: Slurm's list; None: Slurm does not answer."""

    config: PoolConfig
    listed: tuple[ListedPilot, ...] | None


ClusterEvent = (
    SetEnv
    | DropEnv
    | Submit
    | Withdraw
    | HoldWaiting
    | Unhold
    | Requeue
    | ToFront
    | AddWord
    | AddNode
    | RemoveNode
    | DrainNode
    | ResumeNode
    | NodeLost
    | Restored
    | Synced
    | NodeReport
    | Silent
    | ClockMoved
    | Pass
    | PilotAnswered
    | PoolTick
)


@value
class Acknowledge:
    """An effect: these ends are stored at the head."""

    node: str
    keys: tuple[str, ...]
    below: int
    """The node has answered each assignment with a smaller number."""
