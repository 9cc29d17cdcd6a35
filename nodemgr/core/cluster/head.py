"""A head's decisions: `step(state, event, now_ns)` returns an event's consequences.

It changes the state in place: the edge stores the rows in one commit, applies the transition, then
carries out the effects, or discards what it cannot store. Further words to nodes follow from the
rows (messages.py).

Knows: which function answers which event. Must not know: clocks, sockets, files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodemgr.core.cluster import answers, events, job_orders, orders, passes, pool, restoring
from nodemgr.core.cluster.events import Acknowledge, ClusterEvent
from nodemgr.core.cluster.state import ClusterDraft, StoredRow
from nodemgr.core.model.values import value

RULES: dict[type, Callable[[ClusterDraft, Any], None]] = {
    events.SetEnv: orders.set_env,
    events.DropEnv: orders.drop_env,
    events.Submit: job_orders.submit,
    events.Withdraw: job_orders.withdraw,
    events.HoldWaiting: job_orders.hold,
    events.Unhold: job_orders.unhold,
    events.Requeue: job_orders.requeue,
    events.ToFront: job_orders.to_front,
    events.AddWord: orders.add_word,
    events.AddNode: orders.add_node,
    events.RemoveNode: orders.remove_node,
    events.DrainNode: orders.drain,
    events.ResumeNode: orders.resume,
    events.NodeLost: orders.lost,
    events.Restored: restoring.begin,
    events.Synced: answers.synced,
    events.NodeReport: answers.report,
    events.Silent: answers.silent,
    events.ClockMoved: orders.tick,
    events.Pass: passes.run,
    events.PilotAnswered: pool.answered,
    events.PoolTick: pool.tick,
}


@value
class ClusterTransition:
    """The changes of one event. All rows are one commit, made before anything is said."""

    saved: list[StoredRow]
    effects: list[Acknowledge]
    draft: ClusterDraft

    def apply(self) -> None:
        self.draft.settle()

    def discard(self) -> None:
        self.draft.undo()


def step(state: ClusterDraft, event: ClusterEvent, now_ns: int) -> ClusterTransition:
    """Its caller applies or discards it before the next one. A step that raises changes nothing."""
    state.begin(now_ns)
    try:
        RULES[type(event)](state, event)
        while state.over:
            job_orders.ended(state, state.over.pop())
        return ClusterTransition(state.saved(), state.effects, state)
    except BaseException:
        state.undo()
        raise
