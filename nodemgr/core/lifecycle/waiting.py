"""Entering the queue, and leaving it without a lease.

Knows: askers and their requests. Must not know: the choice of the served request
(requests/matching.py). A request leaves with its last asker. That frees its reservation, so a
scheduling pass follows.
"""

from __future__ import annotations

from nodemgr.core.leases import answers
from nodemgr.core.model.entities import MS, Asker, DenyCode, ProcessKey, Request, Transport
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import reasons
from nodemgr.core.state.draft import Draft


def entered(draft: Draft, request: Request, asker: Asker) -> None:
    """The asker waits from now on; the request has its place."""
    if asker.transport is Transport.UDP:
        draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
    if asker is request.askers[0]:
        standing = draft.standings[request.request_id]
        draft.publish(
            "task.waiting",
            {
                "env": request.env,
                "task": request.request_id,
                "gpus_wanted": request.run.gpus,
                "memory_bytes": request.run.memory_bytes,
                "priority": request.priority,
                **standing.row,
                "pid": asker.pid,
                "user": asker.user,
                "command": request.run.command,
            },
        )


def remove(draft: Draft, request: Request, process: ProcessKey) -> Request | None:
    """Take one asker out; returns the request, or None if it left the queue with this asker."""
    askers = tuple(asker for asker in request.askers if asker.process != process)
    if process not in draft.processes:
        draft.disconnect(process)
    draft.wake_scheduler()
    if askers or request.resumes is not None:
        request = replace(request, askers=askers)
        draft.put_request(request)
        if not askers:  # no pass brings its standing up to date any more: a listing makes it anew
            draft.standings.drop(request.request_id)
        return request
    draft.drop_request(request)
    return None


def leave(draft: Draft, process: ProcessKey, why: str) -> bool:
    """The process does not wait any more, if it did."""
    request_id = draft.request_of.get(process)
    if request_id is None:
        return False
    request = draft.requests[request_id]
    if remove(draft, request, process) is None:
        _publish_withdrawn(draft, request, why)
    return True


def refuse(draft: Draft, request: Request, code: DenyCode, reason: str) -> None:
    """The request can wait no longer: all its askers get a DENY."""
    for asker in request.askers:
        answers.send_deny(draft, draft.connections.get(asker.process), asker.rid, code, reason)
        remove(draft, draft.requests[request.request_id], asker.process)
    if request.resumes is not None:
        draft.drop_request(draft.requests[request.request_id])
        draft.wake_scheduler()
    _publish_withdrawn(draft, request, reason)


def expire(draft: Draft, request: Request) -> None:
    """Refuses a request at its deadline."""
    reason = reasons.waited_in_vain(
        draft.now_ns - request.since_ns, draft.standings.get(request.request_id)
    )
    refuse(draft, request, DenyCode.WAIT_TIMEOUT, reason)


def _publish_withdrawn(draft: Draft, request: Request, why: str) -> None:
    draft.publish(
        "request.withdrawn",
        {
            "env": request.env,
            "task": request.request_id,
            "why": why,
            "waited_ns": draft.now_ns - request.since_ns,
            "command": request.run.command,
        },
    )
