"""Faults around the manager: disks, descriptors, a second manager, settings, garbage packets."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.edge.store.database import FILE_NAME
from nodemgr.simulator import SimulatedNode
from tests.node.programs import finish, said
from tests.session import TMP
from tests.support.manager import ROOT, WAIT_LIMIT_S, Manager
from tests.support.udp_clients import FakeClient

GIB = 2**30
Make = Callable[..., Manager]


def serve(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A manager that is expected not to start."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("NODEMGR_")
    }
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", "serve", *options],
        cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True,
        timeout=WAIT_LIMIT_S,
    )  # fmt: skip


# -- the manager does not start, and says why in one line --


def test_a_second_manager_on_one_run_directory_is_refused(make_manager: Make) -> None:
    first = make_manager()
    second = serve(
        "--simulate",
        "4x80GiB",
        "--run-dir",
        str(first.run_dir),
        "--state-dir",
        str(first.directory / "other"),
    )
    assert second.returncode == 1
    assert f"another manager (pid {first.pid}) runs on {first.run_dir}" in second.stderr
    assert second.stderr.count("\n") == 1
    assert first.call("ping")["pid"] == first.pid


def test_two_managers_cannot_share_a_store(make_manager: Make) -> None:
    first = make_manager()
    second = serve(
        "--simulate",
        "4x80GiB",
        "--run-dir",
        str(first.directory / "other"),
        "--state-dir",
        str(first.state_dir),
    )
    assert second.returncode == 1
    assert f"another manager (pid {first.pid}) keeps its state" in second.stderr


def test_a_run_directory_too_deep_for_sockets_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        refused = serve(
            "--simulate",
            "1x8GiB",
            "--run-dir",
            f"{directory}/{'d' * 100}",
            "--state-dir",
            f"{directory}/state",
        )
    assert (refused.returncode, "choose a shorter --run-dir" in refused.stderr) == (1, True)


def test_an_env_whose_socket_would_be_too_deep_is_refused(make_manager: Make) -> None:
    manager = make_manager(start=False)
    manager.run_dir = manager.directory / ("d" * 40)
    manager.start()
    with pytest.raises(Fault, match="choose a shorter --run-dir"):
        manager.quota("e" * 60, 1)
    assert manager.call("quota_show")["quotas"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--simulate", "4x80"], "bare number"),
        (["--simulate", "99x8GiB"], "a node has 1 to 16 GPUs"),
        (["--simulate", "1x8GiB", "--udp", "here"], "HOST:PORT"),
        (["--simulate", "1x8GiB", "--config", "/nowhere/config.toml"], "cannot be read"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_options_are_usage_errors(options: list[str], message: str) -> None:
    refused = serve(*options)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_node_without_a_driver_is_said_with_its_cure() -> None:
    """Where a driver is, this machine has one."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        refused = serve("--run-dir", f"{directory}/run", "--state-dir", f"{directory}/state")
    assert refused.returncode == 1
    assert "--simulate 4x80GiB" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_an_address_that_is_taken_is_said(make_manager: Make) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken,
        tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory,
    ):
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = serve(
            "--simulate",
            "1x8GiB",
            "--udp",
            address,
            "--run-dir",
            f"{directory}/run",
            "--state-dir",
            f"{directory}/state",
        )
    assert (refused.returncode, "in use" in refused.stderr) == (1, True)


def test_a_damaged_store_is_refused_and_left_alone(make_manager: Make) -> None:
    manager = make_manager()
    assert manager.stop() == 0
    path = manager.state_dir / FILE_NAME
    path.write_bytes(b"rubbish" * 5_000)
    refused = serve(
        "--simulate",
        "4x80GiB",
        "--run-dir",
        str(manager.run_dir),
        "--state-dir",
        str(manager.state_dir),
    )
    assert (refused.returncode, "does not start on it" in refused.stderr) == (1, True)
    assert path.read_bytes() == b"rubbish" * 5_000


# -- the manager's own life --


def test_a_service_manager_is_told_of_start_life_and_end(make_manager: Make) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        listener.bind(f"{directory}/notify")
        listener.settimeout(WAIT_LIMIT_S)
        manager = make_manager(
            environment={"NOTIFY_SOCKET": f"{directory}/notify", "WATCHDOG_USEC": "200000"}
        )
        assert [listener.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        os.kill(manager.pid, signal.SIGTERM)
        while listener.recv(100) != b"STOPPING=1":  # meanwhile: a full queue takes no word
            pass
        assert manager.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_when_told(make_manager: Make, number: signal.Signals) -> None:
    manager = make_manager()
    os.kill(manager.pid, number)
    assert manager.wait() == 0


def test_a_simulated_node_of_another_shape_waits_for_the_clients_of_the_old(
    make_manager: Make,
) -> None:
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 1)
    program = manager.hold("alice")
    said(program)
    manager.kill()
    refused = serve(
        "--simulate",
        "1x4GiB",
        "--run-dir",
        str(manager.run_dir),
        "--state-dir",
        str(manager.state_dir),
    )
    assert (refused.returncode, "clients still use a node of 2 devices" in refused.stderr) == (
        1,
        True,
    )
    finish(program)
    manager.options = ["--simulate", "1x4GiB"]
    manager.start()
    assert [gpu["memory_total_bytes"] for gpu in manager.status()["gpus"]] == [4 * GIB]


