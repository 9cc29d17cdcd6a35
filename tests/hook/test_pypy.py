"""A program of PyPy that calls the driver by ctypes or cffi: the import hook waits for it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr.edge.ledger.native_ledger import SlotHold
from tests.launches.gated import CLOSED, GatedWorld, Share, Tenant, gated_world
from tests.launches.test_turns import waits
from tests.launches.test_uses import hold
from tests.node.programs import said
from tests.session import TMP
from tests.shim.world import ROOT
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

pytestmark = pytest.mark.skipif(shutil.which("pypy3") is None, reason="needs pypy3")
CALLERS = {
    "ctypes": "import ctypes; cuda = ctypes.CDLL('libcuda.so.1')",
    "cffi": """
import cffi
ffi = cffi.FFI()
ffi.cdef("int cuInit(unsigned);")
cuda = ffi.dlopen("libcuda.so.1")
""",
}
USE = """
import os
try:
    print(cuda.cuInit(0), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    manager = make_manager(simulate="1x4GiB")
    manager.quota("alice", 1)
    manager.quota("bob", 1)
    return manager


@pytest.fixture
def gated() -> Iterator[GatedWorld]:
    short = tempfile.TemporaryDirectory(prefix="nm", dir=TMP)
    with short as directory, gated_world(Path(directory)) as world:
        yield world


def start(node: Manager, caller: str) -> subprocess.Popen[str]:
    return node.spawn("alice", ["pypy3", "-c", CALLERS[caller] + USE])


@pytest.mark.parametrize("caller", CALLERS)
def test_os_environ_has_what_the_grant_has_set(node: Manager, caller: str) -> None:
    stdout, stderr = start(node, caller).communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, stderr) == (f"0 {node.status()['gpus'][0]['uuid']}\n", "")


@pytest.mark.parametrize("caller", CALLERS)
def test_ctrl_c_ends_the_wait(node: Manager, caller: str) -> None:
    bob = node.hold("bob")
    assert said(bob)["error"] is None
    events = node.events()
    program = start(node, caller)
    events.expect("task.waiting", env="alice")
    program.send_signal(signal.SIGINT)
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, program.returncode) == ("KeyboardInterrupt\n", 0)
    assert "Traceback" not in stderr
    events.expect("request.withdrawn", env="alice")


LAUNCHES = """
import sys
sys.path.insert(0, sys.argv[1])
from client_plugin import lease
assert lease.start()  # as the import hook does
import ctypes, signal
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel = (ctypes.c_void_p() for _ in range(3))
address = ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"sleep_us_5") == 0
if sys.argv[2] == "handled":
    signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
print("ready", flush=True)
for line in sys.stdin:
    try:
        if line.strip() == "allocate":
            code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
        else:
            code = cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        print("result", code, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def started(gated: GatedWorld, how: str) -> Tenant:
    gated.manager.share = Share(50)
    process = subprocess.Popen(
        ["pypy3", "-c", LAUNCHES, str(ROOT), how],
        env=gated.world.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tenant = Tenant(process)
    gated.tenants.append(tenant)
    assert tenant.hear() == "ready"
    return tenant


def at_the_gate(gated: GatedWorld, how: str) -> Tenant:
    tenant = started(gated, how)
    gated.gate.set(gated.slot(tenant), Share(50), CLOSED)
    tenant.go()
    waits(gated, tenant)
    tenant.signal(signal.SIGINT)
    return tenant


def test_ctrl_c_ends_the_wait_in_the_launch_gate(gated: GatedWorld) -> None:
    tenant = at_the_gate(gated, "raised")
    assert tenant.hear() == "interrupted"
    gated.gate.set(gated.slot(tenant), Share(50))
    tenant.go()
    assert tenant.hear() == "result 0"


def test_a_handler_of_the_program_runs_in_the_launch_gate_and_the_wait_goes_on(
    gated: GatedWorld,
) -> None:
    tenant = at_the_gate(gated, "handled")
    assert tenant.hear() == "handled"
    gated.gate.set(gated.slot(tenant), Share(50))
    assert tenant.hear() == "result 0"


def test_ctrl_c_ends_the_wait_for_the_memory_of_a_suspended_task(gated: GatedWorld) -> None:
    tenant = started(gated, "raised")
    hold(gated, tenant, SlotHold.AWAY)
    tenant.say("allocate")
    gated.manager.await_verb("ASK")
    tenant.signal(signal.SIGINT)
    assert tenant.hear() == "interrupted"
    hold(gated, tenant, SlotHold.NONE)
    tenant.say("allocate")
    assert tenant.hear() == "result 0"


GRANTED_IN_A_THREAD = """
import os, threading, time
thread = threading.Thread(target=cuda.cuInit, args=(0,))
thread.start()
thread.join()
while "CUDA_VISIBLE_DEVICES" not in os.environ:
    time.sleep(0.001)
print(os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.mark.parametrize("caller", CALLERS)
def test_os_environ_follows_a_grant_in_another_thread(node: Manager, caller: str) -> None:
    program = node.spawn("alice", ["pypy3", "-c", CALLERS[caller] + GRANTED_IN_A_THREAD])
    stdout, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, stderr) == (f"{node.status()['gpus'][0]['uuid']}\n", "")


IN_A_THREAD = """
import threading
thread = threading.Thread(target=cuda.cuInit, args=(0,), daemon=True)
try:
    thread.start()
    thread.join()
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


def test_ctrl_c_reaches_the_main_thread_while_another_waits(node: Manager) -> None:
    bob = node.hold("bob")
    assert said(bob)["error"] is None
    events = node.events()
    program = node.spawn("alice", ["pypy3", "-c", CALLERS["ctypes"] + IN_A_THREAD])
    events.expect("task.waiting", env="alice")
    program.send_signal(signal.SIGINT)
    stdout, _ = program.communicate(timeout=WAIT_LIMIT_S)
    assert (stdout, program.returncode) == ("KeyboardInterrupt\n", 0)
    events.expect("request.withdrawn", env="alice")
