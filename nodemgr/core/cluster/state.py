"""The tables of a head, which a step changes in place until it is kept or undone.

Knows: which rows are stored, and the sums and indices that follow from them. Must not know: why a
row changes. The tables are those of a node's core (core/state/node_state.py, Table and Groups),
and so is the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from nodemgr.core.cluster import gpu_rooms
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
    NodeGpu,
    NodeShares,
    StageEvent,
)
from nodemgr.core.cluster.events import Acknowledge
from nodemgr.core.cluster.pilots import Pilot, PoolEffect, PoolMemory
from nodemgr.core.model import array_rows
from nodemgr.core.model.entities import CLASS_ORDER, Config
from nodemgr.core.model.transitions import checked
from nodemgr.core.model.values import replace
from nodemgr.core.state.job_index import JobIndex
from nodemgr.core.state.node_state import AnyTable, Groups, Table
from nodemgr.core.state.work_queue import WorkQueue, line_name

QUEUE = "normal"
AT_NODE, IN_QUEUE, OFF_QUEUE = range(3)
"""The parts of the list of jobs (listing.py)."""
STORED = {
    "envs": "env", "nodes": "node", "jobs": "job", "assignments": "assignment",
    "counters": "counters", "words": "word", "pilots": "pilot",
}  # fmt: skip
"""Each stored table and the kind of its rows; ended jobs are of the kind `ended`."""

StoredRow = tuple[str, str, object]
"""Kind, key, value; None deletes."""


class ClusterState:
    """The whole state of a head, to be read. ClusterDraft changes it."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        self.config = config or Config()
        self.changed: list[AnyTable] = []
        """The tables that the open step has changed."""
        self.counters: Table[str, Counters] = Table(self.changed)
        self.counters[""] = Counters(name)
        self.envs: Table[str, ClusterEnv] = Table(self.changed)
        self.nodes: Table[str, ClusterNode] = Table(self.changed)
        self.jobs: Table[str, ClusterJob] = Table(self.changed)
        self.assignments: Table[int, GivenJob] = Table(self.changed)
        self.words: Table[str, JoinWord] = Table(self.changed)
        self.pilots: Table[int, Pilot] = Table(self.changed)
        # what a restart forgets: each node is asked again
        self.pool = PoolMemory()
        self.sessions: Table[str, tuple[int, int]] = Table(self.changed)
        """By node: its session, and the number of the last report in it."""
        self.shares: Table[str, NodeShares] = Table(self.changed)
        """By node with a session that reports them."""
        self.to_confirm: Table[str, str] = Table(self.changed)
        """By key: the node that waits until it is named again."""
        self.strays: Table[str, str] = Table(self.changed)
        """By key: the node that holds it though it has been given up for lost."""
        self.unknown: Table[str, str] = Table(self.changed)
        """By key: a node with a job that was submitted after the head's store was copied."""
        self.vanished: Table[int, str] = Table(self.changed)
        """By number: the node that has forgotten an end which a restored head does not know."""
        # what follows from the rows
        self.of_node: Groups[str, int] = Groups(self.changed)
        self.env_gpus: Table[str, int] = Table(self.changed)
        """The GPUs of each environment's assignments."""
        self.shared: Groups[str, int] = Groups(self.changed)
        """By environment, its assignments that share GPUs."""
        self.paused: Table[str, int] = Table(self.changed)
        """By job: the end of its pause."""
        self.node_uses: Any = None
        """The nodes as the last pass found them (rooms.py): no decision depends on it."""
        self.touched: set[str] = set()
        """The nodes that may be otherwise since then."""
        self.users: Table[str, tuple[int, int]] = Table(self.changed)
        """By name: the uid of the user's jobs, and their number."""
        self.submitted: Table[tuple[str, str], str] = Table(self.changed)
        """The job of each environment and submitter's key."""
        self.elements: Groups[str, str] = Groups(self.changed)
        """By array, its row and its elements that have one of their own."""
        self.awaited: Groups[str, str] = Groups(self.changed)
        """By job or array, the jobs that wait until it has ended well."""
        self.queue = WorkQueue(((QUEUE, 0),))
        self.listed = {AT_NODE: JobIndex(), OFF_QUEUE: JobIndex()}
        """The rows outside the queue of each environment, in the order of submission."""
        self.env_jobs: Counter[str] = Counter()
        """The jobs of each environment, with those that wait as one row."""

    def living(self, name: str) -> list[ClusterJob]:
        """The job of that name, or an array's rows, that have not ended; in their order."""
        rows = [self.jobs[one] for one in self.elements.members(name)]
        return array_rows.living(name, rows, self.jobs)

    def rows(self) -> Iterator[StoredRow]:
        """The rows that the store should hold."""
        for table, kind in STORED.items():
            for key, row in getattr(self, table).items():
                yield kind, str(key), row


