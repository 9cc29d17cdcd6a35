"""Ctrl-C in the launch gate below a library that raises an error of its own, as frameworks do."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time

import pytest

from tests.launches.gated import CLOSED, GatedWorld, Share, Tenant
from tests.launches.test_turns import waits
from tests.shim.world import ROOT, compiled
from tests.support.limits import until

AGAIN_S = 5.0
UNANSWERED_NS = 500_000_000
"""After this time without an answer, the main thread waits in C (csrc/shim/python.c)."""
FRAMEWORK = r"""
#include <dlfcn.h>
#include <pthread.h>
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

/* As PyTorch's backward pass: a thread that Python knows launches, and the main one waits in C. */
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);
static void *own_thread(void *kernel)
{
    int state = PyGILState_Ensure();
    int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                void *, void **, void **), (*use)(void *);
    void *cuda = dlopen("libcuda.so.1", 2);
    *(void **)&real = dlsym(cuda, "cuLaunchKernel");
    *(void **)&use = dlsym(cuda, "cuCtxSetCurrent");
    void *left = PyEval_SaveThread();
    use(((void **)kernel)[0]);
    long result = real(((void **)kernel)[1], 1, 1, 1, 32, 1, 1, 0, 0, 0, 0);
    PyEval_RestoreThread(left);
    PyGILState_Release(state);
    return (void *)result;
}
void *launch_elsewhere(void *context, void *kernel)
{
    pthread_t thread;
    void *result, *both[] = {context, kernel}, *left = PyEval_SaveThread();
    pthread_create(&thread, 0, own_thread, both);
    pthread_join(thread, &result);
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


ELSEWHERE = (
    PROGRAM.split("for line")[0]
    + """
import signal, threading, time
framework.launch_elsewhere.restype = ctypes.py_object

def in_c():
    return framework.launch_elsewhere(context, kernel)

def in_python():
    found = []
    def work():
        cuda.cuCtxSetCurrent(context)
        found.append(framework.launch(kernel, 1))
    threading.Thread(target=work).start()
    try:
        while not found: time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while not found: time.sleep(0.01)
    return found[0]

if sys.argv[2] == "handled":
    signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
for line in sys.stdin:
    try:
        try:
            print("result", {"in_python": in_python}.get(sys.argv[2], in_c)(), flush=True)
        except RuntimeError:
            for _ in range(1000): len("")
            print("no interrupt", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
)


def beside_main(gated: GatedWorld, how: str) -> Tenant:
    """A program whose thread waits at a closed gate."""
    gated.manager.share = Share(50)
    framework = compiled(FRAMEWORK, "-shared", "-fPIC", "-ldl", "-lpthread")
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(framework), how, str(ROOT)],
        env=gated.world.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    tenant = Tenant(process)
    gated.tenants.append(tenant)
    assert tenant.hear() == "ready"
    gated.gate.set(gated.slot(tenant), Share(50), CLOSED)
    tenant.go()
    waits(gated, tenant)
    return tenant


def has_waited(gated: GatedWorld, tenant: Tenant) -> None:
    """For longer than a main thread may take to answer, from now on."""
    end_ns = time.monotonic_ns() + 2 * UNANSWERED_NS
    until(lambda: time.monotonic_ns() > end_ns)
    assert gated.gate.use(gated.slot(tenant)).waiting_since_ns


def interrupt(tenant: Tenant) -> str:
    """The line after Ctrl-C. One that came before the wait was old enough is not counted."""
    while True:
        tenant.signal(signal.SIGINT)
        if select.select([tenant.process.stdout], [], [], AGAIN_S)[0]:
            return tenant.hear()


def test_the_wait_of_another_thread_ends_where_the_main_one_waits_in_c(gated: GatedWorld) -> None:
    """As a backward pass of PyTorch."""
    tenant = beside_main(gated, "in_c")
    assert interrupt(tenant) == "interrupted"
    gated.gate.set(gated.slot(tenant), Share(50))
    tenant.go()
    assert tenant.hear() == "result 0"


def test_the_wait_of_another_thread_goes_on_where_the_main_one_runs(gated: GatedWorld) -> None:
    """The interrupt is the main thread's: work of other threads is no part of it."""
    tenant = beside_main(gated, "in_python")
    has_waited(gated, tenant)
    tenant.signal(signal.SIGINT)
    assert tenant.hear() == "interrupted"
    has_waited(gated, tenant)
    gated.gate.set(gated.slot(tenant), Share(50))
    assert tenant.hear() == "result 0"


def test_the_wait_of_another_thread_goes_on_where_the_program_handles_ctrl_c(
    gated: GatedWorld,
) -> None:
    """Its handler may mean something else, such as a checkpoint at the end of the step."""
    tenant = beside_main(gated, "handled")
    has_waited(gated, tenant)
    tenant.signal(signal.SIGINT)
    has_waited(gated, tenant)
    gated.gate.set(gated.slot(tenant), Share(50))
    assert tenant.hear() == "handled"
    assert tenant.hear() == "result 0"
