"""Who waits, and who is served: one look along the queues, whenever something became free or the queue changed.

Knows: the order of service, and what an earlier request keeps from later ones. Must not know: what happened before.

One may be overtaken only by what it could not use anyway. A request that is short of the node's GPUs keeps every GPU that
it could ever use: healthy, big enough, not held by its env. A later request gets a fresh GPU only outside of what is
kept; the GPUs that its own env holds it may always reuse, since that takes nothing from anybody. So a gang that wants all
GPUs is never starved by a stream of small requests. A request that is short only of what its own env has (its memory
quota, memory in its ledger) keeps nothing from other envs, but its turn within its own.
A waiter that is away (disconnected, `timeout_ms` to come back) keeps its place: it is not served, and keeps its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core import answers, books, jobs, leases, members, reasons
from nodemgr.core.allocator import POLICIES, Ask, Candidate, Choice, Shortage, choose
from nodemgr.core.draft import Draft
from nodemgr.core.model import MS, Gpu, Request, Transport, Uuid


class Verdict(NamedTuple):
    """What a request would get now."""

    answer: Choice | Shortage
    why: str
    """Why it waits; empty for a Choice."""
    keeps: tuple[Uuid, ...]
    """What it keeps from later requests, if it is short of the node's GPUs: all that it could ever use."""


@dataclass(slots=True)
class Scan:
    """What one look along the queues has found so far."""

    kept: dict[Uuid, Request] = field(default_factory=dict)
    """GPUs, and the request that keeps each."""
    turns: dict[str, Request] = field(default_factory=dict)
    """Envs whose later requests wait behind this one."""
    passed: set[str] = field(default_factory=set)
    """Envs of those who wait on: when a later request of theirs is served, they may reuse what it holds."""
    known: dict[tuple[object, ...], Verdict] = field(default_factory=dict)
    """Verdicts on requests that ask the same, as long as nothing changed."""


def candidates(draft: Draft, request: Request, kept: Mapping[Uuid, Request], gpus: Iterable[Gpu]) -> list[Candidate]:
    """Those of the GPUs that are healthy, as the request's env sees them."""
    env, named_bytes, udp_askers = request.env, request.memory_bytes, _udp_askers(request)
    quota = draft.envs[env].quota
    alone = request.job_id is not None and named_bytes is None
    rows = []
    for gpu in gpus:
        if not gpu.healthy:
            continue
        grant = draft.grants.get((env, gpu.uuid))
        used = grant is not None and grant.tasks > grant.stalled_tasks
        full_bytes = books.full_grant(quota, gpu)
        wanted_bytes = named_bytes
        if udp_askers:
            wanted_bytes = udp_askers * members.share(draft, env, gpu, named_bytes, request.world)
        rows.append(
            Candidate(
                gpu.uuid,
                gpu.index,
                used,
                draft.active.get(gpu.uuid) or 0,
                books.gpu_room(draft, gpu),
                0 if used else books.need(draft, env, gpu.uuid, grant, full_bytes),
                named_bytes is None or named_bytes <= full_bytes,
                not (used and alone) and (wanted_bytes is None or members.has_free(draft, env, gpu, wanted_bytes)),
                gpu.uuid in kept,
            )
        )
    return rows


def _udp_askers(request: Request) -> int:
    return sum([asker.transport is Transport.UDP for asker in request.askers])


def judge(draft: Draft, request: Request, kept: Mapping[Uuid, Request]) -> Verdict:
    """What the request would get now, beside those who keep some GPUs."""
    quota, policy = draft.envs[request.env].quota, POLICIES[draft.config.placement]
    ask = Ask(request.gpus, quota.gpus, books.quota_room(draft, request.env), draft.config.max_tasks_per_gpu)
    used = books.used_gpus(draft, request.env)
    if len(used) >= quota.gpus:  # nothing can be fresh: most requests of a busy node need no look at the others
        answer = choose(ask, candidates(draft, request, kept, used), policy)
        if isinstance(answer, Choice):
            return Verdict(answer, "", ())
    rows = candidates(draft, request, kept, draft.gpus.values())
    answer = choose(ask, rows, policy)
    why = "" if isinstance(answer, Choice) else reasons.of_shortage(draft, request, answer, ask, rows, kept)
    return Verdict(answer, why, tuple(row.uuid for row in rows if not row.used and row.big_enough and not row.kept))


