"""The rows of a head: environments, nodes, jobs, assignments; and the states of a job, as a table.

Knows: what a head stores. Must not know: a GPU by its name, how a node decides, the wire.

Truths: the head's rows say which jobs exist, their order, and the node that an attempt is given to;
a node's rows say whether the attempt began and how it ended. Neither writes the other's.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from nodemgr.core.cluster.pilots import PoolFacts
from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.entities import (
    RETAINED_ATTEMPTS,
    WHOLE_PERCENT,
    Cause,
    Ranges,
    TaskClass,
)
from nodemgr.core.model.transitions import Targets
from nodemgr.core.model.values import replace, value


class ClusterStage(enum.StrEnum):
    """The state of a job at the head; the last three are final."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    """A node is given it. The store has this before the node hears of it."""
    RUNNING = "running"
    """The node says that it began."""
    STOPPING = "stopping"
    """The node is asked to end it or to give it back; `ClusterJob.then` is its next state.

    QUEUED and HELD: only if it has not begun. PAUSED: it is to run again."""
    HELD = "held"
    """A person has taken it out of its queue."""
    DEPENDENCY = "after"
    """It waits for other jobs of the cluster to end well."""
    PAUSED = "paused"
    """Its last attempt ended by no fault of it; after the pause it is at its old place."""
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


FINAL = frozenset((ClusterStage.DONE, ClusterStage.FAILED, ClusterStage.WITHDRAWN))
COMES_BACK = frozenset((ClusterStage.QUEUED, ClusterStage.HELD))
"""As `then`: a job that has begun meanwhile stays where it is."""
AT_A_NODE = frozenset((ClusterStage.ASSIGNED, ClusterStage.RUNNING, ClusterStage.STOPPING))
"""The job has an assignment."""


class StageEvent(enum.StrEnum):
    SUBMIT = "submit"
    ASSIGN = "assign"
    BEGAN = "began"
    GIVEN_BACK = "given back"
    END = "end"
    STOP = "stop"
    NODE_LOST = "node lost"
    FOUND = "found"
    FORGOTTEN = "forgotten"
    PAUSE_OVER = "pause over"
    WITHDRAW = "withdraw"
    HOLD = "hold"
    UNHOLD = "unhold"
    FREED = "freed"
    IN_VAIN = "in vain"


_QUEUED, _ASSIGNED, _RUNNING = ClusterStage.QUEUED, ClusterStage.ASSIGNED, ClusterStage.RUNNING
_HELD, _DEPENDENCY = ClusterStage.HELD, ClusterStage.DEPENDENCY
_STOPPING, _PAUSED, _WITHDRAWN = ClusterStage.STOPPING, ClusterStage.PAUSED, ClusterStage.WITHDRAWN
_ENDS = (ClusterStage.DONE, ClusterStage.FAILED, _WITHDRAWN, _QUEUED, _PAUSED)
_JUDGED = "The node says how it ended; endings.py says what follows."
_BACK = "The node has not begun it and never will."
_FOUND = "A head that was restored from a copy hears that a node got a later attempt."
_FORGOTTEN = "It ended after the copy from which the head was restored: its end is not known."
_LOST = "A person says that the node is lost: the job goes back to its place, or ends as asked."

STAGES: Mapping[tuple[ClusterStage | None, StageEvent], Targets[ClusterStage]] = {
    (None, StageEvent.SUBMIT): Targets(
        (_QUEUED, _HELD, _DEPENDENCY), "A new job enters its queue, or stands beside it."
    ),
    (_QUEUED, StageEvent.ASSIGN): Targets((_ASSIGNED,), "A pass has chosen a node."),
    (_QUEUED, StageEvent.WITHDRAW): Targets((_WITHDRAWN,), "It is at no node."),
    (_ASSIGNED, StageEvent.BEGAN): Targets((_RUNNING,), "The node says so."),
    (_ASSIGNED, StageEvent.GIVEN_BACK): Targets((_QUEUED, ClusterStage.FAILED), _BACK),
    (_ASSIGNED, StageEvent.END): Targets(_ENDS, _JUDGED),
    (_ASSIGNED, StageEvent.STOP): Targets((_STOPPING,), "It is withdrawn, or its node is drained."),
    (_ASSIGNED, StageEvent.NODE_LOST): Targets((_QUEUED,), _LOST),
    (_RUNNING, StageEvent.GIVEN_BACK): Targets(
        (_QUEUED, ClusterStage.FAILED), "It was about to begin when the node said so, and did not."
    ),
    (_RUNNING, StageEvent.END): Targets(_ENDS, _JUDGED),
    (_RUNNING, StageEvent.STOP): Targets((_STOPPING,), "It is withdrawn."),
    (_RUNNING, StageEvent.NODE_LOST): Targets((_QUEUED,), _LOST),
    (_STOPPING, StageEvent.BEGAN): Targets(
        (_RUNNING,), "It began before it could be given back, and stays where it is."
    ),
    (_STOPPING, StageEvent.STOP): Targets((_STOPPING,), "A second reason replaces its next state."),
    (_STOPPING, StageEvent.GIVEN_BACK): Targets((_QUEUED, _HELD, _WITHDRAWN), _BACK),
    (_STOPPING, StageEvent.END): Targets(_ENDS, _JUDGED),
    (_STOPPING, StageEvent.NODE_LOST): Targets((_QUEUED, _HELD, _WITHDRAWN), _LOST),
    (_PAUSED, StageEvent.PAUSE_OVER): Targets((_QUEUED,), "It is at its old place again."),
    (_PAUSED, StageEvent.UNHOLD): Targets((_QUEUED,), "A person ends its pause."),
    (_DEPENDENCY, StageEvent.FREED): Targets((_QUEUED,), "All that it waited for has ended well."),
    (_HELD, StageEvent.UNHOLD): Targets(
        (_QUEUED, _DEPENDENCY), "It goes to the end of its queue, or waits for others."
    ),
    **{
        (stage, StageEvent.WITHDRAW): Targets((_WITHDRAWN,), "It is at no node.")
        for stage in (_PAUSED, _HELD, _DEPENDENCY)
    },
    **{
        (stage, StageEvent.HOLD): Targets((_HELD,), "It starts when it is unheld.")
        for stage in (_QUEUED, _PAUSED, _DEPENDENCY)
    },
    **{
        (stage, StageEvent.IN_VAIN): Targets((_WITHDRAWN,), "What it waits for did not end well.")
        for stage in (_HELD, _DEPENDENCY)
    },
    **{
        (stage, StageEvent.FOUND): Targets((_ASSIGNED,), _FOUND)
        for stage in (_QUEUED, _ASSIGNED, _RUNNING, _STOPPING, _PAUSED, _HELD, _DEPENDENCY)
    },
    **{
        (stage, StageEvent.FORGOTTEN): Targets((ClusterStage.FAILED,), _FORGOTTEN)
        for stage in (_ASSIGNED, _RUNNING, _STOPPING)
    },
}


@lru_cache
def _memory_of(quota: str) -> int | None:
    found = json.loads(quota).get("memory_bytes")
    return found if isinstance(found, int) else None


@value
class ClusterEnv:
    """An environment of the cluster."""

    name: str
    gpus: int
    """The most GPUs that its jobs and its interactive tasks use together, where jobs can wait."""
    per_node: int | None = None
    """The most on one node, which the node holds by itself; None: as many as the node has."""
    quota: str = "{}"
    """The rest of its quota, in JSON, which each node gets."""

    @property
    def part(self) -> int:
        """The most GPUs on one node."""
        return self.gpus if self.per_node is None else min(self.gpus, self.per_node)

    @property
    def memory_bytes(self) -> int | None:
        """The most memory on one node; None: whole GPUs."""
        return _memory_of(self.quota)


@value
class ClusterNode:
    """A node as it said last. A person adds it and removes it."""

    name: str
    generation: str
    """Names the store of the node: another one knows no key of this one."""
    boot_id: str
    number: int
    """The number of its last report."""
    gpus: int
    """The GPUs in service."""
    others: tuple[tuple[str, int], ...] = ()
    """The GPUs that tasks without an assignment hold, by environment; "": of its own ones."""
    drained: bool = False
    """It gets no job; those that have not begun come back."""
    why: str = ""
    """The reason for the drain, of a person or of the head."""
    quick: tuple[str, ...] = ()
    """The users of its last jobs, as far back as each failed at once."""
    lost: bool = False
    """A person said so after it spoke last."""
    key: str = ""
    """The public key by which its connections are known."""
    models: tuple[str, ...] = ()
    """The models of its GPUs."""
    user: str = ""
    """The ordinary user that runs it: it vouches for that user alone, and gets no other's job."""
    pool: PoolFacts | None = None
    """Of a node that Slurm lends."""


