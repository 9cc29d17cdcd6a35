"""The daemon with the real core, real sockets and clients.

GPUs, store and wall clock are the test's.
"""

from __future__ import annotations

import contextlib
import gc
import grp
import json
import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.event_stream import EventStream
from nodemgr.core.leases import begins
from nodemgr.core.model import effects
from nodemgr.edge import service
from nodemgr.edge.api import admin_operations
from nodemgr.edge.engine.ledger_controller import LEDGER_META
from nodemgr.edge.host.clock import RealClock
from nodemgr.edge.kernel import process_locations
from nodemgr.edge.ledger import registry
from nodemgr.edge.ledger.native_ledger import Ledger, LedgerError, OtherLayoutError
from nodemgr.edge.store.database import FILE_NAME
from tests.edge.simulated_clock import SimulatedClock
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import GIB, LONG_MS, DyingStore, FakeGpus, LocalManager
from tests.support.processes import is_stopped
from tests.support.udp_clients import FakeClient

QUICK = {"beat_ms": 20, "timeout_ms": 1_500}
"""For who is silent for good: who is not may be late on a busy machine (`silence`)."""

Make = Callable[..., LocalManager]
Client = Callable[..., FakeClient]


@pytest.fixture
def make(directory: Path) -> Iterator[Make]:
    """`directory` is removed after them."""
    managers: list[LocalManager] = []

    def start(**arguments: Any) -> LocalManager:
        managers.append(LocalManager(**arguments))
        return managers[-1]

    yield start
    for manager in managers:
        manager.close()


@pytest.fixture
def manager(make: Make) -> LocalManager:
    manager = make()
    manager.call("quota_set", env="alice", gpus=4)
    manager.call("quota_set", env="bob", gpus=4)
    return manager


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        yield Path(directory)


def task_of(manager: LocalManager, client: FakeClient) -> dict[str, Any]:
    return next(task for task in manager.call("status")["tasks"] if client.pid in task["pids"])


def until(manager: LocalManager, name: str) -> dict[str, Any]:
    """The first event of this name, past or coming."""
    with EventStream(manager.run_dir, 0) as stream:
        return next(event for event in stream.follow(WAIT_LIMIT_S) if event["name"] == name)


