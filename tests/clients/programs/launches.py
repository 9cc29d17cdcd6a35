"""cuda.bindings.driver as its users write it: launches by every call, in streams and graphs.

Cells import it. Must not know: on what it runs. A kernel's result is not looked at.
"""

from cuda.bindings import driver
from cuda.bindings.driver import (
    CUevent_flags,
    CUlaunchConfig,
    CUresult,
    CUstream_flags,
    CUstreamCaptureMode,
)

PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry sleep_us_20() { ret; }
"""
SENT = bytes(range(256)) * 16
GRID = (1, 1, 1, 32, 1, 1, 0)
ROUNDS = 30

state = {}


def check(answer):
    """The values behind the result code."""
    code, *values = answer
    if code != CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)
    return values[0] if len(values) == 1 else values


def start():
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
    check(driver.cuCtxSetCurrent(context))
    load()


def load():
    module = check(driver.cuModuleLoadData(PTX))
    state["kernel"] = check(driver.cuModuleGetFunction(module, b"sleep_us_20"))


def retain():
    check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))


def launch(stream=0):
    check(driver.cuLaunchKernel(state["kernel"], *GRID, stream, 0, 0))


def launch_extended(stream):
    config = CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = stream
    check(driver.cuLaunchKernelEx(config, state["kernel"], 0, 0))


def launch_cooperative(stream):
    check(driver.cuLaunchCooperativeKernel(state["kernel"], *GRID, stream, 0))


def synchronize():
    check(driver.cuCtxSynchronize())


def allocate():
    check(driver.cuMemFree(check(driver.cuMemAlloc(1 << 20))))


def keep():
    state["kept"] = check(driver.cuMemAlloc(len(SENT)))
    check(driver.cuMemcpyHtoD(state["kept"], SENT, len(SENT)))


def is_kept():
    back = bytearray(len(SENT))
    check(driver.cuMemcpyDtoH(back, state["kept"], len(SENT)))
    return bytes(back) == SENT


def crossed(one, other):
    """Two streams that wait for each other's events in turn."""
    events = [check(driver.cuEventCreate(CUevent_flags.CU_EVENT_DEFAULT)) for _ in "12"]
    for _ in range(ROUNDS):
        for stream, behind, event in ((one, other, events[0]), (other, one, events[1])):
            launch(stream)
            check(driver.cuEventRecord(event, stream))
            check(driver.cuStreamWaitEvent(behind, event, 0))
    check(driver.cuEventSynchronize(events[1]))
    return check(driver.cuEventElapsedTime(*events)) > 0


def captured(stream):
    """An executable graph of three launches."""
    mode = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    check(driver.cuStreamBeginCapture(stream, mode))
    for each in (launch, launch_extended, launch_cooperative):
        each(stream)
    graph = check(driver.cuStreamEndCapture(stream))
    return check(driver.cuGraphInstantiate(graph, 0))


def work():
    """The results of a program that launches 2 * ROUNDS + 3 * ROUNDS + 7 times."""
    keep()
    streams = [check(driver.cuStreamCreate(CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in "12"]
    in_order = crossed(*streams)
    for _ in range(ROUNDS):
        launch()
        launch_extended(0)
        launch_cooperative(streams[0])
    graph = captured(streams[0])
    for _ in range(7):
        check(driver.cuGraphLaunch(graph, streams[0]))
    synchronize()
    check(driver.cuStreamDestroy(streams[1]))
    return {"launches": 5 * ROUNDS + 7, "in_order": in_order, "same_bytes": is_kept()}
