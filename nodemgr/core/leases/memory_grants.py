"""The size of a grant: grown and shrunk towards what it should be.

Knows: how a grant follows its quota and the room on its GPU. Must not know: the event that asked
for it.
"""

from __future__ import annotations

from nodemgr.core.leases import answers
from nodemgr.core.model.entities import Grant, Uuid
from nodemgr.core.model.values import replace
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft


def regrown(draft: Draft, grant: Grant) -> int:
    return max(grant.memory_bytes, accounting.least(draft, grant))


def set_memory(draft: Draft, grant: Grant, memory_bytes: int) -> None:
    """A grant grows or shrinks towards what it should be."""
    if memory_bytes != grant.memory_bytes:
        draft.put_grant(replace(grant, memory_bytes=memory_bytes))
        publish_grant(draft, grant.env, grant.uuid)


def raise_pending(draft: Draft) -> None:
    """Raises grants that are below the quota for lack of room, as far as the GPU has room now."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        target_bytes = accounting.target(draft, grant)
        if grant.memory_bytes < target_bytes and not accounting.is_parked(grant):
            set_memory(draft, grant, min(target_bytes, accounting.most(draft, grant)))


def publish_grant(draft: Draft, env: str, uuid: Uuid) -> None:
    grant = draft.grants[env, uuid]
    draft.publish(
        "grant.changed",
        {
            "env": env,
            **answers.named_gpus(draft, [uuid]),
            "memory_bytes": grant.memory_bytes,
            "limit_bytes": grant.limit_bytes,
            "pending_bytes": max(0, accounting.target(draft, grant) - grant.memory_bytes),
            "least_bytes": accounting.least(draft, grant),
        },
    )
