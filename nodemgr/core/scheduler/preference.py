"""The order of fresh GPUs for one request: which policy is in force, and its line for people.

Knows: the setting, the queue's and the quota's policy, the estimates of the GPUs (State.outlook).
Must not know: how a policy orders (core/placement/policies.py), which GPUs qualify (allocator.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemgr.core.model import messages
from nodemgr.core.model.entities import Request
from nodemgr.core.placement import policies
from nodemgr.core.placement.policies import ORDERS, SizedJob
from nodemgr.core.scheduler.allocator import Candidate, Choice, Policy
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

HOUR_MS = 3_600_000
HOUR_NS = HOUR_MS * 1_000_000


def in_force(state: State, name: str) -> str:
    """The policy that a setting means now."""
    if name == "auto":
        return "reliable" if state.outlook else "spread"
    return name


def name_of(draft: Draft, request: Request) -> str:
    """The policy in force for the request: its quota's, else its queue's, else the node's."""
    state = draft.state
    name = draft.envs[request.env].quota.placement
    if name is None and state.queues:
        row = draft.queues.get(request.priority)
        name = None if row is None else row.placement
    return in_force(state, name or draft.config.placement)


def order_of(draft: Draft, request: Request) -> Policy:
    """The key of a GPU for this request; the smallest is chosen first."""
    name = name_of(draft, request)
    return ORDERS[name] if name in ORDERS else _reliable(draft, request)


def of_job(draft: Draft, request: Request) -> tuple[str, int | None] | None:
    """The part of the request that its order depends on, beside its GPUs.

    None: the order is the same for all requests.
    """
    quota = draft.envs[request.env].quota
    if not draft.state.outlook and quota.placement is None and not draft.state.queues:
        return None
    return name_of(draft, request), request.planned_ms


def _job(request: Request) -> SizedJob:
    planned_ms = request.planned_ms
    return SizedJob(request.gpus, None if planned_ms is None else planned_ms / HOUR_MS)


def _reliable(draft: Draft, request: Request) -> Policy:
    key = policies.reliable_key(_job(request))
    return lambda row: key(rated(draft, row))


def rated(draft: Draft, row: Candidate) -> policies.KnownGpu:
    """The GPU with its estimates, as a policy sees it."""
    known = draft.state.outlook.get(row.uuid)
    fill = (row.number, row.uuid, row.remaining_bytes, row.tasks)
    if known is None:
        return policies.KnownGpu(*fill)
    service_ns = draft.state.service_now(draft.now_ns)
    age_hours = max(0, service_ns - known.since_service_ns) / HOUR_NS
    if known.last_service_ns is None:
        return policies.KnownGpu(*fill, known.rate_per_hour, age_hours)
    quiet_hours = max(0, service_ns - known.last_service_ns) / HOUR_NS
    return policies.KnownGpu(*fill, known.rate_per_hour, age_hours, quiet_hours)


def reason(draft: Draft, request: Request, choice: Choice) -> str:
    """Why the fresh GPUs were chosen, one line; empty: by the order `spread`, or none is fresh."""
    if not choice.fresh:
        return ""
    name = name_of(draft, request)
    if name == "spread":
        return ""
    return _LINES[name]() if name in _LINES else _of_reliable(draft, request, choice.fresh)


_LINES = {"pack": messages.CHOSEN_BY_PACK, "index": messages.CHOSEN_BY_INDEX}


def _of_reliable(draft: Draft, request: Request, fresh: Sequence[Candidate]) -> str:
    job = _job(request)
    rates = [rated(draft, row).rate_per_hour for row in fresh]
    hours, rate = f"{job.counted_hours:.3g}", f"{max(rates) * 1_000:.2g}"
    minutes = f"{sum(policies.expected_loss(each, job) for each in rates) * 60:.2g}"
    if policies.is_short(job):
        return messages.CHOSEN_FOR_A_SHORT_JOB(
            gpus=request.gpus, hours=hours, rate=rate, minutes=minutes
        )
    if job.hours is None:
        return messages.CHOSEN_WITHOUT_A_TIME(rate=rate, minutes=minutes, hours=hours)
    return messages.CHOSEN_FOR_A_LONG_JOB(
        gpus=request.gpus, hours=hours, rate=rate, minutes=minutes
    )


def chosen_line(chosen: str, *, is_fresh: bool) -> str:
    """Why the GPUs of a record were chosen, for people. `chosen`: the record's."""
    if chosen:
        return chosen
    return messages.CHOSEN_BY_SPREAD() if is_fresh else messages.CHOSEN_AGAIN()
