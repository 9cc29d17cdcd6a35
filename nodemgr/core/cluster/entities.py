"""The rows of a head: environments, nodes, jobs, assignments; and the states of a job, as a table.

Knows: what a head stores. Must not know: a GPU by its name, how a node decides, the wire.

Truths: the head's rows say which jobs exist, their order, and the node that an attempt is given to;
a node's rows say whether the attempt began and how it ended. Neither writes the other's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from nodemgr.core.model.entities import Cause
from nodemgr.core.model.transitions import Targets
from nodemgr.core.model.values import value


class ClusterStage(enum.StrEnum):
    """The state of a job at the head; the last three are final."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    """A node is given it. The store has this before the node hears of it."""
    RUNNING = "running"
    """The node says that it began."""
    STOPPING = "stopping"
    """The node is asked to end it or to give it back; `ClusterJob.then` is its next state."""
    PAUSED = "paused"
    """Its last attempt ended by no fault of it; after the pause it is at its old place."""
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


FINAL = frozenset((ClusterStage.DONE, ClusterStage.FAILED, ClusterStage.WITHDRAWN))
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


_QUEUED, _ASSIGNED, _RUNNING = ClusterStage.QUEUED, ClusterStage.ASSIGNED, ClusterStage.RUNNING
_STOPPING, _PAUSED, _WITHDRAWN = ClusterStage.STOPPING, ClusterStage.PAUSED, ClusterStage.WITHDRAWN
_ENDS = (ClusterStage.DONE, ClusterStage.FAILED, _WITHDRAWN, _QUEUED, _PAUSED)
_JUDGED = "The node says how it ended; endings.py says what follows."
_BACK = "The node has not begun it and never will."
_FOUND = "A head that was restored from a copy hears that a node got a later attempt."
_FORGOTTEN = "It ended after the copy from which the head was restored: its end is not known."
_LOST = "A person says that the node is lost: the job goes back to its place, or ends as asked."

STAGES: Mapping[tuple[ClusterStage | None, StageEvent], Targets[ClusterStage]] = {
    (None, StageEvent.SUBMIT): Targets((_QUEUED,), "A new job enters its queue."),
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
    (_STOPPING, StageEvent.GIVEN_BACK): Targets((_QUEUED, _WITHDRAWN), _BACK),
    (_STOPPING, StageEvent.END): Targets(_ENDS, _JUDGED),
    (_STOPPING, StageEvent.NODE_LOST): Targets((_QUEUED, _WITHDRAWN), _LOST),
    (_PAUSED, StageEvent.PAUSE_OVER): Targets((_QUEUED,), "It is at its old place again."),
    (_PAUSED, StageEvent.WITHDRAW): Targets((_WITHDRAWN,), "It is at no node."),
    **{
        (stage, StageEvent.FOUND): Targets((_ASSIGNED,), _FOUND)
        for stage in (_QUEUED, _ASSIGNED, _RUNNING, _STOPPING, _PAUSED)
    },
    **{
        (stage, StageEvent.FORGOTTEN): Targets((ClusterStage.FAILED,), _FORGOTTEN)
        for stage in (_ASSIGNED, _RUNNING, _STOPPING)
    },
}


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


@value
class ClusterJob:
    """A job that has not ended."""

    job_id: str
    env: str
    user: str
    gpus: int
    time_limit_ms: int | None
    max_restarts: int
    queued_ns: int
    """Its place in the queue, kept until an attempt of it has failed."""
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


@value
class JoinWord:
    """A word by which one node joins, once. It is named by its public key; the head has no more."""

    public: str
    node: str
    expires_ns: int
    used_by: str = ""
    """The public key of the node that has used it: the answer may have been lost."""


@value
class Counters:
    """The head itself."""

    name: str
    generation: int = 1
    number: int = 0
    """Of the last assignment, or a greater one."""
    job: int = 0
    stamp_ns: int = 0
    """The last place that was given in the queue: each is given once."""
    is_copy: bool = False
    """A node knows a number that this head has not given: its store is an older copy."""
    is_restoring: bool = False
    """It was restored from a copy, and has not heard each node yet."""
    copied_job: int = 0
    """The number of the last job of the copy, at the last restore."""