def silence(manager: LocalManager, *heard: FakeClient) -> None:
    """More than LONG_MS pass, by a SimulatedClock; each of `heard` beats in each part of it."""
    clock, beats, state = manager.service.clock, manager.daemon.beats, manager.daemon.state

    def are_heard() -> bool:
        keys = [row.key for row in state.processes.values() if row.pid in pids]
        return all(beats.get(key, 0) == clock.monotonic_ns() for key in keys)

    pids = [client.pid for client in heard]
    for _ in range(8):
        clock.advance(LONG_MS * 10**6 // 6)
        while not manager.do(are_heard):
            time.sleep(0.005)
        manager.do(manager.daemon.node.tick)


# -- leases --


def test_asking_twice_under_one_rid_is_asking_once(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    rid = client.ask(1)
    first = client.expect("GRANT")
    client.ask(1, rid=rid)
    assert client.expect("GRANT") == first
    assert len(manager.call("status")["tasks"]) == 1


def test_a_change_of_state_that_the_core_refuses_sets_its_request_aside(
    manager: LocalManager,
    make_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    client = make_client(manager.env_dir("alice"))
    with monkeypatch.context() as without_rows:
        without_rows.setattr(begins, "TASK_TRANSITIONS", {})
        client.ask(1)
        assert "set aside" in client.expect("WAIT")["reason"]
        status = manager.call("status")
        assert status["tasks"] == []
        assert [row["entry"] for row in status["set_aside"]] == ["r1"]
    assert "the event grant does not lead from None to running" in capfd.readouterr().err
    (check,) = [row for row in manager.call("doctor")["checks"] if row["name"] == "scheduler"]
    assert not check["ok"]
    make_client(manager.env_dir("alice")).acquire(1)
    assert len(manager.call("status")["tasks"]) == 1


def test_a_child_without_a_token_of_its_own_joins_its_parents_task(
    manager: LocalManager, make_client: Client
) -> None:
    parent = make_client(manager.env_dir("alice"))
    lease = parent.acquire(2)["lease"]
    child = parent.order("spawn")
    parent.connect()  # from here on the child obeys
    parent.token = "f" * 32
    assert parent.acquire(2)["lease"] == lease
    assert set(task_of(manager, parent)["pids"]) == {parent.pid, child["pid"]}


def test_who_beats_without_a_lease_is_told_that_there_is_none(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    client.beat()
    assert client.expect("FENCE")["lease"] == "none"


def test_a_process_says_for_itself_only(manager: LocalManager, make_client: Client) -> None:
    """Another's lease, slot or task id in a packet is worth nothing."""
    victim, thief = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    grant = victim.acquire(1)
    thief.grant, thief.token = grant, victim.token
    thief.rejoin(with_fds=False)
    assert thief.expect("FENCE")["lease"] == grant["lease"]
    thief.send("RELEASE", rid=5, task=victim.token)
    thief.expect("ACK")
    thief.send("ASK", rid=6, what="release", argument=grant["lease"])
    assert "not_found" in thief.expect("PART")["data"]
    assert task_of(manager, victim)["state"] == "running"


def test_another_envs_token_joins_nothing(manager: LocalManager, make_client: Client) -> None:
    first, second = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    second.token = first.token
    assert first.acquire(1)["lease"] != second.acquire(1)["lease"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_is_not_named_may_not_enter_until_he_is(
    manager: LocalManager, make_client: Client
) -> None:
    stranger = make_client(manager.env_dir("alice"), user=65_534)
    stranger.ask(1)
    denial = stranger.expect("DENY")
    assert (denial["code"], "quota set --user" in denial["reason"]) == ("forbidden_user", True)
    stranger.send("ASK", rid=3, what="status")
    assert stranger.expect("DENY")["code"] == "forbidden_user"
    manager.call("quota_set", env="alice", gpus=4, users=["nobody"])
    stranger.acquire(1)
    manager.call("quota_set", env="alice", gpus=4, users=[])
    stranger.beat()
    stranger.release()  # a holder may release


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("others", [0, 1_000])
def test_a_group_may_enter(manager: LocalManager, make_client: Client, others: int) -> None:
    manager.call("quota_set", env="alice", gpus=4, groups=["users"])
    groups = [*range(100_000, 100_000 + others), grp.getgrnam("users").gr_gid]
    member = make_client(manager.env_dir("alice"), user=65_534, groups=groups)
    member.acquire(1)


def test_an_env_that_is_gone_denies(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    manager.call("quota_rm", env="alice")
    client.ask(1)
    assert client.expect("DENY")["code"] == "unknown_env"


def allow_no_ledger(manager: LocalManager, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until the patch is undone.

    The spare one is used up. Returns what is set when the manager has tried to make one.
    """
    tried = threading.Event()

    def no_descriptors() -> Ledger:
        tried.set()
        raise LedgerError("ledger: Too many open files")

    monkeypatch.setattr(Ledger, "create", no_descriptors)
    manager.do(lambda: manager.daemon.ledgers.open("another"))
    tried.clear()
    return tried


def test_a_ledger_that_could_not_be_made_is_made_when_it_is_needed(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = allow_no_ledger(manager, monkeypatch)
    client = make_client(manager.env_dir("alice"))
    rid = client.ask(1)
    assert tried.wait(WAIT_LIMIT_S)
    assert client.receive(timeout_s=0.3) is None
    monkeypatch.undo()
    client.ask(1, rid=rid)
    grant = client.expect("GRANT")
    assert client.order("limit", row=int(grant["rows"]))["limit"] == 80 * GIB


def test_who_asks_before_a_ledger_could_be_made_has_his_slot_in_it(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made of the books during its answer, and it stands in them already."""
    manager.call("quota_set", env="alice", gpus=1)
    tried = allow_no_ledger(manager, monkeypatch)
    unheard, client = make_client(manager.env_dir("alice")), make_client(manager.env_dir("alice"))
    unheard.ask(1)
    assert tried.wait(WAIT_LIMIT_S)
    assert unheard.receive(timeout_s=0.3) is None
    monkeypatch.undo()
    grant = client.acquire(1)
    word = client.order("word", row=int(grant["rows"]), slot=int(grant["slot"]))
    assert word["generation"] == int(grant["generation"]) > 1


def test_an_env_whose_directory_cannot_be_written_is_warned_of(
    manager: LocalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nodemgr.edge.host.rundir.replace", full)
    (warning,) = manager.call("quota_set", env="alice", gpus=3)["warnings"]
    assert "its clients do not see this change" in warning
    (row,) = [
        row for row in manager.call("doctor")["checks"] if row["name"] == "environments' files"
    ]
    assert (row["ok"], row["detail"]) == (False, warning)
    monkeypatch.undo()
    manager.call("quota_set", env="alice", gpus=2)
    (row,) = [
        row for row in manager.call("doctor")["checks"] if row["name"] == "environments' files"
    ]
    assert row["ok"]


def test_ancestors_are_looked_for_only_where_the_env_has_somebody(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(
        "nodemgr.edge.clients.client_server.ancestors", lambda pid: looked.append(pid) or ()
    )
    first, second, other = (make_client(manager.env_dir(env)) for env in ("alice", "alice", "bob"))
    for client in (first, other, second):
        client.acquire(1)
    assert looked == [second.pid]


# -- silence --


def test_a_silent_task_is_stalled_and_gets_its_gpus_back_when_it_beats(
    make: Make, make_client: Client
) -> None:
    manager = make(**QUICK)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    lease = client.acquire(1)["lease"]
    assert until(manager, "task.stalled")["task"] == lease
    client.beat()
    assert client.expect("GRANT")["lease"] == lease
    until(manager, "task.resumed")


def test_a_stalled_task_whose_gpus_went_on_is_fenced_when_it_beats(
    make: Make, make_client: Client
) -> None:
    manager = make(clock=SimulatedClock())
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=4)
    silent, waiter = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    lease = silent.acquire(4)["lease"]
    waiter.ask(4)
    waiter.expect("WAIT")
    silence(manager)
    waiter.expect("GRANT")
    silent.beat()
    fence = silent.expect("FENCE")
    assert (fence["lease"], "went to others" in fence["reason"]) == (lease, True)


def test_beats_keep_a_task_alive(make: Make, make_client: Client) -> None:
    manager = make(clock=SimulatedClock())
    manager.call("quota_set", env="alice", gpus=4)
    beating, silent = make_client(manager.env_dir("alice")), make_client(manager.env_dir("alice"))
    beating.acquire(1)
    beating.order("beat_every", text=f"NODEMGR/1 BEAT\ntask={beating.token}\n", period_s=0.02)
    silent.acquire(1)
    silence(manager, beating)
    assert until(manager, "task.stalled")["task"] == silent.grant["lease"], (
        "who was there later is silent first"
    )
    assert task_of(manager, beating)["state"] == "running"


def test_a_word_in_the_ledger_keeps_a_task_alive_without_a_packet(
    make: Make, make_client: Client
) -> None:
    manager = make(clock=SimulatedClock())
    manager.call("quota_set", env="alice", gpus=4)
    beating, silent = make_client(manager.env_dir("alice")), make_client(manager.env_dir("alice"))
    beating.acquire(1)
    beating.raise_word_every(0.02)
    beating.order("close")
    silent.acquire(1)
    silence(manager, beating)
    assert until(manager, "task.stalled")["task"] == silent.grant["lease"], (
        "who was there later is silent first"
    )
    row = task_of(manager, beating)
    assert (row["state"], row["last_beat_age_seconds"], row["connected"]) == ("running", 0, 0)


def test_a_stalled_task_goes_on_when_its_word_moves(make: Make, make_client: Client) -> None:
    manager = make(**QUICK)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    lease = client.acquire(1)["lease"]
    assert until(manager, "task.stalled")["task"] == lease
    client.raise_word(1)
    assert client.expect("GRANT")["lease"] == lease
    assert until(manager, "task.resumed")["task"] == lease


def test_a_stalled_task_whose_gpus_went_on_is_fenced_when_its_word_moves(
    make: Make, make_client: Client
) -> None:
    manager = make(clock=SimulatedClock())
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=4)
    silent, waiter = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    lease = silent.acquire(4)["lease"]
    waiter.ask(4)
    waiter.expect("WAIT")
    silence(manager)
    waiter.expect("GRANT")
    silent.raise_word(1)
    fence = silent.expect("FENCE")
    assert (fence["lease"], "went to others" in fence["reason"]) == (lease, True)


def test_after_a_restart_a_word_counts_before_its_process_is_back(
    make: Make, make_client: Client, directory: Path
) -> None:
    """It need never come back: a program may have confined itself."""
    clock = SimulatedClock()
    manager = make(directory=directory, clock=clock)
    manager.call("quota_set", env="alice", gpus=4)
    beating, silent = make_client(manager.env_dir("alice")), make_client(manager.env_dir("alice"))
    for client in (beating, silent):
        client.acquire(1)
        client.raise_word_every(0.02)
    manager = restarted(make, manager, clock=clock)
    silent.signal(signal.SIGSTOP)
    while not is_stopped(silent.pid):
        time.sleep(0.005)
    silence(manager, beating)
    assert until(manager, "task.stalled")["task"] == silent.grant["lease"]
    row = task_of(manager, beating)
    assert (row["state"], row["connected"]) == ("running", 0)
    silent.signal(signal.SIGCONT)
    assert until(manager, "task.resumed")["task"] == silent.grant["lease"]


def test_without_leases_nobody_looks_at_words(make: Make, make_client: Client) -> None:
    manager = make(**QUICK)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    node = manager.daemon.node
    assert node._beat_timer is None
    client.acquire(1)
    manager.call("status")
    assert node._beat_timer is not None
    client.release()
    manager.call("status")
    assert node._beat_timer is None


def test_a_stalled_task_is_killed_where_policy_says_so(make: Make, make_client: Client) -> None:
    manager = make(**QUICK, stalled="kill", stalled_grace_ms=50)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(1)
    assert client.process.wait(WAIT_LIMIT_S) == -signal.SIGKILL
    assert until(manager, "task.ended")["task"] == client.grant["lease"]


class JumpingClock(RealClock):
    """An administrator sets the date."""

    jump_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.jump_ns


@pytest.mark.parametrize("jump_ns", [-(10**17), 10**18])
def test_a_jump_of_the_wall_clock_ends_nothing_and_delays_nothing(
    make: Make, make_client: Client, jump_ns: int
) -> None:
    clock = JumpingClock()
    manager = make(beat_ms=20, clock=clock)
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=4)
    beating, waiter = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    beating.acquire(4)
    beating.order("beat_every", text=f"NODEMGR/1 BEAT\ntask={beating.token}\n", period_s=0.02)
    began_ns = clock.monotonic_ns()
    waiter.ask(1, wait_ms=600)
    clock.jump_ns = jump_ns
    assert waiter.expect("DENY")["code"] == "wait_timeout"
    assert task_of(manager, beating)["state"] == "running"
    most_ns = clock.monotonic_ns() - began_ns
    assert 550 * 10**6 < until(manager, "request.withdrawn")["waited_ns"] < most_ns


@pytest.mark.parametrize("boots", [False, True], ids=["same-boot", "another-boot"])
def test_durations_are_measured_whatever_the_wall_clock_does(
    make: Make,
    make_client: Client,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    boots: bool,
) -> None:
    """It is put forward while a request waits, and back over a restart while leases are open."""
    clock = JumpingClock()
    manager = make(directory=directory, clock=clock)
    began_ns = clock.monotonic_ns()
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=4)
    holder, waiter = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    holder.acquire(4)
    waiter.ask(1)
    waiter.expect("WAIT")
    clock.jump_ns = 10**18
    holder.process.kill()
    waiter.expect("GRANT")
    if boots:
        monkeypatch.setattr("nodemgr.edge.store.node_time.boot_id", lambda: "another")
    again = JumpingClock()
    again.jump_ns = -(10**17)
    manager = restarted(make, manager, clock=again)
    if not boots:
        waiter.process.kill()
    until_no_task(manager)
    first, second = manager.call("allocations")["allocations"]
    most_s = (again.monotonic_ns() - began_ns) / 10**9
    for row in (first, second):
        assert 0 <= row["waited_seconds"] <= most_s
        assert 0 <= row["ran_seconds"] <= most_s
    assert (first["ran_at_least"], second["ran_at_least"]) == (False, boots)
    report = manager.call("report", since_wall_ns=0)
    held_s = {row["env"]: row["gpu_seconds"] for row in report["envs"]}
    assert held_s["alice"] <= 4 * most_s
    assert held_s["bob"] <= most_s
    assert [row["gpu_seconds_at_least"] for row in report["envs"]] == [False, boots]


@pytest.mark.parametrize(
    "part", ["envs/alice/client.conf", "envs/alice/socket", "containers/alice/client.conf"]
)
def test_a_part_of_an_environments_directory_that_goes_is_seen(
    manager: LocalManager, part: str
) -> None:
    path = manager.run_dir / part
    assert manager.do(manager.service._find_lost) is None
    path.unlink()
    assert manager.do(manager.service._find_lost) == path


def test_the_loss_of_the_run_directory_names_the_containers_that_have_the_old_one(
    manager: LocalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: Callable[[Path], list[str]] = lambda _: ["web-1", "web-2"]  # noqa: E731
    monkeypatch.setattr(process_locations, "containers_without", names)
    lost = manager.run_dir / "control.sock"
    line = manager.do(lambda: manager.service._report(lost))
    assert line.startswith(f"{lost} is gone, and the manager ")
    assert line.endswith("start these containers again, which have the old one: web-1, web-2")
    event = until(manager, "rundir.lost")
    assert (event["missing"], event["containers"]) == (str(lost), ["web-1", "web-2"])


# -- GPUs --


def test_gpus_without_a_lease_are_read_every_10_s_and_each_beat_for_a_minute_after_a_find(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gpus = SimulatedClock(), FakeGpus(1)
    manager = make(clock=clock, gpus=gpus)
    node, beat_s = manager.daemon.node, manager.daemon.state.config.beat_ms / 1_000
    periods: list[float] = []

    def audited(*processes: tuple[int, int]) -> float:
        """The time to the next reading (s), after one that shows this memory by PID."""
        clock.advance(1)
        gpus.processes[gpus.gpus[0].uuid] = dict(processes)
        node.audit(gpus.read(clock.monotonic_ns()))
        with monkeypatch.context() as patch:
            patch.setattr(node.gpus, "set_period", periods.append)
            node._watch_gpus()
        return periods[-1]

    def after(duration_ns: int, *processes: tuple[int, int]) -> float:
        clock.advance(duration_ns)
        return manager.do(lambda: audited(*processes))

    thief, minute_ns = (os.getpid(), 8 * GIB), 60 * 10**9
    assert after(0) == 10.0
    assert after(0, thief) == beat_s
    after(0)
    assert after(minute_ns - 3) == beat_s
    assert after(3) == 10.0


def test_a_gpu_that_is_lost_is_told_and_not_granted_and_back_when_it_is_back(
    make: Make, make_client: Client
) -> None:
    manager = make(gpus=FakeGpus(2), beat_ms=20)
    manager.call("quota_set", env="alice", gpus=2)
    manager.call("quota_set", env="bob", gpus=2)
    client, other = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    client.acquire(1)
    lost = int(client.grant["rows"])
    manager.gpus.set_healthy(lost, False)
    note = client.receive()
    assert note is not None
    assert (note["verb"], f"GPU {lost}" in note["text"]) == ("NOTE", True)
    assert [gpu["state"] for gpu in manager.call("status")["gpus"]].count("lost") == 1
    other.ask(2, wait_ms=0)
    assert other.expect("DENY")["code"] == "wait_timeout"
    assert int(other.acquire(1)["rows"]) != lost
    other.release()
    manager.gpus.set_healthy(lost, True)
    until(manager, "gpu.restored")
    client.release()
    other.acquire(2)


def test_an_idle_nodes_gpus_are_looked_at_before_the_first_grant(
    make: Make, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodemgr.edge.engine.client_hub.FRESH_NS", 0)  # any reading is an old one
    manager = make(gpus=FakeGpus(2))
    manager.call("quota_set", env="alice", gpus=2)
    manager.gpus.set_healthy(0, False)
    client = make_client(manager.env_dir("alice"))
    assert client.acquire(1)["rows"] == "1"


def test_what_follows_a_request_that_waits_for_a_look_comes_after_it(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodemgr.edge.engine.client_hub.FRESH_NS", 0)
    manager.gpus.gate.clear()
    client = make_client(manager.env_dir("alice"))
    rid = client.ask(1)
    client.send("CANCEL", rid=rid)
    manager.gpus.gate.set()
    client.expect("GRANT")
    assert client.expect("DENY")["code"] == "cancelled"
    assert manager.call("status")["tasks"] == []


def test_what_the_driver_shows_beyond_the_ledger_counts_as_used(
    make: Make, make_client: Client
) -> None:
    manager = make(beat_ms=20)
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=8 * GIB)
    client = make_client(manager.env_dir("alice"))
    grant = client.acquire(1)
    row, slot, generation = int(grant["rows"]), int(grant["slot"]), int(grant["generation"])
    client.order("charge", row=row, slot=slot, generation=generation, size=GIB)
    manager.gpus.processes[grant["gpus"]][client.pid] = 3 * GIB

    def correction() -> int:
        return int(client.order("limit", row=row)["correction"])

    deadline = time.monotonic() + WAIT_LIMIT_S
    while correction() != 2 * GIB:
        assert time.monotonic() < deadline
        client.beat()
        manager.do(lambda: None)
    assert manager.daemon.ledgers.used("alice", row) == 3 * GIB


def test_a_reading_that_was_under_way_at_the_last_look_says_nothing_new(
    make: Make, make_client: Client
) -> None:
    """Memory freed between two readings and their looks would seem to be beyond the books.

    This would happen twice alike.
    """
    manager = make(beat_ms=60_000)
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=8 * GIB)
    client = make_client(manager.env_dir("alice"))
    grant = client.acquire(1)
    shown = manager.gpus.processes
    shown[grant["gpus"]][client.pid] = 3 * GIB
    manager.gpus.gate.clear()  # from here on only what is looked at here

    def read_soon(began_ns: int | None = None) -> int:
        """None: it begins in the manager's loop, after all looks before it."""

        def audit() -> None:
            at_ns = RealClock().monotonic_ns() if began_ns is None else began_ns
            last = manager.daemon.gpus.last
            manager.daemon.node.audit(replace(last, processes=shown, at_ns=at_ns))

        manager.do(audit)
        return int(client.order("limit", row=int(grant["rows"]))["correction"])

    read_soon()  # a first figure is believed
    before_ns = RealClock().monotonic_ns()
    assert read_soon(before_ns) == 3 * GIB
    shown[grant["gpus"]][client.pid] = 5 * GIB
    assert read_soon(before_ns) == 3 * GIB
    assert read_soon() == 5 * GIB


def test_memory_of_the_dead_stays_charged_until_the_driver_shows_it_gone(
    make: Make, make_client: Client
) -> None:
    manager = make(gpus=FakeGpus(1), beat_ms=20)
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=1)
    dead, waiter = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    uuid = dead.acquire(1)["gpus"]
    manager.gpus.processes[uuid][dead.pid] = 30 * GIB
    waiter.ask(1)
    waiter.receive()
    dead.kill()
    unreclaimed = until(manager, "memory.residue")
    assert (unreclaimed["pid"], unreclaimed["memory_bytes"]) == (dead.pid, 30 * GIB)
    assert manager.call("status")["gpus"][0]["memory_residue_bytes"] == 30 * GIB
    (row,) = manager.call("status")["residues"]
    assert (row["env"], row["pid"], row["alive"], row["memory_bytes"], row["at_most"]) == (
        "alice",
        dead.pid,
        False,
        30 * GIB,
        False,
    )
    assert manager.call("status")["tasks"] == []
    manager.gpus.processes[uuid].clear()
    waiter.expect("GRANT")


# -- the store --


def test_what_a_store_holds_is_read_without_looking_for_garbage_in_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100 000 jobs garbage collection is a quarter of a start: 24 s of a processor, not 18."""
    seen: list[bool] = []
    restore = service.restore
    monkeypatch.setattr(
        service, "restore", lambda *arguments: seen.append(gc.isenabled()) or restore(*arguments)
    )
    make()
    assert (seen, gc.isenabled()) == ([False], True)
    monkeypatch.setattr(service, "restore", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make()
    assert gc.isenabled()


def test_a_full_disk_refuses_grants_and_lets_releases_through(
    manager: LocalManager, make_client: Client
) -> None:
    holder, waiter, late = (make_client(manager.env_dir(env)) for env in ("alice", "bob", "alice"))
    holder.acquire(4)
    waiter.ask(4)
    waiter.receive()
    manager.store.fault = "database or disk is full"
    late.ask(1)
    denial = late.expect("DENY")
    assert (denial["code"], "disk is full" in denial["reason"]) == ("store_full", True)
    holder.release()
    assert manager.call("status")["tasks"] == []
    assert manager.call("status")["store"]["state"] == "failing"
    manager.store.fault = None
    waiter.expect("GRANT")
    assert [event["name"] for event in manager.call("events",
        since=0)["events"] if event["name"].startswith("store.")] == [
        "store.failed", "store.recovered",
    ]  # fmt: skip


def test_a_death_on_a_full_disk_frees_its_gpus_and_is_written_later(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(4)
    manager.store.fault = "database or disk is full"
    client.kill()
    until_no_task(manager)
    manager.store.fault = None
    manager.do(lambda: manager.daemon.journal.retry())
    manager.close()
    again = make(directory=directory)
    assert again.call("status")["tasks"] == []
    (allocation,) = again.call("allocations")["allocations"]
    assert allocation["ended_wall_ns"] is not None


def until_no_task(manager: LocalManager) -> None:
    """By the live stream: what the store cannot take is told all the same."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while manager.call("status")["tasks"]:
        assert time.monotonic() < deadline, "the dead task is still there"


def ledgers_in_store(manager: LocalManager) -> dict[str, Any]:
    meta = manager.do(lambda: manager.daemon.journal.meta())
    return {
        key.removeprefix(LEDGER_META): json.loads(text)
        for key, text in meta.items()
        if key.startswith(LEDGER_META)
    }


def test_a_ledgers_files_are_in_the_commit_of_its_lease(
    manager: LocalManager, make_client: Client
) -> None:
    """A second commit would delay the first process of an environment."""
    client = make_client(manager.env_dir("alice"))
    before = manager.store.commits
    client.acquire(1)
    assert manager.store.commits == before + 1
    limits, usage = client.order("inodes")["inodes"]
    stored = ledgers_in_store(manager)
    assert [file[1] for file in (stored["alice"]["usage"], *stored["alice"]["limits"])] == [
        usage,
        limits,
    ]


def test_a_refused_commit_leaves_no_ledger(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    manager.store.fault = "database or disk is full"
    client.ask(1)
    assert client.expect("DENY")["code"] == "store_full"
    manager.store.fault = None
    assert manager.do(lambda: manager.daemon.journal.retry())
    assert ledgers_in_store(manager) == {}
    client.acquire(1)
    assert ledgers_in_store(manager)["alice"]["usage"][1] == client.order("inodes")["inodes"][1]


def of_one_grant(make: Make, make_client: Client) -> tuple[LocalManager, FakeClient, str]:
    """A client that has 4 GiB of a grant of 8, without a name."""
    manager = make(beat_ms=20)
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=8 * GIB)
    client = make_client(manager.env_dir("alice"))
    grant = client.acquire(1)
    row, slot, generation = int(grant["rows"]), int(grant["slot"]), int(grant["generation"])
    client.order("charge", row=row, slot=slot, generation=generation, size=4 * GIB)
    client.raise_word_every(0.02)
    return manager, client, grant["gpus"]


def test_memory_that_was_taken_since_the_figures_were_read_is_promised_to_nobody(
    make: Make, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _, uuid = of_one_grant(make, make_client)
    row = manager.daemon.state.gpus[uuid].index
    monkeypatch.setattr(manager.daemon.ledger_controller, "unkept_by", lambda _env: {uuid: 0})
    late = make_client(manager.env_dir("alice"))
    late.ask(1, memory=5 * GIB)
    late.expect("WAIT")
    assert not manager.daemon.ledgers.has_room("alice", row, 4 * GIB - 1)
    assert manager.daemon.ledgers.has_room("alice", row, 4 * GIB), "nothing is kept"
    other = make_client(manager.env_dir("alice"))
    other.ask(1, memory=3 * GIB)
    other.expect("WAIT")
    late.kill()
    other.expect("GRANT")
    assert manager.daemon.ledgers.has_room("alice", row, 7 * GIB)
    assert not manager.daemon.ledgers.has_room("alice", row, 7 * GIB - 1)


def test_a_refused_commit_keeps_no_memory(make: Make, make_client: Client) -> None:
    manager, _, uuid = of_one_grant(make, make_client)
    row = manager.daemon.state.gpus[uuid].index
    late = make_client(manager.env_dir("alice"))
    manager.store.fault = "database or disk is full"
    late.ask(1, memory=3 * GIB)
    assert late.expect("DENY")["code"] == "store_full"
    assert manager.daemon.ledgers.has_room("alice", row, 4 * GIB)
    manager.store.fault = None
    assert manager.do(lambda: manager.daemon.journal.retry())
    late.acquire(1, memory=3 * GIB)
    assert not manager.daemon.ledgers.has_room("alice", row, 7 * GIB - 1)


# -- restarts --


def rows_in_store(directory: Path) -> tuple[int, int]:
    """(leases, ledgers), read off the files of a dead manager."""
    with contextlib.closing(sqlite3.connect(directory / "state" / FILE_NAME)) as db:
        leases = db.execute("SELECT count(*) FROM current WHERE kind = 'task'").fetchone()
        ledgers = db.execute(
            "SELECT count(*) FROM meta WHERE key LIKE ?", (f"{LEDGER_META}%",)
        ).fetchone()
    return leases[0], ledgers[0]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("commit", ["lease", "end"])
def test_a_death_beside_the_commit_of_a_lease_and_its_ledger(
    make: Make, make_client: Client, directory: Path, when: str, commit: str
) -> None:
    """The next manager gets the request again, as from a client: one lease, one ledger.

    After the end, neither.
    """
    store = DyingStore()
    manager = make(directory=directory, store=store)
    manager.call("quota_set", env="alice", gpus=1)
    client = make_client(manager.env_dir("alice"))
    if commit == "end":
        client.acquire(1)
    store.die(when, 1)
    rid = client.ask(1) if commit == "lease" else 0
    if commit == "end":
        client.kill()
    manager.join()
    assert store.deaths == 1
    is_stored = (when == "after") is (commit == "lease")
    assert rows_in_store(directory) == ((1, 1) if is_stored else (0, 0))
    manager = make(directory=directory, **QUICK)  # it soon gives a ledger up that nobody has
    if commit == "lease":
        client.connect()
        client.ask(1, rid=rid)
        client.expect("GRANT")
        usage = client.order("inodes")["inodes"][1]
        assert ledgers_in_store(manager)["alice"]["usage"][1] == usage
        client.kill()
    until_no_task(manager)
    assert ledgers_in_store(manager) == {}
    (allocation,) = manager.call("allocations")["allocations"]
    assert allocation["ended_wall_ns"] is not None
    assert len(manager.events("task.granted")) == len(manager.events("task.ended")) == 1


def restarted(make: Make, manager: LocalManager, **settings: Any) -> LocalManager:
    manager.close()
    return make(directory=manager.directory, **settings)


def test_a_task_that_comes_back_goes_on_with_its_ledger(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    grant = client.acquire(2)
    usage = client.order("inodes")["inodes"][1]
    manager = restarted(make, manager)
    client.connect()
    client.rejoin()
    assert client.expect("GRANT") | {"rid": ""} == grant | {"rid": ""}
    assert client.order("inodes")["inodes"][1] == usage
    manager.call("quota_set", env="alice", gpus=4, memory_bytes=8 * GIB)
    assert client.order("limit", row=int(grant["rows"].split(",")[0]))["limit"] == 2 * GIB


def test_a_task_that_died_meanwhile_is_buried(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(4)
    manager.close()
    client.kill()
    manager = make(directory=directory)
    assert manager.call("status")["tasks"] == []
    assert manager.events("task.ended")[0]["why"] == "its process ended"


def test_a_waiter_keeps_its_place_and_one_that_stays_away_loses_it(
    make: Make, make_client: Client, directory: Path
) -> None:
    clock = SimulatedClock()
    manager = make(directory=directory, beat_ms=50, clock=clock)
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=4)
    holder, first, second = (make_client(manager.env_dir(env)) for env in ("alice", "bob", "bob"))
    holder.acquire(4)
    rids = []
    for client in (first, second):
        rids.append(client.ask(1))
        client.receive()
    pids = [row["pids"] for row in manager.call("status")["queue"]]
    manager = restarted(make, manager, beat_ms=50, clock=clock)
    holder.connect()
    holder.rejoin()
    holder.order("beat_every", text=f"NODEMGR/1 BEAT\ntask={holder.token}\n", period_s=0.05)
    second.connect()
    second.ask(1, rid=rids[1])
    assert second.receive()["position"] == "2"  # type: ignore[index]
    assert [row["pids"] for row in manager.call("status")["queue"]] == pids
    silence(manager, holder)
    moved = second.receive()
    assert moved is not None
    assert (moved["verb"], moved["position"]) == ("WAIT", "1")
    assert until(manager, "request.withdrawn")["why"] == "it did not come back"


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc shows nothing: a manager without the right to look."""
    monkeypatch.setattr(registry, "_open_files_of", lambda pid, files: [])


@pytest.mark.usefixtures("hidden")
def test_a_ledger_that_nobody_shows_comes_back_with_the_first_rejoin(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory)
    manager.call("quota_set", env="alice", gpus=4)
    client, late = make_client(manager.env_dir("alice")), None
    client.acquire(2)
    usage = client.order("inodes")["inodes"][1]
    manager = restarted(make, manager)
    late = make_client(manager.env_dir("alice"))
    late.ask(2)
    waiting = late.receive()
    assert waiting is not None
    assert "waits for the memory ledger of alice" in waiting["reason"]
    client.connect()
    client.rejoin()
    client.expect("GRANT")
    late.expect("GRANT")
    assert client.order("inodes")["inodes"][1] == late.order("inodes")["inodes"][1] == usage


@pytest.mark.usefixtures("hidden")
def test_a_ledger_that_is_lost_fences_who_used_it_and_lets_others_on(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory, **QUICK)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(2)
    client.order("drop_fds")
    manager = restarted(make, manager, **QUICK)
    late = make_client(manager.env_dir("alice"))
    late.ask(2)
    late.expect("GRANT")
    client.connect()
    client.rejoin(with_fds=False)
    assert client.expect("FENCE")["lease"] == client.grant["lease"]


def test_a_ledger_of_another_layout_ends_the_tasks_that_use_it(
    make: Make, make_client: Client, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that comes back: its client could map no ledger of this version."""
    manager = make(directory=directory, **QUICK)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(2)

    def of_another_layout(_limits: int, _usage: int) -> Ledger:
        raise OtherLayoutError("ledger: a file of another size than a ledger's")

    monkeypatch.setattr(registry.Ledger, "adopt", of_another_layout)
    manager = restarted(make, manager, **QUICK)
    client.connect()
    client.rejoin()
    late = make_client(manager.env_dir("alice"))
    late.ask(2)
    late.expect("GRANT")
    assert client.expect("FENCE")["lease"] == client.grant["lease"]


@pytest.mark.usefixtures("hidden")
def test_files_that_are_not_the_envs_are_not_believed_at_rejoin(
    make: Make, make_client: Client, directory: Path
) -> None:
    manager = make(directory=directory)
    for env in ("alice", "bob"):
        manager.call("quota_set", env=env, gpus=2)
    client, other = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    client.acquire(2)
    other.acquire(2)
    manager = restarted(make, manager)
    other.order("connect", path=str(manager.env_dir("alice") / "socket"))
    other.grant = client.grant
    other.rejoin()  # bob's files, for alice's lease, on alice's socket
    other.expect("FENCE")
    assert "alice" not in manager.daemon.ledgers
    client.connect()
    client.rejoin()
    client.expect("GRANT")


def test_after_a_boot_nobody_of_before_lives(
    make: Make, make_client: Client, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(directory=directory)
    manager.call("quota_set", env="alice", gpus=4)
    client = make_client(manager.env_dir("alice"))
    client.acquire(2)
    monkeypatch.setattr("nodemgr.edge.store.node_time.boot_id", lambda: "another")
    manager = restarted(make, manager)
    assert manager.call("status")["tasks"] == [], (
        "though a process of that PID and start time is there"
    )


# -- questions --


def asked(client: FakeClient, what: str, argument: str | None = None) -> dict[str, Any]:
    client.send("ASK", rid=77, what=what, argument=argument)
    pages: dict[int, str] = {}
    while True:
        part = client.expect("PART")
        pages[int(part["index"])] = part["data"]
        if len(pages) == int(part["count"]):
            return json.loads("".join(pages[index] for index in sorted(pages)))


def test_an_env_sees_itself_alone(manager: LocalManager, make_client: Client) -> None:
    mine, theirs = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    mine.acquire(1)
    theirs.acquire(1)
    status = asked(mine, "status")
    assert [env["name"] for env in status["envs"]] == ["alice"]
    assert [task["id"] for task in status["tasks"]] == [mine.grant["lease"]]
    assert "counters" not in status


def test_an_env_releases_its_own_tasks(manager: LocalManager, make_client: Client) -> None:
    mine, theirs = make_client(manager.env_dir("alice")), make_client(manager.env_dir("bob"))
    mine.acquire(1)
    theirs.acquire(1)
    assert asked(mine, "release", theirs.grant["lease"])["code"] == "not_found"
    asker = make_client(manager.env_dir("alice"))
    assert asked(asker, "release", mine.grant["lease"]) == {"task": mine.grant["lease"]}
    mine.expect("FENCE")


def test_questions_that_are_none_are_refused(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    assert asked(client, "future")["code"] == "usage"
    assert asked(client, "release")["code"] == "usage"
    assert {check["name"] for check in asked(client, "doctor")["checks"]} == {
        "store",
        "nvml",
        "gpus",
        "audit",
        "jobs",
        "device gate",
    }


def test_a_long_answer_comes_in_pages_and_percent_signs_survive(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    clients = [make_client(manager.env_dir("alice")) for _ in range(8)]
    for each in clients:
        each.acquire(1, command="100%25 " + "é" * 150)
    tasks = asked(client, "status")["tasks"]
    assert len(tasks) == 8
    assert all(task["command"].startswith("100% éé") for task in tasks)


def test_figures_that_cannot_be_meant_are_refused_as_they_were_asked(
    manager: LocalManager, make_client: Client
) -> None:
    asker = make_client(manager.env_dir("alice"))
    for key, figure in (
        ("gpus", 2**64 - 1),
        ("gpus", 2**31 + 1),
        ("memory", 2**64 - 1),
        ("memory", 2**60 + 1),
        ("world", 2**40),
        ("wait_ms", 2**63),
    ):
        asker.ask(**{key: figure})
        denied = asker.expect("DENY")
        assert (denied["code"], f"{key}={figure} " in denied["reason"]) == (
            "bad_request",
            True,
        ), denied
    asker.ask(2**31)
    denied = asker.expect("DENY")
    assert (denied["code"], "2147483648 GPUs asked" in denied["reason"]) == (
        "over_quota",
        True,
    ), denied


def test_of_a_long_past_an_env_is_told_the_last_part(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_operations, "MAX_RECORDS", 2)
    client = make_client(manager.env_dir("alice"))
    leases = []
    for _ in range(3):
        leases.append(client.acquire(1)["lease"])
        client.release()
    told = asked(client, "allocations")["allocations"]
    assert [record["task_id"] for record in told] == leases[1:]


def test_a_runner_is_refused_where_the_executor_has_none(make: Make, make_client: Client) -> None:
    """The executor of this manager is a stand-in."""
    manager = make()
    manager.call("quota_set", env="alice", gpus=1)
    client = make_client(manager.env_dir("alice"))
    client.send("RUNNER", rid=7)
    answer = client.expect("DENY")
    assert (answer["rid"], answer["code"]) == ("7", "bad_request")
    assert answer["reason"] == (
        "this manager starts no jobs in containers: submit the job on the node itself"
    )


def test_each_kind_of_effect_has_one_handler(make: Make) -> None:
    daemon = make().daemon
    parts = (
        daemon.hub,
        daemon.ledger_controller,
        daemon.node,
        daemon.jobs,
        daemon.submissions,
        daemon.suspensions,
        daemon.compute,
    )
    handled = [kind.__name__ for part in parts for kind in part.handlers()]
    handled.append("EnvChanged")  # the daemon's own: the environment's files and its jobs' limits
    assert sorted(handled) == sorted(kind.__name__ for kind in effects.HANDLING)


def test_old_garbage_is_collected_once_in_a_while_in_a_quiet_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_threshold()
    with LocalManager() as manager:
        assert gc.get_threshold()[0] == service.YOUNG_OBJECTS
        one, collected = manager.service, []
        monkeypatch.setattr(gc, "freeze", lambda: None)
        monkeypatch.setattr(gc, "collect", lambda: collected.append(1))

        def after(passed_ns: int, *, quiet: bool) -> int:
            monkeypatch.setattr(one.daemon.clients, "is_quiet", lambda: quiet)
            one._collected_ns = one.clock.monotonic_ns() - passed_ns
            manager.do(one._collect)
            return len(collected)

        assert after(service.COLLECT_NS // 2, quiet=True) == 0
        assert after(2 * service.COLLECT_NS, quiet=False) == 0
        assert after(2 * service.COLLECT_NS, quiet=True) == 1
        assert after(2 * service.COLLECT_ANYWAY_NS, quiet=False) == 2
        monkeypatch.undo()
    assert gc.get_threshold() == before
