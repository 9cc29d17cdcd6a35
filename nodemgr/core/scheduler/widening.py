"""Requests for a range of GPUs: how many are granted at the start.

Knows: one request's placement, and the waiting requests that could start beside it. Must not know:
changes after the start (core/elastic).

A request waits for its least number. When it is served it gets the most free GPUs that its range
allows, without those that the other waiting requests would get.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.model.entities import Request, Uuid
from nodemgr.core.scheduler import passes, placement
from nodemgr.core.scheduler.allocator import Ask, Candidate, Choice, Shortage, choose
from nodemgr.core.scheduler.passes import SchedulingPass
from nodemgr.core.scheduler.placement import PlacementResult, order_of
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft


def widest(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    result: PlacementResult,
    others: Iterable[Request],
) -> Choice:
    """The choice of a request that is served now, with more fresh GPUs where it has a range."""
    choice = result.answer
    assert isinstance(choice, Choice)
    if request.run.gpu_range is None or request.run.gpu_range.most <= request.run.gpus:
        return choice
    policy = order_of(draft, request)
    ask, rows = _left_over(draft, scheduling_pass, request, result, others)
    for gpus in range(request.run.gpu_range.most, request.run.gpus, -1):
        wider = choose(ask._replace(gpus=gpus), rows, policy)
        if isinstance(wider, Choice) and len(wider.reused) <= len(choice.reused):
            return wider
    return choice


def _left_over(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    result: PlacementResult,
    others: Iterable[Request],
) -> tuple[Ask, list[Candidate]]:
    """The demand and rows beside the others that would get GPUs beside its least number.

    Theirs are reserved in the rows, and those of its own env are not in the quota.
    """
    choice = result.answer
    assert isinstance(choice, Choice)
    mine = {row.uuid for row in choice.fresh}
    claimed: dict[Uuid, Request] = dict.fromkeys(mine, request)
    claimed_of = {request.env: len(mine)}
    open_gpus = {row.uuid for row in result.rows if not row.used and not row.reserved} - mine
    own_bytes = 0
    in_vain: set[str] = set()
    itself = [request]
    for other in others:
        if open_gpus <= claimed.keys():
            break
        group, env = other.equivalence_group, other.env
        if other in itself:  # once: the others that are equal to it are of its array
            itself = []
            continue
        if group in in_vain or env in scheduling_pass.turns:
            continue
        if passes.away(draft, other):
            continue
        found = _beside(draft, scheduling_pass, other, claimed, claimed_of.get(env, 0))
        if isinstance(found.answer, Choice):
            claimed |= {row.uuid: other for row in found.answer.fresh}
            claimed_of[env] = claimed_of.get(env, 0) + len(found.answer.fresh)
            if env == request.env:
                own_bytes += sum(row.need_bytes for row in found.answer.fresh)
            continue
        in_vain.add(group)
        if found.answer is Shortage.NODE:
            claimed |= {uuid: other for uuid in found.reserves() if uuid not in claimed}
    rows = [
        row._replace(reserved=True) if row.uuid in claimed and row.uuid not in mine else row
        for row in result.rows
    ]
    ask, own_gpus = result.ask, claimed_of[request.env] - len(mine)
    left_bytes = ask.quota_remaining_bytes
    if left_bytes is not None:
        left_bytes -= own_bytes
    return ask._replace(
        quota_gpus=ask.quota_gpus - own_gpus, quota_remaining_bytes=left_bytes
    ), rows


def _beside(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    other: Request,
    claimed: dict[Uuid, Request],
    quota_taken: int,
) -> PlacementResult:
    """The other's result once the claimed GPUs are taken, so many of them by its own env."""
    ask = placement.ask_of(draft, other, accounting.used_gpus(draft, other.env))
    ask = ask._replace(quota_gpus=ask.quota_gpus - quota_taken)
    reserved = {**scheduling_pass.reserved_from(draft, other), **claimed}
    rows = placement.candidates(
        draft, other, reserved, draft.gpus.values(), scheduling_pass.figures
    )
    return PlacementResult(choose(ask, rows, order_of(draft, other)), ask, rows)
