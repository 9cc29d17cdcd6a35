"""GPU memory that is hidden from the shim: what a program gets by it, and for how long."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.programs import said
from tests.node.test_audit import EXPORTER
from tests.shim.world import LINKED_WITH_DRIVER, compiled
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, Manager

GIB, MIB = 2**30, 2**20
OWN_LOOKUP = Path(__file__).with_name("own_lookup.c")
QUICK = {"NODEMGR_BEAT_MS": "50", "NODEMGR_ENFORCE_GRACE_MS": "300"}
PROCESSES = 14


@pytest.mark.slow
def test_many_processes_that_each_hide_less_than_the_tolerance_are_ended(
    make_manager: Callable[..., Manager],
) -> None:
    """Each has its context by the shim, and 900 MiB past it; the tolerance is 1 GiB for all."""
    node = make_manager(simulate="1x16GiB", environment=QUICK)
    node.quota("alice", 1, memory_bytes=2 * GIB, enforce="kill")
    program = compiled(OWN_LOOKUP.read_text(), *LINKED_WITH_DRIVER)
    events = node.events()
    thieves = [
        node.spawn("alice", [str(program), "1", str(900 * MIB)], NODEMGR_TASK="ab" * 16)
        for _ in range(PROCESSES)
    ]
    for thief in thieves:
        assert thief.stdout is not None
        thief.stdout.readline()
    events.expect("audit.violation", env="alice", offence="over_quota")
    living = thieves
    while len(living) * 900 * MIB > 3 * GIB:
        events.expect("audit.ended", env="alice")
        living = [thief for thief in thieves if thief.poll() is None]
    assert living, "the ones within the quota and the tolerance stay"
    while node.status()["gpus"][0]["memory_used_bytes"] >= 5 * GIB:
        pass  # until it has read the driver's figures again


@pytest.mark.slow
def test_a_chain_of_processes_that_export_their_memory_holds_the_quota_alone(
    make_manager: Callable[..., Manager],
) -> None:
    """Each ends at once, and a child without CUDA keeps its descriptor open."""
    node = make_manager(simulate="4x16GiB", environment=QUICK)
    node.quota("alice", 1, memory_bytes=2 * GIB)
    events = node.events()
    link = [sys.executable, "-S", "-c", EXPORTER.replace("2 << 30", "3 << 29")]
    assert node.spawn("alice", link).wait(WAIT_LIMIT_S) == 0
    for _ in range(3):
        node.spawn("alice", link)
        waiting = events.expect("task.waiting", env="alice")
        if waiting["position"] == 1:
            assert "1.5 GiB of GPU 0 that its ended processes exported" in waiting["reason"]
    assert sum(gpu["memory_used_bytes"] for gpu in node.status()["gpus"]) <= 2 * GIB


@pytest.mark.slow
def test_memory_without_a_lease_is_seen_while_no_lease_exists(
    make_manager: Callable[..., Manager],
) -> None:
    node = make_manager(simulate="1x16GiB", environment=QUICK)
    node.quota("bob", 1, memory_bytes=2 * GIB, enforce="kill")
    events = node.events()
    shell = node.spawn("bob", ["bash", "-c", f"LD_PRELOAD= {HOLD} -b {9 * GIB}; exit $?"])
    assert shell.stdout is not None
    line = shell.stdout.readline()
    assert line == "" or json.loads(line)["error"] is None, "it may be ended before it says so"
    found = events.expect("audit.violation", env="bob", offence="no_lease")
    assert found["action"] == "SIGTERM"
    assert shell.wait(WAIT_LIMIT_S) == 128 + 15


def test_the_doctor_waits_for_the_second_reading(make_manager: Callable[..., Manager]) -> None:
    """The first one cannot tell a theft from a race between driver and ledger."""
    node = make_manager(simulate="1x16GiB", environment=QUICK)
    node.quota("bob", 1, memory_bytes=2 * GIB)
    thief = node.spawn("bob", ["env", "-u", "LD_PRELOAD", str(HOLD), "-b", str(9 * GIB)])
    assert said(thief)["error"] is None
    (check,) = [row for row in node.call("doctor")["checks"] if row["name"] == "audit"]
    assert not check["ok"], check
    assert f"process {thief.pid} of bob" in check["detail"]
    assert "GPU 0 has 9" in check["detail"], "the memory that is in no books"


def test_the_doctor_tries_a_suspension(make_manager: Callable[..., Manager]) -> None:
    node = make_manager(simulate="1x4GiB")
    driver = node.run_dir / "sim" / "libcuda.so.1"
    driver.rename(driver.with_suffix(".away"))
    (check,) = [row for row in node.call("doctor")["checks"] if row["name"] == "suspension"]
    assert not check["ok"]
    assert "libcuda.so.1" in check["detail"]
    driver.with_suffix(".away").rename(driver)
    (check,) = [row for row in node.call("doctor")["checks"] if row["name"] == "suspension"]
    assert check["ok"], check
