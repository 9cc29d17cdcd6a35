"""Launch gates in a running manager: files with grants, figures, offences, restarts and kills."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.event_stream import EventStream
from nodemgr.core.views.figures import NO_SENSORS
from nodemgr.edge.compute import mps, registry
from nodemgr.edge.compute.launch_gate import SLOTS, GateState, LaunchGate
from nodemgr.edge.engine import compute_controller
from nodemgr.edge.gpu.sensors import ProcessUse, Sensed
from tests.edge.compute import turns
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.local import FakeGpus, LocalManager
from tests.support.udp_clients import FakeClient

SHARES, TURNS = 2, 3
"""The places of a GPU's two files among the descriptors of a grant."""
BEAT, ROW = 16, 64
DEATHS = (BrokenPipeError, json.JSONDecodeError)
"""A client that is killed takes no order, or leaves it without an answer."""
Make = Callable[..., LocalManager]
Client = Callable[..., FakeClient]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(compute_controller, "BEAT_S", 0.02)
    monkeypatch.setattr(compute_controller, "READ_NS", 0)
    for name in ("CALM_NS", "MOST_CALM_NS"):  # envs that were parted meet in no test
        monkeypatch.setattr(registry, name, 10**15)
    managers: list[LocalManager] = []
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:

        def start(**arguments: Any) -> LocalManager:
            managers.append(LocalManager(directory=Path(directory), beat_ms=20, **arguments))
            return managers[-1]

        yield start
        for manager in managers:
            manager.close()


@pytest.fixture
def manager(make: Make) -> LocalManager:
    manager = make()
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=2**30, compute_percent=40)
    manager.call("quota_set", env="bob", gpus=1, memory_bytes=2**30, compute_percent=60)
    return manager


def state_of(client: FakeClient) -> GateState:
    slot = int(client.grant["gates"])
    word = client.order("read", fd=SHARES, offset=ROW + 16 * slot)["word"]
    return GateState(word >> 16 & 0xFF)


def share_of(client: FakeClient) -> int:
    slot = int(client.grant["gates"])
    return int(client.order("read", fd=SHARES, offset=ROW + 16 * slot)["word"] & 0xFF)


def writes(client: FakeClient, word: int, value: int) -> None:
    """A figure of its own row, or whatever it likes."""
    offset = turns.ROWS + turns.ROW_BYTES * int(client.grant["gates"]) + word
    client.order("write", fd=TURNS, offset=offset, words=[value])


def garbles(client: FakeClient, *, fatal: bool = False) -> None:
    """A token of no slot. `fatal`: it may be killed before it can say that it wrote it."""
    with contextlib.suppress(*(DEATHS if fatal else ())):
        client.order("write", fd=TURNS, offset=turns.TOKEN, words=[0xFFFF])


def clears_flags(client: FakeClient, *, fatal: bool = False) -> None:
    """The waiting words of all slots. `fatal`: the first may be the last one that it writes."""
    with contextlib.suppress(*(DEATHS if fatal else ())):
        for slot in range(SLOTS):
            offset = turns.ROWS + turns.ROW_BYTES * slot + turns.WAITING
            client.order("write", fd=TURNS, offset=offset, words=[0])


def inodes(client: FakeClient) -> list[int]:
    found: list[int] = client.order("inodes")["inodes"]
    return found


def task_of(manager: LocalManager, client: FakeClient) -> dict[str, Any]:
    return next(task for task in manager.call("status")["tasks"] if client.pid in task["pids"])


def happens(manager: LocalManager, name: str) -> dict[str, Any]:
    """The first event of this name, past or coming."""
    with EventStream(manager.run_dir, 0) as stream:
        return next(event for event in stream.follow(WAIT_LIMIT_S) if event["name"] == name)


def pair(manager: LocalManager, make_client: Client) -> tuple[FakeClient, FakeClient]:
    """Gated processes of two envs on one GPU."""
    clients = [make_client(manager.env_dir(env)) for env in ("alice", "bob")]
    for client in clients:
        client.acquire(1, gated=1)
    first, second = clients
    return first, second


