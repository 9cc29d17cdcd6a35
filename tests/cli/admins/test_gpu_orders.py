"""`nodemgr gpu`, and the failures of GPUs in status, report, allocations and the metrics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.edge.host import rundir
from nodemgr.simulator import SimulatedNode
from tests.cli.admins.test_web import nodemgr
from tests.support.manager import Manager


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    manager = Manager("3x16GiB").start()
    manager.quota("alice", 3)
    yield manager
    manager.close()


def gpus(manager: Manager) -> list[dict[str, object]]:
    told = nodemgr(manager, "status", "--json")
    rows: list[dict[str, object]] = json.loads(told.stdout)["gpus"]
    return rows


def placement(manager: Manager) -> dict[str, str | None]:
    status = json.loads(nodemgr(manager, "status", "--json").stdout)
    found: dict[str, str | None] = status["placement"]
    return found


def ordered(manager: Manager, *words: str) -> subprocess.CompletedProcess[str]:
    told = nodemgr(manager, "gpu", *words)
    assert (told.returncode, told.stderr) == (0, "")
    return told


def test_a_gpu_is_drained_and_resumed(manager: Manager) -> None:
    told = ordered(manager, "drain", "1", "--note", "fan")
    assert told.stdout == "GPU 1 gets no new task (nodemgr gpu resume 1 ends that)\n"
    assert (gpus(manager)[1]["drained"], gpus(manager)[1]["note"]) == (True, "fan")
    ordered(manager, "drain", "1", "--note", "fan and cable")
    assert gpus(manager)[1]["note"] == "fan and cable"
    told = nodemgr(manager, "status")
    assert "drained" in told.stdout
    assert "nodemgr gpu resume 1 ends that" in told.stderr
    assert "nodemgr gpu repaired 1 after a repair" in nodemgr(manager, "doctor").stdout
    ordered(manager, "resume", "1")
    assert gpus(manager)[1]["drained"] is False


def test_failures_are_reported_shown_and_repaired(manager: Manager) -> None:
    assert placement(manager) == {
        "setting": "auto", "in_force": "spread", "meaning": "most remaining memory first",
        "fault": None,
    }  # fmt: skip
    ordered(manager, "failed", "2", "--note", "wrong results")
    row = gpus(manager)[2]
    assert row["failures"] == 1
    assert row["last_failure_evidence"][0].endswith(": wrong results")  # type: ignore[index]
    rate, low, high = (row[f"failures_per_1000_hours{bound}"] for bound in ("", "_low", "_high"))
    assert 0 < low < rate < high  # type: ignore[operator]
    assert placement(manager) == {
        "setting": "auto", "in_force": "reliable",
        "meaning": "for a long job, fewest failures first", "fault": None,
    }  # fmt: skip
    assert "(placement = auto: reliable)" in nodemgr(manager, "status").stdout
    assert "wrong results" in nodemgr(manager, "report").stdout
    ordered(manager, "repaired", "2")
    assert gpus(manager)[2]["failures"] == 0
    assert placement(manager)["in_force"] == "spread"


def test_the_drivers_event_reaches_the_record(manager: Manager) -> None:
    """From the simulated driver through the thread that waits, to the store and the events."""
    simulator = SimulatedNode.open(Path(manager.run_dir) / rundir.SIMULATOR_DIR)
    with simulator:
        simulator.raise_xid(0, 13)
        simulator.raise_xid(0, 79)
    manager.events().expect("gpu.failed", kind="xid")
    row = gpus(manager)[0]
    assert (row["failures"], row["last_failure_evidence"]) == (1, ["XID 79: fell off the bus"])
    ordered(manager, "repaired", "0")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("drain", "9"), "there is no GPU 9: the GPUs are 0, 1, 2"),
        (("failed", "0", "--note", "x" * 300), "--note: must be a text of 1 to 256 characters"),
        (("drain", "x"), "Invalid value"),
        (("failed", "0", "--note", ""), "--note: "),
    ],
)
def test_bad_words_are_refused_in_one_line(
    manager: Manager, words: tuple[str, ...], line: str
) -> None:
    refused = nodemgr(manager, "gpu", *words)
    assert refused.returncode != 0
    assert line in refused.stderr
    assert not any(row["failures"] for row in gpus(manager))


def test_a_quota_and_a_queue_have_an_order_of_their_own(manager: Manager) -> None:
    told = nodemgr(manager, "quota", "set", "alice", "--placement", "pack", "--json")
    assert json.loads(told.stdout)["quota"]["placement"] == "pack"
    told = nodemgr(manager, "quota", "set", "alice", "--placement", "default", "--json")
    assert json.loads(told.stdout)["quota"]["placement"] is None
    assert nodemgr(manager, "queue", "create", "low", "--placement", "index").returncode == 0
    queues = json.loads(nodemgr(manager, "queue", "--json").stdout)["queues"]
    assert {row["name"]: row["placement"] for row in queues}["low"] == "index"
    refused = nodemgr(manager, "queue", "create", "low", "--placement", "best")
    assert "'best' is no order: write auto, reliable" in refused.stderr