class ClusterDraft(ClusterState):
    """A head's state with a step: `begin`, the changes, then `settle` or `undo`."""

    def __init__(self, name: str, config: Config | None = None) -> None:
        super().__init__(name, config)
        self.now_ns = 0
        """Time of the step."""
        self._pool_before = self.pool
        self._begin_results()

    def begin(self, now_ns: int) -> None:
        """Raises ValueError if the last step is neither kept nor undone."""
        if self.changed:
            raise ValueError("a step begins when the one before it is applied or discarded")
        self.now_ns = now_ns
        self._pool_before = self.pool
        self._begin_results()

    def _begin_results(self) -> None:
        self.ended: dict[str, EndedJob] = {}
        self.over: list[EndedJob] = []
        """Those whose dependents have not been looked at."""
        self.submitted_ids: list[str] = []
        self.effects: list[Acknowledge] = []
        self.pool_effects: list[PoolEffect] = []

    # -- rows --

    @property
    def head(self) -> Counters:
        return self.counters[""]

    def put_head(self, head: Counters) -> None:
        self.counters.put("", head)

    def stamp(self, size: int = 1) -> int:
        """The first of so many places at the end of the queue."""
        stamp_ns = max(self.now_ns, self.head.stamp_ns + 1)
        self.put_head(replace(self.head, stamp_ns=stamp_ns + size - 1))
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
            self.submitted.put((job.env, job.submit_key), job.array)
        if job.resumes_ns is not None:
            self.paused.put(job.job_id, job.resumes_ns)
        if job.indices or job.array != job.job_id:
            self.elements.add(job.array, job.job_id)
        for name in job.after:
            self.awaited.add(name, job.job_id)

    def with_row(self, job: ClusterJob) -> ClusterJob:
        """The same job; an element within an array's row gets one of its own."""
        if job.job_id in self.jobs:
            return job
        row = self.jobs[job.array]
        own, rest = array_rows.split(row, job.job_id)
        if rest is None:
            self._leave(row)
        else:
            self.jobs.put(row.job_id, rest)
        self.enter(own)
        return own

    def put_after(self, job: ClusterJob, after: tuple[str, ...]) -> None:
        """It waits for these alone from now on."""
        for name in job.after:
            if name not in after:
                self.awaited.remove(name, job.job_id)
        self.jobs.put(job.job_id, replace(job, after=after))

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
        self._leave(job)
        self._pause(job.job_id, None)
        is_last = not self.living(job.array)
        self.ended[job.job_id] = replace(ended, is_last=is_last)
        self.over.append(ended)
        if job.submit_key and is_last:
            self.submitted.drop((job.env, job.submit_key))

    def _leave(self, job: ClusterJob) -> None:
        self.jobs.drop(job.job_id)
        if job.indices or job.array != job.job_id:
            self.elements.remove(job.array, job.job_id)
        for name in job.after:
            self.awaited.remove(name, job.job_id)
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
            if row.shares:
                self.shared.add(row.env, row.number)
        self.assignments.put(row.number, row)

    def drop_assignment(self, row: GivenJob) -> None:
        self.assignments.drop(row.number)
        self.of_node.remove(row.node, row.number)
        self._count(row.env, -row.gpus)
        if row.shares:
            self.shared.remove(row.env, row.number)
        self.to_confirm.drop(row.key)
        self.vanished.drop(row.number)

    def _count(self, env: str, more: int) -> None:
        total = (self.env_gpus.get(env) or 0) + more
        if total:
            self.env_gpus.put(env, total)
        else:
            self.env_gpus.drop(env)

    def put_shares(self, node: str, shares: tuple[NodeGpu, ...] | None) -> None:
        before = self.shares.get(node)
        if shares is None and before is not None:
            self.shares.drop(node)
        elif shares is not None and (before is None or shares != before.gpus):
            self.shares.put(node, gpu_rooms.reported(shares))

    def at(self, node: str) -> list[GivenJob]:
        """The open assignments of a node, the oldest first."""
        return [self.assignments[number] for number in sorted(self.of_node.members(node))]

    # -- the end of the step --

    def saved(self) -> list[StoredRow]:
        """The rows to store, in one commit."""
        found: list[StoredRow] = []
        for name, kind in STORED.items():
            table: Table[Any, Any] = getattr(self, name)
            rows = table.changes()
            found += [(kind, str(key), row) for key, before, row in rows if row != before]
        return found + [("ended", job_id, row) for job_id, row in self.ended.items()]

    def touches(self) -> set[str]:
        """The nodes of which the open step has changed a row."""
        rows = [row for _, *pair in self.assignments.changes() for row in pair if row is not None]
        opened = {name for name, *pair in self.sessions.changes() if None in pair}
        return opened.union(self.nodes.old, self.shares.old, [row.node for row in rows])

    def settle(self) -> None:
        """The step is kept: the queue and the lists follow."""
        _requeue(self)
        self.touched |= self.touches()
        changes = self.jobs.changes()
        pairs = [(before, job) for _, before, job in changes if _part(before) != _part(job)]
        for part, index in self.listed.items():
            index.change(
                [job for _, job in pairs if job is not None and _part(job) == part],
                [before for before, _ in pairs if before is not None and _part(before) == part],
            )
        for _, before, job in changes:
            for row, sign in (before, -1), (job, 1):
                if row is not None:
                    self.env_jobs[row.env] += sign * row.size
        for table in self.changed:
            table.old.clear()
        self.changed.clear()

    def undo(self) -> None:
        """The step has happened nowhere."""
        for table in self.changed:
            table.undo()
        self.changed.clear()
        self.pool = self._pool_before
        self._begin_results()