@pytest.fixture
def one_gpu(make: Make) -> LocalManager:
    manager = make(gpus=FakeGpus(1))
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=2**30, compute_percent=40)
    manager.call("quota_set", env="bob", gpus=1, memory_bytes=2**30, compute_percent=60)
    return manager


# -- plain processes --


def test_a_plain_process_gets_no_gate_and_no_page_is_made(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    grant = client.acquire(1)
    assert "gates" not in grant
    assert len(inodes(client)) == 2
    assert not manager.do(lambda: bool(manager.daemon.compute.gates))
    assert task_of(manager, client)["gate"] == "none"
    assert task_of(manager, client)["compute_used_percent"] is None


@pytest.mark.parametrize(
    "terms",
    [{"compute_percent": 40}, {"task_class": "best-effort"}, {"idle_ms": 60_000}],
)
def test_client_conf_says_whether_new_processes_are_gated(
    make: Make, terms: dict[str, object]
) -> None:
    manager = make()
    manager.call("quota_set", env="carol", gpus=1)
    conf = manager.env_dir("carol") / "client.conf"
    assert "gate=" not in conf.read_text()
    manager.call("quota_set", env="carol", **terms)
    assert "\ngate=1\n" in "\n" + conf.read_text()
    nothing = {"compute_percent": None, "task_class": "normal", "idle_ms": None}
    manager.call("quota_set", env="carol", **{key: nothing[key] for key in terms})
    assert "gate=" not in conf.read_text()


# -- gated processes --


def test_a_gated_process_gets_its_slot_and_the_files(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    assert client.acquire(1, gated=1)["gates"] == "0"
    assert len(set(inodes(client))) == 4
    assert (state_of(client), share_of(client)) == (GateState.OPEN, 40)
    assert task_of(manager, client)["gate"] == "limited"


def test_a_process_that_finds_the_gate_full_passes_none_and_its_user_reads_why(
    one_gpu: LocalManager,
    make_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    first, further = (make_client(one_gpu.env_dir("alice")) for _ in range(2))
    first.acquire(1, gated=1)
    assert task_of(one_gpu, first)["gate"] == "limited"
    monkeypatch.setattr(LaunchGate, "give", lambda _self, _words: None)
    further.token = first.token
    assert "gates" not in further.acquire(1, gated=1)
    note = further.expect("NOTE")["text"]
    assert note.startswith("the launches of this process pass no gate, so the share of t")
    assert "64 processes pass the launch gate of one of its GPUs, the most" in note
    task = task_of(one_gpu, further)
    assert (task["gate"], task["processes"]) == ("none", 2)
    assert "is granted without a launch gate" in capfd.readouterr().err


def test_the_manager_beats_in_the_page(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1, gated=1)

    def beat() -> int:
        return int(client.order("read", fd=SHARES, offset=BEAT)["word"])

    first = beat()
    until(lambda: beat() > first, "the manager does not beat")


def test_a_killed_client_leaves_its_slot_and_the_last_one_the_page(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1, gated=1)
    client.kill()
    gates = manager.daemon.compute.gates
    until(lambda: not manager.do(lambda: bool(gates)), "the page stays")


def test_a_process_that_releases_its_lease_is_fenced_in_the_gate(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1, gated=1)
    client.release()
    until(lambda: state_of(client) is GateState.FENCED, "it is not fenced")


def test_figures_come_from_the_page(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1, gated=1)
    writes(client, turns.LAST_ACTIVITY, time.monotonic_ns())
    until(lambda: task_of(manager, client)["compute_used_percent"] is not None, "no reading")
    task = task_of(manager, client)
    assert task["compute_used_percent"] == 0
    assert task["idle_seconds"] is None, "NVML shows nothing here: the page alone is not believed"


def test_a_restarted_manager_gives_fresh_pages_at_the_rejoin(
    make: Make, make_client: Client
) -> None:
    manager = make()
    manager.call("quota_set", env="alice", gpus=1, compute_percent=40)
    client = make_client(manager.env_dir("alice"))
    client.acquire(1, gated=1)
    before = inodes(client)
    manager.close()
    make()
    client.connect()
    client.rejoin()
    client.grant = client.expect("GRANT")
    assert client.grant["gates"] == "0"
    after = inodes(client)
    assert len(after) == 4
    assert not set(before[2:]) & set(after[2:])
    assert (state_of(client), share_of(client)) == (GateState.OPEN, 40)


# -- garbage --


def test_a_garbled_page_is_replaced_and_none_is_accused(
    one_gpu: LocalManager, make_client: Client
) -> None:
    alice, bob = pair(one_gpu, make_client)
    assert inodes(alice)[2:] == inodes(bob)[2:]
    garbles(alice)
    assert happens(one_gpu, "gate.garbled")["fault"] == "token"
    for client in (alice, bob):
        client.grant = client.expect("GRANT")
    assert not set(inodes(alice)[2:]) & set(inodes(bob)[2:]), "each env has a page of its own"
    assert one_gpu.call("status")["violations"] == []


@pytest.mark.parametrize("enforce", ["warn", "kill"])
def test_garbage_on_an_envs_own_page_is_its_offence(
    one_gpu: LocalManager, make_client: Client, enforce: str
) -> None:
    one_gpu.call("quota_set", env="alice", enforce=enforce)
    alice, bob = pair(one_gpu, make_client)
    garbles(alice)
    for client in (alice, bob):
        client.grant = client.expect("GRANT")
    garbles(alice, fatal=enforce == "kill")
    violation = happens(one_gpu, "audit.violation")
    assert (violation["offence"], violation["env"]) == ("garbled_gate", "alice")
    assert violation["pid"] == alice.pid
    if enforce == "kill":
        assert alice.process.wait(WAIT_LIMIT_S) < 0
    else:
        note = alice.receive()
        assert note is not None
        assert "impossible words into the launch gate of GPU 0" in note["text"]
    assert bob.process.poll() is None
    assert task_of(one_gpu, bob)["state"] == "running"


@pytest.mark.parametrize("enforce", ["fence", "kill"])
def test_a_client_that_clears_the_flags_of_others_is_parted_named_and_ended(
    one_gpu: LocalManager, make_client: Client, enforce: str, capfd: pytest.CaptureFixture[str]
) -> None:
    one_gpu.call("quota_set", env="alice", enforce=enforce)
    alice, bob = pair(one_gpu, make_client)
    clears_flags(alice)
    assert happens(one_gpu, "gate.garbled")["fault"] == "stray"
    for client in (alice, bob):
        client.grant = client.expect("GRANT")
    clears_flags(alice, fatal=enforce == "kill")
    violation = happens(one_gpu, "audit.violation")
    assert (violation["offence"], violation["env"], violation["pid"]) == (
        "garbled_gate", "alice", alice.pid,
    )  # fmt: skip
    if enforce == "kill":
        assert alice.process.wait(WAIT_LIMIT_S) < 0
    else:
        assert violation["action"] == "fenced"
        until(lambda: state_of(alice) is GateState.FENCED, "it is not fenced")
    assert task_of(one_gpu, bob)["state"] == "running"
    assert state_of(bob) is GateState.OPEN
    said = capfd.readouterr().err
    assert said.count("each environment has a gate of its own there for now") == 1
    assert said.count(f"process {alice.pid} of t1 (env alice)") == 1
    assert f"(stray), which no other env has; enforce={enforce}" in said


def test_a_token_that_is_held_for_nothing_parts_the_envs_and_accuses_none(
    one_gpu: LocalManager, make_client: Client
) -> None:
    alice, bob = pair(one_gpu, make_client)
    before = inodes(alice)
    alice.order("write", fd=TURNS, offset=turns.TOKEN, words=[1 << 16 | 1])
    writes(bob, turns.WAITING, 1)
    event = happens(one_gpu, "gate.garbled")
    assert (event["gpu_index"], event["fault"]) == (0, "stuck")
    for client in (alice, bob):
        client.grant = client.expect("GRANT")
    assert set(inodes(alice)[2:]).isdisjoint({*before[2:], *inodes(bob)[2:]})
    assert not {event["name"] for event in one_gpu.call("events", since=0)["events"]} & {
        "audit.violation"
    }


# -- use beyond the share --


def shows(manager: LocalManager, client: FakeClient, percent: int) -> None:
    """The driver's samples of a process."""
    manager.gpus.sensed = {
        gpu.uuid: Sensed(NO_SENSORS, ProcessUse({client.pid: percent}, frozenset([client.pid])))
        for gpu in manager.gpus.gpus
    }


def test_work_behind_a_closed_gate_is_an_offence(
    one_gpu: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_controller, "READ_NS", 250_000_000)  # 100 ms count, no less
    alice, bob = pair(one_gpu, make_client)
    shows(one_gpu, alice, 90)  # before somebody waits: an idle holder would be stuck
    writes(bob, turns.WAITING, 1)
    violation = happens(one_gpu, "audit.violation")
    assert (violation["offence"], violation["pid"]) == ("over_share", alice.pid)
    assert (violation["used_percent"], violation["allowed_percent"]) == (90, 40)
    assert state_of(alice) is GateState.PAUSED
    assert state_of(bob) is GateState.OPEN
    shown = [(row["gate"], row["gate_reason"]) for row in one_gpu.call("status")["tasks"]]
    assert shown == [("closed", "paused"), ("limited", None)]
    note = alice.receive()
    assert note is not None
    assert "90 % of GPU 0's compute while its gate is closed; its share is 40 %" in note["text"]
    writes(bob, turns.WAITING, 0)
    shows(one_gpu, alice, 0)
    happens(one_gpu, "audit.ended")
    until(lambda: state_of(alice) is GateState.OPEN, "its gate stays closed")


# -- shares that change --


def test_a_latency_sensitive_grant_finds_best_effort_shrunk(
    make: Make, make_client: Client
) -> None:
    manager = make(gpus=FakeGpus(1))
    manager.call(
        "quota_set", env="alice", gpus=1, memory_bytes=2**30, task_class="best-effort",
        compute_percent=80,
    )  # fmt: skip
    manager.call(
        "quota_set", env="bob", gpus=1, memory_bytes=2**30, task_class="latency-sensitive",
        compute_percent=100,
    )  # fmt: skip
    alice, bob = (make_client(manager.env_dir(env)) for env in ("alice", "bob"))
    alice.acquire(1, gated=1)
    assert (state_of(alice), share_of(alice)) == (GateState.OPEN, 80)
    bob.acquire(1, gated=1, compute=50)
    assert (state_of(alice), share_of(alice)) == (GateState.OPEN, 50)
    bob.release()
    until(lambda: share_of(alice) == 80, "best effort does not grow back")
    bob.acquire(1, gated=1)
    assert (state_of(alice), share_of(alice)) == (GateState.CLOSED, 0)
    shown = task_of(manager, alice)
    assert (shown["gate"], shown["gate_reason"]) == ("closed", "no_share")
    assert task_of(manager, bob)["gate"] == "open"
    bob.kill()
    until(lambda: state_of(alice) is GateState.OPEN, "its gate stays closed")
    assert share_of(alice) == 80


# -- MPS --


def test_a_grant_brings_the_threads_where_mps_runs(
    make: Make, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "is_running", lambda *_: True)
    manager = make()
    manager.call("quota_set", env="alice", gpus=1, compute_percent=40)
    client = make_client(manager.env_dir("alice"))
    assert client.acquire(1, gated=1)["threads"] == "40"
    (row,) = (row for row in manager.call("doctor")["checks"] if row["name"] == "compute shares")
    assert "kept by MPS" in row["detail"]


def test_without_mps_a_grant_brings_none(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    assert "threads" not in client.acquire(1, gated=1)
    (row,) = (row for row in manager.call("doctor")["checks"] if row["name"] == "compute shares")
    assert "kept by the launch gate" in row["detail"]
