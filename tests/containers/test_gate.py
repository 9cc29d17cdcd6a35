"""The device gate before real containers: it opens only the GPUs that the env holds.

There is no NVIDIA driver behind the nodes: where the gate is open the kernel says ENXIO, where it
is shut EPERM, and the simulated driver passes over what is shut. The containers also make nodes
themselves, and their runtime allows them all of NVIDIA's numbers: the gate alone stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.ebpf import prepare_bpf
from nodemgr.edge.gate.state_files import Records
from nodemgr.paths import container_dir
from tests.containers import podman
from tests.containers.podman import Containers
from tests.support.limits import until
from tests.support.manager import HOLD, ROOT, Manager

FREE = ("--cap-add=MKNOD", "--device-cgroup-rule=c 195:* rwm")
TRY = """
for minor in 0 1 255; do
    [ -e /dev/try$minor ] || mknod /dev/try$minor c 195 $minor || echo "no node $minor"
    (exec 3<>/dev/try$minor) 2>&1 | sed "s/.*: /$minor: /"
done
"""
SHUT, OPEN = "Operation not permitted", "No such device or address"


@pytest.fixture
def node(make_manager: Callable[..., Manager], kind: str, gate_possible: None) -> Iterator[Manager]:
    """A manager on two simulated GPUs, with a gate before their nodes all the same."""
    variables = {
        "NODEMGR_CDI_DIR": str(podman.CDI_DIR),
        "NODEMGR_CDI_KIND": kind,
        "NODEMGR_DEVICE_GATE": "on",
    }
    made = make_manager(simulate="2x16GiB", environment=variables)
    made.quota("alice", 1)
    made.quota("bob", 1)
    yield made
    (podman.CDI_DIR / (kind.partition(".")[0] + ".json")).unlink(missing_ok=True)
    if made.process is not None:
        made.kill()
    Gate(made.run_dir, lambda name, **fields: None).keep_only(())


@pytest.fixture
def gate_possible() -> None:
    if (fault := prepare_bpf()) is not None:
        pytest.skip(fault)


def opened(said: str) -> list[int]:
    """The opened ones of GPU 0 and 1, from the output of TRY; the control node is always open."""
    answers = dict(line.split(": ", 1) for line in said.splitlines())
    assert answers.pop("255") == OPEN, said
    assert set(answers.values()) <= {SHUT, OPEN}, said
    return [int(minor) for minor, answer in answers.items() if answer == OPEN]


def tried(containers: Containers, box: str, *options: str) -> list[int]:
    code, said = containers.execute(box, "/bin/sh", "-c", TRY, options=options)
    assert code == 0, said
    return opened(said)


def test_the_first_process_of_a_container_finds_the_gate_shut(
    node: Manager, containers: Containers
) -> None:
    """Also one that is privileged."""
    for options in (FREE, ("--privileged",)):
        code, out, said = containers.run("alice", "/bin/sh", "-c", TRY, options=options)
        assert code == 0, said
        assert opened(out) == []


def test_a_container_opens_what_its_env_holds_and_no_other_container_does(
    node: Manager, containers: Containers
) -> None:
    """Also by podman exec and in cgroups below, and no longer than the lease."""
    alice, bob = containers.start("alice", *FREE), containers.start("bob", *FREE)
    events = node.events()
    holder = containers.spawn(alice, str(HOLD))
    holder.json()
    task = events.expect("task.granted", env="alice")["task"]
    held = node.task(task)["gpu_indices"]
    assert tried(containers, alice) == tried(containers, alice, "--privileged") == held
    assert tried(containers, bob) == []
    assert holder.end()[0] == 0
    events.expect("task.ended", task=task)
    assert tried(containers, alice) == []


NVML = """
import ctypes
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
handle, count = ctypes.c_void_p(), ctypes.c_int(-1)
def look():
    counted = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return counted, count.value, nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
