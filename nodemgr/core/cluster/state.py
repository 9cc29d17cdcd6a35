"""The tables of a head, and one step's changes in them.

Knows: which rows are stored, and the sums and indices that follow from them. Must not know: why a
row changes. The tables are those of a node's core (core/state/node_state.py, Overlay and Groups),
and so is the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodemgr.core.cluster.entities import (
    AT_A_NODE,
    STAGES,
    ClusterEnv,
    ClusterJob,
    ClusterNode,
    ClusterStage,
    Counters,
    EndedJob,
    GivenJob,
    JoinWord,
    StageEvent,
)
from nodemgr.core.cluster.events import Acknowledge
from nodemgr.core.model.entities import Config
from nodemgr.core.model.transitions import checked
from nodemgr.core.model.values import replace
from nodemgr.core.state.node_state import Groups, Overlay, Table
from nodemgr.core.state.work_queue import WorkQueue

QUEUE = "normal"
STORED = {
    "envs": "env", "nodes": "node", "jobs": "job", "assignments": "assignment",
    "counters": "counters", "words": "word",
}  # fmt: skip
"""Each stored table and the kind of its rows; ended jobs are of the kind `ended`."""

StoredRow = tuple[str, str, object]
"""Kind, key, value; None deletes."""


class ClusterState:
    """The whole state of a head."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        self.config = config or Config()
        self.counters: dict[str, Counters] = {"": Counters(name)}
        self.envs: dict[str, ClusterEnv] = {}
        self.nodes: dict[str, ClusterNode] = {}
        self.jobs: dict[str, ClusterJob] = {}
        self.assignments: dict[int, GivenJob] = {}
        self.words: dict[str, JoinWord] = {}
        # what a restart forgets: each node is asked again
        self.sessions: dict[str, tuple[int, int]] = {}
        """By node: its session, and the number of the last report in it."""
        self.to_confirm: dict[str, str] = {}
        """By key: the node that waits until it is named again."""
        self.strays: dict[str, str] = {}
        """By key: the node that holds it though it has been given up for lost."""
        self.unknown: dict[str, str] = {}
        """By key: a node with a job that was submitted after the head's store was copied."""
        self.vanished: dict[int, str] = {}
        """By number: the node that has forgotten an end which a restored head does not know."""
        # what follows from the rows
        self.of_node: dict[str, dict[int, None]] = {}
        self.env_gpus: dict[str, int] = {}
        """The GPUs of each environment's assignments."""
        self.paused: dict[str, int] = {}
        """By job: the end of its pause."""
        self.users: dict[str, tuple[int, int]] = {}
        """By name: the uid of the user's jobs, and their number."""
        self.submitted: dict[tuple[str, str], str] = {}
        """The job of each environment and submitter's key."""
        self.queue = WorkQueue(((QUEUE, 0),))

    def rows(self) -> Iterator[StoredRow]:
        """The rows that the store should hold."""
        for table, kind in STORED.items():
            for key, row in getattr(self, table).items():
                yield kind, str(key), row


