"""Serves requests whenever resources become free or the queue changes.

Knows: the result of a scheduling pass (scheduler/passes.py), and its consequences. Must not know:
how the pass decides.
"""

from __future__ import annotations

from nodemgr.core.elastic import grants, recalls, resizes
from nodemgr.core.leases import begins, memory_grants
from nodemgr.core.lifecycle import jobs
from nodemgr.core.model.entities import MS, Gpu, Request, TaskClass
from nodemgr.core.model.schema import Figures
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import passes, set_aside, widening
from nodemgr.core.scheduler.allocator import Choice, Shortage
from nodemgr.core.scheduler.passes import SchedulingPass
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.scheduler.set_aside import EntryFailed
from nodemgr.core.sharing import idle_policy, preemption, share_changes, suspension
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft

MOST_STARTS = 16
"""The jobs that start in one pass of its own, of which each costs 0.1 to 0.2 ms of the step."""


def match(
    draft: Draft, figures: Figures, *, are_complete: bool = False, most_starts: int | None = None
) -> set[str]:
    """Serves the requests that can be served, and notifies the others of their changes.

    `are_complete`: `figures` has all awaited grants, so it is useless to ask for them again at
    once. Returns the envs that are inadmissible now: changes of other envs serve none of their
    requests. `most_starts`: once so many jobs start, the rest is the next pass's.
    """
    draft.scheduler_ran()
    set_aside.take_back(draft)
    memory_grants.raise_pending(draft)
    scheduling_pass = SchedulingPass(figures, draft.inadmissible_envs())
    has_grown = False
    has_waiter = not draft.idle_since
    """Only the first request that waits for the node's GPUs takes them from idle tasks."""
    walk = draft.walk()
    for request_id in walk:
        request = draft.requests.get(request_id)
        if request is None or set_aside.has(draft, request_id):  # None: taken out in this step
            continue
        if set_aside.are_too_many(draft):
            draft.wake_scheduler()
            break
        if scheduling_pass.started == most_starts:
            draft.wake_scheduler()
            return scheduling_pass.full
        is_best_effort = request.run.task_class is TaskClass.BEST_EFFORT
        if is_best_effort and not has_grown and request.run.compute_percent is not None:
            has_grown = True
            _grow(draft, scheduling_pass)
        try:
            result = _visit(draft, scheduling_pass, request)
            if not has_waiter and result is not None and result.answer is Shortage.NODE:
                has_waiter = True
                idle_policy.give_room(draft, request, result)
        except Exception as error:
            raise EntryFailed(request_id, error) from error
        if result is None or (
            not isinstance(result.answer, Choice)
            and scheduling_pass.settled()
            and request.env not in scheduling_pass.holding
        ):
            walk.drop(walk.group)
        passes.narrow(draft, scheduling_pass, walk)
    if not has_grown:
        _grow(draft, scheduling_pass)
    _settle_elastic(draft, scheduling_pass)
    _want_figures(draft, scheduling_pass, are_complete=are_complete)
    _note_reserved(draft, scheduling_pass)
    notify.notify(draft, scheduling_pass)
    return scheduling_pass.full


def _visit(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request
) -> PlacementResult | None:
    """The request's result; it is served, or takes GPUs from best effort."""
    result = passes.consider(draft, scheduling_pass, request)
    if result is None or passes.away(draft, request):
        return result
    run = request.run
    if run.task_class is TaskClass.LATENCY_SENSITIVE and run.compute_percent is not None:
        preemption.preempt(draft, request, result)
    if isinstance(result.answer, Choice):
        choice = result.answer
        if run.gpu_range is not None and scheduling_pass.reservations is None:
            others = recalls.waiting(draft)
            choice = widening.widest(draft, scheduling_pass, request, result, others)
        _serve(draft, scheduling_pass, request, choice)
    return result


def _note_reserved(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """For a head, which knows what its own jobs wait for."""
    found = scheduling_pass.reserved.items()
    uuids = {uuid for uuid, request in found if not request.is_assigned}
    for uuid in [uuid for uuid in draft.reserved if uuid not in uuids]:
        draft.reserved.drop(uuid)
    for uuid in sorted(uuids):
        if uuid not in draft.reserved:
            draft.reserved.put(uuid, True)


def _settle_elastic(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """Memory and GPUs of elastic tasks, once all requests are considered."""
    if draft.elastic_grants.is_used():
        with set_aside.attempt(draft, "memory of elastic tasks") as is_tried:
            if is_tried:
                grants.settle(draft, scheduling_pass)
    if draft.elastics.is_used() or draft.calm_since.is_used():
        with set_aside.attempt(draft, "GPUs of elastic tasks") as is_tried:
            if is_tried:
                resizes.settle(draft, scheduling_pass)


def _grow(draft: Draft, scheduling_pass: SchedulingPass) -> None:
    """Best-effort tasks get compute back, once the requests of earlier classes are served."""
    if draft.shrunk.is_used() and share_changes.grow(
        draft,
        {
            uuid
            for uuid, request in scheduling_pass.reserved.items()
            if request.run.task_class is not TaskClass.BEST_EFFORT
        },
    ):
        scheduling_pass.known.clear()


def _serve(draft: Draft, scheduling_pass: SchedulingPass, request: Request, choice: Choice) -> None:
    if request.job_id is None:
        draft.drop_request(request)
    if request.resumes is not None:
        suspension.serve(draft, request, scheduling_pass.figures)
    elif request.job_id is None:
        begins.begin(draft, request, choice, scheduling_pass.figures)
    else:
        scheduling_pass.started += 1
        jobs.start(draft, request, choice, scheduling_pass.figures)
    if scheduling_pass.reservations is not None:
        scheduling_pass.reservations.served(
            request, [gpu.uuid for gpu in choice.fresh + choice.reused]
        )
    scheduling_pass.known.clear()
    scheduling_pass.holders.clear()
    waiting_envs = scheduling_pass.resuming | scheduling_pass.left_out
    moves_hold = any(gpu.uuid in scheduling_pass.held for gpu in choice.fresh)
    if scheduling_pass.passed[request.env] > 0 or request.env in waiting_envs or moves_hold:
        draft.wake_scheduler()


def _want_figures(draft: Draft, scheduling_pass: SchedulingPass, *, are_complete: bool) -> None:
    """Ask for a Tick's figures, at once and then at each beat, if freed memory would matter.

    Only these figures show that memory became free in a ledger. (UnreclaimedChanged reports the
    memory of lost processes; the ends of other tasks report the memory that is kept for them.)
    """
    for request_id in [
        request_id
        for request_id in draft.wants_figures
        if request_id not in scheduling_pass.wanting
    ]:
        draft.wants_figures.drop(request_id)
    for request in [draft.requests[request_id] for request_id in sorted(scheduling_pass.wanting)]:
        if not any(_may_become_free(draft, request, gpu) for gpu in draft.gpus.values()):
            draft.wants_figures.drop(request.request_id)
            continue
        is_new = not are_complete or draft.wants_figures.before(request.request_id) is None
        draft.wants_figures.put(request.request_id, True)
        draft.at_latest(
            "figures", draft.now_ns if is_new else draft.now_ns + draft.config.beat_ms * MS
        )


def _may_become_free(draft: Draft, request: Request, gpu: Gpu) -> bool:
    """Whether a grant of its env would suffice if memory in use there were freed."""
    grant = draft.grants.get((request.env, gpu.uuid))
    if grant is None:
        return False
    most_bytes = max(grant.memory_bytes, accounting.full_grant(draft.envs[request.env].quota, gpu))
    return (request.run.memory_bytes or 0) <= most_bytes - grant.kept_bytes
