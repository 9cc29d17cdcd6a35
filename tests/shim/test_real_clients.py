"""Real CUDA clients under the shim: they see the quota, and run out of memory by it.

The programs are those of tests/clients.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.shim.world import GIB, LINKED_WITH_DRIVER, MIB, ROOT, World, compiled
from tests.sim import headers

PROGRAMS = ROOT / "tests" / "clients" / "programs"
HEADERS = headers.find("cuda.h")


def seen_by(env: World, *command: str | Path) -> dict[str, Any]:
    ran = env.run(*command)
    assert ran.returncode == 0, ran.stderr
    seen: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    seen["stderr"] = ran.stderr
    return seen


@pytest.mark.frameworks
def test_cuda_bindings(env: World) -> None:
    program = PROGRAMS / "bindings.py"
    seen = seen_by(env, sys.executable, "-I", program, str(500 * MIB))
    assert (seen["total_bytes"], seen["device_total_bytes"]) == (GIB, GIB)
    assert (seen["free_bytes"], seen["free_bytes_after"]) == (GIB - 500 * MIB, GIB)
    assert set(seen["refused"].values()) == {None}
    assert seen["stderr"] == ""
    seen = seen_by(env, sys.executable, "-I", program, str(600 * MIB))
    assert set(seen["refused"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert "out of GPU memory by quota" in seen["stderr"]
    env.manager.await_no_seats()
    env.agree(0)


@pytest.mark.frameworks
def test_numba_cuda(env: World) -> None:
    program = PROGRAMS / "numba_arrays.py"
    seen = seen_by(env, sys.executable, "-I", program, str(500 * MIB))
    assert (seen["total_bytes"], seen["refused"]) == (GIB, None)
    assert seen["free_bytes"] <= GIB - 500 * MIB
    seen = seen_by(env, sys.executable, "-I", program, str(GIB))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in seen["refused"]
    env.manager.await_no_seats()
    env.agree(0)


@pytest.mark.frameworks
@pytest.mark.parametrize("header", HEADERS, ids=[path.parent.parent.name for path in HEADERS])
def test_a_program_written_against_the_vendors_header(header: Path, env: World) -> None:
    program = compiled(
        (PROGRAMS / "toolkit.c").read_text(), f"-I{header.parent}", *LINKED_WITH_DRIVER
    )
    seen = seen_by(env, program, str(64 * MIB))
    assert set(seen["refused"].values()) == {None}
    assert seen["free_bytes"] == seen["free_bytes_after"] == GIB
    seen = seen_by(env, program, str(GIB + 2 * MIB))
    assert set(seen["refused"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert env.peak() <= GIB
    env.manager.await_no_seats()
    env.agree(0)


@pytest.mark.frameworks
def test_a_monitor_without_a_lease_sees_what_the_env_may_have(
    make_world: Callable[..., World],
) -> None:
    env = make_world(settings={"memory_per_gpu": str(2 * GIB)})
    (device,) = seen_by(env, sys.executable, "-I", PROGRAMS / "monitor.py")["devices"]
    assert (device["total_bytes"], device["used_bytes"], device["free_bytes"]) == (
        2 * GIB,
        0,
        2 * GIB,
    )
    assert set(env.manager.verbs()) == {"ASK"}, "it asked what is held, and for nothing"


@pytest.fixture
def leased(make_world: Callable[..., World]) -> World:
    """Three GPUs, of which a task gets the last two."""
    env = make_world(devices=3)
    env.manager.granted = env.uuids[1:]
    for row in range(3):
        env.manager.set_limit(GIB if row else 0, row)
    env.manager.write_conf()
    return env


AGREE = """
import ctypes, json, os, pynvml, torch
before = torch.cuda._device_count_nvml()
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
uuids = []
for index in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid_v2(uuid, index) == 0
    uuids.append(bytes(uuid).hex())
handles = [torch.cuda._get_pynvml_handler(index) for index in range(count.value)]
print(json.dumps({
    "before": before, "after": torch.cuda._device_count_nvml(), "cuda": uuids,
    "indices": [torch.cuda._get_nvml_device_index(index) for index in range(count.value)],
    "nvml": [pynvml.nvmlDeviceGetUUID(handle)[4:].replace("-", "") for handle in handles],
    "total_bytes": [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles],
    "visible": os.environ["CUDA_VISIBLE_DEVICES"].split(","),
}))
"""


@pytest.mark.frameworks
@pytest.mark.frameworks
def test_pytorch_finds_the_same_gpus_through_cuda_and_through_nvml(leased: World) -> None:
    """PyTorch reads CUDA_VISIBLE_DEVICES itself and looks its entries up in NVML.

    A UUID means the same to both, a number would not.
    """
    seen = seen_by(leased, sys.executable, "-c", AGREE)
    assert (seen["before"], seen["after"], seen["indices"]) == (2, 2, [0, 1])
    assert seen["visible"] == leased.uuids[1:]
    assert seen["cuda"] == seen["nvml"] == [uuid[4:].replace("-", "") for uuid in leased.uuids[1:]]
    assert seen["total_bytes"] == [GIB, GIB]


NVITOP = """
import json, nvitop
def shown(device):
    return [device.index, device.uuid(), device.memory_total(), device.memory_used(),
        list(device.processes())]
print(json.dumps([
    [shown(device) for device in nvitop.Device.all()],
    [device.uuid() for device in nvitop.Device.cuda.all()],
]))
"""


@pytest.mark.frameworks
@pytest.mark.skipif(find_spec("nvitop") is None, reason="nvitop is in no extra")
def test_nvitop_shows_the_envs_gpus_and_tasks(leased: World) -> None:
    with leased.probe() as task:
        task.memory(100 * MIB)
        leased.environ["CUDA_VISIBLE_DEVICES"] = ",".join(leased.uuids[1:])
        ran = leased.run(sys.executable, "-c", NVITOP)
        devices, cuda = json.loads(ran.stdout.splitlines()[-1])
    first, second = leased.uuids[1:]
    assert devices == [[0, first, GIB, 100 * MIB, [task.process.pid]], [1, second, GIB, 0, []]]
    assert cuda == [first, second]
