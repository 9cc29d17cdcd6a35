"""What can never be served as it stands: refused at once, whatever is free.

Knows: a quota, the node's size, and the default of a request that names no number. Must not know: who asks, and how he is told.
"""

from __future__ import annotations

from nodemgr.core import allocator, books, reasons
from nodemgr.core.model import DenyCode, Quota

Refusal = tuple[DenyCode, str]


def default_gpus(book: books.Book, quota: Quota) -> int:
    """DESIGN.md's n where none is named: the env's `default_gpus`, else its quota, at most the node's healthy ones."""
    healthy = sum([gpu.healthy for gpu in book.gpus.values()]) or len(book.gpus)
    return min(quota.gpus if quota.default_gpus is None else quota.default_gpus, healthy)


def refused(book: books.Book, env: str, quota: Quota, gpus: int, memory_bytes: int | None, *, explicit: bool) -> Refusal | None:
    node_gpus = len(book.gpus)
    code = allocator.refusal(gpus, quota.gpus, node_gpus, explicit=explicit)
    if code is not None:
        return code, reasons.refusal(code, env, quota.gpus, gpus, node_gpus)
    if memory_bytes is not None:
        limit_bytes = max((books.full_grant(quota, gpu) for gpu in book.gpus.values()), default=0)
        if memory_bytes > limit_bytes:
            return DenyCode.MEMORY_ABOVE_LIMIT, reasons.memory_above_limit(env, memory_bytes, limit_bytes)
    return None
