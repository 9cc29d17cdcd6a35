"""Ctrl-C in the launch gate below a library that raises an error of its own, as frameworks do."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.launches.gated import CLOSED, GatedWorld, Share, Tenant
from tests.launches.test_turns import waits
from tests.shim.world import ROOT, compiled

FRAMEWORK = r"""
#include <dlfcn.h>
extern void PyErr_SetString(void *, const char *);
extern void *PyExc_RuntimeError, *PyLong_FromLong(long), *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
void *launch(void *kernel, int without_lock)
{
    int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                void *, void **, void **);
    *(void **)&real = dlsym(dlopen("libcuda.so.1", 2), "cuLaunchKernel");
    void *left = without_lock ? PyEval_SaveThread() : 0;
    int result = real(kernel, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0);
    if (left)
        PyEval_RestoreThread(left);
    if (result == 0)
        return PyLong_FromLong(0);
    PyErr_SetString(PyExc_RuntimeError, "the launch failed");
    return 0;
}
"""
PROGRAM = """
import ctypes, sys
sys.path.insert(0, sys.argv[3])
from client_plugin import lease
assert lease.start()  # as the adapter of a framework does
cuda, framework = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL(sys.argv[1])
framework.launch.restype = ctypes.py_object
context, module, kernel = (ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"sleep_us_5") == 0
print("ready", flush=True)
for line in sys.stdin:
    try:
        print("result", framework.launch(kernel, int(sys.argv[2])), flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("without_lock", [0, 1])
def test_the_interrupt_is_raised_in_the_place_of_the_error(
    gated: GatedWorld, without_lock: int
) -> None:
    gated.manager.share = Share(50)
    framework = compiled(FRAMEWORK, "-shared", "-fPIC", "-ldl")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(framework), str(without_lock), str(ROOT)],
        env=gated.world.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tenant = Tenant(process)
    gated.tenants.append(tenant)
    assert tenant.hear() == "ready"
    gated.gate.set(gated.slot(tenant), Share(50), CLOSED)
    tenant.go()
    waits(gated, tenant)
    tenant.signal(signal.SIGINT)
    assert tenant.hear() == "interrupted"
    gated.gate.set(gated.slot(tenant), Share(50))
    tenant.go()
    assert tenant.hear() == "result 0"
