"""The manager moves the gates: open before the grant is sent, shut after the lease.

A restarted manager corrects them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nodemgr.edge.gate.device_gate import HOOK, Gate, GateUnavailable
from nodemgr.edge.gate.ebpf import env_pins, pin_directory
from nodemgr.edge.gate.state_files import GatedCgroup, Records
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.device_nodes import DeviceNode
from nodemgr.edge.service import ServiceFault
from tests.gate.conftest import Probe
from tests.support import ordinary
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient

CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 0x40000, 2
GPUS = 3
Container = Callable[..., Probe]

GATE_NEEDS_VERSION_2 = (
    "the device gate needs cgroup version 2, which is not mounted here, so containers can open "
    "every GPU that they were given: boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2"
)


@pytest.fixture
def node(make_manager: Callable[..., Manager], bpf: None) -> Iterator[Manager]:
    made = make_manager(
        simulate=f"{GPUS}x16GiB", environment={"NODEMGR_DEVICE_GATE": "on"}, start=False
    )
    yield made.start()
    if made.process is not None:
        made.kill()
    Gate(made.run_dir, lambda name, **fields: None).keep_only(())


V1_DIRECTORY = Path("/sys/fs/cgroup/devices")
"""The mount of version 1's devices controller on a hybrid node."""


def hide(mount: Path | None) -> None:
    """Unmounts this for the calling process alone, as on a node without it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.unshare(CLONE_NEWNS)
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if mount is not None:
        libc.umount2(bytes(mount), MNT_DETACH)


@pytest.fixture
def container(
    node: Manager, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> Container:
    """A process in a cgroup that was shut as a runtime's hook does it: container("alice")."""

    def start(env: str) -> Probe:
        probe = make_probe()
        probe.enter(cgroup())
        command = [sys.executable, "-I", "-B", str(HOOK), str(node.run_dir), env]
        subprocess.run(
            command,
            input=json.dumps({"pid": probe.pid}),
            text=True,
            check=True,
            timeout=WAIT_LIMIT_S,
        )
        return probe

    return start


def opened(probe: Probe) -> list[int]:
    return [minor for minor in range(GPUS) if probe.opens(DeviceNode(195, minor))]


def indices(node: Manager, client: FakeClient) -> list[int]:
    """The GPUs of the client's lease; a simulated GPU's node has its number."""
    return sorted(node.task(client.grant["lease"])["gpu_indices"])


def row(node: Manager, name: str = "device gate") -> tuple[bool, str]:
    found = next(check for check in node.call("doctor")["checks"] if check["name"] == name)
    return found["ok"], found["detail"]