# -- a full disk --


def test_a_disk_that_fills_up_refuses_grants_and_lets_releases_through(make_manager: Make) -> None:
    """The kernel lets no file of the manager grow any more, as a full disk does."""
    manager = make_manager(simulate="2x8GiB")
    for env in ("alice", "bob"):
        manager.quota(env, 2)
    events = manager.events()
    holder = manager.hold("alice")
    said(holder)
    resource.prlimit(manager.pid, resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
    refused = manager.hold("bob", NODEMGR_GPUS="1")
    code, stderr = finish(refused)
    assert code == 3
    assert "cannot store a grant now" in stderr
    assert finish(holder) == (0, "")
    events.expect("store.failed")
    events.expect("task.ended", env="alice")
    status = manager.status()
    assert (status["tasks"], status["store"]["state"]) == ([], "failing")
    assert not next(
        check for check in manager.call("doctor")["checks"] if check["name"] == "store"
    )["ok"]
    resource.prlimit(
        manager.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    events.expect("store.recovered")
    late = manager.hold("bob", NODEMGR_GPUS="1")
    assert said(late)["error"] is None
    manager.restart()
    assert [allocation["env"] for allocation in manager.call("allocations")["allocations"]] == [
        "alice",
        "bob",
    ]
    assert manager.call("allocations", env="alice")["allocations"][0]["ended_wall_ns"] is not None


# -- descriptors --


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))


def test_when_descriptors_run_out_old_clients_live_and_new_ones_wait(
    make_manager: Make, make_client: Callable[..., FakeClient]
) -> None:
    manager = make_manager(simulate="1x8GiB", before_exec=_few_descriptors)
    manager.quota("alice", 1)
    old = make_client(manager.env_dir("alice"))
    old.acquire(1)
    crowd = []
    for _ in range(60):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(manager.env_dir("alice") / "socket"))
        crowd.append(sock)
    new = make_client(manager.env_dir("alice"))
    new.ask(1)
    manager.wait_for_line("descriptors are exhausted")
    assert new.receive(timeout_s=0.2) is None
    old.beat()
    old.send("ASK", rid=1, what="status")
    assert "alice" in old.expect("PART")["data"]
    assert manager.status()["counters"]["descriptors_exhausted"] >= 1
    for sock in crowd:
        sock.close()
    new.expect("GRANT")


# -- rubbish --


def test_rubbish_is_counted_and_harms_nobody(
    make_manager: Make, make_client: Callable[..., FakeClient]
) -> None:
    manager = make_manager(options=["--udp", "127.0.0.1:0"])
    manager.quota("alice", 4)
    program = manager.hold("alice")
    said(program)
    client = make_client(manager.env_dir("alice"))
    for text in (
        "",
        "rubbish",
        "NODEMGR/1 ACQUIRE\n",
        "NODEMGR/1 BEAT\ntask=" + "a" * 2_000 + "\n",
        "\xff" * 1_000,
    ):
        client.order("send", text=text)
    host, port = manager.status()["manager"]["udp"].rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for packet in (
            b"",
            b"rubbish",
            b"NODEMGR/1 HELLO\nenv=alice\nrid=1\nclient=ab\ncounter=1\n",
            os.urandom(9_000),
        ):
            udp.sendto(packet, (host, int(port)))
    client.acquire(1)
    counters = manager.status()["counters"]
    deadline = time.monotonic() + WAIT_LIMIT_S
    while counters["packets_malformed"] < 5 + 3 and time.monotonic() < deadline:
        # datagrams come by another socket
        counters = manager.status()["counters"]
    assert counters["packets_malformed"] == 5 + 3
    assert counters["packets_forged"] == 1
    assert finish(program) == (0, "")


def test_an_idle_manager_hears_at_once_of_a_device_that_is_lost_or_back(make_manager: Make) -> None:
    """No holder and no waiter, so no reading happens by itself: the simulated node reports."""
    manager = make_manager(simulate="2x8GiB")
    events = manager.events(since=None)
    with SimulatedNode.open(manager.run_dir / "sim") as node:
        node.lose(1)
        lost = events.expect("gpu.lost")
        node.restore(1)
        assert events.expect("gpu.restored")["gpus"] == lost["gpus"]


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_the_shared_file_of_a_simulated_node_is_destroyed(make_manager: Make, damage: str) -> None:
    """Each process of the node may write it. The manager lives and reports the GPUs as lost."""
    manager = make_manager(simulate="2x8GiB")
    events = manager.events(since=None)
    path = manager.run_dir / "sim" / "node.state"
    if damage == "truncated":
        os.truncate(path, 0)
    else:
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
    os.utime(path)
    lost = [events.expect("gpu.lost")["gpus"] for _ in range(2)]
    status = manager.status()
    assert sorted(lost) == sorted([gpu["uuid"]] for gpu in status["gpus"])
    assert {gpu["state"] for gpu in status["gpus"]} == {"lost"}
    assert status["manager"]["pid"] == manager.pid
    lines = manager.log.count("truncated the state file of the simulated node")
    assert lines == (damage == "truncated")
    manager.restart()
    assert {gpu["state"] for gpu in manager.status()["gpus"]} == {"healthy"}
