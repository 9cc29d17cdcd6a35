"""The counts that follow from published events."""

from __future__ import annotations

from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.effects import Publish
from nodemgr.core.model.event_names import EVENT_NAMES
from nodemgr.edge.engine.event_measures import INTERACTIVE, JOB, EventMeasures
from tests.core.world import Node, S


def take(measures: EventMeasures, node: Node) -> None:
    """The last step's events."""
    for event in node.of(Publish):
        measures.take(event)


def test_a_wait_and_a_hold_are_measured_and_the_end_has_its_cause() -> None:
    measures, node = EventMeasures(), Node(1)
    for env in ("alice", "bob"):
        node.quota(env, 1)
    node.asks("alice", 10)
    take(measures, node)
    node.asks("bob", 20)
    take(measures, node)
    node.now_ns += 30 * S
    node.dies(10)
    take(measures, node)
    waits = measures.waits[INTERACTIVE]
    assert (sum(waits.counts), waits.total_ns) == (2, 30 * S)
    assert (sum(measures.holds.counts), measures.holds.total_ns) == (1, 30 * S)
    assert measures.ends[LeaseEnd.PROCESS_ENDED] == 1
    assert (measures.events["task.granted"], measures.events["task.ended"]) == (2, 1)
    assert sum(measures.waits[JOB].counts) == 0


def test_a_jobs_wait_is_measured_by_itself() -> None:
    measures, node = EventMeasures(), Node(1)
    node.quota("alice", 1)
    node.submits("alice")
    take(measures, node)
    assert sum(measures.waits[JOB].counts) == 1
    assert sum(measures.waits[INTERACTIVE].counts) == 0


def test_each_cause_is_counted_from_the_start() -> None:
    assert set(EventMeasures().ends) == set(LeaseEnd)


def test_any_event_can_be_counted() -> None:
    """An event of the manager itself has none of the fields of a step's events."""
    measures = EventMeasures()
    for name in EVENT_NAMES.keys() - {"task.granted", "task.ended"}:
        measures.take(Publish(name, {}))
    assert measures.events.total() == len(EVENT_NAMES) - 2
