"""Words of nodes to a head: who is there, what it has answered, what has begun and ended.

Knows: what an answer makes of a job and of its assignment. Must not know: connections; which node a
job gets (passes.py).

An assignment ends in two ways alone: by the answer of its node that it is over, or by a person who
says that the node is lost. Silence ends nothing. An answer to a key that has no assignment here is
one of two: an end that is known already, and is acknowledged again; or a job that a person gave up
for lost, which is ended now.

A node that knows a number which this head has not given shows that the head's store is an older
copy. Such a head gives no job any more: what it has in its queue may be running. A person restores
it (restoring.py).

A job that a person withdraws on its node is over if it had begun; else it goes to another node.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.cluster import draining, events, gpu_shares, pool, restoring
from nodemgr.core.cluster.entities import (
    COMES_BACK,
    ClusterJob,
    ClusterStage,
    EndedJob,
    GivenJob,
    PastStart,
    StageEvent,
)
from nodemgr.core.cluster.events import Acknowledge, NodeAnswer
from nodemgr.core.cluster.state import ClusterDraft, may_have
from nodemgr.core.model import endings
from nodemgr.core.model.entities import MS, Cause, JobState
from nodemgr.core.model.values import replace


def synced(draft: ClusterDraft, event: events.Synced) -> None:
    node = draft.nodes.get(event.node)
    if node is None:
        return
    if restoring.known(event) > draft.head.number and (node.user or not draft.head.is_restoring):
        if not node.user:  # the word of an ordinary user's node stops no head
            draft.put_head(replace(draft.head, is_copy=True))
        return
    now = replace(
        node, generation=event.generation, boot_id=event.boot_id, number=0, gpus=event.gpus,
        others=event.others, lost=False, models=event.models,
    )  # fmt: skip
    draft.nodes.put(node.name, now)
    draft.sessions.put(node.name, (event.session, 0))
    draft.put_shares(node.name, event.shares)
    pool.heard(draft, node.name, event.pool)
    forget_words_of(draft, node.name)
    if draft.head.is_restoring:
        restoring.heard(draft, event)
    _take(draft, node.name, event.answers)
    restoring.end(draft)


def report(draft: ClusterDraft, event: events.NodeReport) -> None:
    session = draft.sessions.get(event.node)
    node = draft.nodes.get(event.node)
    if node is None or session is None or session[0] != event.session:
        return
    if event.number <= session[1]:
        return  # doubled, or overtaken
    draft.sessions.put(event.node, (event.session, event.number))
    draft.put_shares(event.node, event.shares)
    draft.nodes.put(
        node.name, replace(node, number=event.number, gpus=event.gpus, others=event.others)
    )
    pool.heard(draft, node.name, event.pool)
    _take(draft, node.name, event.answers)


def silent(draft: ClusterDraft, event: events.Silent) -> None:
    """Its assignments stay: they are unknown until it speaks."""
    session = draft.sessions.get(event.node)
    if session is not None and session[0] == event.session:
        draft.sessions.drop(event.node)
        draft.put_shares(event.node, None)
        forget_words_of(draft, event.node)


def forget_words_of(draft: ClusterDraft, node: str) -> None:
    """Forgets the words of an earlier session, which were of that one alone."""
    for table in (draft.to_confirm, draft.strays, draft.unknown):
        for key in [key for key in table if table[key] == node]:
            table.drop(key)
    for number in [number for number in draft.vanished if draft.vanished[number] == node]:
        draft.vanished.drop(number)


def below(draft: ClusterDraft, node: str) -> int:
    """The node has answered each of its assignments with a smaller number."""
    generation = draft.nodes[node].generation
    unanswered = [
        row.number
        for row in draft.at(node)
        if not row.answered and row.node_generation == generation
    ]
    return min(unanswered, default=draft.head.number + 1)


def _take(draft: ClusterDraft, node: str, answers: Iterable[NodeAnswer]) -> None:
    acknowledged = [answer.key for answer in answers if _one(draft, node, answer)]
    if acknowledged:
        draft.effects.append(Acknowledge(node, tuple(acknowledged), below(draft, node)))


def _one(draft: ClusterDraft, node: str, answer: NodeAnswer) -> bool:
    """Whether the answer is an end that the head has stored with this step."""
    if draft.head.is_restoring:
        restoring.adopt(draft, node, answer)
    row = draft.assignments.get(answer.number)
    if row is None or (row.key, row.node) != (answer.key, node):
        return _of_no_assignment(draft, node, answer)
    if answer.over:
        _settle(draft, row, answer)
        return True
    if answer.confirmed:
        draft.to_confirm.drop(row.key)
    else:
        draft.to_confirm.put(row.key, node)
    job = draft.jobs[row.job_id]
    began_ns = draft.now_ns if answer.began and row.began_ns is None else row.began_ns
    draft.put_assignment(replace(row, answered=True, began_ns=began_ns, node_job=answer.node_job))
    comes_back = job.stage is ClusterStage.STOPPING and job.then in COMES_BACK
    if answer.began and (comes_back or job.stage is ClusterStage.ASSIGNED):
        draft.move(job, StageEvent.BEGAN, ClusterStage.RUNNING, then=None, held_by="")
    return False


def _of_no_assignment(draft: ClusterDraft, node: str, answer: NodeAnswer) -> bool:
    table = draft.unknown if restoring.is_unknown(draft, answer.key) else draft.strays
    if answer.over:
        table.drop(answer.key)
    else:
        table.put(answer.key, node)
    return answer.over


# -- an end --


def _settle(draft: ClusterDraft, row: GivenJob, answer: NodeAnswer) -> None:
    draft.drop_assignment(row)
    job = replace(draft.jobs[row.job_id], assigned=None)
    ran_ms = answer.ran_ms
    if ran_ms is None:
        ran_ms = 0 if row.began_ns is None else (draft.now_ns - row.began_ns) // MS
    draining.ended(draft, row.node, job.user, answer, ran_ms)
    answer = replace(answer, ran_ms=ran_ms if answer.began else None)
    if not answer.began:
        _not_begun(draft, job, row, answer)
        return
    start = PastStart(
        row.node, answer.node_job, answer.cause, answer.exit_code, answer.signal, answer.why,
        ran_ms, answer.ended_wall_ns,
    )  # fmt: skip
    job = job.with_past(start)
    if answer.state is JobState.DONE:
        _over(draft, job, ClusterStage.DONE, row, answer)
    elif job.then is ClusterStage.PAUSED:  # it is to run again
        draft.move(
            job, StageEvent.END, ClusterStage.QUEUED, then=None, queued_ns=draft.stamp(),
            restarts=0, interruptions=0,
        )  # fmt: skip
    elif job.then is ClusterStage.WITHDRAWN or answer.state is JobState.WITHDRAWN:
        _over(draft, job, ClusterStage.WITHDRAWN, row, answer)
    else:
        _failed(draft, replace(job, then=None), row, answer)


def _not_begun(draft: ClusterDraft, job: ClusterJob, row: GivenJob, answer: NodeAnswer) -> None:
    """It is as if the node had never had it; where it could not be begun, it does not go again.

    A job that the node refused since the quota was lowered meanwhile waits until it is raised.
    """
    if job.then is ClusterStage.WITHDRAWN:
        over = replace(job, stage=ClusterStage.WITHDRAWN, then=None)
        draft.end(job, StageEvent.GIVEN_BACK, ClusterStage.WITHDRAWN, _ended(over, row, answer))
        return
    avoids = job.avoids
    stage = ClusterStage.HELD if job.then is ClusterStage.HELD else ClusterStage.QUEUED
    if job.then is None and gpu_shares.above_quota(draft, job) is None:
        avoids = tuple(sorted({*avoids, row.node}))
        left = [node for node in draft.nodes.values() if may_have(node, job)]
        if {node.name for node in left if node.gpus >= job.gpus} <= set(avoids):
            over = replace(job, stage=ClusterStage.FAILED, avoids=avoids)
            draft.end(job, StageEvent.GIVEN_BACK, ClusterStage.FAILED, _ended(over, row, answer))
            return
    draft.move(job, StageEvent.GIVEN_BACK, stage, then=None, avoids=avoids)


def _over(
    draft: ClusterDraft, job: ClusterJob, stage: ClusterStage, row: GivenJob, answer: NodeAnswer
) -> None:
    over = replace(job, stage=stage, then=None)
    draft.end(job, StageEvent.END, stage, _ended(over, row, answer))


def _ended(over: ClusterJob, row: GivenJob, answer: NodeAnswer) -> EndedJob:
    return EndedJob(
        over, row.node, answer.cause, answer.exit_code, answer.signal, answer.why,
        answer.node_job, answer.ran_ms,
    )  # fmt: skip


def _failed(draft: ClusterDraft, job: ClusterJob, row: GivenJob, answer: NodeAnswer) -> None:
    """As on a node (core/model/endings.py): the cause says what follows."""
    follows = endings.NEXT[answer.cause or Cause.OWN]
    if follows is endings.Next.RETURN:
        draft.move(job, StageEvent.END, ClusterStage.QUEUED)
    elif follows is endings.Next.PAUSE:
        ran_ns = 0 if row.began_ns is None else draft.now_ns - row.began_ns
        count = endings.interruptions(draft.config, job.interruptions, ran_ns)
        resumes_ns = draft.now_ns + endings.pause_ns(draft.config, count)
        draft.move(
            job, StageEvent.END, ClusterStage.PAUSED, interruptions=count, resumes_ns=resumes_ns
        )
    elif follows is endings.Next.RETRY and job.restarts < job.max_restarts:
        again = {"restarts": job.restarts + 1, "queued_ns": draft.stamp()}
        draft.move(job, StageEvent.END, ClusterStage.QUEUED, **again)
    else:
        _over(draft, job, ClusterStage.FAILED, row, answer)
