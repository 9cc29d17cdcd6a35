"""Elastic grants change their size: orders to lower them, the ledger's answers, growth.

Knows: the effects on a grant. Must not know: why it changes (core/elastic/grants.py).

A grant keeps its size until the ledger has lowered its limit, and then has the ledger's limit:
never less than the memory in use, and no allocation passes under the old limit meanwhile. So the
grants of a GPU never add up to more than it has, at any instant.
"""

from __future__ import annotations

from nodemgr.core.leases import memory_grants
from nodemgr.core.model import effects
from nodemgr.core.model.entities import Grant, Lowering
from nodemgr.core.model.events import LimitLowered
from nodemgr.core.model.values import replace
from nodemgr.core.state import elastic_grants
from nodemgr.core.state.draft import Draft


def lower(draft: Draft, grant: Grant, by_bytes: int) -> None:
    """Orders the ledger to lower the grant by so many bytes of its surplus.

    A job's grant without a process has no ledger, and is lowered at once.
    """
    key = (grant.env, grant.uuid)
    least_bytes = grant.memory_bytes - by_bytes
    if grant.env not in draft.members:
        _set(draft, grant, least_bytes)
        draft.wake_scheduler()
        return
    is_repeated = elastic_grants.is_in_use(draft, key)
    draft.lowerings.put(key, Lowering(draft.version, draft.now_ns, least_bytes, is_repeated))
    row, least_bytes = draft.gpus[grant.uuid].index, max(0, least_bytes - grant.caps_bytes)
    draft.emit(effects.LowerLimit(grant.env, grant.uuid, row, least_bytes, draft.version))


def lowered(draft: Draft, event: LimitLowered) -> None:
    """The ledger's answer: the grant has this limit from now on.

    An answer whose order became void changes nothing.
    """
    key = (event.env, event.uuid)
    lowering, grant = draft.lowerings.get(key), draft.grants.get(key)
    if lowering is None or grant is None or lowering.number != event.number:
        return
    before_bytes = grant.memory_bytes
    if event.limit_bytes is not None:
        left_bytes = event.limit_bytes + grant.caps_bytes
        _set(draft, grant, min(before_bytes, left_bytes))
        grant = draft.grants[key]
    if grant.memory_bytes > lowering.asked_bytes:
        draft.lowerings.put(key, replace(lowering, number=None))
    else:
        draft.lowerings.drop(key)
    draft.wake_scheduler()


def grow(draft: Draft, grant: Grant, by_bytes: int) -> None:
    _set(draft, grant, grant.memory_bytes + by_bytes)


def _set(draft: Draft, grant: Grant, memory_bytes: int) -> None:
    if memory_bytes != grant.memory_bytes:
        draft.put_grant(replace(grant, memory_bytes=memory_bytes))
        memory_grants.publish_grant(draft, grant.env, grant.uuid)
