"""Memory of a range on a real node: it grows, gives way within a moment, and survives kills."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from tests.node.programs import finish, said
from tests.support.manager import HOLD, Manager

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


def test_two_ranges_divide_the_gpu_and_a_killed_one_leaves_all_to_the_other(
    make_manager: Make,
) -> None:
    manager = node(make_manager)
    manager.quota("carol", 1)
    first = manager.hold("alice", "-b", str(GIB // 4), NODEMGR_MEMORY=RANGE)
    assert said(first)["error"] is None
    second = manager.hold("carol", "-b", str(GIB // 4), NODEMGR_MEMORY=RANGE)
    assert said(second)["error"] is None
    limits = [row["memory_limit_bytes"][0] for row in manager.status()["tasks"]]
    assert len(limits) == 2
    assert min(limits) >= GIB
    assert sum(limits) <= 8 * GIB
    events = manager.events()
    second.kill()
    events.expect("grant.changed", env="alice", memory_bytes=8 * GIB)
    finish(first)


def test_the_memory_of_a_killed_leader_goes_to_the_range_of_another(make_manager: Make) -> None:
    manager = node(make_manager)
    manager.quota("carol", 1)
    led = manager.spawn("carol", [
        sys.executable, "-m", "nodemgr", "run", "--run-dir", str(manager.run_dir), "--env", "carol",
        "--gpus", "1-1", "--elastic", "--memory", "1GiB-8GiB", "--",
        "sh", "-c", f"sleep 1000 | {HOLD} -b {2 * GIB}",
    ])  # fmt: skip
    assert said(led)["error"] is None
    first = manager.hold("alice", "-b", str(GIB // 4), NODEMGR_MEMORY=RANGE)
    assert said(first)["error"] is None
    assert task(manager, "carol")["memory_limit_bytes"][0] >= 2 * GIB
    events = manager.events()
    led.send_signal(signal.SIGKILL)
    events.expect("grant.changed", env="alice", memory_bytes=8 * GIB)
    finish(first)
