"""Memory of a range on a real node: it grows, gives way within a moment, and survives kills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.node.programs import finish, said
from tests.support.manager import Manager

GIB = 2**30
Make = Callable[..., Manager]
RANGE = f"{GIB}-{8 * GIB}"


def task(manager: Manager, env: str) -> dict[str, Any]:
    (found,) = [row for row in manager.status()["tasks"] if row["env"] == env]
    return dict(found)


def node(make_manager: Make) -> Manager:
    manager = make_manager(simulate="1x8GiB", environment={"NODEMGR_OFFER_CALM_MS": "100"})
    manager.quota("alice", 1)
    manager.quota("bob", 1, memory_bytes=4 * GIB)
    return manager


def test_a_newcomer_gets_what_is_not_allocated_and_it_comes_back(make_manager: Make) -> None:
    manager = node(make_manager)
    first = manager.hold("alice", "-b", str(2 * GIB), NODEMGR_MEMORY=RANGE)
    assert said(first)["error"] is None
    alone = task(manager, "alice")
    assert (alone["memory_min_bytes"], alone["memory_max_bytes"]) == (GIB, 8 * GIB)
    assert alone["memory_limit_bytes"] == [8 * GIB]
    second = manager.hold("bob", "-b", str(GIB))
    assert said(second)["error"] is None
    assert task(manager, "alice")["memory_limit_bytes"] == [4 * GIB]
    manager.kill()
    manager.start()
    assert task(manager, "alice")["memory_limit_bytes"] == [4 * GIB]
    events = manager.events()
    finish(second)
    events.expect("grant.changed", env="alice", memory_bytes=8 * GIB)
    finish(first)


def test_allocated_memory_stays_and_the_newcomer_waits(make_manager: Make) -> None:
    manager = node(make_manager)
    first = manager.hold("alice", "-b", str(6 * GIB), NODEMGR_MEMORY=RANGE)
    assert said(first)["error"] is None
    events = manager.events()
    second = manager.hold("bob", "-b", str(GIB))
    events.expect("task.waiting", env="bob")
    assert 6 * GIB <= task(manager, "alice")["memory_limit_bytes"][0] < 8 * GIB
    finish(first)
    assert said(second)["error"] is None
    finish(second)