print("nvml", nvml.nvmlInit_v2(), *look())
print("cuda", cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
print("nvml", *look())
"""
SUCCESS, NO_PERMISSION = 0, 4


def test_a_program_counts_before_its_lease_what_it_finds_after(
    node: Manager, containers: Containers
) -> None:
    """Else it would never ask: NVML may touch no GPU yet, and the driver finds the lease's open."""
    code, out, said = containers.run("alice", "/usr/bin/python3", "-c", NVML)
    assert code == 0, said
    before, driver, after = out.splitlines()
    assert before == f"nvml {SUCCESS} {SUCCESS} 1 {NO_PERMISSION}"
    assert driver == "cuda 0 0 1"
    assert after == f"nvml {SUCCESS} 1 {SUCCESS}"


def test_a_second_task_finds_the_gate_open_as_far_as_its_own_lease(
    node: Manager, containers: Containers
) -> None:
    """The driver numbers the GPUs that the process may open; the lease names its GPUs by UUID."""
    node.quota("alice", 2)
    box = containers.start("alice")
    first, second = (containers.spawn(box, "env", "NODEMGR_GPUS=1", str(HOLD)) for _ in range(2))
    assert first.json()["devices"] == second.json()["devices"] == 1
    assert len({gpu for task in node.status()["tasks"] for gpu in task["gpus"]}) == 2


def test_who_drops_our_preload_and_never_connects_opens_nothing(
    node: Manager, containers: Containers
) -> None:
    """While another env, and then another task of the node, hold GPUs."""
    events = node.events()
    holder = containers.spawn(containers.start("bob"), str(HOLD))
    holder.json()
    events.expect("task.granted", env="bob")
    hostile = (
        "set -e; umount /etc/ld.so.preload /run/nodemgr-env; test ! -s /etc/ld.so.preload;" + TRY
    )
    code, out, said = containers.run(
        "alice", "/bin/sh", "-c", hostile, options=[*FREE, "--cap-add=SYS_ADMIN"]
    )
    assert code == 0, said
    assert opened(out) == []


def test_a_cgroup_of_its_own_is_no_way_out(node: Manager, containers: Containers) -> None:
    """A container that may mount cgroups moves below its own cgroup, or unshares namespaces."""
    deeper = (
        "set -e; mkdir /tmp/c; mount -t cgroup2 none /tmp/c; mkdir /tmp/c/deeper; echo $$ >"
        " /tmp/c/deeper/cgroup.procs;" + TRY
    )
    code, out, said = containers.run(
        "alice", "/bin/sh", "-c", deeper, options=["--privileged", "--cgroupns=private"]
    )
    assert code == 0, said
    assert opened(out) == []
    elsewhere = ["unshare", "--mount", "--cgroup", "--pid", "--fork", "/bin/sh", "-c", TRY]
    code, out, said = containers.run("alice", *elsewhere, options=["--privileged"])
    assert code == 0, said
    assert opened(out) == []


def test_the_gate_stands_without_its_manager(node: Manager, containers: Containers) -> None:
    alice = containers.start("alice", *FREE)
    holder = containers.spawn(alice, str(HOLD))
    holder.json()
    held = node.status()["tasks"][0]["gpu_indices"]
    node.kill()
    assert tried(containers, alice) == held
    late = containers.start("bob", *FREE)
    assert tried(containers, late) == []
    holder.close()
    containers.execute(alice, "/bin/sh", "-c", f"pkill -x {HOLD.name}")
    node.start()
    until(lambda: not node.status()["tasks"], "the dead holder is found")
    assert tried(containers, alice) == []
    again = containers.spawn(late, str(HOLD))
    again.json()
    assert len(tried(containers, late)) == 1


def test_a_container_whose_gate_cannot_be_shut_does_not_start(
    node: Manager, containers: Containers
) -> None:
    Records(node.run_dir, "alice").remove()
    code, out, said = containers.run("alice", "/bin/echo", "started")
    assert code != 0
    assert "started" not in out
    assert "the container is not started: environment alice has no device gate" in said


def test_the_doctor_inside_says_whether_the_gate_is_there(
    node: Manager, containers: Containers
) -> None:
    """It is not before a container that came in by a mount alone, without the env's device."""
    box = containers.start("alice", *FREE)
    assert (
        "shut, except for the GPUs that the environment holds"
        in containers.execute(box, "nodemgr", "doctor")[1]
    )
    other = containers.start(
        None, f"--volume={container_dir(node.run_dir, 'alice')}:/run/nodemgr-env:ro"
    )
    assert (
        "not before this container"
        in containers.execute(other, str(ROOT / "client_plugin" / "bin" / "nodemgr"), "doctor")[1]
    )
