"""Orders of people to a head: jobs in and out, nodes drained, resumed, given up for lost.

Knows: what an order does to jobs and assignments. Must not know: who may give it; what a node says
to it (answers.py).
"""

from __future__ import annotations

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import (
    ClusterEnv,
    ClusterJob,
    ClusterNode,
    ClusterStage,
    EndedJob,
    StageEvent,
)
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.values import replace


def set_env(draft: ClusterDraft, event: events.SetEnv) -> None:
    """A total that is lowered takes nothing away: jobs wait until it has room again."""
    draft.envs.put(event.name, ClusterEnv(event.name, event.gpus))


def submit(draft: ClusterDraft, event: events.Submit) -> None:
    """The caller has judged it; the id is j and the head's count of jobs."""
    number = draft.head.job + 1
    draft.put_head(replace(draft.head, job=number))
    draft.put_new_job(
        ClusterJob(
            f"j{number}", event.env, event.user, event.gpus, event.time_limit_ms,
            event.max_restarts, draft.stamp(),
        )
    )  # fmt: skip


def withdraw(draft: ClusterDraft, event: events.Withdraw) -> None:
    job = draft.jobs.get(event.job_id)
    if job is None:
        return
    if job.assigned is not None:
        draft.move(job, StageEvent.STOP, ClusterStage.STOPPING, then=ClusterStage.WITHDRAWN)
        return
    over = EndedJob(replace(job, stage=ClusterStage.WITHDRAWN, resumes_ns=None), "", None, None)
    draft.end(job, StageEvent.WITHDRAW, ClusterStage.WITHDRAWN, over)


def add_node(draft: ClusterDraft, event: events.AddNode) -> None:
    if event.name not in draft.nodes:
        draft.nodes.put(event.name, ClusterNode(event.name, "", "", 0, 0))


def drain(draft: ClusterDraft, event: events.DrainNode) -> None:
    node = draft.nodes.get(event.name)
    if node is None:
        return
    draft.nodes.put(node.name, replace(node, drained=True))
    for row in draft.at(node.name):
        job = draft.jobs[row.job_id]
        if job.stage is ClusterStage.ASSIGNED:
            ask_back(draft, job)


def ask_back(draft: ClusterDraft, job: ClusterJob) -> None:
    """The node is asked to give back a job that it has not begun; it has the last word."""
    draft.move(job, StageEvent.STOP, ClusterStage.STOPPING, then=ClusterStage.QUEUED)


def resume(draft: ClusterDraft, event: events.ResumeNode) -> None:
    node = draft.nodes.get(event.name)
    if node is not None:
        draft.nodes.put(node.name, replace(node, drained=False))


def lost(draft: ClusterDraft, event: events.NodeLost) -> None:
    """Its assignments are over by a person's word. If it comes back, it is told to end them.

    A node that speaks is not lost; only what it had before it lost its store is.
    """
    present = draft.nodes[event.name].generation if event.name in draft.sessions else None
    for row in draft.at(event.name):
        if row.node_generation == present:
            continue
        job = draft.jobs[row.job_id]
        draft.drop_assignment(row)
        if job.then is ClusterStage.WITHDRAWN:
            over = replace(job, stage=ClusterStage.WITHDRAWN, then=None, assigned=None)
            ended = EndedJob(over, row.node, None, None)
            draft.end(job, StageEvent.NODE_LOST, ClusterStage.WITHDRAWN, ended)
        else:
            draft.move(job, StageEvent.NODE_LOST, ClusterStage.QUEUED, then=None, assigned=None)


def tick(draft: ClusterDraft, _event: events.ClockMoved) -> None:
    for job in list(draft.jobs.values()):
        if job.stage is ClusterStage.PAUSED and (job.resumes_ns or 0) <= draft.now_ns:
            draft.move(job, StageEvent.PAUSE_OVER, ClusterStage.QUEUED, resumes_ns=None)
