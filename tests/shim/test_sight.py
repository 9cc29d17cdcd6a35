"""NVML's view in an env: its own GPUs, numbered as CUDA numbers them; its quota; its processes.

Each row of NVML in csrc/hooks/hooks.def has a check here that is red without it. Three GPUs; the
env's task holds the last two, in one of which a stranger, no process of the env, has memory too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

import pytest

from csrc.sim.names import nvml_names, read_nvml_names
from tests.shim.world import GIB, MIB, Probe, World, hooks
from tests.sim import headers

INVALID_ARGUMENT, NOT_FOUND, INSUFFICIENT_SIZE, GPU_NOT_FOUND = 2, 6, 7, 28
NO_DEVICE = 100
OWN = 100 * MIB
Check = Callable[[Probe, World], None]


@pytest.fixture
def env(make_world: Callable[..., World]) -> World:
    world = make_world(devices=3)
    world.manager.granted = world.uuids[1:]
    for row in range(3):
        world.manager.set_limit(GIB if row else 0, row)
    world.manager.write_conf()
    return world


@pytest.fixture
def mode() -> str:
    return "compute"


@pytest.fixture
def stranger(env: World, mode: str) -> Iterator[Probe]:
    env.environ |= {"NODEMGR_SIM_MODE": mode, "CUDA_VISIBLE_DEVICES": env.uuids[1]}
    with env.probe(shim=False, managed=False) as probe:
        del env.environ["CUDA_VISIBLE_DEVICES"]
        probe.memory(50 * MIB)
        yield probe


def handle(probe: Probe, index: int = 0) -> int:
    out = probe.alloc(8)
    assert probe.call("nvmlInit_v2") == 0
    assert probe.call("nvmlDeviceGetHandleByIndex_v2", index, out) == 0
    return probe.u64(out)


def uuid(probe: Probe, device: int) -> str:
    out = probe.alloc(96)
    assert probe.call("nvmlDeviceGetUUID", device, out, 96) == 0
    return probe.peek(out, 96).split(b"\0")[0].decode()


# -- the rows --

ROWS: dict[str, Check] = {}


def row(
    *names: str,
) -> Callable[[Callable[[Probe, World, str], None]], Callable[[Probe, World, str], None]]:
    def enter(check: Callable[[Probe, World, str], None]) -> Callable[[Probe, World, str], None]:
        for name in names:
            ROWS[name] = lambda probe, env, name=name: check(probe, env, name)  # type: ignore[misc]
        return check

    return enter


@row("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2")
def count(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(4)
    assert probe.call(name, out) == 0
    assert probe.u32(out) == 2
    assert probe.call(name, 0) == INVALID_ARGUMENT


@row("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2")
def by_index(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(8)
    for index in (0, 1):
        assert probe.call(name, index, out) == 0
        assert uuid(probe, probe.u64(out)) == env.uuids[index + 1]
    assert probe.call(name, 2, out) == INVALID_ARGUMENT
    assert probe.call(name, 0, 0) == INVALID_ARGUMENT


def only_own(probe: Probe, env: World, name: str, keys: list[bytes]) -> None:
    out = probe.alloc(8)
    assert probe.call(name, probe.alloc(content=keys[0] + b"\0"), out) == NOT_FOUND
    assert probe.u64(out) == 0
    for index in (1, 2):
        assert probe.call(name, probe.alloc(content=keys[index] + b"\0"), out) == 0
        assert uuid(probe, probe.u64(out)) == env.uuids[index]
    assert probe.call(name, 0, out) == INVALID_ARGUMENT
    assert probe.call(name, probe.alloc(content=keys[1] + b"\0"), 0) == INVALID_ARGUMENT


@row("nvmlDeviceGetHandleByUUID")
def by_uuid(probe: Probe, env: World, name: str) -> None:
    only_own(probe, env, name, [each.encode() for each in env.uuids])


@row("nvmlDeviceGetHandleByUUIDV")
def by_uuid_v(probe: Probe, env: World, name: str) -> None:
    version = 52 | 1 << 24
    only_own(
        probe, env, name, [struct.pack("<II41s3x", version, 1, each.encode()) for each in env.uuids]
    )
    only_own(
        probe,
        env,
        name,
        [
            struct.pack("<II16s28x", version, 2, bytes.fromhex(each[4:].replace("-", "")))
            for each in env.uuids
        ],
    )


@row("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2")
def by_bus(probe: Probe, env: World, name: str) -> None:
    only_own(probe, env, name, [b"00000000:%02X:00.0" % bus for bus in buses(env)])


@row("nvmlDeviceGetHandleBySerial")
def by_serial(probe: Probe, env: World, name: str) -> None:
    only_own(probe, env, name, [b"165%010u" % bus for bus in buses(env)])


def buses(env: World) -> list[int]:
    """The bus ids that the whole node shows."""
    found = []
    with env.probe(started=False, shim=False, managed=False) as bare:
        for index in range(3):
            info = bare.alloc(68)
            assert bare.call("nvmlDeviceGetPciInfo_v3", handle(bare, index), info) == 0
            found.append(bare.u32(info + 20))
    return found


@row("nvmlDeviceGetIndex")
def index_of(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(4)
    for index in (0, 1):
        assert probe.call(name, handle(probe, index), out) == 0
        assert probe.u32(out) == index
    assert probe.call(name, handle(probe), 0) == INVALID_ARGUMENT
    assert probe.call(name, 12345, out) == INVALID_ARGUMENT


def gives_set(probe: Probe, name: str, expected: list[int], *before: int) -> None:
    number, devices = probe.alloc(4), probe.alloc(64)
    assert probe.call(name, *before, number, 0) == 0
    assert probe.u32(number) == len(expected)
    probe.tell("poke", number, struct.pack("<I", 8).hex())
    assert probe.call(name, *before, number, devices) == 0
    assert probe.u32(number) == len(expected)
    assert [probe.u64(devices + 8 * place) for place in range(len(expected))] == expected
    assert probe.u64(devices + 8 * len(expected)) == 0
    assert probe.call(name, *before, number, 0) == INVALID_ARGUMENT


@row("nvmlSystemGetTopologyGpuSet")
def near_a_cpu(probe: Probe, env: World, name: str) -> None:
    gives_set(probe, name, [handle(probe, 0), handle(probe, 1)], 0)


@row("nvmlDeviceGetTopologyNearestGpus")
def near_a_gpu(probe: Probe, env: World, name: str) -> None:
    gives_set(probe, name, [handle(probe, 1)], handle(probe, 0), 50)


@row("nvmlUnitGetDevices")
def of_a_unit(probe: Probe, env: World, name: str) -> None:
    unit, number, devices = probe.alloc(8), probe.alloc(4), probe.alloc(64)
    handles = [handle(probe, 0), handle(probe, 1)]
    assert probe.call("nvmlUnitGetHandleByIndex", 0, unit) == 0
    assert probe.call(name, probe.u64(unit), number, devices) == INSUFFICIENT_SIZE
    assert probe.u32(number) == 2
    assert probe.call(name, probe.u64(unit), number, devices) == 0
    assert [probe.u64(devices), probe.u64(devices + 8), probe.u64(devices + 16)] == [*handles, 0]


@row("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetConfComputeProtectedMemoryUsage")
def memory(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(24)
    assert probe.call(name, handle(probe), out) == 0
    assert struct.unpack("<QQQ", probe.peek(out, 24)) == (GIB, GIB - OWN, OWN)
    assert probe.call(name, handle(probe), 0) == INVALID_ARGUMENT


@row("nvmlDeviceGetMemoryInfo_v2")
def memory_v2(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(content=struct.pack("<I36x", 40 | 2 << 24))
    assert probe.call(name, handle(probe), out) == 0
    assert struct.unpack("<8xQQQQ", probe.peek(out, 40)) == (GIB, 0, GIB - OWN, OWN)


def process_list(record: int) -> Callable[[Probe, World, str], None]:
    def check(probe: Probe, env: World, name: str) -> None:
        device, number, out = (
            handle(probe),
            probe.alloc(4),
            probe.alloc(content=b"\xaa" * 3 * record),
        )
        assert probe.call(name, device, number, 0) == INSUFFICIENT_SIZE
        assert probe.u32(number) == 1
        assert probe.call(name, device, number, out) == 0
        assert probe.u32(number) == 1
        assert probe.u32(out) == probe.process.pid
        if record > 4:
            assert probe.u64(out + 8) >= OWN
        assert probe.peek(out + record, record) == b"\xaa" * record
        assert probe.call(name, device, 0, out) == INVALID_ARGUMENT

    return check


KINDS = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
for suffix, size in (("", 16), ("_v2", 24), ("_v3", 24)):
    row(*(f"nvmlDeviceGet{kind}RunningProcesses{suffix}" for kind in KINDS.values()))(
        process_list(size)
    )
row("nvmlDeviceGetAccountingPids")(process_list(4))


@row("nvmlDeviceGetRunningProcessDetailList")
def details(probe: Probe, env: World, name: str) -> None:
    entries = probe.alloc(content=b"\xaa" * 80)
    question = probe.alloc(content=struct.pack("<IIIxxxxQ", 24 | 1 << 24, 0, 2, entries))
    assert probe.call(name, handle(probe), question) == 0
    assert probe.u32(question + 8) == 1
    assert probe.u32(entries) == probe.process.pid
    assert probe.call(name, handle(probe), probe.alloc(24)) == 25, "a structure of no version"
    assert probe.call(name, handle(probe), 0) == INVALID_ARGUMENT


@row("nvmlDeviceGetProcessUtilization")
def samples(probe: Probe, env: World, name: str) -> None:
    number, out = probe.alloc(4), probe.alloc(96)
    assert probe.call(name, handle(probe), 0, number, 0) == INSUFFICIENT_SIZE
    assert probe.u32(number) == 1
    assert probe.call(name, handle(probe), out, number, 0) == 0
    assert (probe.u32(number), probe.u32(out)) == (1, probe.process.pid)
    assert probe.call(name, handle(probe, 1), out, number, 0) == NOT_FOUND


@row("nvmlDeviceGetProcessesUtilizationInfo")
def utilization(probe: Probe, env: World, name: str) -> None:
    entries = probe.alloc(content=b"\xaa" * 80)
    question = probe.alloc(content=struct.pack("<IIQQ", 24 | 1 << 24, 2, 0, entries))
    assert probe.call(name, handle(probe), question) == 0
    assert probe.u32(question + 4) == 1
    assert probe.u32(entries + 8) == probe.process.pid
    assert probe.call(name, handle(probe), probe.alloc(24)) == 25, "a structure of no version"


@row("nvmlDeviceGetAccountingStats")
def accounting(probe: Probe, env: World, name: str) -> None:
    out = probe.alloc(56)
    assert probe.call(name, handle(probe), probe.process.pid, out) == 0
    assert probe.u64(out + 8) >= OWN
    assert probe.call(name, handle(probe), stranger_of(env), out) == NOT_FOUND


@row("nvmlDeviceGetAccountingStats_v2")
def accounting_v2(probe: Probe, env: World, name: str) -> None:
    assert (
        probe.call(
            name, handle(probe), probe.alloc(content=struct.pack("<I60x", probe.process.pid))
        )
        == 0
    )
    assert (
        probe.call(name, handle(probe), probe.alloc(content=struct.pack("<I60x", stranger_of(env))))
        == NOT_FOUND
    )


def stranger_of(env: World) -> int:
    own = {seat.pid for seat in env.manager.seats}
    (pid,) = (process.pid for process in env.node.books()[1].processes if process.pid not in own)
    return pid


def cases() -> list[object]:
    kinds = {
        name: mode
        for mode, kind in KINDS.items()
        for name in ROWS
        if name.startswith(f"nvmlDeviceGet{kind}Running")
    }
    return [pytest.param(name, kinds.get(name, "compute"), id=name) for name in ROWS]


@pytest.mark.parametrize(("name", "mode"), cases())
@pytest.mark.parametrize("route", ["linked", "dlsym"])
def test_row(route: str, name: str, mode: str, env: World, stranger: Probe) -> None:
    with env.probe(route) as probe:
        probe.memory(OWN)
        assert probe.call("nvmlInit_v2") == 0
        ROWS[name](probe, env)
        ended = probe.end()
    assert (ended.returncode, ended.stderr) == (0, "")


# -- every function of nvml.h --

TELLS = re.compile(
    r"Count|Handle|Index|GpuSet|NearestGpus|Devices|Process|Accounting|Memory|Pids|Vgpus|Fb|Bar1|"
    r"BAR1|Attributes|Discover"
)
NEEDS_NO_ROW = {
    "MIG instances, which no lease is made of": (
        r"nvml(GpuInstance|ComputeInstance)\w+|nvmlDevice\w*(Mig|GpuInstance|ComputeInstance)\w*|"
        r"nvmlDeviceGetAttributes(_v2)?"
    ),
    "virtual GPUs: the host's of virtual machines, not an env's": (
        r"nvml\w*Vgpu\w*|nvmlDeviceGet\w*Vgpus?\w*"
    ),
    "errors, clocks, temperatures, links of a memory: no figure of who has how much": (
        r"nvmlDeviceGet(MemoryErrorCounter|MemoryBusWidth|"
        r"MemoryAffinity|UnrepairableMemoryFlag_v1|SramUniqueUncorrectedEccErrorCounts|"
        r"SupportedMemoryClocks|\w*Encoder\w*|FBC\w+|PcieReplayCounter|NvLink\w+)"
    ),
    "a setting of an administrator": (
        r"nvmlDevice(Set|Clear|Reset|Freeze|Discover|Remove)\w+|nvmlDeviceGetAccounting(Mode|"
        r"BufferSize)"
    ),
    "how a GPU is divided, not what is used of it": r"nvmlDeviceGetConfComputeMemSizeInfo",
    "the driver's own quota, of a cgroup that the asker names": r"nvmlDeviceGetMemoryLimits_v1",
    "a window of addresses, in nobody's quota": r"nvmlDeviceGetBAR1MemoryInfo",
    "chassis, and GPUs that the driver was told to leave alone": (
        r"nvmlUnitGet(Count|HandleByIndex)|nvmlGetExcludedDevice\w+"
    ),
    "what /proc says of any process": r"nvmlSystemGetProcessName",
    "events": r"nvmlEventSet\w+",
    "a sample of a GPU's counters": (
        r"nvmlGpmMigSampleGet|nvmlDeviceReadPRMCounters_v1|nvmlDeviceGetNvLinkErrorCounter"
    ),
}


def test_every_function_that_tells_of_gpus_memory_or_processes_has_a_row_or_a_reason() -> None:
    """A new NVML fails here: the names come from its header, and are compared below."""
    bare = [name for name in read_nvml_names() if TELLS.search(name) and name not in hooks()]
    open_ones = [
        name
        for name in bare
        if not any(re.fullmatch(pattern, name) for pattern in NEEDS_NO_ROW.values())
    ]
    assert not open_ones


@pytest.mark.parametrize("reason", NEEDS_NO_ROW)
def test_reasons_are_used(reason: str) -> None:
    assert any(
        re.fullmatch(NEEDS_NO_ROW[reason], name)
        for name in read_nvml_names()
        if name not in hooks()
    )


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("nvml.h"))
def test_the_list_of_names_has_all_of_the_header(header: object) -> None:
    assert nvml_names(header.read_text()) <= set(read_nvml_names())  # type: ignore[attr-defined]


def test_every_row_of_nvml_has_a_check() -> None:
    assert set(ROWS) == {hook.name for hook in hooks().values() if hook.library == "NVML"}


# -- without a lease, and on the way to one --


def shown(probe: Probe) -> list[tuple[str, int, int, list[int]]]:
    """(uuid, total, used, pids) of each GPU, as nvidia-smi asks."""
    found, number, memory_out = [], probe.alloc(4), probe.alloc(24)
    assert probe.call("nvmlInit_v2") == 0
    assert probe.call("nvmlDeviceGetCount_v2", number) == 0
    for index in range(probe.u32(number)):
        device, count, list_out = (
            handle(probe, index),
            probe.alloc(content=struct.pack("<I", 16)),
            probe.alloc(16 * 24),
        )
        assert probe.call("nvmlDeviceGetMemoryInfo", device, memory_out) == 0
        assert probe.call("nvmlDeviceGetComputeRunningProcesses_v3", device, count, list_out) == 0
        pids = [probe.u32(list_out + 24 * place) for place in range(probe.u32(count))]
        found.append((uuid(probe, device), probe.u64(memory_out), probe.u64(memory_out + 16), pids))
    return found


def test_before_a_lease_it_shows_what_a_request_would_get(env: World, stranger: Probe) -> None:
    """As many GPUs as that, and the whole quota free on each, for any user of their stand-ins."""
    env.manager.settings["memory_per_gpu"] = str(GIB)
    env.manager.write_conf()
    with env.probe(started=False) as probe:
        assert [row[1:] for row in shown(probe)] == [(GIB, 0, [])] * 2
        assert "ACQUIRE" not in env.manager.verbs()
        probe.tell("setenv", "NODEMGR_GPUS", "1")
        assert len(shown(probe)) == 1
        probe.tell("setenv", "NODEMGR_GPUS", "7")
        assert len(shown(probe)) == 3, "more than the node has"


def test_without_a_memory_quota_the_whole_gpu_would_be_got(env: World) -> None:
    with env.probe(started=False) as probe:
        assert [row[1:] for row in shown(probe)] == [(8 * GIB, 0, [])] * 2


def test_an_env_without_gpus_sees_none(env: World) -> None:
    env.manager.settings["gpus"] = "0"
    env.manager.write_conf()
    with env.probe(started=False) as probe:
        assert shown(probe) == []


def test_a_process_that_named_no_gpu_sees_none_of_its_environment_either(env: World) -> None:
    """cuInit, NVML's count and NVML's handles give one answer."""
    with env.probe() as task:
        task.memory(OWN)
        env.environ["NODEMGR_GPUS"] = "0"
        with env.probe(started=False) as monitor:
            assert monitor.cuInit(0) == NO_DEVICE
            assert shown(monitor) == []
            assert monitor.call("nvmlDeviceGetHandleByIndex_v2", 0, monitor.alloc(8)) == (
                INVALID_ARGUMENT
            )


def test_a_second_terminal_sees_the_envs_tasks(env: World, stranger: Probe) -> None:
    with env.probe() as task, env.probe(started=False) as monitor:
        task.memory(OWN)
        rows = [(env.uuids[1], GIB, OWN, [task.process.pid]), (env.uuids[2], GIB, 0, [])]
        while (seen := shown(monitor)) != rows:
            assert all(pids == [] for *_, pids in seen), "a manager that is late hides them"
        assert shown(task) == rows
        assert env.manager.verbs().count("ACQUIRE") == 1


def test_a_handle_kept_over_the_grant_is_the_gpu_that_was_granted(env: World) -> None:
    with env.probe(started=False) as probe:
        early = handle(probe, 1)
        assert uuid(probe, early) == env.uuids[1], (
            "the second of the node stands for the second that it would get"
        )
        probe.start()
        probe.memory(OWN)
        out, memory_out = probe.alloc(4), probe.alloc(24)
        assert probe.call("nvmlDeviceGetIndex", early, out) == 0
        assert probe.u32(out) == 0, "now it is one of those granted: itself"
        first = handle(probe, 0)
        assert probe.call("nvmlDeviceGetMemoryInfo", first, memory_out) == 0
        assert probe.u64(memory_out + 16) == OWN


def test_a_handle_of_a_gpu_that_was_not_granted_goes_by_its_number(env: World) -> None:
    with env.probe(started=False) as probe:
        early = handle(probe, 0)
        assert uuid(probe, early) == env.uuids[0]
        probe.start()
        probe.memory(OWN)
        out, memory_out = probe.alloc(4), probe.alloc(24)
        assert probe.call("nvmlDeviceGetIndex", early, out) == 0
        assert probe.u32(out) == 0
        assert probe.call("nvmlDeviceGetMemoryInfo", early, memory_out) == 0
        assert struct.unpack("<QQQ", probe.peek(memory_out, 24)) == (GIB, GIB - OWN, OWN)


def test_what_cuda_says_is_what_nvml_says(env: World) -> None:
    with env.probe() as probe:
        probe.memory(OWN)
        free, total, device_total = (probe.alloc(8) for _ in range(3))
        assert probe.call("cuMemGetInfo_v2", free, total) == 0
        assert probe.call("cuDeviceTotalMem_v2", device_total, 0) == 0
        cuda_uuid = probe.alloc(16)
        assert probe.call("cuDeviceGetUuid_v2", cuda_uuid, 0) == 0
        (name, nvml_total, nvml_used, _), _ = shown(probe)
        assert name[4:].replace("-", "") == probe.peek(cuda_uuid, 16).hex()
        assert (probe.u64(total), probe.u64(total) - probe.u64(free)) == (nvml_total, nvml_used)
        assert (probe.u64(device_total), env.used(1)) == (nvml_total, nvml_used)
        env.manager.set_limit(GIB // 2, 1)
        assert probe.call("cuMemGetInfo_v2", free, total) == 0
        assert (shown(probe)[0][1], probe.u64(total)) == (GIB // 2, GIB // 2)


def test_nothing_is_answered_before_init_or_after_shutdown(env: World) -> None:
    uninitialized = 1
    with env.probe() as probe:
        out, number = probe.alloc(64), probe.alloc(4)
        assert probe.call("nvmlInit_v2") == 0
        device = handle(probe)
        while probe.call("nvmlShutdown") == 0:
            pass
        for name, arguments in {
            "nvmlDeviceGetCount_v2": (out,),
            "nvmlDeviceGetHandleByIndex_v2": (0, out),
            "nvmlDeviceGetHandleByUUID": (probe.alloc(content=env.uuids[1].encode() + b"\0"), out),
            "nvmlDeviceGetIndex": (device, out),
            "nvmlDeviceGetMemoryInfo": (device, out),
            "nvmlDeviceGetComputeRunningProcesses_v3": (device, number, 0),
            "nvmlDeviceGetAccountingStats": (device, probe.process.pid, out),
            "nvmlSystemGetTopologyGpuSet": (0, number, 0),
        }.items():
            assert probe.call(name, *arguments) == uninitialized, name


def test_a_manager_that_is_away_hides_nothing_of_its_own(env: World) -> None:
    with env.probe() as probe:
        probe.memory(OWN)
        env.manager.deaf = True
        assert shown(probe)[0] == (env.uuids[1], GIB, OWN, [probe.process.pid])


def test_outside_any_env_everything_is_seen(env: World, stranger: Probe) -> None:
    with env.probe() as task:
        task.memory(OWN)
        with (
            env.probe(started=False, managed=False) as outside,
            env.probe(started=False, shim=False) as bare,
        ):
            assert shown(outside) == shown(bare)
            assert [row[0] for row in shown(bare)] == env.uuids
            assert sorted(shown(bare)[1][3]) == sorted([task.process.pid, stranger.process.pid])


NONSENSE = [
    '{"gpus":[["GPU-1",',
    '{"gpus":[[1,2,3]],"pids":["x"]}',
    '{"gpus":[["' + "G" * 500 + '",1,1]]}',
    "",
    "%",
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_an_answer_that_is_none_shows_nothing_of_others(
    env: World, stranger: Probe, answer: str
) -> None:
    env.manager.holdings_text = answer
    with env.probe() as task:
        assert shown(task)[0][3] == [task.process.pid]
        with env.probe(started=False) as monitor:
            assert [row[1:] for row in shown(monitor)] == [(8 * GIB, 0, [])] * 2