@value
class NodeGpu:
    """One GPU in a node's last report, with all tasks there. One out of service is full."""

    memory_bytes: int
    room_bytes: int
    """The bytes that are not promised."""
    percent: int = 0
    """The compute that tasks with a share have."""
    is_plain: bool = False
    """A task without a share computes there: none with a share may."""
    best_effort_percent: int = 0
    tasks: int = 0
    envs: tuple[tuple[str, int], ...] = ()
    """Of each environment with a task there, the bytes of its grant that a further task may name.

    "": the node's own environments."""
    numbers: tuple[int, ...] = ()
    """The assignments with a task there."""
    most: int = 1_024
    """The most tasks there, by the node's settings."""


class GpuSums(NamedTuple):
    """Sums of a node's GPUs."""

    empty: int
    """Those without a task."""
    rest_percent: int
    """The most compute on one GPU for a job with a share."""
    has_whole: bool
    """The memory of some GPU is wholly free."""
    room_bytes: int
    """The most on one GPU."""


AgainSums = dict[str, tuple[int, int]]
"""By environment: the most compute, and the most bytes, that a further task has on a GPU of its."""


class NodeShares(NamedTuple):
    """A node's report of its GPUs."""

    gpus: tuple[NodeGpu, ...]
    used: dict[str, int]
    """The GPUs of each environment."""
    listed: frozenset[int]
    """The assignments with a task there."""
    left: GpuSums
    others: int
    """Of each GPU the environments there beside one of assignments."""
    again: AgainSums


