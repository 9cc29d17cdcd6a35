"""The gate of the node: logins open the GPUs of tasks in their own cgroup, by one program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr.edge.gate.device_gate import GateUnavailable
from nodemgr.edge.gate.ebpf import BPF_FS, PinnedNodeGate, node_pins
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.kernel.device_nodes import DeviceNode
from tests.gate.conftest import Probe
from tests.support import ordinary

GPUS = 3


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def logins(cgroup: Callable[[], Path]) -> Path:
    return cgroup()


@pytest.fixture
def make_gate(
    bpf: None, tmp_path: Path, logins: Path, notes: list[str]
) -> Iterator[Callable[[], NodeGate]]:
    """A gate as each start of the manager makes it; the pins stay between two."""

    def make() -> NodeGate:
        pinned = PinnedNodeGate.make(node_pins(tmp_path), None)
        return NodeGate(tmp_path, pinned, lambda name, **_: notes.append(name), logins=logins)

    yield make
    NodeGate.lift(tmp_path)


@pytest.fixture
def login(logins: Path, make_probe: Callable[..., Probe]) -> Callable[[str], Probe]:
    """A process of an ordinary user in a session of its own."""

    def start(name: str, uid: int = ordinary.UID) -> Probe:
        session = logins / name
        session.mkdir(exist_ok=True)
        probe = make_probe()
        probe.enter(session)
        if uid:
            assert probe.order(f"become {uid}") == "OK"
        return probe

    return start


def opened(probe: Probe) -> list[int]:
    return [minor for minor in range(GPUS) if probe.opens(DeviceNode(195, minor))]


def test_a_login_opens_the_gpus_of_its_tasks_alone(
    make_gate: Callable[[], NodeGate], login: Callable[..., Probe]
) -> None:
    gate = make_gate()
    one, other, root = login("one"), login("other"), login("one", 0)
    assert opened(one) == [0, 1, 2]  # no program stands there yet
    gate.check()
    assert (opened(one), opened(other), opened(root)) == ([], [], [0, 1, 2])
    gate.follow("t1", None, [one.pid], [1])
    gate.follow("t2", None, [one.pid], [1, 2])
    assert (opened(one), opened(other)) == ([1, 2], [])
    assert gate.shown(one.pid) == {1, 2}
    assert (gate.shown(other.pid), gate.shown(root.pid)) == (frozenset(), None)
    assert gate.shown(os.getpid()) is None
    gate.forget("t2")
    assert opened(one) == [1]
    gate.follow("t1", None, [], [1])
    assert opened(one) == []
    gate.forget("t1")
    assert one.opens(DeviceNode(195, 255))


def test_a_job_opens_its_gpus_before_it_begins(
    make_gate: Callable[[], NodeGate], logins: Path, login: Callable[..., Probe]
) -> None:
    gate = make_gate()
    gate.stand_at(str(logins))
    assert gate.closes_jobs()
    gate.follow("t1", "j1", [], [0])
    job = login("j1.1")
    assert opened(job) == []
    gate.has_leaf("j1", logins / "j1.1")
    assert opened(job) == [0]
    gate.has_ended("j1")
    gate.forget("t1")
    assert opened(job) == []
    gate.has_leaf("j2", logins / "nowhere")
    gate.stand_at("")
    assert not gate.closes_jobs()


def test_it_stays_without_a_manager_and_the_next_one_corrects_it(
    make_gate: Callable[[], NodeGate], login: Callable[..., Probe]
) -> None:
    gate = make_gate()
    gate.check()
    gone, kept = login("one"), login("two")
    gate.follow("t1", None, [gone.pid], [0])
    gate.follow("t2", None, [kept.pid], [1])
    later = make_gate()
    later.check()
    assert (opened(gone), opened(kept)) == ([0], [1])
    later.follow("t2", None, [kept.pid], [1])
    later.keep_only()
    assert (opened(gone), opened(kept)) == ([], [1])


def test_a_fault_is_reported_once_and_mended(
    make_gate: Callable[[], NodeGate],
    login: Callable[..., Probe],
    notes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = make_gate()
    gate.check()
    one = login("one")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(7, "the map is full")

    with monkeypatch.context() as broken:
        broken.setattr(PinnedNodeGate, "move", refuse)
        gate.follow("t1", None, [one.pid], [0])
        gate.check()
        ok, said = gate.state()
        assert (ok, notes) == (False, ["gate.failed"])
        assert "the map is full" in str(said)
    gate.check()
    assert (notes, opened(one)) == (["gate.failed", "gate.mended"], [0])
    assert gate.state()[0]


def test_lifted_it_closes_nothing(
    make_gate: Callable[[], NodeGate],
    login: Callable[..., Probe],
    logins: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = make_gate()
    gate.check()
    one = login("one")
    assert opened(one) == []
    monkeypatch.setattr("nodemgr.edge.gate.node_gate.LOGINS", str(logins))
    off = NodeGate.by_setting(False, tmp_path, lambda *_: None)
    assert opened(one) == [0, 1, 2]
    assert not node_pins(tmp_path).exists()
    assert (off.is_on, off.closes_jobs(), off.shown(one.pid)) == (False, False, None)
    off.follow("t1", "j1", [one.pid], [0])
    off.forget("t1")
    off.check()
    off.keep_only()
    assert off.state()[0]
    assert "BPF works here" in str(off.state()[1])


def test_where_it_cannot_be_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("nodemgr.edge.kernel.cgroups.mount_point", lambda: None)
    with pytest.raises(GateUnavailable) as found:
        NodeGate.by_setting(True, tmp_path, lambda *_: None)
    assert "cgroup version 2 is not mounted" in str(found.value)
    assert "gate_node = false" in str(found.value)
    told = NodeGate.by_setting(False, tmp_path, lambda *_: None).state()
    assert told[0]
    assert "gate_node would not work here: cgroup version 2" in str(told[1])
    assert not (BPF_FS / node_pins(tmp_path).name).exists()
