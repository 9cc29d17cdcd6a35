"""A head's decisions: `step(state, event, now_ns)` returns an event's consequences.

It changes nothing itself: the edge stores the rows in one commit, applies the transition, then
carries out the effects; what else is to be said to nodes follows from the rows (messages.py).

Knows: which function answers which event. Must not know: clocks, sockets, files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodemgr.core.cluster import answers, events, orders, passes, restoring
from nodemgr.core.cluster.events import Acknowledge, ClusterEvent
from nodemgr.core.cluster.state import ClusterDraft, ClusterState, StoredRow
from nodemgr.core.model.values import value

RULES: dict[type, Callable[[ClusterDraft, Any], None]] = {
    events.SetEnv: orders.set_env,
    events.Submit: orders.submit,
    events.Withdraw: orders.withdraw,
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
}


@value
class ClusterTransition:
    """The changes of one event. All rows are one commit, made before anything is said."""

    saved: list[StoredRow]
    effects: list[Acknowledge]
    draft: ClusterDraft

    def apply(self) -> None:
        self.draft.settle()


def step(state: ClusterState, event: ClusterEvent, now_ns: int) -> ClusterTransition:
    draft = ClusterDraft(state, now_ns)
    RULES[type(event)](draft, event)
    return ClusterTransition(draft.saved(), draft.effects, draft)
