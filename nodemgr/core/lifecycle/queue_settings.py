"""The queues as admins set them: names, ranks, caps.

Knows: Config's presets are the queues until an admin sets one. Must not know: the entries of a
queue, except their number.
"""

from __future__ import annotations

from collections.abc import Iterable

from client_plugin.messages.form import Message, notice, stated
from nodemgr.core.model.entities import QueueRow, Quota
from nodemgr.core.model.events import RemoveQueue, SetQueue
from nodemgr.core.model.values import terms
from nodemgr.core.scheduler import reasons
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

NEGATIVE_RESTARTS = Message("a number of restarts must be 0 or more", code="usage")


def rows(book: State) -> dict[str, QueueRow]:
    """The queues by name, the highest rank first."""
    known: Iterable[QueueRow] = list(book.queues.values()) or [
        QueueRow(name, rank) for name, rank in book.config.queues
    ]
    return {row.name: row for row in sorted(known, key=lambda row: (-row.rank, row.name))}


def full(book: State, name: str, more: int = 1) -> str | None:
    """Why so many more may not wait there."""
    row = book.queues.get(name)
    waiting = book.queued.get(name) or 0
    if row is None or row.cap is None or waiting + more <= row.cap:
        return None
    return reasons.queue_full(name, waiting, row.cap)


def objection(state: State, event: SetQueue | RemoveQueue) -> str | None:
    """Why it cannot be done."""
    if isinstance(event, SetQueue):
        if event.row.max_restarts < 0:
            return NEGATIVE_RESTARTS()
        return (
            notice("a queue's cap must be 0 or more", code="refused")
            if event.row.cap is not None and event.row.cap < 0
            else None
        )
    known = rows(state)
    if event.name not in known:
        return reasons.no_queue(event.name, known)
    if len(known) == 1:
        return stated(f"{event.name} is the last queue", "create another one first", "refused")
    if waiting := state.queued.get(event.name):
        return stated(
            f"queue {event.name} has waiting entries ({waiting})",
            "move or withdraw them first",
            "refused",
        )
    if jobs := sum(job.priority == event.name for job in state.jobs.values()):
        return stated(
            f"queue {event.name} has jobs ({jobs})", "move or withdraw them first", "refused"
        )
    own_of = sorted(env.name for env in state.envs.values() if env.quota.priority == event.name)
    if own_of:
        return stated(
            f"queue {event.name} is the queue of {', '.join(own_of)}",
            "name another one first (nodemgr quota set --priority)",
            "refused",
        )
    limit_of = sorted(
        env.name for env in state.envs.values() if env.quota.max_priority == event.name
    )
    if limit_of:
        return stated(
            f"queue {event.name} is the highest that {', '.join(limit_of)} may ask for",
            "name another one first (nodemgr quota set --max-priority)",
            "refused",
        )
    return None


def settings(row: QueueRow) -> dict[str, object]:
    """All that is set of a queue, as events and `nodemgr queue` carry it."""
    return terms(row, "name")


def highest(book: State, quota: Quota) -> QueueRow | None:
    """The highest queue that users of an env with this quota may ask for: its own in any case.

    None: neither exists.
    """
    known = rows(book)
    named = [known[name] for name in (quota.priority, quota.max_priority) if name in known]
    return max(named, key=lambda row: row.rank, default=None)


def above(book: State, env: str, quota: Quota, name: str) -> str | None:
    """Why users of the env may not ask for a queue that there is."""
    row, limit = rows(book)[name], highest(book, quota)
    if limit is not None and row.rank <= limit.rank:
        return None
    return reasons.queue_above(env, row, limit)


def set_queue(draft: Draft, event: SetQueue) -> None:
    if objection(draft, event) is not None:
        return
    _write_presets(draft)
    draft.queues.put(event.row.name, event.row)
    draft.publish("queue.set", {"queue": event.row.name, **settings(event.row), "by": event.by})
    draft.wake_scheduler()


def remove_queue(draft: Draft, event: RemoveQueue) -> None:
    if objection(draft, event) is not None:
        return
    _write_presets(draft)
    draft.queues.drop(event.name)
    draft.publish("queue.removed", {"queue": event.name, "by": event.by})


def _write_presets(draft: Draft) -> None:
    """From the first change on, all queues are rows."""
    if len(draft.queues) == 0:
        for row in rows(draft).values():
            draft.queues.put(row.name, row)