def _part(job: ClusterJob | None) -> int | None:
    if job is None:
        return None
    if job.stage in AT_A_NODE:
        return AT_NODE
    return IN_QUEUE if job.stage is ClusterStage.QUEUED else OFF_QUEUE


def _group(job: ClusterJob) -> str:
    """Jobs of one group ask for the same: what one of them does not get, no later one gets."""
    need = f"{job.task_class}/{job.gpus}/{job.time_limit_ms}/{job.compute_percent}"
    return f"{job.env}/{job.user}/{job.avoids}/{need}/{job.memory_bytes}"


def line_of(job: ClusterJob) -> str:
    """The line of its class in the queue."""
    return line_name(QUEUE, CLASS_ORDER[job.task_class])


def _requeue(draft: ClusterDraft) -> None:
    queue, came = draft.queue, []
    for job_id, before, job in draft.jobs.changes():
        waited = before is not None and before.stage is ClusterStage.QUEUED
        if job is None or job.stage is not ClusterStage.QUEUED:
            if waited:
                queue.withdraw(job_id)
        elif before is None or not waited:
            came.append(job)
        elif _group(before) != _group(job):
            queue.withdraw(job_id)
            came.append(job)
        elif (before.queued_ns, before.size) != (job.queued_ns, job.size):
            queue.resize(job_id, job.queued_ns, job.size)
    for job in sorted(came, key=lambda job: job.queued_ns):
        queue.insert(line_of(job), job.job_id, job.queued_ns, _group(job), job.env, job.size)


def restore(name: str, rows: Iterable[StoredRow], config: Config | None = None) -> ClusterDraft:
    """The state of the store's rows. No node has a session: each is asked first."""
    draft = ClusterDraft(name, config)
    tables = {kind: table for table, kind in STORED.items()}
    for kind, key, row in rows:
        if isinstance(row, GivenJob):
            draft.put_assignment(row)
        elif isinstance(row, Pilot):
            draft.pilots.put(row.number, row)
        elif isinstance(row, ClusterJob):
            draft.enter(row)
        elif kind != "ended":
            getattr(draft, tables[kind]).put(key, row)
    draft.settle()
    return draft


def may_have(node: ClusterNode, job: ClusterJob) -> bool:
    """An ordinary user's node gets that user's jobs alone."""
    return node.user in ("", job.user)