def match(draft: Draft, now_ns: int, wall_ns: int) -> None:
    """Serves who can be served, and tells the others what changed for them."""
    draft.rescan = False
    _raise_pending(draft)
    scan = Scan()
    ahead = 0
    for queue in _queues(draft):
        position = 0
        for request_id in list(draft.in_queue(queue)):
            request = draft.requests[request_id]
            why = _serve_or_say_why(draft, scan, request, now_ns, wall_ns)
            if why is not None:
                position += 1
                scan.passed.add(request.env)
                _tell(draft, request, position, reasons.line(queue, position, ahead, why), now_ns)
        ahead += position


def _queues(draft: Draft) -> Iterator[str]:
    """The queues by rank, and one that is not configured last (work_queue.UNRANKED)."""
    names = dict.fromkeys(draft.state.queue.names())
    yield from names
    for request in draft.requests.changes.values():
        if request is not None and request.priority not in names:
            yield request.priority


def _serve_or_say_why(draft: Draft, scan: Scan, request: Request, now_ns: int, wall_ns: int) -> str | None:
    """None if the request has its lease now."""
    if request.job_id is not None and request.gpus == 0:  # it takes nothing from anybody
        draft.drop_request(request)
        jobs.start(draft, request, Choice((), (), 0), now_ns, wall_ns)
        return None
    before = scan.turns.get(request.env)
    if before is not None:
        return reasons.behind(request, before)
    verdict = _look(draft, scan, request)
    if isinstance(verdict.answer, Choice):
        if request.job_id is not None or any(asker.process not in draft.away for asker in request.askers):
            draft.drop_request(request)
            begin = leases.begin if request.job_id is None else jobs.start
            begin(draft, request, verdict.answer, now_ns, wall_ns)
            scan.known.clear()
            draft.rescan = draft.rescan or request.env in scan.passed
            return None
        _keep(scan, request, verdict)
        return reasons.away(request)
    if verdict.answer is Shortage.NODE:
        _keep(scan, request, verdict)
    else:
        scan.turns[request.env] = request
    alone = request.job_id is not None and request.memory_bytes is None
    _want_figures(draft, request, verdict.answer is Shortage.LEDGER and not alone, now_ns)
    return verdict.why


def _look(draft: Draft, scan: Scan, request: Request) -> Verdict:
    same = (request.env, request.gpus, request.memory_bytes, request.world, request.job_id is None, _udp_askers(request))
    verdict = scan.known.get(same)
    if verdict is None:
        verdict = scan.known[same] = judge(draft, request, scan.kept)
    return verdict


def _keep(scan: Scan, request: Request, verdict: Verdict) -> None:
    if verdict.keeps:
        scan.kept.update(dict.fromkeys(verdict.keeps, request))
        scan.known.clear()


def _want_figures(draft: Draft, request: Request, wanted: bool, now_ns: int) -> None:
    """Whether memory has become free in a ledger is known only from a Tick's figures: at once, then at each beat. (Of what
    only lost processes hold, ResidueChanged tells.)"""
    if not wanted or not any((request.env, uuid) in draft.grants for uuid in draft.gpus):
        if request.request_id in draft.wants_figures:
            draft.wants_figures.drop(request.request_id)
        return
    told = draft.told and request.request_id in draft.state.wants_figures
    draft.wants_figures.put(request.request_id, True)
    draft.at_latest("figures", now_ns + draft.config.beat_ms * MS if told else now_ns)


def _tell(draft: Draft, request: Request, position: int, line: str, now_ns: int) -> None:
    """Tells those who wait, where it changed for them. (Who would not wait is refused within this step.)"""
    if draft.reasons.get(request.request_id) == line:
        return
    draft.reasons.put(request.request_id, line)
    draft.places.put(request.request_id, position)
    if (draft.agenda.get(("wait", request.request_id)) or now_ns + 1) <= now_ns:
        return
    for asker in request.askers:
        answers.wait(draft, asker.process, asker.rid, position, line)


def _raise_pending(draft: Draft) -> None:
    """Grants below what the quota says, since the GPU had no room: as far as it has now."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        target_bytes = books.target(draft, grant)
        if grant.memory_bytes < target_bytes:
            leases.set_memory(draft, grant, min(target_bytes, books.most(draft, grant)))
