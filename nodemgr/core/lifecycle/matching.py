"""Who is served, whenever something became free or the queue changed.

Knows: what a look found (scheduler/looking.py), and what follows from it. Must not know: how it is decided who is served.
"""

from __future__ import annotations

from nodemgr.core.lifecycle import jobs, leases, telling
from nodemgr.core.model.model import MS, Gpu, Request
from nodemgr.core.scheduler import looking
from nodemgr.core.scheduler.allocator import Choice
from nodemgr.core.scheduler.looking import Scan
from nodemgr.core.state import books
from nodemgr.core.state.draft import Draft


def match(draft: Draft, now_ns: int, wall_ns: int) -> set[str]:
    """Serves who can be served, and tells the others what changed for them. Returns the envs that may sleep now: of whom nobody can
    be served, whatever others do."""
    draft.rescan = False
    _raise_pending(draft)
    scan = Scan()
    walk = draft.walk()
    for request_id in walk:
        request = draft.requests.get(request_id)
        if request is None:  # taken out in this step
            continue
        verdict = looking.look(draft, scan, request)
        if verdict is None or (not isinstance(verdict.answer, Choice) and scan.settled() and request.env not in scan.holding):
            walk.drop(walk.group)
        elif isinstance(verdict.answer, Choice) and not looking.away(draft, request):
            _serve(draft, scan, request, verdict.answer, now_ns, wall_ns)
        looking.narrow(draft, scan, walk)
    _want_figures(draft, scan, now_ns)
    telling.tell(draft, scan, now_ns)
    return scan.full


def _serve(draft: Draft, scan: Scan, request: Request, choice: Choice, now_ns: int, wall_ns: int) -> None:
    draft.drop_request(request)
    if request.job_id is None:
        leases.begin(draft, request, choice, now_ns, wall_ns)
    else:
        jobs.start(draft, request, choice, now_ns, wall_ns)
    if scan.board is not None:
        scan.board.served(request, [gpu.uuid for gpu in choice.fresh + choice.reused])
    scan.known.clear()
    scan.holders.clear()
    draft.rescan = draft.rescan or scan.passed[request.env] > 0


def _want_figures(draft: Draft, scan: Scan, now_ns: int) -> None:
    """Whether memory has become free in a ledger is known only from a Tick's figures: at once, then at each beat. (Of what
    only lost processes hold, ResidueChanged tells; of what is kept for other tasks, their ends.)"""
    for request_id in [request_id for request_id in draft.wants_figures if request_id not in scan.wanting]:
        draft.wants_figures.drop(request_id)
    for request in [draft.requests[request_id] for request_id in sorted(scan.wanting)]:
        if not any(_may_become_free(draft, request, gpu) for gpu in draft.gpus.values()):
            if request.request_id in draft.wants_figures:
                draft.wants_figures.drop(request.request_id)
            continue
        told = draft.told and request.request_id in draft.state.wants_figures
        draft.wants_figures.put(request.request_id, True)
        draft.at_latest("figures", now_ns + draft.config.beat_ms * MS if told else now_ns)


def _may_become_free(draft: Draft, request: Request, gpu: Gpu) -> bool:
    """Is there a grant of its env's in which only what is in use is in its way?"""
    grant = draft.grants.get((request.env, gpu.uuid))
    if grant is None:
        return False
    most_bytes = max(grant.memory_bytes, books.full_grant(draft.envs[request.env].quota, gpu))
    return (request.memory_bytes or 0) <= most_bytes - grant.kept_bytes


def _raise_pending(draft: Draft) -> None:
    """Grants below what the quota says, since the GPU had no room: as far as it has now."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        target_bytes = books.target(draft, grant)
        if grant.memory_bytes < target_bytes:
            leases.set_memory(draft, grant, min(target_bytes, books.most(draft, grant)))
