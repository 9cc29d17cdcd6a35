"""A step that raises, or that the store refuses, has happened nowhere: wherever it stops."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from nodemgr.core.manager import Transition, step
from nodemgr.core.model import events
from nodemgr.core.state.node_state import Groups, Table
from tests.core.every_event import RULES, Everything, Recorded, Rule
from tests.core.undone import Interrupted, failing, picture
from tests.core.world import Node
from tests.support.examples import examples

STEPS = 60


def interrupted_everywhere(node: Node, event: events.Event) -> int:
    """Steps the event again and again, each time up to one write more. Returns their number."""
    before, writes, made = picture(node.state), 0, None
    while made is None:
        with failing(writes):
            try:
                made = step(node.state, event, node.now_ns)
            except Interrupted:
                writes += 1
            else:
                made.discard()
        assert picture(node.state) == before, f"{event}, at write {writes}"
    return writes


@pytest.mark.parametrize("seed", range(examples(3)))
def test_a_walk_in_which_each_step_stops_at_each_write(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: Counter[type] = Counter()

    def stepped(node: Recorded, event: events.Event) -> Transition:
        node.kinds = {*node.kinds, type(event)}
        most[type(event)] = max(most[type(event)], interrupted_everywhere(node, event))
        return step(node.state, event, node.now_ns)

    monkeypatch.setattr(Recorded, "_step", stepped)
    walked = Everything(random.Random(seed))
    for rule in chosen(walked, seed):
        rule.does(walked)
        walked.node.passes(0, silent=walked.silent)
    assert len(+most) > 12
    assert max(most.values()) > 20


def chosen(walked: Everything, seed: int) -> Iterator[Rule]:
    """The rules of a walk in which each event happens if it can, the frequent ones first."""
    dice = random.Random(seed)
    for _ in range(STEPS):
        possible = [rule for rule in RULES if rule.can(walked)]
        yield dice.choices(possible, [rule.weight for rule in possible])[0]


def test_an_undone_step_leaves_the_members_of_a_group_in_their_order() -> None:
    groups: Groups[str, str] = Groups([])
    for member in "abcd":
        groups.add("g", member)
    groups.add("h", "x")
    groups.old.clear()
    for member in "bda":
        groups.remove("g", member)
    groups.add("g", "b")
    groups.remove("h", "x")
    groups.undo()
    assert [*groups.members("g")] == [*"abcd"]
    assert [*groups.members("h")] == ["x"]


def test_a_table_knows_each_row_as_it_was_before_the_step() -> None:
    table: Table[str, int] = Table([])
    table.put("kept", 1)
    table.put("dropped", 2)
    table.old.clear()
    table.put("kept", 3)
    table.put("kept", 4)
    table.put("new", 5)
    table.put("passing", 6)
    for key in ("dropped", "passing", "absent"):
        table.drop(key)
    before = {key: table.before(key) for key in ("kept", "dropped", "new", "absent")}
    assert before == {"kept": 1, "dropped": 2, "new": None, "absent": None}
    assert {key: (was, now) for key, was, now in table.changes()} == {
        "kept": (1, 4),
        "new": (None, 5),
        "passing": (None, None),
        "dropped": (2, None),
    }
    table.undo()
    assert table == {"kept": 1, "dropped": 2}
    assert not table.old
