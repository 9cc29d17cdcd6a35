"""Gated programs in hard places: a closed driver library, system calls that a filter refuses."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches.gated import CLOSED, GatedWorld, Share, Tenant
from tests.launches.test_turns import waits
from tests.support.limits import until

PROGRAM = """
import _ctypes, ctypes, platform, struct, sys
libc = ctypes.CDLL(None)

def opened():
    global cuda, kernel
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel = (ctypes.c_void_p() for _ in range(3))
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"sleep_us_5") == 0
    return "open"

def closed():
    return _ctypes.dlclose(cuda._handle) or "closed"

def launched():
    return cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None) or (
        cuda.cuCtxSynchronize() or "launched")

def filtered():
    "EPERM for memfd_create, and for futex between processes (FUTEX_WAIT, FUTEX_WAKE)."
    x86 = platform.machine() == "x86_64"
    seccomp, memfd, futex = (317, 319, 202) if x86 else (277, 279, 98)
    load, equal, above, answer, refuse, allow = 0x20, 0x15, 0x25, 0x06, 0x50001, 0x7FFF0000
    rules = [(load, 0, 0, 0), (equal, 4, 0, memfd), (equal, 0, 2, futex), (load, 0, 0, 24),
        (above, 0, 1, 1), (answer, 0, 0, allow), (answer, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("=H6xQ", len(rules), ctypes.addressof(code)))
    libc.prctl(38, 1, 0, 0, 0)
    return libc.syscall(seccomp, 1, 1, program) or libc.memfd_create(b"x", 0)

for line in sys.stdin:
    print(globals()[line.strip()](), flush=True)
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
    return made


def does(tenant: Tenant, word: str) -> str:
    tenant.say(word)
    return tenant.hear()


def test_a_program_may_close_the_drivers_library_and_open_it_again(tenant: Tenant) -> None:
    for _ in range(3):
        words = [does(tenant, word) for word in ("opened", "launched", "closed")]
        assert words == ["open", "launched", "closed"]


def naps(pid: int) -> int:
    """How often the main thread has slept."""
    text = Path(f"/proc/{pid}/status").read_text()
    (found,) = re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)
    return int(found)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of calls")
def test_a_wait_without_futex_between_processes_sleeps_and_ends(
    gated: GatedWorld, tenant: Tenant
) -> None:
    """A seccomp filter of a container. The pages are memory files of the manager."""
    assert does(tenant, "opened") == "open"
    assert does(tenant, "filtered") == "-1"
    assert does(tenant, "launched") == "launched"
    slot = gated.slot(tenant)
    gated.gate.set(slot, HALF, CLOSED)
    tenant.say("launched")
    waits(gated, tenant)
    before = naps(tenant.process.pid)
    until(lambda: naps(tenant.process.pid) > before + 200)
    gated.gate.set(slot, HALF)
    assert tenant.hear() == "launched"
