"""Requests for a range of GPUs: how many are granted at the start, and which ranges are refused.

Knows: one request's placement. Must not know: other requests, and changes after the start
(core/elastic).

A request waits for its least number. When it is served it gets the most free GPUs that its range
allows, if no other request waits for them.
"""

from __future__ import annotations

from nodemgr.core.model import messages
from nodemgr.core.model.entities import DenyCode, GpuRange, Quota, Request
from nodemgr.core.scheduler.allocator import Choice, choose
from nodemgr.core.scheduler.placement import PlacementResult, order_of
from nodemgr.core.state.draft import Draft


def widest(draft: Draft, request: Request, result: PlacementResult) -> Choice:
    """The choice of a request that is served now, with more fresh GPUs where it has a range."""
    choice = result.answer
    assert isinstance(choice, Choice)
    if request.gpu_range is None:
        return choice
    policy = order_of(draft, request)
    for gpus in range(request.gpu_range.most, request.gpus, -1):
        wider = choose(result.ask._replace(gpus=gpus), result.rows, policy)
        if isinstance(wider, Choice) and len(wider.reused) <= len(choice.reused):
            return wider
    return choice


def refused(
    env: str, quota: Quota, gpu_range: GpuRange | None, node_gpus: int
) -> tuple[DenyCode, str] | None:
    """The refusal of a range that ends above what the env or the node can ever give."""
    if gpu_range is None:
        return None
    borrow = quota.borrow if gpu_range.is_elastic else 0
    if gpu_range.most > quota.gpus + borrow:
        return DenyCode.OVER_QUOTA, messages.RANGE_ABOVE_QUOTA(
            most=gpu_range.most, env=env, quota=quota.gpus, borrow=borrow
        )
    if gpu_range.most > node_gpus:
        return DenyCode.MORE_THAN_NODE, messages.RANGE_ABOVE_NODE(
            most=gpu_range.most, there=node_gpus
        )
    return None