def test_a_gate_is_open_while_its_env_holds_the_gpu(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    for env in ("alice", "bob"):
        node.quota(env, 2)
    inside, others = container("alice"), container("bob")
    assert opened(inside) == []
    one, two = make_client(node.env_dir("alice")), make_client(node.env_dir("alice"))
    one.acquire(1)
    assert opened(inside) == indices(node, one)
    two.acquire(1)
    assert opened(inside) == sorted(indices(node, one) + indices(node, two))
    assert opened(others) == []
    one.release()
    assert opened(inside) == indices(node, two)
    two.release()
    assert opened(inside) == []


def test_controllers_of_version_1_change_nothing(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    """The devices controller is mounted on a hybrid node, and not on a node of version 2 alone."""
    node.kill()
    node.before_exec = lambda: hide(V1_DIRECTORY)
    node.start()
    node.quota("alice", 1)
    inside, client = container("alice"), make_client(node.env_dir("alice"))
    client.acquire(1)
    assert opened(inside) == indices(node, client)
    client.release()
    assert opened(inside) == []
    assert row(node) == (True, "on, by eBPF: 1 container behind it")


def test_a_node_without_version_2_refuses_a_gate_that_must_be(node: Manager) -> None:
    node.kill()
    node.before_exec = lambda: hide(cgroups.mount_point())
    node.start(wait=False)
    assert node.wait() == 1
    line = GATE_NEEDS_VERSION_2
    assert f"device_gate is on, but devices cannot be gated here: {line}" in node.log


@pytest.mark.usefixtures("bpf")
def test_a_node_without_version_2_runs_without_a_gate_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """device_gate = auto: one line in the log at the start, and the same in the doctor's row."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("40 22 0:35 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n")
    monkeypatch.setattr(cgroups, "hierarchies", partial(cgroups.hierarchies, mounts))
    with LocalManager(device_gate="auto") as local:
        checks = local.call("doctor")["checks"]
    assert capfd.readouterr().err.count(f"no device gate: {GATE_NEEDS_VERSION_2}\n") == 1
    found = next(check for check in checks if check["name"] == "device gate")
    assert (found["ok"], found["detail"]) == (True, f"off: {GATE_NEEDS_VERSION_2}")


def test_who_never_connects_opens_nothing(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    node.quota("alice", 3)
    node.quota("mallory", 3)
    inside = container("mallory")
    make_client(node.env_dir("alice")).acquire(1)
    assert opened(inside) == []


@pytest.mark.parametrize("how", ["dies", "is taken back", "loses its quota"])
def test_the_gate_is_shut_when_the_lease_ends(
    how: str, node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    node.quota("alice", 1)
    inside, client = container("alice"), make_client(node.env_dir("alice"))
    events = node.events()
    client.acquire(1)
    assert len(opened(inside)) == 1
    if how == "dies":
        client.kill()
        events.expect("task.ended")
    elif how == "is taken back":
        node.call("release", task=client.grant["lease"])
    else:
        node.call("quota_rm", env="alice", force=True)
        assert not env_pins(node.run_dir, "alice").exists()
    assert opened(inside) == []


def test_a_killed_manager_leaves_the_gates_as_they_were_and_the_next_one_sets_them_right(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    for env in ("alice", "bob", "carol"):
        node.quota(env, 1)
    stays, goes = make_client(node.env_dir("alice")), make_client(node.env_dir("bob"))
    of_alice, of_bob, of_carol = container("alice"), container("bob"), container("carol")
    stays.acquire(1)
    goes.acquire(1)
    mine = indices(node, stays)
    node.kill()
    assert opened(of_alice) == mine
    assert len(opened(of_bob)) == 1
    assert opened(of_carol) == []
    goes.kill()
    node.start()
    assert opened(of_alice) == mine
    assert opened(of_bob) == []
    assert row(node) == (True, "on, by eBPF: 3 containers behind it")


def test_a_container_can_start_while_there_is_no_manager(
    node: Manager, container: Container
) -> None:
    node.quota("alice", 1)
    node.kill()
    assert opened(container("alice")) == []


def test_envs_that_were_removed_while_no_manager_looked_are_forgotten(
    node: Manager, container: Container
) -> None:
    node.quota("alice", 1)
    inside = container("alice")
    node.stop()
    (node.state_dir / "state.db").unlink()
    node.start()
    assert not pin_directory(node.run_dir).exists()
    assert opened(inside) == []


@contextlib.contextmanager
def watched(node: Manager) -> Iterator[None]:
    """Somebody watches the figures: the GPUs are read, and the gates checked, once a second."""
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.2):
            node.call("figures")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_fault_that_stays_is_reported_once(bpf: None, tmp_path: Path) -> None:
    notes: list[str] = []
    run_dir, no_cgroup = tmp_path / "run", tmp_path / "no-cgroup"
    run_dir.mkdir()
    no_cgroup.mkdir()
    gate = Gate(run_dir, lambda name, **fields: notes.append(name))
    gate.ensure("alice")
    try:
        Records(run_dir, "alice").add(GatedCgroup.of(no_cgroup))
        for _ in range(3):
            gate.allow("alice", set())
            gate.check()
        assert notes == ["gate.failed"]
        no_cgroup.rmdir()
        for _ in range(3):
            gate.allow("alice", set())
            gate.check()
        assert notes == ["gate.failed", "gate.mended"]
    finally:
        gate.remove("alice")


def test_a_gate_that_cannot_be_set_is_reported_and_tried_again(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient], tmp_path: Path
) -> None:
    node.quota("alice", 1)
    inside, client = container("alice"), make_client(node.env_dir("alice"))
    events = node.events()
    (tmp_path / "no-cgroup").mkdir()
    Records(node.run_dir, "alice").add(GatedCgroup.of(tmp_path / "no-cgroup"))
    client.acquire(1)
    with watched(node):
        assert events.expect("gate.failed")["env"] == "alice"
        ok, said = row(node)
        assert not ok
        assert "the device gate of env alice is not as it should be" in said
        (tmp_path / "no-cgroup").rmdir()
        events.expect("gate.mended", env="alice")
    assert opened(inside) == indices(node, client)
    assert row(node)[0]


def test_the_doctor_in_an_env_says_that_this_is_no_container(
    node: Manager, make_client: Callable[[Path], FakeClient]
) -> None:
    node.quota("alice", 1)
    client = make_client(node.env_dir("alice"))
    client.send("ASK", rid=1, what="doctor")
    said = client.expect("PART")["data"]
    while not said.endswith("]}"):
        said += client.expect("PART")["data"]
    last = json.loads(said)["checks"][-1]
    assert (last["name"], last["ok"], last["detail"]) == (
        "device gate",
        True,
        "none here: this is no container of its own",
    )


def test_off_means_that_nobody_is_kept_out(node: Manager, container: Container) -> None:
    node.quota("alice", 1)
    inside = container("alice")
    assert opened(inside) == []
    node.stop()
    node.environment["NODEMGR_DEVICE_GATE"] = "off"
    node.start()
    assert opened(inside) == list(range(GPUS))
    assert row(node) == (True, "off, as the settings say (device_gate)")


def test_simulated_gpus_have_no_gate_unless_it_is_asked_for(manager: Manager) -> None:
    manager.quota("alice", 1)
    assert row(manager) == (True, "off, simulated GPUs have no device nodes")
    assert not pin_directory(manager.run_dir).exists()


def test_a_manager_that_must_have_a_gate_and_cannot_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(run_dir: Path, note: object) -> Gate:
        raise GateUnavailable("no cgroup v2 is mounted")

    monkeypatch.setattr(Gate, "start", refuse)
    with pytest.raises(
        ServiceFault,
        match=r"device_gate is on, but devices cannot be gated here: no cgroup v2 is mounted",
    ):
        LocalManager(device_gate="on")
    with LocalManager(device_gate="auto") as local:
        assert local.service.daemon.no_gate == "off: no cgroup v2 is mounted"


def test_without_root_there_is_no_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with pytest.raises(GateUnavailable, match="only a manager that runs as root can gate devices"):
        Gate.start(tmp_path, lambda name, **fields: None)


@pytest.mark.usefixtures("bpf")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("auto", "off, simulated GPUs have no device nodes"),
        ("off", "off, as the settings say (device_gate)"),
    ],
)
def test_an_ordinary_user_s_manager_has_no_gate_and_starts(
    setting: str, told: str, make_manager: Callable[..., Manager]
) -> None:
    made = make_manager(
        simulate="1x16GiB",
        environment={"NODEMGR_DEVICE_GATE": setting},
        before_exec=ordinary.become_ordinary,
        start=False,
    )
    os.chown(made.directory, ordinary.UID, ordinary.UID)
    made.start()
    made.quota("alice", 1)
    made.call("quota_rm", env="alice")
    assert row(made) == (True, told)


@pytest.mark.usefixtures("bpf")
def test_an_ordinary_user_s_manager_that_must_have_a_gate_says_whose_can(
    make_manager: Callable[..., Manager],
) -> None:
    made = make_manager(
        simulate="1x16GiB",
        environment={"NODEMGR_DEVICE_GATE": "on"},
        before_exec=ordinary.become_ordinary,
        start=False,
    )
    os.chown(made.directory, ordinary.UID, ordinary.UID)
    made.start(wait=False)
    assert made.wait() == 1
    assert "cannot be gated here: only a manager that runs as root can gate devices" in made.log


def test_a_stalled_task_keeps_its_gate_open_as_long_as_its_grant(
    node: Manager, container: Container, make_client: Callable[[Path], FakeClient]
) -> None:
    node.quota("alice", 1)
    node.stop()
    node.environment |= {"NODEMGR_BEAT_MS": "200", "NODEMGR_TIMEOUT_MS": "1000"}
    node.start()
    inside, client = container("alice"), make_client(node.env_dir("alice"))
    client.acquire(1)
    client.signal(signal.SIGSTOP)
    node.events().expect("task.stalled")
    assert opened(inside) == indices(node, client)
    client.signal(signal.SIGCONT)
