"""Elastic grants follow the load: lowered for waiting requests, grown into the memory left over.

Knows: the waiting requests in their order of service, and what each lacks. Must not know: how a
grant changes its size (lifecycle/lowering.py).

Surplus memory keeps no request waiting that is within its quota: after each scheduling pass, what
the first requests lack is taken from the surplus of the grants on their GPUs, and of their own
env's. Memory that the ledger shows in use stays; it is asked for again once a beat. A GPU that has
room which nothing waits for gives it to its elastic grants after a calm, in equal parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core.elastic import recalls
from nodemgr.core.lifecycle import lowering
from nodemgr.core.model.entities import MS, Grant, Request, Uuid
from nodemgr.core.model.schema import GRANTS, Figures
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import placement
from nodemgr.core.scheduler.allocator import Choice, Shortage, choose
from nodemgr.core.scheduler.passes import SchedulingPass
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.state import accounting, elastic_grants
from nodemgr.core.state.draft import Draft


class Lack(NamedTuple):
    """The memory that one request, grant or GPU lacks."""

    env: str
    of_gpus: dict[Uuid, int]
    """Bytes by GPU."""
    of_quota: int = 0
    """Bytes of the env's memory quota."""


@dataclass(slots=True)
class _Served:
    """The GPUs and memory of the earlier requests, once the grants are lowered."""

    claimed: dict[Uuid, Request] = field(default_factory=dict)
    used_gpus: dict[str, int] = field(default_factory=dict)
    used_bytes: dict[str, int] = field(default_factory=dict)
    """By env: fresh GPUs in `claimed`, and the memory of their grants."""
    blocked: set[str] = field(default_factory=set)
    """Envs with a request that waits: they get no more memory."""


