"""A hostile container with a hostile root: it harms itself at most.

Another container and the node's administrator notice nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.containers.podman import Containers
from tests.support.manager import HOLD, Manager

HERE = Path(__file__).parent
LEDGER_PROGRAM = HERE.parent / "ledger" / "hostile.py"
GIB = 1 << 30


def test_it_lies_floods_and_opens_ten_thousand_connections(
    node: Manager, containers: Containers
) -> None:
    node.quota("mallory", 1, memory_bytes=2 * GIB)
    node.quota("bob", 1, memory_bytes=2 * GIB)
    events = node.events()
    bob = containers.start("bob")
    first = containers.spawn(bob, str(HOLD), "-b", str(GIB))
    first.json()
    task = events.expect("task.granted", env="bob")["task"]
    assert task == "t1"
    hostile = containers.run_beside("mallory", sys.executable, str(HERE / "stranger.py"))
    said = hostile.json()
    assert said["changed"] == []
    assert "mallory has no task" in said["other task"]
    assert said["other lease"].startswith("NODEMGR/1 FENCE\n")
    assert "error" not in said["other env"]
    # the name that it sends counts for nothing: 2 GPUs are above its own quota
    assert events.expect("request.denied")["env"] == "mallory"
    assert said["connections"] > 1_000

    # The manager takes connections at a bounded rate: the limit is reached after a while.
    told = events.expect("connections.full", env="mallory")
    second = containers.execute(bob, str(HOLD), "-s", "0", "-b", str(GIB // 2))  # beside the flood
    assert second[0] == 0, second[1]
    status = node.status()
    (running,) = (row for row in status["tasks"] if row["env"] == "bob")
    assert (running["id"], running["state"]) == ("t1", "running")
    assert status["manager"]["pid"] == node.pid
    assert status["counters"]["connections_over_limit"] > 0
    (crowd,) = status["crowds"]
    assert told["container_name"] == crowd["container_name"] is not None
    assert crowd["pid_connections"] > 1_000
    assert status["counters"]["packets_malformed"] > 0
    assert first.end()[0] == 0
    hostile.end()
    code, out, _ = containers.run("mallory", str(HOLD), "-s", "0")
    assert code == 0, out  # it is served again, as anybody
    assert "Traceback" not in node.log


def test_it_fills_truncates_and_seals_its_ledger(node: Manager, containers: Containers) -> None:
    """tests/ledger/hostile.py as root of a container.

    It ends with a line if it could do something that it must not.
    """
    node.quota("mallory", 1, memory_bytes=4 * GIB)
    node.quota("bob", 1, memory_bytes=4 * GIB)
    bob = containers.run_beside("bob", str(HOLD), "-b", str(GIB))
    before = bob.json()
    around = ["env", "NODEMGR_ENV_DIR=/run/nodemgr-env", sys.executable, "-I", str(LEDGER_PROGRAM)]
    hostile = containers.run_beside("mallory", *around, "1.5", "11")
    assert hostile.line() == "granted"
    assert hostile.line().startswith("done ")
    row = next(gpu for gpu in node.status()["gpus"] if gpu["uuid"] == before["uuid"])
    assert row["memory_granted_bytes"] >= 4 * GIB
    assert hostile.end()[0] == 0
    assert bob.end()[0] == 0
    code, out, _ = containers.run("mallory", str(HOLD), "-s", "0", "-b", str(3 * GIB))
    assert code == 0, out  # a ledger as new
    assert "Traceback" not in node.log
