"""NVML on the node, through nvidia-ml-py; through ctypes where buffers matter."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.simulator import CLIENT_LIBRARIES, SimulatedNode
from tests.sim.client import refused
from tests.sim.conftest import GIB, MIB, StartClient
from tests.support.limits import WAIT_LIMIT_S

UNINITIALIZED, INVALID_ARGUMENT, NOT_FOUND, INSUFFICIENT_SIZE, NOT_LOADED, LOST, VERSION = (
    1,
    2,
    6,
    7,
    9,
    15,
    25,
)


class Nvml:
    """The library of one node in this process; each node has its own file, to load several."""

    def __init__(self, node: SimulatedNode) -> None:
        self._library = ctypes.CDLL(str(node.directory / CLIENT_LIBRARIES[1]))

    def __call__(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._library, function)(*arguments))

    def ready(self) -> Nvml:
        assert self("nvmlInit_v2") == 0
        return self

    def device(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)) == 0
        return handle


# Run where nvidia-ml-py is; prints what a monitor would see.
VIEW = """
import ctypes, json, pynvml as n
n.nvmlInit()
def address(handle):
    return ctypes.cast(handle, ctypes.c_void_p).value
devices = []
for index in range(n.nvmlDeviceGetCount()):
    handle = n.nvmlDeviceGetHandleByIndex(index)
    memory, second = n.nvmlDeviceGetMemoryInfo(handle), n.nvmlDeviceGetMemoryInfo(handle,
        n.nvmlMemory_v2)
    use = n.nvmlDeviceGetUtilizationRates(handle)
    kind, samples = n.nvmlDeviceGetSamples(handle, n.NVML_GPU_UTILIZATION_SAMPLES, 5)
    assert kind == n.NVML_VALUE_TYPE_UNSIGNED_INT
    assert [(each.timeStamp > 5, each.sampleValue.uiVal) for each in samples] == [(True, use.gpu)]
    heat, power = n.nvmlDeviceGetTemperature(handle, 0), n.nvmlDeviceGetPowerUsage(handle)
    devices.append({
        "uuid": n.nvmlDeviceGetUUID(handle), "name": n.nvmlDeviceGetName(handle),
        "index": n.nvmlDeviceGetIndex(handle),
        "bus": n.nvmlDeviceGetPciInfo(handle).busId,
        "memory": [memory.total, memory.used, memory.free],
        "memory_v2": [second.total, second.reserved, second.used, second.free],
        "use": [use.gpu, use.memory], "heat": heat, "power": power,
        "processes": {
            p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(handle)
        },
        "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        "same": {address(handle)} == {
            address(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(handle))),
            address(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(handle).busId)),
        },
    })
