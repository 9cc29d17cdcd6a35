"""Orders of people to a head: environments, nodes joined, drained, resumed, given up for lost.

Knows: what an order does to jobs and assignments. Must not know: who may give it; what a node says
to it (answers.py); orders about jobs (job_orders.py).
"""

from __future__ import annotations

from nodemgr.core.cluster import answers, draining, events, restoring
from nodemgr.core.cluster.entities import (
    ClusterEnv,
    ClusterNode,
    ClusterStage,
    EndedJob,
    JoinWord,
    PastStart,
    StageEvent,
)
from nodemgr.core.cluster.pilots import PoolFacts
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import MS
from nodemgr.core.model.values import replace


def set_env(draft: ClusterDraft, event: events.SetEnv) -> None:
    """A total that is lowered takes nothing away: jobs wait until it has room again."""
    env = ClusterEnv(event.name, event.gpus, event.per_node, event.quota)
    draft.envs.put(event.name, env)


def drop_env(draft: ClusterDraft, event: events.DropEnv) -> None:
    """With jobs it stays."""
    if event.name in draft.envs and not draft.env_jobs[event.name]:
        draft.envs.drop(event.name)


def add_word(draft: ClusterDraft, event: events.AddWord) -> None:
    """Words that have expired go."""
    for word in list(draft.words.values()):
        if word.expires_ns <= draft.now_ns:
            draft.words.drop(word.public)
    row = JoinWord(event.public, event.node, event.expires_ns, user=event.user)
    draft.words.put(event.public, row)


def add_node(draft: ClusterDraft, event: events.AddNode) -> None:
    lent = PoolFacts(0) if event.is_lent else None
    node = draft.nodes.get(event.name) or ClusterNode(event.name, "", "", 0, 0, pool=lent)
    draft.nodes.put(event.name, replace(node, key=event.key, user=event.user))
    if event.word in draft.words:
        draft.words.put(event.word, replace(draft.words[event.word], used_by=event.key))


def remove_node(draft: ClusterDraft, event: events.RemoveNode) -> None:
    if event.name not in draft.nodes or draft.at(event.name):
        return
    draft.nodes.drop(event.name)
    if event.name in draft.sessions:
        draft.sessions.drop(event.name)
    draft.put_shares(event.name, None)
    answers.forget_words_of(draft, event.name)
    restoring.end(draft)


def drain(draft: ClusterDraft, event: events.DrainNode) -> None:
    node = draft.nodes.get(event.name)
    if node is not None:
        draining.drain(draft, node, event.why)


def resume(draft: ClusterDraft, event: events.ResumeNode) -> None:
    node = draft.nodes.get(event.name)
    if node is not None:
        draft.nodes.put(node.name, replace(node, drained=False, why="", quick=()))


def lost(draft: ClusterDraft, event: events.NodeLost) -> None:
    """Its assignments are over by a person's word. If it comes back, it is told to end them.

    A node that speaks is not lost; only what it had before it lost its store is.
    """
    present = draft.nodes[event.name].generation if event.name in draft.sessions else None
    for row in draft.at(event.name):
        if row.node_generation == present:
            continue
        job = draft.jobs[row.job_id]
        if row.began_ns is not None:
            ran_ms = (draft.now_ns - row.began_ns) // MS
            start = PastStart(
                row.node, row.node_job, why=f"{row.node} was lost", ran_ms=ran_ms,
                ended_wall_ns=event.wall_ns,
            )  # fmt: skip
            job = job.with_past(start)
        draft.drop_assignment(row)
        if job.then is ClusterStage.WITHDRAWN:
            over = replace(job, stage=ClusterStage.WITHDRAWN, then=None, assigned=None)
            ended = EndedJob(over, row.node, None, None)
            draft.end(job, StageEvent.NODE_LOST, ClusterStage.WITHDRAWN, ended)
        else:
            stage = ClusterStage.HELD if job.then is ClusterStage.HELD else ClusterStage.QUEUED
            draft.move(job, StageEvent.NODE_LOST, stage, then=None, assigned=None)
    node = draft.nodes.get(event.name)
    if node is not None and present is None:
        draft.nodes.put(node.name, replace(node, lost=True))
        restoring.end(draft)


def tick(draft: ClusterDraft, _event: events.ClockMoved) -> None:
    for job_id in list(draft.paused):
        if draft.paused[job_id] <= draft.now_ns:
            job = draft.jobs[job_id]
            draft.move(job, StageEvent.PAUSE_OVER, ClusterStage.QUEUED, resumes_ns=None)
