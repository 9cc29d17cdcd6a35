"""Nodes that get no job: by a person's word, or since the jobs of several users fail there at once.

Knows: the rows of a node and of what it has. Must not know: how an end is judged (answers.py), the
right to drain a node.
"""

from __future__ import annotations

from nodemgr.core.cluster.entities import ClusterJob, ClusterNode, ClusterStage, StageEvent
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import Cause, JobState
from nodemgr.core.model.values import replace

QUICK_JOBS, QUICK_USERS, QUICK_MS = 3, 2, 5_000
"""So many failures in a row, of so many users, each within this time: the node is drained."""
QUICK_WHY = f"its last {QUICK_JOBS} jobs, of {QUICK_USERS} users, failed within 5 s each"


def drain(draft: ClusterDraft, node: ClusterNode, why: str) -> None:
    """Jobs that it has not begun come back."""
    draft.nodes.put(node.name, replace(node, drained=True, why=why))
    for row in draft.at(node.name):
        job = draft.jobs[row.job_id]
        if job.stage is ClusterStage.ASSIGNED:
            ask_back(draft, job)


def ask_back(
    draft: ClusterDraft, job: ClusterJob, then: ClusterStage = ClusterStage.QUEUED
) -> None:
    """The node is asked to give back a job that it has not begun; it has the last word."""
    draft.move(job, StageEvent.STOP, ClusterStage.STOPPING, then=then)


def ended(draft: ClusterDraft, name: str, user: str, answer: NodeAnswer, ran_ms: int) -> None:
    """A job of the user has ended there; its assignment is closed."""
    if answer.is_refusal or answer.state is JobState.WITHDRAWN:
        return
    if answer.cause is Cause.PREEMPTED:  # the node was taken from it
        return
    node = draft.nodes[name]
    is_quick = answer.state is JobState.FAILED and ran_ms < QUICK_MS
    quick = (*node.quick, user)[-QUICK_JOBS:] if is_quick else ()
    if quick == node.quick:
        return
    node = replace(node, quick=quick)
    draft.nodes.put(name, node)
    if len(quick) == QUICK_JOBS and len(set(quick)) >= QUICK_USERS and not node.drained:
        drain(draft, node, QUICK_WHY)
