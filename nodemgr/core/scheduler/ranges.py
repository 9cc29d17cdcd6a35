"""Ranges of GPUs that can never be granted: they are refused at once.

Knows: one request's range, its env's quota. Must not know: free GPUs, other requests.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import DenyCode, GpuRange, Quota


def refused(
    env: str, quota: Quota, gpu_range: GpuRange | None, node_gpus: int
) -> tuple[DenyCode, str] | None:
    """The refusal of a range that ends above what the env or the node can ever give."""
    if gpu_range is None:
        return None
    borrow = quota.borrow if gpu_range.is_elastic else 0
    if gpu_range.most > quota.gpus + borrow:
        return DenyCode.OVER_QUOTA, stated(
            f"the range ends at {gpu_range.most} GPUs; the quota of {env} is {quota.gpus}, and it "
            f"may borrow {borrow}",
            "ask for a smaller range",
        )
    if gpu_range.most > node_gpus:
        return DenyCode.MORE_THAN_NODE, stated(
            f"the range ends at {gpu_range.most} GPUs; the node has {node_gpus}",
            "ask for a smaller range",
        )
    return None