@value
class PastStart:
    """A start of a job that is over, as its node reported it."""

    node: str
    node_job: str = ""
    """Its id on the node, which has the output."""
    cause: Cause | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str = ""
    ran_ms: int | None = None
    ended_wall_ns: int = 0
    """On the node's clock; 0: it is not known."""
    number: int = 0
    """1 is the first; an attempt that has not begun has none."""


@value
class ClusterJob:
    """A job that has not ended; or the elements of an array that no node was given, as one."""

    job_id: str
    """Of an array's row its name, c5; of an element that a node was given c5.3."""
    env: str
    user: str
    gpus: int
    time_limit_ms: int | None = None
    max_restarts: int = 0
    queued_ns: int = 0
    """Its place in the queue, kept until an attempt of it has failed; of a row its first one's."""
    stage: ClusterStage = ClusterStage.QUEUED
    attempt: int = 0
    """The number of its last assignment."""
    restarts: int = 0
    interruptions: int = 0
    then: ClusterStage | None = None
    """While STOPPING."""
    resumes_ns: int | None = None
    """While PAUSED."""
    assigned: int | None = None
    """The number of its assignment, while it has one."""
    avoids: tuple[str, ...] = ()
    """Nodes that could not begin it."""
    uid: int = 0
    name: str = ""
    command: str = ""
    submit_key: str = ""
    """The submitter's: the same submission again is the same job."""
    submitted_wall_ns: int = 0
    indices: Ranges = ()
    """Of an array's row."""
    after: tuple[str, ...] = ()
    """Jobs and arrays that must end well before it may start."""
    held_by: str = ""
    task_class: TaskClass = TaskClass.NORMAL
    """An earlier class is served first."""
    compute_percent: int | None = None
    """The share of each of its GPUs; None: a plain task."""
    memory_bytes: int | None = None
    """On each GPU, if it is named."""
    past: tuple[PastStart, ...] = ()
    """The last RETAINED_ATTEMPTS of its starts that are over."""

    @property
    def starts(self) -> int:
        """The number of its starts that are over."""
        return self.past[-1].number if self.past else 0

    def with_past(self, start: PastStart) -> ClusterJob:
        """The same job after one more start, which gets its number here."""
        past = (*self.past, replace(start, number=self.starts + 1))
        return replace(self, past=past[-RETAINED_ATTEMPTS:])

    @property
    def shares(self) -> bool:
        """Whether other jobs may stand on its GPUs."""
        return _shares(self)

    @property
    def size(self) -> int:
        return array_rows.count(self.indices) or 1

    @property
    def array(self) -> str:
        """The name that was given to its submission."""
        return job_ids.array_of(self.job_id) or self.job_id


@value
class GivenJob:
    """An attempt that is given to a node. It stays until the node's answer is an end."""

    number: int
    key: str
    """HEAD/GENERATION/JOB/ATTEMPT."""
    job_id: str
    env: str
    node: str
    node_generation: str
    """The store that was told: another one is not, since it would begin it again."""
    gpus: int
    time_limit_ms: int | None
    answered: bool = False
    """The node has it in its store."""
    began_ns: int | None = None
    """When the head heard that it began."""
    node_job: str = ""
    """Its id on the node."""
    compute_percent: int | None = None
    memory_bytes: int | None = None

    @property
    def shares(self) -> bool:
        return _shares(self)


def _shares(row: ClusterJob | GivenJob) -> bool:
    if row.memory_bytes is None and row.compute_percent in (None, WHOLE_PERCENT):
        return False
    return row.gpus > 0


@value
class EndedJob:
    """A job in the history."""

    job: ClusterJob
    node: str
    cause: Cause | None
    exit_code: int | None
    signal: int | None = None
    why: str = ""
    node_job: str = ""
    ran_ms: int | None = None
    ended_wall_ns: int = 0
    """The edge fills it in."""
    is_last: bool = True
    """No other job of its array is left."""


@value
class JoinWord:
    """A word by which one node joins, once. It is named by its public key; the head has no more."""

    public: str
    node: str
    expires_ns: int
    used_by: str = ""
    """The public key of the node that has used it: the answer may have been lost."""
    user: str = ""
    """The ordinary user whose node it is for; empty: root's."""


@value
class Counters:
    """The head itself."""

    name: str
    generation: int = 1
    number: int = 0
    """Of the last assignment, or a greater one."""
    job: int = 0
    pilot: int = 0
    """Of the last pilot, or a greater one."""
    stamp_ns: int = 0
    """The last place that was given in the queue: each is given once."""
    is_copy: bool = False
    """A node knows a number that this head has not given: its store is an older copy."""
    is_restoring: bool = False
    """It was restored from a copy, and has not heard each node yet."""
    copied_job: int = 0
    """The number of the last job of the copy, at the last restore."""
