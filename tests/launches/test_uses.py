"""Each row of csrc/hooks/hooks.def in a suspended process: what its column `away` says.

The driver holds each call of such a process: a test that hangs has found one that reached it. All
hold with a launch gate and without one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from nodemgr.edge.ledger.native_ledger import SlotHold
from tests.launches.gated import OPEN, SUSPENDED, GatedWorld, Share, Tenant
from tests.launches.test_hardships import naps
from tests.shim.world import GROUP, MIB, Hook, compiled, every_row, plain_calls
from tests.support.limits import WAIT_LIMIT_S, until

CALLER = r"""
int last = -1;
void call(int (*function)(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                          void *, void *), void **a)
{
    last = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
}
"""
PROGRAM = """
import ctypes, sys, threading
cuda, caller = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
nvml = ctypes.CDLL("libnvidia-ml.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == nvml.nvmlInit_v2() == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)) == 0
room = ctypes.create_string_buffer(4096)
def call(name, types):
    given = (ctypes.c_void_p * 11)(*(ctypes.addressof(room) if "*" in each else 0
                                     for each in types))
    caller.call(ctypes.cast(getattr(nvml if name.startswith("nvml") else cuda, name),
                            ctypes.c_void_p), given)
    return ctypes.c_int.in_dll(caller, "last").value
print("ready", flush=True)
while line := sys.stdin.readline().strip():
    name, *types = line.split(",")
    try:
        if name == "free":
            print(cuda.cuMemFree_v2(address), flush=True)
        elif name == "waiter":
            given = "cuCtxCreate_v2", ["*", "", ""]
            threading.Thread(target=call, args=given, daemon=True).start()
            print(0, flush=True)
        else:
            print(call(name, types), flush=True)
    except KeyboardInterrupt:
        print("interrupted", ctypes.c_int.in_dll(caller, "last").value, flush=True)
"""
DRIVER = """
import sys
from nodemgr.edge.suspension.driver_calls import DriverCalls
driver = DriverCalls("libcuda.so.1")
for pid in map(int, sys.argv[1].split(",")):
    for verb in sys.argv[2:]:
        getattr(driver, verb)(pid, *([60_000] if verb == "lock" else []))
"""
HALF = Share(50)
TENANTS = 6
"""Ctrl-C ends a wait 20 ms after its begin at the earliest: several processes wait at once."""
NOT_PERMITTED = 800
NAPS = 20
"""A process that is no longer on its way to the call, but waits there."""
WAYS = {"BACK", "LATER", "DONE", "LEDGER", "THROUGH"}
LATEST = ("Destroy", "Reset", "Release", "Detach", "Unload")
"""Ends of what other rows need: they come last."""


@pytest.fixture(params=["gated", "ungated"])
def gated(make_gated: Callable[..., GatedWorld], request: pytest.FixtureRequest) -> GatedWorld:
    if request.param == "gated":
        return make_gated()
    return make_gated(settings={"gate": "0"}, without_gates=True)


def start(gated: GatedWorld) -> Tenant:
    gated.manager.share = HALF
    caller = compiled(CALLER, "-shared", "-fPIC")
    made = Tenant(subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM, str(caller)], env=gated.world.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ))  # fmt: skip
    gated.tenants.append(made)
    return made


@pytest.fixture
def tenant(gated: GatedWorld) -> Tenant:
    made = start(gated)
    assert made.hear() == "ready"
    return made


def by_driver(gated: GatedWorld, tenants: tuple[Tenant, ...], *verbs: str) -> None:
    pids = ",".join(str(tenant.pid) for tenant in tenants)
    subprocess.run(
        [sys.executable, "-c", DRIVER, pids, *verbs],
        env=gated.world.environment(shim=False), check=True,
    )  # fmt: skip


def hold(gated: GatedWorld, tenant: Tenant, hold: SlotHold) -> None:
    """As the manager writes it, in the ledger and in a gate."""
    manager = gated.manager
    (slot,) = [seat.slot for seat in manager.seats if seat.pid == tenant.pid]
    manager.ledger.set_hold(slot, hold)
    if not manager.without_gates:
        state = OPEN if hold is SlotHold.NONE else SUSPENDED
        gated.gate.set(gated.slot(tenant), HALF, state)


def suspend(gated: GatedWorld, *tenants: Tenant) -> None:
    for tenant in tenants:
        hold(gated, tenant, SlotHold.HELD)
    by_driver(gated, tenants, "lock", "checkpoint")
    for tenant in tenants:
        hold(gated, tenant, SlotHold.AWAY)


def resume(gated: GatedWorld, tenant: Tenant) -> None:
    hold(gated, tenant, SlotHold.HELD)
    by_driver(gated, (tenant,), "restore", "unlock")
    hold(gated, tenant, SlotHold.NONE)


def rows(*ways: str) -> Iterator[Hook]:
    every = [row for row in every_row() if row.away in ways]
    yield from sorted(every, key=lambda row: any(part in row.name for part in LATEST))


def call(tenant: Tenant, row: Hook) -> None:
    types = ["host" if each == "void *" and "HostFunc" in row.name else each for each in row.types]
    tenant.say(",".join((row.name, *types)))


def asked(gated: GatedWorld) -> int:
    """The requests to be resumed; NVML asks for other things."""
    return len(gated.manager.resumes_asked)


def test_each_row_has_a_way() -> None:
    every = every_row()
    assert {row.name: row.away for row in every if row.away not in WAYS} == {}
    assert {row.away for row in every} == WAYS
    ends = [row for row in every if row.name.startswith("cuMemFree") or "Destroy" in row.name]
    assert {row.name: row.away for row in ends if row.away != "LATER"} == {
        "cuGraphDestroyNode": "BACK"
    }


def test_each_use_asks_for_the_memory_and_ctrl_c_ends_its_wait(gated: GatedWorld) -> None:
    tenants = [start(gated) for _ in range(TENANTS)]
    assert [tenant.hear() for tenant in tenants] == ["ready"] * TENANTS
    suspend(gated, *tenants)
    every = list(rows("BACK"))
    for first in range(0, len(every), TENANTS):
        calls = list(zip(tenants, every[first:], strict=False))
        before = asked(gated)
        for tenant, row in calls:
            call(tenant, row)
        pids = {tenant.pid for tenant, _ in calls}  # each of them, and some again
        until(lambda b=before, pids=pids: pids <= set(gated.manager.resumes_asked[b:]))
        for tenant, row in calls:
            assert tenant.process.poll() is None, row.name
            tenant.signal(signal.SIGINT)
        for tenant, row in calls:
            assert (row.name, tenant.hear()) == (row.name, f"interrupted {NOT_PERMITTED}")


def test_ends_and_questions_go_on_at_once(gated: GatedWorld, tenant: Tenant) -> None:
    suspend(gated, tenant)
    for row in rows("LATER", "DONE", "LEDGER"):
        call(tenant, row)
        assert (row.name, tenant.hear()) == (row.name, "0")
    assert asked(gated) == 0


def test_calls_that_the_driver_does_not_hold_go_through(gated: GatedWorld, tenant: Tenant) -> None:
    suspend(gated, tenant)
    for row in (*rows("THROUGH"), *plain_calls()):
        call(tenant, row)
        assert tenant.hear().lstrip("-").isdigit(), row.name
    assert asked(gated) == 0


def test_a_free_is_done_at_the_resume(gated: GatedWorld, tenant: Tenant) -> None:
    suspend(gated, tenant)
    assert tenant.do("free") == 0
    assert gated.world.used() >= 64 * MIB
    resume(gated, tenant)
    until(lambda: gated.world.used() < 64 * MIB)
    assert gated.world.node.group(0, GROUP)[0] == 0
    assert asked(gated) == 0


def test_a_free_is_done_before_the_next_use(gated: GatedWorld, tenant: Tenant) -> None:
    suspend(gated, tenant)
    assert tenant.do("free") == 0
    tenant.say("cuMemAlloc_v2,*,")
    until(lambda: asked(gated) > 0)
    resume(gated, tenant)
    tenant.hear()
    assert gated.world.node.group(0, GROUP)[0] == 0


def test_a_question_waits_for_work_until_the_memory_has_left(
    gated: GatedWorld, tenant: Tenant
) -> None:
    """Before, work may be under way."""
    hold(gated, tenant, SlotHold.HELD)
    before = naps(tenant.pid)
    tenant.say("cuCtxSynchronize")
    until(lambda: naps(tenant.pid) > before + NAPS)
    tenant.signal(signal.SIGINT)
    assert tenant.hear() == f"interrupted {NOT_PERMITTED}"
    tenant.say("cuCtxSynchronize")
    hold(gated, tenant, SlotHold.AWAY)
    assert tenant.hear() == "0"
    assert asked(gated) == 0


def test_the_end_of_the_process_waits_for_no_gpu(gated: GatedWorld, tenant: Tenant) -> None:
    suspend(gated, tenant)
    for row in rows("LATER", "DONE"):
        call(tenant, row)
        tenant.hear()
    assert asked(gated) == 0
    tenant.do("waiter")
    until(lambda: asked(gated) > 0)
    tenant.process.communicate("", timeout=WAIT_LIMIT_S)
    assert tenant.process.returncode == 0
