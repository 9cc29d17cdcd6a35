"""A hostile container with a hostile root: it harms itself at most.

Another container and the node's administrator notice nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.containers.podman import Containers
from tests.support.limits import until
from tests.support.manager import HOLD, WAIT_LIMIT_S, Manager

HERE = Path(__file__).parent
LEASES = HERE / "leases.py"
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


def leases_of(script: Path) -> int:
    """The leases of the program, in force or being broken: a blocked open waits for their end."""
    pids = {
        str(one.pid)
        for one in psutil.process_iter(["cmdline"])
        if str(script) in (one.info["cmdline"] or ())
    }
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return sum(row[1] == "LEASE" and row[4] in pids for row in rows)


CLIENT = "/opt/nodemgr/"


def keeps_client_open(node: Manager) -> bool:
    """Whether the manager has each file of the containers' client open."""
    maps = Path(f"/proc/{node.pid}/maps").read_text()
    return all(
        str(path) in maps
        for path in (node.state_dir / "client" / "current").resolve().rglob("*")
        if path.is_file()
    )


@pytest.mark.slow
@pytest.mark.parametrize("shares_client", [False])  # nobody else has it open while no manager runs
def test_it_holds_a_lease_on_each_file_that_it_sees(node: Manager, containers: Containers) -> None:
    """Neither the manager, nor its restart, nor a program of another container waits for one.

    Leases on the client's files that it takes while no manager runs end after its restart.
    """
    node.quota("mallory", 1)
    node.quota("bob", 1)
    until(lambda: keeps_client_open(node), "the manager keeps the client's files open")
    box = containers.start("mallory")
    hostile = containers.spawn(box, sys.executable, "-I", str(LEASES))
    hostile.write("take\n")
    alive = hostile.json()
    assert any("client.conf" in path for path in alive), alive
    assert [path for path, kind in alive.items() if kind == "write" and CLIENT in path] == []
    code, out, _ = containers.run("bob", str(HOLD), "-s", "0")
    assert code == 0, out
    node.quota("mallory", 2)  # its client.conf is written anew
    node.kill()
    hostile.close()
    hostile = containers.spawn(box, sys.executable, "-I", str(LEASES))
    hostile.write("take\n")
    dead = hostile.json()
    assert any("node.state" in path for path in dead), "no other process has it open"
    assert any(kind == "write" and "client_plugin" in path for path, kind in dead.items())
    node.start()
    node.quota("mallory", 1)
    assert node.hold("bob", "-s", "0").wait(WAIT_LIMIT_S) == 0
    assert leases_of(LEASES) >= sum(CLIENT not in path for path in dead)
    until(lambda: keeps_client_open(node), "the kernel ends what the manager's opens break")
    hostile.close()
