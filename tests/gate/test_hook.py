"""The hook that a runtime runs before a container's first process: it shuts or refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr import gate_hook
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.state_files import GatedCgroup, Records
from nodemgr.edge.kernel.device_nodes import DeviceNode
from tests.gate.conftest import Probe
from tests.support.limits import WAIT_LIMIT_S

GPU0, GPU1, CONTROL = DeviceNode(195, 0), DeviceNode(195, 1), DeviceNode(195, 255)
ENV = "alice.1"


def run(hook: list[str], state: str | bytes) -> tuple[int, str]:
    """Its exit code and its one line, without the beginning that all share."""
    done = subprocess.run(
        hook,
        input=state.encode() if isinstance(state, str) else state,
        capture_output=True,
        timeout=WAIT_LIMIT_S,
        env={},
        cwd="/",
    )
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.count("\n") == (1 if text else 0)
    return done.returncode, text.strip().removeprefix("nodemgr: the container is not started: ")


def refusing(gate_dir: Path) -> list[str]:
    return [
        sys.executable,
        "-I",
        "-B",
        str(Path(__file__).parents[2] / "nodemgr" / "gate_hook.py"),
        str(gate_dir),
        ENV,
    ]


def state_of(pid: int) -> str:
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "id": "c1",
            "status": "created",
            "pid": pid,
            "bundle": "/b",
            "annotations": {"pid": "1"},
        }
    )


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate.start(tmp_path, lambda name, **fields: None)
    made.ensure(ENV)
    yield made
    made.keep_only(())


def hook_of(gate: Gate) -> list[str]:
    entry = gate.cdi_hook(ENV)
    assert (entry.name, entry.path) == ("createRuntime", entry.args[0])
    return list(entry.args)


@pytest.mark.usefixtures("bpf")
def test_a_container_starts_behind_a_shut_gate(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    probe = make_probe()
    probe.enter(cgroup())
    assert run(hook_of(gate), state_of(probe.pid)) == (0, "")
    assert [probe.opens(device) for device in (GPU0, GPU1, CONTROL)] == [False, False, True]
    gate.allow(ENV, {1})
    assert [probe.opens(device) for device in (GPU0, GPU1, CONTROL)] == [False, True, True]
    gate.allow(ENV, set())
    assert [probe.opens(device) for device in (GPU0, GPU1, CONTROL)] == [False, False, True]


@pytest.mark.usefixtures("bpf")
def test_a_second_container_finds_open_what_the_env_holds(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    gate.allow(ENV, {0})
    probe = make_probe()
    probe.enter(cgroup())
    assert run(hook_of(gate), state_of(probe.pid)) == (0, "")
    assert [probe.opens(device) for device in (GPU0, GPU1)] == [True, False]


@pytest.mark.usefixtures("bpf")
def test_what_a_runtime_took_off_is_put_back(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe = cgroup(), make_probe()
    probe.enter(place)
    # recorded, and then its program is gone
    Records(gate.run_dir, ENV).add(GatedCgroup.of(place))
    assert probe.opens(GPU0)
    gate.check()
    assert not probe.opens(GPU0)


@pytest.mark.usefixtures("bpf")
def test_a_gate_that_nobody_wants_any_more_lets_everything_through(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    probe = make_probe()
    probe.enter(cgroup())
    assert run(hook_of(gate), state_of(probe.pid)) == (0, "")
    assert not probe.opens(GPU1)
    Gate.lift(gate.run_dir)
    assert probe.opens(GPU1)
    assert not Records(gate.run_dir, ENV).exists()


@pytest.mark.usefixtures("bpf")
def test_containers_that_are_gone_are_forgotten(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe = cgroup() / "container", make_probe()
    place.mkdir()
    probe.enter(place)
    assert run(hook_of(gate), state_of(probe.pid)) == (0, "")
    assert gate.state() == (True, "on, by eBPF: 1 container behind it")
    probe.close()
    place.rmdir()
    gate.check()
    assert gate.state() == (True, "on, by eBPF: 0 containers behind it")


@pytest.mark.usefixtures("bpf")
def test_another_cgroup_of_the_same_name_is_not_gated(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe, later = cgroup() / "container", make_probe(), make_probe()
    place.mkdir()
    probe.enter(place)
    assert run(hook_of(gate), state_of(probe.pid)) == (0, "")
    probe.close()
    place.rmdir()
    place.mkdir()
    later.enter(place)
    gate.check()
    assert later.opens(GPU0)


@pytest.mark.usefixtures("bpf")
def test_a_cgroup_that_others_live_in_is_not_gated(
    gate: Gate, cgroup: Callable[[], Path], make_probe: Callable[[], Probe]
) -> None:
    place, probe, neighbour = cgroup(), make_probe(), make_probe()
    (place / "below").mkdir()
    probe.enter(place)
    neighbour.enter(place / "below")
    code, said = run(hook_of(gate), state_of(probe.pid))
    assert code == 1
    assert said.startswith("it has no cgroup (version 2) of its own, at which the device gate")
    assert "systemd.unified_cgroup_hierarchy=1, or set device_gate" in said
    assert neighbour.opens(GPU0)
    assert probe.opens(GPU0)


@pytest.mark.usefixtures("bpf")
def test_the_host_itself_is_never_gated(gate: Gate, make_probe: Callable[[], Probe]) -> None:
    probe = make_probe()
    code, _ = run(hook_of(gate), state_of(probe.pid))
    assert code == 1
    assert probe.opens(GPU0)


BAD_STATES = [
    b"", b"{", b"[]", b"null", b"{}", b'{"pid": "12"}', b'{"pid": 0}', b'{"pid": 1}',
    b'{"pid": -5}', b'{"pid": true}', b'{"pid": 1e3}',
    b'{"pid": 99999999999999999999}', b"\xff\xfe\x00", b'{"a":' * 100_000,
    b'{"annotations": {"pid": 5}}',
]  # fmt: skip


@pytest.mark.parametrize("state", BAD_STATES, ids=lambda state: repr(state[:24]))
def test_garbage_for_a_state_starts_no_container(state: bytes, tmp_path: Path) -> None:
    assert run(refusing(tmp_path), state) == (
        1,
        "its runtime gave no state with a pid on the hook's stdin: use a runtime of OCI 1.0 or"
        " newer",
    )


def test_an_unknown_env_starts_no_container(
    tmp_path: Path, make_probe: Callable[[], Probe]
) -> None:
    code, said = run(refusing(tmp_path), state_of(make_probe().pid))
    assert code == 1
    assert said.startswith(f"environment {ENV} has no device gate")


@pytest.mark.usefixtures("bpf")
def test_an_engine_that_is_not_roots_starts_no_container(
    gate: Gate, make_probe: Callable[[], Probe], capfd: pytest.CaptureFixture[str]
) -> None:
    state = state_of(make_probe().pid).encode()
    child = os.fork()
    if child == 0:
        os.setgid(65_534)
        os.setuid(65_534)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os._exit(gate_hook.main([str(gate.run_dir), ENV], state))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert "only root's container engine can shut its device gate" in capfd.readouterr().err


@pytest.mark.usefixtures("bpf")
def test_a_dead_process_starts_no_container(gate: Gate, make_probe: Callable[[], Probe]) -> None:
    probe = make_probe()
    probe.close()
    assert run(hook_of(gate), state_of(probe.pid)) == (
        1,
        f"its process {probe.pid} has ended: start it again",
    )


@pytest.mark.parametrize("arguments", [[], ["/run"], ["/run", "../x"], ["/run", "alice", "bob"]])
def test_other_arguments_start_no_container(arguments: list[str]) -> None:
    code, said = run([*refusing(Path("/"))[:4], *arguments], state_of(2))
    assert code == 1
    assert said.startswith("usage: ")
