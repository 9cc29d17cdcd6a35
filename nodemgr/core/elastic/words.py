"""The words of an elastic task about a GPU of its lease: accepted, declined, left.

Knows: which word has which consequence. Must not know: the wire. A word is believed only of the
task's leader. A word that is said again changes nothing, and is acknowledged again.
"""

from __future__ import annotations

from client_plugin.messages.form import Part, stated
from nodemgr.core.elastic.offers import DECLINED_MS
from nodemgr.core.leases import answers
from nodemgr.core.lifecycle import process_events, resizing
from nodemgr.core.model import effects
from nodemgr.core.model.entities import MS, DenyCode, ElasticLease, Task, Uuid, Word
from nodemgr.core.model.events import ElasticWord
from nodemgr.core.model.values import replace
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.elastic_leases import HeldGpu


def said(draft: Draft, event: ElasticWord) -> None:
    """A word of the leader; any other process is refused."""
    caller = event.caller
    found = process_events.held(draft, caller)
    lease = None if found is None else draft.elastics.get(found[1].task_id)
    if found is None or lease is None or lease.leader != caller.process:
        reason = stated(
            "the process does not lead an elastic task",
            "only the process that asked for the range speaks for it",
        )
        answers.send_deny(draft, caller.connection, event.rid, DenyCode.BAD_REQUEST, reason)
        return
    task = found[1]
    draft.connect(caller.process, caller.connection)
    if event.word is Word.ACCEPTED:
        _accepted(draft, lease, event.uuid)
    elif event.word is Word.DECLINED:
        if event.uuid in lease.offered:
            _give_back(draft, task, lease, event, "the task declined the offer")
    elif event.uuid in lease.arrivals and len(task.gpus) > 1:
        _give_back(draft, task, lease, event, _why_left(draft, task.env, lease, event.uuid))
    draft.emit(effects.SendAck(caller.connection, event.rid))


def _accepted(draft: Draft, lease: ElasticLease, uuid: Uuid) -> None:
    if uuid in lease.offered:
        offered = tuple(each for each in lease.offered if each != uuid)
        draft.put_elastic(replace(lease, offered=offered))


def _why_left(draft: Draft, env: str, lease: ElasticLease, uuid: Uuid) -> str:
    for recall in lease.recalls:
        if recall.uuid == uuid:
            held = HeldGpu(lease.task_id, uuid)
            is_borrowed = recall.receiver and held in elastic_leases.borrowed(draft, env)
            left_for = (
                Part("the task left it, which it had borrowed, for {request}")
                if is_borrowed
                else Part("the task left it for {request}")
            )
            return left_for(request=resizing.named(draft, env, recall.receiver))
    return "the task gave it back"


def _give_back(draft: Draft, task: Task, lease: ElasticLease, event: ElasticWord, why: str) -> None:
    is_recalled = event.uuid in [recall.uuid for recall in lease.recalls]
    resizing.shrink(draft, task, event.uuid, why)
    if not is_recalled and task.task_id in draft.elastics:
        draft.declined_until.put(task.task_id, draft.now_ns + DECLINED_MS * MS)