def settle(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """Called after each pass, once all requests are served that can be."""
    if not elastic_grants.any_there(draft):
        return
    for lack in [*_beyond(draft), *_pending(draft)]:
        _take(draft, lack)
    served = _lower_for_requests(draft, scheduling_pass.figures)
    taken = {*scheduling_pass.reserved, *scheduling_pass.held, *served.claimed}
    waiting = {*scheduling_pass.turns, *scheduling_pass.full, *scheduling_pass.passed}
    _grow(draft, taken, waiting | served.blocked | scheduling_pass.left_out)


# -- what is lacking


def _beyond(draft: Draft) -> Iterable[Lack]:
    """GPUs and quotas that are charged more than they have; grants beyond their range."""
    _let_go(draft)
    grants = elastic_grants.there(draft)
    for uuid in dict.fromkeys(grant.uuid for grant in grants):
        room_bytes = accounting.gpu_room(draft, draft.gpus[uuid])
        if room_bytes < 0:
            yield Lack("", {uuid: -room_bytes})
    for env in dict.fromkeys(grant.env for grant in grants):
        quota_bytes = accounting.quota_room(draft, env)
        if quota_bytes is not None and quota_bytes + draft.envs[env].quota.borrowed_bytes < 0:
            yield Lack(env, {}, -quota_bytes)
    for grant in grants:
        beyond_bytes = grant.memory_bytes - elastic_grants.ceiling(draft, grant)
        parked_bytes = accounting.is_parked(grant) and elastic_grants.hoped(draft, grant)
        if elastic_grants.surplus(draft, grant) and (beyond_bytes > 0 or parked_bytes):
            _lower(draft, grant, max(beyond_bytes, parked_bytes))


def _let_go(draft: Draft) -> None:
    """Grants without a range that are lowered to their promised part are elastic no more."""
    for grant in elastic_grants.there(draft):
        if not grant.elastic_tasks and grant.memory_bytes <= accounting.least(draft, grant):
            draft.put_grant(replace(grant, most_bytes=0))


def _pending(draft: Draft) -> Iterable[Lack]:
    """Grants below their promised part, for lack of room."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        missing_bytes = accounting.target(draft, grant) - grant.memory_bytes
        if missing_bytes > 0 and not accounting.is_parked(grant):
            room_bytes = accounting.gpu_room(draft, draft.gpus[uuid])
            quota_bytes = accounting.quota_room(draft, env)
            of_quota = 0 if quota_bytes is None else max(0, missing_bytes - quota_bytes)
            yield Lack(env, {uuid: max(0, missing_bytes - room_bytes)}, of_quota)


def _lower_for_requests(draft: Draft, figures: Figures) -> _Served:
    """Lowers grants for the requests that could start then; returns what these get."""
    served = _Served()
    sure, most = elastic_grants.spare(draft), elastic_grants.spare(draft, all_surplus=True)
    if not most:
        return served
    in_vain: set[str] = set()
    for request in _waiting(draft):
        group = request.equivalence_group
        if group in in_vain or request.env in served.blocked:
            continue
        for spare in (sure, most):
            result = _result(draft, served, request, figures, spare)
            if isinstance(result.answer, Choice):
                _claim(draft, served, request, result, figures)
                break
        else:
            in_vain.add(group)
            if result.answer is Shortage.NODE:
                served.claimed |= dict.fromkeys(result.reserves(), request)
            else:
                served.blocked.add(request.env)
    return served


def _waiting(draft: Draft) -> list[Request]:
    """Suspended tasks that wait for their memory, and the first requests in their order."""
    resumes = [request for request in draft.requests.values() if request.resumes is not None]
    return [*resumes, *recalls.waiting(draft)]


def _result(
    draft: Draft,
    served: _Served,
    request: Request,
    figures: Figures,
    spare: elastic_grants.Spare,
) -> PlacementResult:
    """The request's result if this memory were free, beside what the earlier ones get."""
    if request.resumes is not None:
        result = placement.result_of_resume(draft, request, served.claimed)
        rows = [
            row._replace(remaining_bytes=row.remaining_bytes + spare.of_gpu.get(row.uuid, 0))
            for row in result.rows
        ]
        fits = all(row.used or row.need_bytes <= row.remaining_bytes for row in rows)
        answer = Choice((), tuple(rows), len(rows)) if fits else Shortage.NODE
        return PlacementResult(answer, result.ask, rows)
    env = request.env
    ask = placement.ask_of(draft, request, accounting.used_gpus(draft, env))
    quota_bytes = ask.quota_remaining_bytes
    if quota_bytes is not None:
        quota_bytes += spare.of_env.get(env, 0) - served.used_bytes.get(env, 0)
    quota_gpus = max(0, ask.quota_gpus - served.used_gpus.get(env, 0))
    ask = ask._replace(quota_gpus=quota_gpus, quota_remaining_bytes=quota_bytes)
    rows = placement.candidates(draft, request, served.claimed, draft.gpus.values(), figures, spare)
    return PlacementResult(choose(ask, rows, placement.order_of(draft, request)), ask, rows)


def _claim(
    draft: Draft, served: _Served, request: Request, result: PlacementResult, figures: Figures
) -> None:
    """Orders what the request lacks on the GPUs that it gets."""
    choice, env = result.answer, request.env
    assert isinstance(choice, Choice)
    needs = {gpu.uuid: gpu.need_bytes for gpu in choice.fresh}
    for gpu in choice.reused:
        needs[gpu.uuid] = gpu.need_bytes or _growth(draft, request, gpu.uuid, figures)
    lacks = {
        uuid: max(0, need_bytes - accounting.gpu_room(draft, draft.gpus[uuid]))
        for uuid, need_bytes in needs.items()
    }
    quota_bytes = accounting.quota_room(draft, env)
    needed_bytes = sum(needs.values()) + served.used_bytes.get(env, 0)
    if quota_bytes is None or request.resumes is not None:
        quota_bytes = needed_bytes
    _take(draft, Lack(env, lacks, max(0, needed_bytes - quota_bytes)))
    served.claimed |= dict.fromkeys(needs, request)
    served.used_gpus[env] = served.used_gpus.get(env, 0) + len(choice.fresh)
    if request.resumes is None:
        served.used_bytes[env] = needed_bytes


def _growth(draft: Draft, request: Request, uuid: Uuid, figures: Figures) -> int:
    """The bytes by which its env's grant in use would grow for the request."""
    grant = draft.grants[request.env, uuid]
    if not grant.most_bytes and request.run.memory_most_bytes is None:
        return 0
    wanted_bytes = elastic_grants.wanted(
        draft, grant, request.run.memory_bytes or 0, request.run.memory_most_bytes, figures
    )
    return max(0, wanted_bytes - grant.memory_bytes)


# -- what is taken, and what is given


def _take(draft: Draft, lack: Lack) -> None:
    """Lowers other envs' grants on the GPUs, then the env's own for its quota."""
    for uuid, missing_bytes in lack.of_gpus.items():
        there = [
            grant
            for grant in elastic_grants.there(draft)
            if grant.uuid == uuid and grant.env != lack.env and not accounting.is_parked(grant)
        ]
        _take_from(draft, there, missing_bytes)
    if lack.of_quota:
        own = [grant for grant in elastic_grants.there(draft) if grant.env == lack.env]
        _take_from(draft, own, lack.of_quota)


def _take_from(draft: Draft, grants: list[Grant], missing_bytes: int) -> None:
    """Orders under way count as if they freed their memory; the largest surplus goes first."""
    ordered = [grant for grant in grants if _is_ordered(draft, grant)]
    missing_bytes -= sum(elastic_grants.hoped(draft, grant) for grant in ordered)
    free = [grant for grant in grants if grant not in ordered]
    free.sort(
        key=lambda grant: (
            -elastic_grants.hoped(draft, grant),
            -elastic_grants.surplus(draft, grant),
        )
    )
    for grant in free:
        by_bytes = min(missing_bytes, elastic_grants.surplus(draft, grant))
        if by_bytes > 0:
            _lower(draft, grant, by_bytes)
            missing_bytes -= elastic_grants.hoped(draft, grant) and by_bytes


def _is_ordered(draft: Draft, grant: Grant) -> bool:
    lowering_of = draft.lowerings.get((grant.env, grant.uuid))
    return lowering_of is not None and lowering_of.number is not None


def _lower(draft: Draft, grant: Grant, by_bytes: int) -> None:
    """At most once a beat, if the last order found the memory in use."""
    last = draft.lowerings.get((grant.env, grant.uuid))
    if last is None:
        lowering.lower(draft, grant, min(by_bytes, elastic_grants.surplus(draft, grant)))
    elif last.number is None:
        due_ns = last.at_ns + draft.config.beat_ms * MS
        if due_ns <= draft.now_ns:
            lowering.lower(draft, grant, min(by_bytes, elastic_grants.surplus(draft, grant)))
        else:
            draft.at_latest(GRANTS, due_ns)


def _grow(draft: Draft, taken: Collection[Uuid], waiting_envs: Collection[str]) -> None:
    """Gives each GPU's room to its elastic grants, once it has been there for the calm."""
    hungry: dict[Uuid, list[Grant]] = {}
    for grant in elastic_grants.there(draft):
        if (
            grant.uuid not in taken
            and grant.env not in waiting_envs
            and not _is_ordered(draft, grant)
            and elastic_grants.most_growth(draft, grant)
        ):
            hungry.setdefault(grant.uuid, []).append(grant)
    for uuid in [uuid for uuid in draft.room_since if uuid not in hungry]:
        draft.room_since.drop(uuid)
    for uuid, grants in hungry.items():
        since_ns = draft.room_since.get(uuid)
        if since_ns is None:
            since_ns = draft.now_ns
            draft.room_since.put(uuid, since_ns)
        ripe_ns = since_ns + draft.config.offer_calm_ms * MS
        if ripe_ns > draft.now_ns:
            draft.at_latest(GRANTS, ripe_ns)
        else:
            draft.room_since.drop(uuid)
            _divide(draft, uuid, grants)


def _divide(draft: Draft, uuid: Uuid, grants: list[Grant]) -> None:
    """Equal parts of the GPU's room; a grant that wants less leaves the rest to the others."""
    grants.sort(key=lambda grant: elastic_grants.most_growth(draft, grant))
    for number, grant in enumerate(grants):
        part_bytes = elastic_grants.free_bytes(draft, uuid) // (len(grants) - number)
        more_bytes = min(part_bytes, elastic_grants.most_growth(draft, grant))
        if more_bytes > 0:
            lowering.grow(draft, grant, more_bytes)
