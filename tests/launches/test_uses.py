"""Uses of the GPU that take no turn: each brings the memory of a suspended process back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launches.gated import SUSPENDED, GatedWorld, Share, Tenant
from tests.launches.test_turns import until
from tests.shim.world import hooks

PROGRAM = """
import ctypes, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
room = ctypes.create_string_buffer(1024)
print("ready", flush=True)
for line in sys.stdin:
    name, *types = line.split(",")
    given = [ctypes.c_void_p(ctypes.addressof(room)) if "*" in each else ctypes.c_void_p()
             for each in types]
    print(getattr(cuda, name)(*given), flush=True)
"""
HALF = Share(50)


@pytest.fixture
def tenant(gated: GatedWorld) -> Tenant:
    gated.manager.share = HALF
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=gated.world.environment(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    made = Tenant(process)
    gated.tenants.append(made)
    assert made.hear() == "ready"
    return made


def asked(gated: GatedWorld) -> int:
    return sum(packet.verb == "ASK" for packet in gated.manager.received)


@pytest.mark.parametrize("kind", ["COPY", "USE"])
def test_each_use_asks_for_the_memory_of_a_suspended_process(
    gated: GatedWorld, tenant: Tenant, kind: str
) -> None:
    slot = gated.slot(tenant)
    rows = hooks(kind).values()
    assert len(rows) >= 12
    for row in rows:
        gated.gate.set(slot, HALF, SUSPENDED)
        before = asked(gated)
        types = ["host" if each == "void *" else each for each in row.types]  # a host function
        tenant.say(",".join((row.name, *types)))
        until(lambda before=before: asked(gated) > before)
        assert tenant.process.poll() is None, row.name
        gated.gate.set(slot, HALF)
        int(tenant.hear())


def test_a_question_brings_no_memory_back(gated: GatedWorld, tenant: Tenant) -> None:
    """A watchdog that polls would undo each suspension."""
    gated.gate.set(gated.slot(tenant), HALF, SUSPENDED)
    for line in ("cuStreamQuery,stream", "cuEventQuery,event", "cuEventDestroy_v2,event"):
        tenant.say(line)
        int(tenant.hear())
    assert asked(gated) == 0
