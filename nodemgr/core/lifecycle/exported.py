"""Memory that processes exported before they ended, charged to their environments.

Knows: the memory of no process on each GPU, by the driver, and what the processes had that ended
since the reading before. Must not know: NVML, who has such memory now.

Memory that does not fall when processes end is their environment's, at most the memory that they
had. Where processes of several environments ended at once, their ledgers' words split it. The audit
counts the rest as unbooked: no environment is charged for it.

The charge is a row of unreclaimed memory, one for each environment and GPU. It is never more than
the driver shows of no process there, and ends at the audit's tolerance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nodemgr.core.leases import answers
from nodemgr.core.model.entities import EXPORTED, ProcessKey, UnreclaimedMemory, Uuid
from nodemgr.core.model.events import Audited, EndedUse
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

Claims = dict[str, int]
"""Bytes of exported memory by environment, on one GPU."""


def key_of(env: str) -> ProcessKey:
    """Stands for the processes of the env that have ended."""
    return f"{EXPORTED}{env}"


def claims(book: State, uuid: Uuid) -> Claims:
    """The charges of exported memory on a GPU."""
    return {
        row.env: row.memory_bytes
        for row in book.unreclaimed.values()
        if row.uuid == uuid and row.is_exported
    }


def split(stayed_bytes: int, ended: Iterable[EndedUse]) -> Claims:
    """The part of each env in the bytes that stayed when these processes ended."""
    had: Counter[str | None] = Counter()
    words: Counter[str | None] = Counter()
    for use in ended:
        had[use.env] += use.memory_bytes
        words[use.env] += use.word_bytes
    total = words.total()
    if len(had) > 1 and stayed_bytes < had.total():
        parts = {env: stayed_bytes * words[env] // total if total else 0 for env in had}
    else:
        parts = dict.fromkeys(had, stayed_bytes)
    return {
        env: min(part, had[env])
        for env, part in parts.items()
        if env is not None and min(part, had[env]) > 0
    }


def judged(before: Claims, ownerless_bytes: int, fresh: Claims, tolerance_bytes: int) -> Claims:
    """The claims after a reading: with the fresh ones, and within what the driver shows."""
    if ownerless_bytes <= tolerance_bytes:
        return {}
    wanted = Counter(before)
    wanted.update(fresh)
    total = wanted.total()
    if total > ownerless_bytes:
        wanted = Counter({env: part * ownerless_bytes // total for env, part in wanted.items()})
    return {env: part for env, part in wanted.items() if part > 0}


def changes(book: State, event: Audited) -> dict[Uuid, tuple[Claims, Claims]]:
    """The claims before and after the reading, where they differ or are not reported yet."""
    found: dict[Uuid, tuple[Claims, Claims]] = {}
    for uuid, ownerless_bytes in event.ownerless_bytes.items():
        if book.gpus.get(uuid) is None:
            continue
        before = claims(book, uuid)
        ended = [use for use in event.ended if use.uuid == uuid]
        known = [use if book.envs.get(use.env or "") else replace(use, env=None) for use in ended]
        fresh = split(event.stayed_bytes.get(uuid, 0), known)
        now = judged(before, ownerless_bytes, fresh, book.config.audit_tolerance_bytes)
        if now != before or not all(book.unreclaimed[key_of(env), uuid].told for env in now):
            found[uuid] = before, now
    return found


def settle(draft: Draft, event: Audited) -> None:
    """Charges and frees exported memory by one reading; a second that agrees is reported."""
    for uuid, (before, now) in changes(draft, event).items():
        for env in sorted({*before, *now}):
            _charge(draft, env, uuid, before.get(env, 0), now.get(env, 0))


def _charge(draft: Draft, env: str, uuid: Uuid, before_bytes: int, now_bytes: int) -> None:
    key = key_of(env)
    row = draft.unreclaimed.get((key, uuid))
    if row is not None and row.told and now_bytes == before_bytes:
        return  # the reading changed another env's charge
    if now_bytes < before_bytes:
        draft.wake_scheduler()
    is_told = row is not None and (row.told or 0 < now_bytes <= before_bytes)
    if now_bytes:
        draft.put_unreclaimed(
            UnreclaimedMemory(env, uuid, key, 0, now_bytes, alive=False, told=is_told)
        )
    elif row is not None:
        draft.drop_unreclaimed(row)
    if is_told:
        draft.publish(
            "memory.residue",
            {
                "env": env,
                **answers.named_gpus(draft, [uuid]),
                "pid": None,
                "memory_bytes": now_bytes,
            },
        )
