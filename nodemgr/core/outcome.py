"""What comes of all the changes of a step together: its effects in the order that the edge needs, and when to wake next.

Knows: which effects follow from which changed rows. Must not know: why they changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import islice
from typing import Any

from nodemgr.core import books, effects
from nodemgr.core.draft import Draft
from nodemgr.core.effects import Effect, Publish, Save, SetLimit
from nodemgr.core.events import Match
from nodemgr.core.model import Grant, ProcessKey
from nodemgr.core.schema import STORED, EnvGpu
from nodemgr.core.tables import Overlay, first
from nodemgr.core.values import value


class Gone(enum.Enum):
    GONE = 0


GONE = Gone.GONE
"""In the place of a PID: nobody holds or waits by this name."""


@value
class Transition:
    """What one event does. Nothing is done yet: the edge stores rows and events in one transaction, applies the transition,
    then carries out the effects in their order."""

    stored: tuple[Save | Publish, ...]
    effects: tuple[Effect, ...]
    must_apply: bool
    """A fact (a death, a release, a fence): applied even when the store cannot commit. Else it is then discarded."""
    then: Match | None
    """Who waits may be served now: the edge steps this next, as a transition of its own."""
    draft: Draft


def finish(draft: Draft, *, must_apply: bool, then: Match | None = None, ticked: bool = False) -> Transition:
    """The transition: rows and events to store; what the ledgers need, the handlers' own effects in their order (the answers
    are among them), whom to watch from now on, what ends, and the next time to wake."""
    lives = {env: (bool(draft.state.members.get(env)), bool(draft.members.get(env))) for env in draft.members.changes}
    watched = _watched(draft)
    every: list[Effect] = [effects.OpenLedger(env) for env, (before, after) in lives.items() if after and not before]
    every += _limits(draft)
    every += draft.effects
    every += [effects.Watch(process, pid) for process, (before, pid) in watched.items() if not before and pid is not GONE]
    every += [effects.Unwatch(process) for process, (before, pid) in watched.items() if before and pid is GONE]
    every += [effects.CloseLedger(env) for env, (before, after) in lives.items() if before and not after]
    every += _wake(draft, ticked)
    return Transition((*_saves(draft), *draft.published), tuple(every), must_apply, then, draft)


def _saves(draft: Draft) -> Iterator[Save]:
    for name, (kind, key_text) in STORED.items():
        table: Overlay[Any, object] = getattr(draft, name)
        for key, after in table.changes.items():
            before = table.base.get(key)
            if after is not before and (before is None or after != before):
                yield Save(kind, key_text(key), after)


def _limits(draft: Draft) -> Iterator[SetLimit]:
    """What the ledgers enforce now, but for those that end with their last process."""
    for (env, uuid), grant in draft.grants.changes.items():
        before = draft.state.grants.get((env, uuid))
        limit_bytes = 0 if grant is None else grant.limit_bytes
        if (before is None or before.limit_bytes != limit_bytes) and draft.members.get(env):
            gpu = draft.gpus[uuid]
            yield SetLimit(env, uuid, gpu.index, limit_bytes, gpu.memory_total_bytes)


def _watched(draft: Draft) -> dict[ProcessKey, tuple[bool, int | Gone | None]]:
    """The processes that came or went: whether they were watched before, and the PID of those that are to be now."""
    state = draft.state
    touched = {**draft.processes.changes, **draft.request_of.changes}
    return {process: (process in state.processes or process in state.request_of, _pid(draft, process)) for process in touched}


def _pid(draft: Draft, process: ProcessKey) -> int | Gone | None:
    member = draft.processes.get(process)
    if member is not None:
        return member.pid
    request_id = draft.request_of.get(process)
    if request_id is None:
        return GONE
    return next(asker.pid for asker in draft.requests[request_id].askers if asker.process == process)


def _wake(draft: Draft, ticked: bool) -> list[Effect]:
    _set_timers(draft)
    wake_ns, before_ns = _next_wake(draft), draft.timers.get("wake")
    if wake_ns is None:
        draft.timers.drop("wake")
    elif wake_ns != before_ns:
        draft.timers.put("wake", wake_ns)
    return [effects.WakeAt(wake_ns)] if ticked or wake_ns != before_ns else []


def _set_timers(draft: Draft) -> None:
    """Figures are asked for at once, for a grant that may shrink further than before. A timer stops with the last row
    that needs it."""
    for key, grant in draft.grants.changes.items():
        if grant is not None and key in draft.unsettled and _may_shrink(draft, key, grant):
            draft.at_latest("figures", draft.now_ns)
    for timer, rows, more in (
        ("silence", draft.tasks, draft.udp_askers),
        ("figures", draft.unsettled, draft.wants_figures),
    ):
        if timer in draft.timers and (rows.changes or more.changes) and first(rows) is None and first(more) is None:
            draft.timers.drop(timer)


def _may_shrink(draft: Draft, key: EnvGpu, grant: Grant) -> bool:
    """Below its present memory, and further than before this step."""
    least_bytes = max(books.target(draft, grant), grant.caps_bytes)
    if least_bytes >= grant.memory_bytes:
        return False
    before = draft.state.grants.get(key)
    return before is None or least_bytes < max(books.target(draft.state, before), before.caps_bytes)


def _next_wake(draft: Draft) -> int | None:
    changed = draft.agenda.changes
    times = [due_ns for due_ns in changed.values() if due_ns is not None]
    times += [due_ns for timer in ("silence", "figures") if (due_ns := draft.timers.get(timer)) is not None]
    unchanged = (due_ns for due_ns, deadline in draft.state.deadlines if deadline not in changed)
    return min([*times, *islice(unchanged, 1)], default=None)