class ClusterDraft:
    """A state as one step would leave it."""

    def __init__(self, state: ClusterState, now_ns: int = 0) -> None:
        self.state, self.config = state, state.config
        self.now_ns = now_ns
        """Time of the step."""
        self.changed: list[Table] = []
        self.counters = Overlay(state.counters, self.changed)
        self.envs = Overlay(state.envs, self.changed)
        self.nodes = Overlay(state.nodes, self.changed)
        self.jobs = Overlay(state.jobs, self.changed)
        self.assignments = Overlay(state.assignments, self.changed)
        self.words = Overlay(state.words, self.changed)
        self.sessions = Overlay(state.sessions, self.changed)
        self.to_confirm = Overlay(state.to_confirm, self.changed)
        self.strays = Overlay(state.strays, self.changed)
        self.unknown = Overlay(state.unknown, self.changed)
        self.vanished = Overlay(state.vanished, self.changed)
        self.paused = Overlay(state.paused, self.changed)
        self.users = Overlay(state.users, self.changed)
        self.submitted = Overlay(state.submitted, self.changed)
        self.of_node: Groups[str, int] = Groups(state.of_node, self.changed)
        self.env_gpus = Overlay(state.env_gpus, self.changed)
        self.ended: dict[str, EndedJob] = {}
        self.effects: list[Acknowledge] = []

    # -- rows --

    @property
    def head(self) -> Counters:
        return self.counters[""]

    def put_head(self, head: Counters) -> None:
        self.counters.put("", head)

    def stamp(self) -> int:
        """A place at the end of the queue."""
        stamp_ns = max(self.now_ns, self.head.stamp_ns + 1)
        self.put_head(replace(self.head, stamp_ns=stamp_ns))
        return stamp_ns

    def put_new_job(self, job: ClusterJob) -> None:
        checked(STAGES, None, StageEvent.SUBMIT, job.stage)
        self.enter(job)

    def enter(self, job: ClusterJob) -> None:
        """A job that is new here, with all that follows from its row."""
        self.jobs.put(job.job_id, job)
        uid, count = self.users.get(job.user) or (job.uid, 0)
        self.users.put(job.user, (uid, count + 1))
        if job.submit_key:
            self.submitted.put((job.env, job.submit_key), job.job_id)
        if job.resumes_ns is not None:
            self.paused.put(job.job_id, job.resumes_ns)

    def move(
        self, job: ClusterJob, event: StageEvent, stage: ClusterStage, **fields: object
    ) -> None:
        """Writes the job in its next stage. Raises TransitionRefused if the table lacks it."""
        checked(STAGES, self.jobs[job.job_id].stage, event, stage)
        after = replace(job, stage=stage, **fields)
        self.jobs.put(job.job_id, after)
        self._pause(job.job_id, after.resumes_ns)

    def end(self, job: ClusterJob, event: StageEvent, stage: ClusterStage, ended: EndedJob) -> None:
        """The job leaves for the history."""
        checked(STAGES, self.jobs[job.job_id].stage, event, stage)
        self.jobs.drop(job.job_id)
        self.ended[job.job_id] = ended
        self._pause(job.job_id, None)
        if job.submit_key:
            self.submitted.drop((job.env, job.submit_key))
        uid, count = self.users[job.user]
        if count > 1:
            self.users.put(job.user, (uid, count - 1))
        else:
            self.users.drop(job.user)

    def _pause(self, job_id: str, resumes_ns: int | None) -> None:
        if resumes_ns is not None:
            self.paused.put(job_id, resumes_ns)
        elif job_id in self.paused:
            self.paused.drop(job_id)

    def put_assignment(self, row: GivenJob) -> None:
        if row.number not in self.assignments:
            self.of_node.add(row.node, row.number)
            self._count(row.env, row.gpus)
        self.assignments.put(row.number, row)

    def drop_assignment(self, row: GivenJob) -> None:
        self.assignments.drop(row.number)
        self.of_node.remove(row.node, row.number)
        self._count(row.env, -row.gpus)
        self.to_confirm.drop(row.key)
        self.vanished.drop(row.number)

    def _count(self, env: str, more: int) -> None:
        total = (self.env_gpus.get(env) or 0) + more
        if total:
            self.env_gpus.put(env, total)
        else:
            self.env_gpus.drop(env)

    def at(self, node: str) -> list[GivenJob]:
        """The open assignments of a node, the oldest first."""
        return [self.assignments[number] for number in sorted(self.of_node.members(node))]

    # -- the end of the step --

    def saved(self) -> list[StoredRow]:
        """The rows to store, in one commit."""
        found: list[StoredRow] = []
        for table, kind in STORED.items():
            for key, row in getattr(self, table).changes.items():
                if row != getattr(self.state, table).get(key):
                    found.append((kind, str(key), row))
        return found + [("ended", job_id, row) for job_id, row in self.ended.items()]

    def settle(self) -> None:
        """Writes the changes into the state."""
        _requeue(self.state, self.jobs.changes.items())
        for table in self.changed:
            table.settle()


def _group(job: ClusterJob) -> str:
    """Jobs of one group ask for the same: what one of them does not get, no later one gets."""
    return f"{job.env}/{job.gpus}/{job.time_limit_ms}/{job.avoids}"


def _requeue(state: ClusterState, changes: Iterable[tuple[str, ClusterJob | None]]) -> None:
    queue, came = state.queue, []
    for job_id, job in changes:
        before = state.jobs.get(job_id)
        if before is not None and before.stage is ClusterStage.QUEUED:
            queue.withdraw(job_id)
        if job is not None and job.stage is ClusterStage.QUEUED:
            came.append(job)
    between = []
    for job in sorted(came, key=lambda job: job.queued_ns):
        end, front = queue.end(QUEUE), queue.front(QUEUE)
        row = (job.job_id, job.queued_ns, _group(job), job.env, 1)
        if end is None or front is None or job.queued_ns >= end or job.queued_ns < front:
            queue.insert(QUEUE, *row)
        else:
            between.append(row)
    if between:
        queue.merge(QUEUE, between)


def restore(name: str, rows: Iterable[StoredRow], config: Config | None = None) -> ClusterState:
    """The state of the store's rows. No node has a session: each is asked first."""
    state = ClusterState(name, config)
    draft = ClusterDraft(state)
    tables = {kind: table for table, kind in STORED.items()}
    for kind, key, row in rows:
        if isinstance(row, GivenJob):
            draft.put_assignment(row)
        elif isinstance(row, ClusterJob):
            draft.enter(row)
        elif kind != "ended":
            getattr(draft, tables[kind]).put(key, row)
    draft.settle()
    return state


def at_a_node(job: ClusterJob) -> bool:
    return job.stage in AT_A_NODE