print(json.dumps({"devices": devices, "driver": n.nvmlSystemGetDriverVersion()}))
"""


def view(node: SimulatedNode, **environment: str) -> list[dict[str, Any]]:
    pytest.importorskip("pynvml")
    everything = {**os.environ, **node.environment(), **environment}
    output = subprocess.run(
        [sys.executable, "-c", VIEW],
        env=everything,
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    devices: list[dict[str, Any]] = json.loads(output.stdout)["devices"]
    return devices


def test_a_monitor_sees_what_the_driver_says(
    costly_node: SimulatedNode, start: StartClient
) -> None:
    client = start(costly_node)
    client.ready(1)
    client.alloc(100 * MIB)
    costly_node.set_utilisation(1, 87, 12)
    costly_node.set_temperature(1, 71)
    costly_node.set_power(1, 412.5)

    first, second = view(costly_node, CUDA_VISIBLE_DEVICES="")

    assert first["processes"] == {}
    assert first["memory"] == [GIB, 0, GIB]
    assert second["processes"] == {str(client.pid): 132 * MIB}
    assert second["memory"] == [GIB, 132 * MIB, GIB - 132 * MIB]
    assert second["memory_v2"] == [GIB, 0, 132 * MIB, GIB - 132 * MIB]
    assert second["use"] == [87, 12]
    assert (second["heat"], second["power"]) == (71, 412_500)
    assert second["uuid"] == client.uuid(1) == costly_node.books()[1].uuid
    assert second["bus"].lower().endswith(client.pci(1)[4:])
    assert second["index"] == 1
    assert second["graphics"] == 0
    assert second["same"]


def test_a_killed_process_is_gone_at_the_next_audit(
    node: SimulatedNode, ready: StartClient
) -> None:
    client = ready(node)
    client.alloc(100 * MIB)
    assert view(node)[0]["processes"] == {str(client.pid): 100 * MIB}
    client.kill()
    assert view(node)[0]["processes"] == {}
    assert view(node)[0]["memory"] == [GIB, 0, GIB]


def test_reserved_memory_is_used_in_one_figure_and_told_separately_in_the_other(
    tmp_path: Path,
) -> None:
    from nodemgr import simulator

    with simulator.create(tmp_path / "n", 1, GIB, reserved_bytes=10 * MIB) as node:
        (device,) = view(node)
    assert device["memory"] == [GIB, 10 * MIB, GIB - 10 * MIB]
    assert device["memory_v2"] == [GIB, 10 * MIB, 0, GIB - 10 * MIB]


@pytest.mark.parametrize(("suffix", "record"), [("", 16), ("_v2", 24), ("_v3", 24)])
def test_process_lists_keep_to_their_buffers(
    node: SimulatedNode, start: StartClient, suffix: str, record: int
) -> None:
    clients = [start(node) for _ in range(3)]
    for client in clients:
        client.ready()
        client.alloc(client.pid)
    nvml = Nvml(node).ready()
    function, device = "nvmlDeviceGetComputeRunningProcesses" + suffix, nvml.device(0)

    count = ctypes.c_uint(0)
    assert nvml(function, device, ctypes.byref(count), None) == INSUFFICIENT_SIZE
    assert count.value == 3
    count.value = 2
    small = ctypes.create_string_buffer(b"\xaa" * 2 * record)
    assert nvml(function, device, ctypes.byref(count), small) == INSUFFICIENT_SIZE
    assert small.raw[:-1] == b"\xaa" * 2 * record

    count.value = 5
    buffer = ctypes.create_string_buffer(b"\xaa" * 5 * record)
    assert nvml(function, device, ctypes.byref(count), buffer) == 0
    assert count.value == 3
    rows = [buffer.raw[n * record : (n + 1) * record] for n in range(3)]
    shown = {int.from_bytes(row[:4], "little"): int.from_bytes(row[8:16], "little") for row in rows}
    assert shown == {client.pid: client.pid for client in clients}
    assert buffer.raw[3 * record : 5 * record] == b"\xaa" * 2 * record
    assert all(row[16:] in (b"", b"\xff" * 8) for row in rows)

    other = ctypes.c_uint(0)
    assert nvml(function, nvml.device(1), ctypes.byref(other), None) == 0
    assert other.value == 0


def test_nothing_is_answered_before_init_or_after_shutdown(node: SimulatedNode) -> None:
    nvml = Nvml(node)
    count, handle = ctypes.c_uint(), ctypes.c_void_p()
    assert nvml("nvmlDeviceGetCount_v2", ctypes.byref(count)) == UNINITIALIZED
    assert nvml("nvmlShutdown") == UNINITIALIZED

    nvml.ready().ready()
    assert nvml("nvmlShutdown") == 0
    assert nvml("nvmlDeviceGetCount_v2", ctypes.byref(count)) == 0
    assert nvml("nvmlShutdown") == 0
    assert nvml("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle)) == UNINITIALIZED


def test_wrong_arguments(node: SimulatedNode) -> None:
    nvml = Nvml(node).ready()
    handle, out = ctypes.c_void_p(), ctypes.create_string_buffer(64)
    assert nvml("nvmlDeviceGetHandleByIndex_v2", 2, ctypes.byref(handle)) == INVALID_ARGUMENT
    assert (
        nvml("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(-1), ctypes.byref(handle))
        == INVALID_ARGUMENT
    )
    assert nvml("nvmlDeviceGetHandleByIndex_v2", 0, None) == INVALID_ARGUMENT
    assert nvml("nvmlDeviceGetHandleByUUID", b"GPU-00000000", ctypes.byref(handle)) == NOT_FOUND
    assert (
        nvml("nvmlDeviceGetHandleByPciBusId_v2", b"nonsense", ctypes.byref(handle))
        == INVALID_ARGUMENT
    )
    assert (
        nvml("nvmlDeviceGetHandleByPciBusId_v2", b"0000:FF:00.0", ctypes.byref(handle)) == NOT_FOUND
    )
    assert nvml("nvmlDeviceGetMemoryInfo", ctypes.c_void_p(12345), out) == INVALID_ARGUMENT
    assert nvml("nvmlDeviceGetMemoryInfo", None, out) == INVALID_ARGUMENT
    assert nvml("nvmlDeviceGetMemoryInfo", nvml.device(0), None) == INVALID_ARGUMENT
    assert nvml("nvmlDeviceGetMemoryInfo_v2", nvml.device(0), out) == VERSION
    assert nvml("nvmlDeviceGetName", nvml.device(0), out, 3) == INSUFFICIENT_SIZE
    assert nvml("nvmlDeviceGetUUID", nvml.device(0), out, 40) == INSUFFICIENT_SIZE
    assert nvml("nvmlDeviceGetUUID", nvml.device(0), out, 41) == 0


def test_a_lost_device_answers_nothing_but_is_counted(node: SimulatedNode) -> None:
    nvml = Nvml(node).ready()
    device, handle, out = nvml.device(0), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    uuid = node.books()[0].uuid.encode()

    node.lose(0)

    count = ctypes.c_uint()
    assert nvml("nvmlDeviceGetCount_v2", ctypes.byref(count)) == 0
    assert count.value == 2
    for answer in (
        nvml("nvmlDeviceGetMemoryInfo", device, out),
        nvml("nvmlDeviceGetUUID", device, out, 96),
        nvml("nvmlDeviceGetUtilizationRates", device, out),
        nvml("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None),
        nvml("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle)),
        nvml("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(handle)),
    ):
        assert answer == LOST
    assert nvml("nvmlDeviceGetMemoryInfo", nvml.device(1), out) == 0

    node.restore(0)
    assert nvml("nvmlDeviceGetMemoryInfo", device, out) == 0


def test_driver_and_monitor_in_one_process(node: SimulatedNode, ready: StartClient) -> None:
    """Both libraries have a descriptor of the node; the close of one frees no held memory."""
    client = ready(node)
    client.alloc(MIB)
    client.monitor()
    client.monitor()
    assert node.books()[0].used_bytes == MIB
    (listed,) = node.books()[0].processes
    assert listed.pid == client.pid


def test_without_a_node_there_is_no_driver(node: SimulatedNode, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in CLIENT_LIBRARIES:
        (elsewhere / name).write_bytes((node.directory / name).read_bytes())

    assert ctypes.CDLL(str(elsewhere / CLIENT_LIBRARIES[1])).nvmlInit_v2() == NOT_LOADED
    assert ctypes.CDLL(str(elsewhere / CLIENT_LIBRARIES[0])).cuInit(0) == 100
    (elsewhere / "node.state").write_bytes(b"garbage" * 1000)
    assert ctypes.CDLL(str(elsewhere / CLIENT_LIBRARIES[1])).nvmlInit_v2() == NOT_LOADED
    assert ctypes.CDLL(str(elsewhere / CLIENT_LIBRARIES[0])).cuInit(0) == 100


# -- a cgroup's share of a device --

NO_LIMIT = (1 << 64) - 1
OPERATING_SYSTEM, PERMISSION = 17, 4


class Limits(ctypes.Structure):
    _fields_ = (
        ("cgroup", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),  # of the structure that Get fills
    )


def set_limit(
    nvml: Nvml, device: ctypes.c_void_p, cgroup: Path, hard_bytes: int, soft_bytes: int = 0
) -> int:
    return nvml(
        "nvmlDeviceSetMemoryLimits_v1",
        device,
        ctypes.byref(Limits(os.fsencode(cgroup), soft_bytes, hard_bytes)),
    )


def limits(nvml: Nvml, device: ctypes.c_void_p, cgroup: Path) -> tuple[int, int, int] | int:
    """(soft, hard, used), or the error."""
    out = Limits(os.fsencode(cgroup), 1, 1, 1)
    code = nvml("nvmlDeviceGetMemoryLimits_v1", device, ctypes.byref(out))
    return code or (out.soft, out.hard, out.used)


def test_a_cgroups_processes_together_keep_to_its_hard_limit(
    node: SimulatedNode, start: StartClient, tmp_path: Path
) -> None:
    nvml, inner = Nvml(node).ready(), tmp_path / "c" / "inner"
    inner.mkdir(parents=True)
    cgroup = inner.parent
    early, below, outside = (start(node, **where) for where in ({"NODEMGR_SIM_CGROUP": str(cgroup)},
                             {"NODEMGR_SIM_CGROUP": str(inner)}, {}))  # fmt: skip
    for client in (early, below, outside):
        client.ready(0)
    early.alloc(60 * MIB)
    assert set_limit(nvml, nvml.device(0), cgroup, 100 * MIB, 10 * MIB) == 0
    assert limits(nvml, nvml.device(0), cgroup) == (10 * MIB, 100 * MIB, 60 * MIB)
    assert limits(nvml, nvml.device(1), cgroup) == NOT_FOUND

    with refused("OUT_OF_MEMORY"):
        below.alloc(41 * MIB)
    below.alloc(40 * MIB)
    with refused("OUT_OF_MEMORY"):
        early.alloc(1)
    outside.alloc(500 * MIB)
    below.kill()
    early.alloc(40 * MIB)
    assert limits(nvml, nvml.device(0), cgroup) == (10 * MIB, 100 * MIB, 100 * MIB)

    assert set_limit(nvml, nvml.device(0), cgroup, NO_LIMIT) == 0
    early.alloc(100 * MIB)
    assert limits(nvml, nvml.device(0), cgroup) == NOT_FOUND
    assert node.books()[0].used_bytes == 700 * MIB


def test_a_limit_goes_with_its_cgroup(node: SimulatedNode, tmp_path: Path) -> None:
    nvml = Nvml(node).ready()
    for number in range(200):  # more than can be limited at one time
        cgroup = tmp_path / str(number)
        cgroup.mkdir()
        assert set_limit(nvml, nvml.device(0), cgroup, 100 * MIB) == 0
        cgroup.rmdir()


def test_limits_that_cannot_be(node: SimulatedNode, tmp_path: Path) -> None:
    nvml = Nvml(node).ready()
    device = nvml.device(0)
    assert set_limit(nvml, device, tmp_path, 100, 101) == INVALID_ARGUMENT
    assert set_limit(nvml, device, tmp_path, GIB + 1) == INVALID_ARGUMENT
    assert set_limit(nvml, device, tmp_path / "missing", GIB) == OPERATING_SYSTEM
    assert limits(nvml, device, tmp_path / "missing") == OPERATING_SYSTEM
    assert nvml("nvmlDeviceSetMemoryLimits_v1", device, None) == INVALID_ARGUMENT
    assert nvml("nvmlDeviceGetMemoryLimits_v1", device, None) == INVALID_ARGUMENT
    assert (
        nvml("nvmlDeviceSetMemoryLimits_v1", device, ctypes.byref(Limits(None, 0, GIB)))
        == INVALID_ARGUMENT
    )
    assert limits(nvml, device, tmp_path) == NOT_FOUND


SET_AS_NOBODY = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
handle = ctypes.c_void_p()
assert library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0,
    ctypes.byref(handle)) == 0
os.setuid(65534)
class Limits(ctypes.Structure):
    _fields_ = [("cgroup", ctypes.c_char_p), ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong)]
print(library.nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(Limits(b"/", 0, 1 << 20))))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: becomes another user")
def test_only_the_nodes_owner_sets_limits(node: SimulatedNode) -> None:
    command = [sys.executable, "-S", "-c", SET_AS_NOBODY, str(node.directory / CLIENT_LIBRARIES[1])]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=True
    )
    assert int(finished.stdout) == PERMISSION


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    root = next(
        (
            root
            for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
            if (root / "cgroup.procs").exists()
        ),
        None,
    )
    cgroup = None if root is None else root / f"nodemgr-test-{os.getpid()}"
    try:
        assert cgroup is not None
        cgroup.mkdir()
    except (AssertionError, OSError):
        pytest.skip("cannot make a cgroup here: needs root and cgroup v2")
    yield cgroup
    cgroup.rmdir()


def test_a_process_moved_into_a_cgroup_counts_there(
    node: SimulatedNode, start: StartClient, real_cgroup: Path
) -> None:
    nvml, client = Nvml(node).ready(), start(node)
    client.ready(0)
    client.alloc(50 * MIB)
    assert set_limit(nvml, nvml.device(0), real_cgroup, 100 * MIB) == 0
    client.alloc(60 * MIB)
    (real_cgroup / "cgroup.procs").write_text(str(client.pid))
    with refused("OUT_OF_MEMORY"):
        client.alloc(1)
    client.kill()


class Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


def measured(nvml: Nvml, index: int) -> tuple[int, dict[int, int]]:
    """The utilisation of a device, and of its processes."""
    rates, count = (ctypes.c_uint * 2)(), ctypes.c_uint(16)
    samples = (Sample * 16)()
    handle = nvml.device(index)
    assert nvml("nvmlDeviceGetUtilizationRates", handle, rates) == 0
    since = ctypes.c_ulonglong(0)
    nvml("nvmlDeviceGetProcessUtilization", handle, samples, ctypes.byref(count), since)
    return rates[0], {each.pid: each.sm for each in samples[: count.value]}


def test_utilisation_is_the_time_of_kernels(node: SimulatedNode, start: StartClient) -> None:
    nvml = Nvml(node).ready()
    clients = [start(node) for _ in range(2)]
    for client in clients:
        client.ready()
    idle = {client.pid: 0 for client in clients}
    assert measured(nvml, 0) == (0, idle)
    for client in clients:
        client.launch(client.timed_kernel("sleep_ms_100000000"))
    while True:  # kernels began within a period, one of them before the other
        whole, shares = measured(nvml, 0)
        if whole == 100 and min(shares.values()) >= 49:
            break
    assert max(shares.values()) <= 51, "turns of 2 ms in 250"
    assert measured(nvml, 1)[0] == 0

    node.set_utilisation(0, 30)
    assert measured(nvml, 0) == (30, {client.pid: 15 for client in clients})
    node.set_utilisation(0, None)
    assert measured(nvml, 0)[0] == 100
    for client in clients:
        client.kill()
    while measured(nvml, 0)[0] > 0:
        pass
    assert measured(nvml, 0) == (0, {})
