"""The tables of effects and events have a row for each kind, and a step says how it is stored."""

from __future__ import annotations

from typing import get_args

from nodemgr.core.manager import RULES, Transition, step
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import QueueRow
from tests.core.world import WALL, Node, submission


def test_each_kind_has_a_row() -> None:
    assert set(effects.HANDLING) == set(get_args(effects.Effect))
    assert set(RULES) == set(get_args(events.Event))


def stepped(node: Node, event: events.Event) -> Transition:
    return step(node.state, event, node.now_ns)


def test_a_step_is_durable_by_its_event_or_by_an_effect_of_it() -> None:
    node = Node(1)
    node.quota("alice", 1)
    submit = stepped(node, events.SubmitJobs((submission("alice", gpus=1),), WALL))
    assert (submit.durable, submit.reserve) == (True, False)
    submit.apply()
    match = stepped(node, events.Match(WALL))
    assert effects.StartJob in map(type, match.effects)
    assert (match.durable, match.reserve) == (True, True)
    match.apply()
    idle = stepped(node, events.Match(WALL))
    assert (idle.durable, idle.reserve) == (False, True)
    idle.discard()
    queue = stepped(node, events.SetQueue(QueueRow("normal", 200), "ann", WALL))
    assert (queue.durable, queue.reserve) == (True, True)
