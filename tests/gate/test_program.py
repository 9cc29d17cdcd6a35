"""The gate's program: what its steps decide, and what the kernel does with them."""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr._native import ffi, lib
from nodemgr.edge.gate.ebpf import BPF_FS, PinnedGate, env_pins, unpin
from nodemgr.edge.host import privileges
from nodemgr.edge.kernel.device_nodes import CONTROL_MINORS, GPU_MAJOR, DeviceNode
from tests.gate.conftest import Probe
from tests.support.examples import examples

CAPS_MAJOR = 237
BLOCK, CHARACTER = 1, 2
MKNOD, READ, WRITE = 1, 2, 4
MAP_FD = 77
SYS_ADMIN = 21
GPU0, GPU1, GPU253, MODESET, CONTROL = (DeviceNode(195, minor) for minor in (0, 1, 253, 254, 255))
CAP = DeviceNode(CAPS_MAJOR, 30)


# -- the table, without a kernel --


def steps(caps_major: int) -> list[int]:
    words = ffi.new("uint64_t[]", lib.NM_GATE_MOST_STEPS)
    return list(words[0 : lib.nm_gate_program(words, caps_major, MAP_FD)])


def decide(program: list[int], context: tuple[int, int, int], opened: set[DeviceNode]) -> int:
    """A small machine for the few operations that the program has."""
    registers = [0] * 11
    stack: dict[int, int] = {}
    at = 0
    while True:
        code, who, offset, value = struct.unpack("<BBhi", program[at].to_bytes(8, "little"))
        to, other, at = who & 15, who >> 4, at + 1
        match code:
            case 0x61:  # load a word of the context
                assert other == 1
                registers[to] = context[offset // 4]
            case 0x63:
                assert to == 10
                stack[offset] = registers[other]
            case 0xBF:
                registers[to] = registers[other]
            case 0xB7:
                registers[to] = value
            case 0x07:
                registers[to] += value
            case 0x57:
                registers[to] &= value
            case 0x77:
                registers[to] >>= value
            case 0x15 | 0x55:
                if (registers[to] == value % 2**64) == (code == 0x15):
                    at += offset
            case 0x18:  # two words: a map
                assert (other, value) == (1, MAP_FD)
                at += 1
            case 0x85:
                assert value == 1, "looks up"
                key = DeviceNode(stack[registers[2]], stack[registers[2] + 4])
                registers[:6] = [0xFFFF888000000000 if key in opened else 0] + [0xDEAD] * 5
            case 0x95:
                return registers[0]
            case _:
                raise AssertionError(f"unknown operation {code:#x}")


def rule(
    kind: int, access: int, device: DeviceNode, caps_major: int, opened: set[DeviceNode]
) -> bool:
    """The promises of the gate."""
    is_gpu = device.major == GPU_MAJOR and device.minor not in CONTROL_MINORS
    is_gated = kind == CHARACTER and access != MKNOD and (is_gpu or device.major == caps_major)
    return not is_gated or device in opened


majors = st.sampled_from([0, 1, 194, 195, 196, CAPS_MAJOR, 4095])
minors = st.sampled_from([0, 1, 2, 253, 254, 255, 256, 2**20 - 1])
devices = st.builds(DeviceNode, majors, minors)


@settings(deadline=None, max_examples=examples(100))
@given(
    kind=st.sampled_from([BLOCK, CHARACTER]), access=st.integers(0, 7), device=devices,
    caps_major=st.sampled_from([-1, CAPS_MAJOR]), opened=st.sets(devices, max_size=3),
)  # fmt: skip
def test_the_steps_decide_what_the_gate_promises(
    kind: int, access: int, device: DeviceNode, caps_major: int, opened: set[DeviceNode]
) -> None:
    decided = decide(steps(caps_major), (access << 16 | kind, *device), opened)
    assert decided == rule(kind, access, device, caps_major, opened)


# -- in the kernel --


@pytest.fixture
def pins() -> Iterator[Path]:
    run_dir = Path(f"/tmp/nodemgr-test-{secrets.token_hex(6)}")
    yield env_pins(run_dir, "a.b-c")
    unpin(env_pins(run_dir, "a.b-c"))


@pytest.mark.usefixtures("bpf")
def test_a_gpu_opens_while_it_is_in_the_map(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    place, probe, outside = cgroup(), make_probe(), make_probe()
    gate = PinnedGate.make(pins, CAPS_MAJOR)
    assert gate.attach(place)
    probe.enter(place)
    assert [probe.opens(device) for device in (GPU0, GPU1, GPU253, CAP)] == [False] * 4
    assert probe.opens(CONTROL)
    assert probe.opens(MODESET)
    gate.set_open({GPU1, CAP})
    assert [probe.opens(device) for device in (GPU0, GPU1, GPU253, CAP)] == [
        False,
        True,
        False,
        True,
    ]
    gate.set_open({GPU0})
    assert [probe.opens(device) for device in (GPU0, GPU1, GPU253, CAP)] == [
        True,
        False,
        False,
        False,
    ]
    assert outside.opens(GPU1), "nobody else is behind this gate"


@pytest.mark.usefixtures("bpf")
def test_a_node_can_be_made_and_leads_nowhere(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    place, probe = cgroup(), make_probe()
    PinnedGate.make(pins, None).attach(place)
    probe.enter(place)
    made = f"/dev/shm/nodemgr-test-{secrets.token_hex(6)}"
    try:
        assert probe.order(f"mknod {made} 195 0") == "OK"
        assert probe.order(f"open {made}") == "EPERM"
        assert probe.order("open /dev/null") == "OK"
    finally:
        Path(made).unlink()


@pytest.mark.usefixtures("bpf")
def test_cgroups_below_are_behind_the_same_gate(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    place, probe = cgroup(), make_probe()
    gate = PinnedGate.make(pins, None)
    gate.attach(place)
    (place / "inner" / "most").mkdir(parents=True)
    probe.enter(place / "inner" / "most")
    assert not probe.opens(GPU0)
    gate.set_open({GPU0})
    assert probe.opens(GPU0)
    assert gate.is_attached(place / "inner" / "most")


@pytest.mark.usefixtures("bpf")
def test_the_gate_outlives_who_made_it(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    place, probe = cgroup(), make_probe()
    child = os.fork()
    if child == 0:
        gate = PinnedGate.make(pins, None)
        gate.attach(place)
        gate.set_open({GPU1})
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    probe.enter(place)
    assert [probe.opens(GPU0), probe.opens(GPU1)] == [False, True]
    later = PinnedGate.make(pins, None)
    assert later.open_devices() == {GPU1}
    assert later.is_attached(place), "the program of before is found again"
    assert not later.attach(place)
    later.set_open(set())
    assert not probe.opens(GPU1)


@pytest.mark.usefixtures("bpf")
def test_what_a_manager_keeps_of_its_rights_is_enough(
    cgroup: Callable[[], Path], pins: Path
) -> None:
    place = cgroup()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            privileges.give_up_the_rest({privileges.DEVICE_GATE})
            gate = PinnedGate.make(pins, None)
            gate.set_open({GPU1})
            os._exit(
                gate.attach(place)
                and gate.is_attached(place)
                and privileges.held() >> SYS_ADMIN & 1 == 0
            )
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.usefixtures("bpf")
def test_another_program_takes_the_place_of_the_pinned_one_and_keeps_the_map(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    old, new, probe = cgroup(), cgroup(), make_probe()
    PinnedGate.make(pins, None).attach(old)
    gate = PinnedGate.make(pins, CAPS_MAJOR)
    gate.attach(new)
    gate.set_open({GPU0})
    probe.enter(old)
    assert [probe.opens(device) for device in (GPU0, GPU1, CAP)] == [
        True,
        False,
        True,
    ], "a container of before knows no capabilities"
    probe.enter(new)
    assert [probe.opens(device) for device in (GPU0, GPU1, CAP)] == [True, False, False]


@pytest.mark.usefixtures("bpf")
def test_containers_of_a_removed_env_stay_behind_a_shut_gate(
    cgroup: Callable[[], Path], make_probe: Callable[[], Probe], pins: Path
) -> None:
    place, probe = cgroup(), make_probe()
    gate = PinnedGate.make(pins, None)
    gate.attach(place)
    gate.set_open({GPU0})
    probe.enter(place)
    gate.close()
    unpin(pins)
    assert not pins.exists()
    assert not probe.opens(GPU0)


@pytest.mark.usefixtures("bpf")
def test_what_is_no_map_of_ours_is_left_alone(pins: Path) -> None:
    gate = PinnedGate.make(pins, None)
    gate.close()
    (pins / "map").unlink()
    (pins / "program").rename(pins / "map")
    with pytest.raises(FileExistsError, match=r"no map of a device gate: remove it"):
        PinnedGate.make(pins, None)
    assert not (pins / "program").exists()


@pytest.mark.usefixtures("bpf")
def test_no_gate_is_found_where_none_was_made() -> None:
    with pytest.raises(FileNotFoundError, match="device gate"):
        PinnedGate.found(BPF_FS / "nodemgr-test-none")
