"""The outcome of all changes of a step: the rows to store, and its effects in order.

The edge needs this order.

Knows: which effects follow from which changed rows. Must not know: the reason of a change.
"""

from __future__ import annotations

from collections.abc import Set

from nodemgr.core.model import effects
from nodemgr.core.model.effects import Effect, Publish, Save
from nodemgr.core.model.entities import ProcessKey
from nodemgr.core.model.events import Match
from nodemgr.core.model.values import value
from nodemgr.core.state.draft import Draft


@value
class Transition:
    """The changes and effects of one event.

    The event changes nothing yet: the edge stores rows and events in one transaction, applies the
    transition, then carries out the effects in their order. Effects that read no state may be
    carried out before the transition is applied, once all is stored.
    """

    saved: list[Save]
    published: list[Publish]
    effects: list[Effect]
    durable: bool
    """The commit survives a power failure."""
    reserve: bool
    """The commit may use the disk reserve."""
    must_apply: bool
    """A fact (a death, a release, a fence) is applied even when the store cannot commit.

    Any other outcome is then discarded.
    """
    then: Match | None
    """Waiting requests may be served now: the edge steps this next, as a transition of its own."""
    draft: Draft
    inadmissible: Set[str]
    """Envs that a scheduling pass of this step found inadmissible."""

    def apply(self) -> None:
        """Takes it over into the state that it was made for.

        Raises ValueError if that is another one by now.
        """
        self.draft.settle(self.inadmissible)


def finish(
    draft: Draft,
    *,
    must_apply: bool,
    durable: bool = False,
    reserve: bool = True,
    then: Match | None = None,
    inadmissible: Set[str] = frozenset(),
) -> Transition:
    """The transition: rows and events to store, and effects in the edge's order.

    The effects are the ledgers' changes, the handlers' own effects in their order (the answers are
    among them), the processes to watch from now on, and the ends.
    """
    before, after = draft.state.members, draft.members
    opened = [env for env in after.changes if env not in before and env in after]
    every: list[Effect] = [effects.OpenLedger(env) for env in opened]
    every += _grants(draft, opened)
    every += draft.effects
    every += _watching(draft)
    every += [
        effects.CloseLedger(env) for env in after.changes if env in before and env not in after
    ]
    durable = durable or not effects.DURABLE.isdisjoint(map(type, every))
    saves, events = _saves(draft), draft.published
    return Transition(saves, events, every, durable, reserve, must_apply, then, draft, inadmissible)


def _saves(draft: Draft) -> list[Save]:
    saves = []
    for table in draft.changed:
        if table.stored is not None:
            kind, key_text = table.stored
            for key, after in table.changes.items():
                before = table.base.get(key)
                if after is not before and (before is None or after != before):
                    saves.append(Save(kind, key_text(key), after))
    saves += [Save("history", job_id, ended) for job_id, ended in draft.history.items()]
    saves += [Save("payload", spec_id, payload) for spec_id, payload in draft.payloads.items()]
    return saves


def _grants(draft: Draft, opened: list[str]) -> list[Effect]:
    """The GPUs that are held now, and the ledgers' limits.

    Grants that end with their last process are left out. A ledger may be `opened` later than its
    grants: a job's first process comes at any time.
    """
    held: dict[str, Effect] = {}
    limits: list[Effect] = []
    for (env, uuid), grant in draft.grants.changes.items():
        before = draft.state.grants.get((env, uuid))
        if (before is None) is not (grant is None):
            held[env] = effects.GpusHeld(env)
        limit_bytes = 0 if grant is None else grant.limit_bytes
        if (before is None or before.limit_bytes != limit_bytes) and env in draft.members:
            gpu = draft.gpus[uuid]
            limits.append(
                effects.SetLimit(env, uuid, gpu.index, limit_bytes, gpu.memory_total_bytes)
            )
    for env in opened:
        for uuid, gpu in draft.state.gpus.items():
            grant = draft.state.grants.get((env, uuid))
            if grant is not None and (env, uuid) not in draft.grants.changes:
                limits.append(
                    effects.SetLimit(
                        env, uuid, gpu.index, grant.limit_bytes, gpu.memory_total_bytes
                    )
                )
    return [*held.values(), *limits]


def _watching(draft: Draft) -> list[Effect]:
    """Which processes hold or wait from now on, and which do not any more."""
    state = draft.state
    came: list[Effect] = []
    went: list[Effect] = []
    for process in {**draft.processes.changes, **draft.request_of.changes}:
        before = process in state.processes or process in state.request_of
        after = process in draft.processes or process in draft.request_of
        if after and not before:
            came.append(effects.Watch(process, _pid(draft, process)))
        elif before and not after:
            went.append(effects.Unwatch(process))
    return came + went


def _pid(draft: Draft, process: ProcessKey) -> int | None:
    member = draft.processes.get(process)
    if member is not None:
        return member.pid
    askers = draft.requests[draft.request_of[process]].askers
    return next(asker.pid for asker in askers if asker.process == process)
