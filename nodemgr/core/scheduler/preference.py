"""The order of fresh GPUs for one request: which policy is in force, and its line for people.

Knows: the setting, the queue's and the quota's policy, the estimates of the GPUs (State.outlook).
Must not know: how a policy orders (core/placement/policies.py), which GPUs qualify (allocator.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemgr.core.model.entities import Request
from nodemgr.core.placement import policies
from nodemgr.core.placement.orders import ORDERS, SPREAD
from nodemgr.core.placement.policies import SizedJob
from nodemgr.core.scheduler.allocator import Candidate, Policy
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

LEARNED = "learned"
HOUR_MS = 3_600_000
HOUR_NS = HOUR_MS * 1_000_000


def in_force(state: State, name: str) -> str:
    """The policy that a setting means now."""
    if name == "auto":
        return "reliable" if state.outlook else "spread"
    return "reliable" if name == LEARNED and not _scores(state) else name


def meaning(name: str) -> str:
    """A policy in force, in words."""
    if name == LEARNED:
        return "highest score by the trained weights first"
    return ORDERS[name].meaning if name in ORDERS else "for a long job, fewest failures first"


def _scores(state: State) -> bool:
    return state.learned is not None and not state.learned.fault


def name_of(draft: Draft, env: str, queue: str) -> str:
    """The policy in force for a request: its quota's, else its queue's, else the node's."""
    state = draft
    name = draft.envs[env].quota.placement
    if name is None and state.queues:
        row = draft.queues.get(queue)
        name = None if row is None else row.placement
    return in_force(state, name or draft.config.placement)


def order_by_rates(draft: Draft, name: str, request: Request) -> Policy:
    """The key of a GPU for this request, by a policy that is not one of ORDERS."""
    return (_learned(draft, request) if name == LEARNED else None) or _reliable(draft, request)


def of_job(draft: Draft, request: Request) -> tuple[str, int | None] | None:
    """The part of the request that its order depends on, beside its GPUs.

    None: the order is the same for all requests.
    """
    state, quota = draft, draft.envs[request.env].quota
    by_rates = state.outlook or _scores(state)
    if not by_rates and quota.placement is None and not state.queues:
        return None
    return name_of(draft, request.env, request.priority), request.planned_ms


def _job(request: Request) -> SizedJob:
    planned_ms = request.planned_ms
    return SizedJob(request.run.gpus, None if planned_ms is None else planned_ms / HOUR_MS)


def _learned(draft: Draft, request: Request) -> Policy | None:
    """By the scores of the idle GPUs, the highest first; None: there are no scores for it."""
    scores_of = draft.learned
    idle = [
        Candidate(gpu.uuid, gpu.index, False, 0, accounting.gpu_room(draft, gpu), 0)
        for gpu in draft.gpus.values()
        if gpu.usable and not draft.active.get(gpu.uuid) and gpu.uuid not in request.avoids
    ]
    if scores_of is None or not idle:
        return None
    found = scores_of([rated(draft, row) for row in idle], _job(request))
    if found is None:
        return None
    scores = {row.uuid: score for row, score in zip(idle, found, strict=True)}
    return lambda row: (row.uuid not in scores, -scores.get(row.uuid, 0.0), *SPREAD(row))


def _reliable(draft: Draft, request: Request) -> Policy:
    key = policies.reliable_key(_job(request))
    return lambda row: key(rated(draft, row))


def with_failures(draft: Draft, request: Request, row: Candidate) -> Candidate:
    """The row with its failures, for a request whose class has an order before the policy's."""
    return row._replace(is_endangered=policies.is_endangered(rated(draft, row), _job(request)))


def rated(draft: Draft, row: Candidate) -> policies.KnownGpu:
    """The GPU with its estimates, as a policy sees it."""
    known = draft.outlook.get(row.uuid)
    fill = (row.number, row.uuid, row.remaining_bytes, row.tasks)
    if known is None:
        return policies.KnownGpu(*fill)
    service_ns = draft.service_now(draft.now_ns)
    age_hours = max(0, service_ns - known.since_service_ns) / HOUR_NS
    if known.last_service_ns is None:
        return policies.KnownGpu(*fill, known.rate_per_hour, age_hours)
    quiet_hours = max(0, service_ns - known.last_service_ns) / HOUR_NS
    return policies.KnownGpu(*fill, known.rate_per_hour, age_hours, quiet_hours)


def reason(draft: Draft, name: str, request: Request, fresh: Sequence[Candidate]) -> str:
    """Why the policy chose these GPUs, one line. `name`: not `spread`, whose line is not stored."""
    if name == LEARNED:
        return "learned: the highest scores by the trained weights"
    return _of_plain(name) if name in ORDERS else _of_reliable(draft, request, fresh)


def _of_plain(name: str) -> str:
    return f"{name}: {ORDERS[name].meaning}"


def _of_reliable(draft: Draft, request: Request, fresh: Sequence[Candidate]) -> str:
    job = _job(request)
    rates = [rated(draft, row).rate_per_hour for row in fresh]
    hours, rate = _rounded(job.counted_hours, 3), _rounded(max(rates) * 1_000, 2)
    minutes = _rounded(sum(policies.expected_loss(each, job) for each in rates) * 60, 2)
    if policies.is_short(job):
        return (
            f"reliable: {request.run.gpus} x {hours} h is short and leaves the better GPUs to "
            f"others (at most {rate} failures in 1000 h, expected loss {minutes} GPU minutes)"
        )
    if job.hours is None:
        return (
            f"reliable: the GPUs with the fewest failures, as no time is known (at most {rate} "
            f"failures in 1000 h, expected loss {minutes} GPU minutes in {hours} h)"
        )
    return (
        f"reliable: the GPUs with the fewest failures for {request.run.gpus} x {hours} h (at most "
        f"{rate} failures in 1000 h, expected loss {minutes} GPU minutes)"
    )


def _rounded(number: float, digits: int) -> str:
    """So many significant digits, without an exponent for 10 and more."""
    return f"{float(f'{number:.{digits}g}'):g}"


def chosen_line(chosen: str, *, is_fresh: bool) -> str:
    """Why the GPUs of a record were chosen, for people. `chosen`: the record's."""
    if chosen:
        return chosen
    return (
        _of_plain("spread") if is_fresh else "GPUs of its own environment, the fewest tasks first"
    )
