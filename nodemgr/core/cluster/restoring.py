"""A head restored from a backup of its store: what nodes know of jobs, and it does not.

Knows: rows, keys. Must not know: files; what an answer makes of a job that has its assignment
(answers.py).

A restored head says nothing and gives no job until it has heard each node, or a person has said
that the node is lost. Until then:
- An attempt that a node has, and that is later than the job's last one here, becomes the job's.
- An attempt that a node has answered and forgotten has ended after the copy. Its job is over.
- A job that was submitted after the copy stays on its node, and is listed as unknown.
Jobs that were submitted after the copy and are on no node are lost.
"""

from __future__ import annotations

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import (
    ClusterStage,
    EndedJob,
    GivenJob,
    PastStart,
    StageEvent,
)
from nodemgr.core.cluster.events import NodeAnswer, Synced
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model import job_ids
from nodemgr.core.model.values import replace

GAP = 10_000
"""So many numbers of assignments and of jobs are left out."""
ENDED_LATER = "it ended after the copy from which the head was restored"


def begin(draft: ClusterDraft, event: events.Restored) -> None:
    head = draft.head
    generation = max(head.generation, event.generation) + 1
    draft.put_head(
        replace(
            head,
            generation=generation,
            number=head.number + GAP,
            pilot=head.pilot + GAP * generation,
            job=head.job + GAP * generation,  # two restores of one copy go on with other ids
            copied_job=head.job,
            is_copy=False,
            is_restoring=True,
        )
    )
    end(draft)


def known(event: Synced) -> int:
    """The greatest number of an assignment that the node knows."""
    return max([event.below - 1, *(answer.number for answer in event.answers)])


def heard(draft: ClusterDraft, event: Synced) -> None:
    """The node's answers are all that it has, before they are taken."""
    if known(event) > draft.head.number:
        draft.put_head(replace(draft.head, number=known(event) + GAP))
    keys = {answer.key for answer in event.answers}
    for row in draft.at(event.node):
        forgotten = row.answered or row.number < event.below
        if row.node_generation == event.generation and forgotten and row.key not in keys:
            draft.vanished.put(row.number, event.node)


def adopt(draft: ClusterDraft, node: str, answer: NodeAnswer) -> None:
    """The attempt is the job's from now on, if it is later than the last one that is known here."""
    head, _, job_id, text = answer.key.split("/")
    found, attempt = draft.living(job_id), int(text)
    if not found or head != draft.head.name or attempt <= found[0].attempt:
        return
    if is_unknown(draft, answer.key) or answer.number in draft.assignments:
        return
    job = draft.with_row(found[0])
    if job.after:  # they had ended well
        draft.put_after(job, ())
        job = draft.jobs[job_id]
    if job.assigned is not None:
        before = draft.assignments[job.assigned]
        draft.drop_assignment(before)
        if before.began_ns is not None:
            job = job.with_past(PastStart(before.node, before.node_job, why=ENDED_LATER))
    row = GivenJob(
        answer.number, answer.key, job_id, job.env, node, draft.nodes[node].generation,
        job.gpus, job.time_limit_ms, answered=True, compute_percent=job.compute_percent,
        memory_bytes=job.memory_bytes,
    )  # fmt: skip
    draft.put_assignment(row)
    draft.move(
        job, StageEvent.FOUND, ClusterStage.ASSIGNED, attempt=attempt, assigned=row.number,
        then=None, resumes_ns=None, held_by="",
    )  # fmt: skip


def is_unknown(draft: ClusterDraft, key: str) -> bool:
    """Whether the job of the key was submitted after the copy."""
    _, generation, job_id, _ = key.split("/")
    head = draft.head
    return int(generation) != head.generation and job_ids.listed(job_id)[0] > head.copied_job


def end(draft: ClusterDraft) -> None:
    """Goes on if no node is left to be heard."""
    head = draft.head
    if not head.is_restoring:
        return
    if any(not node.lost and node.name not in draft.sessions for node in draft.nodes.values()):
        return
    draft.put_head(replace(head, is_restoring=False))
    for number in list(draft.vanished):
        row = draft.assignments[number]
        draft.drop_assignment(row)
        job = replace(draft.jobs[row.job_id], then=None, assigned=None)
        past = job.with_past(PastStart(row.node, row.node_job, why=ENDED_LATER))
        over = replace(past, stage=ClusterStage.FAILED)
        ended = EndedJob(over, row.node, None, None, why=ENDED_LATER, node_job=row.node_job)
        draft.end(job, StageEvent.FORGOTTEN, ClusterStage.FAILED, ended)
