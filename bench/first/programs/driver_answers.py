"""Codes of calls with good and bad arguments: one line a call. Standard library only.

    python driver_answers.py "before cuInit"|"without a context"|"with a context"

The call stands on its line before it is made: the last line of a process that dies names it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

from driver_api import Address, Pointer, Size, cuda, primary_context

WILD = Address(0x1234000)
MIB = 1 << 20
OWN = os.getpid()
PINNED = b"\1\0\0\0\0\0\0\0\1" + bytes(40)
"""CUmemAllocationProp: pinned, on device 0."""
BAD_PTX = b".version 6.0\n.target sm_60\n.address_size 64\nx"
address, pointer, number = Address(), Pointer(), ctypes.c_int()
free, total = Size(), Size()
ADDRESS, POINTER, NUMBER = map(ctypes.byref, (address, pointer, number))
FREE, TOTAL = ctypes.byref(free), ctypes.byref(total)

CALLS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("count", "cuDeviceGetCount", (NUMBER,)),
    ("count null", "cuDeviceGetCount", (None,)),
    ("device 99", "cuDeviceGet", (NUMBER, 99)),
    ("info", "cuMemGetInfo_v2", (FREE, TOTAL)),
    ("info null", "cuMemGetInfo_v2", (None, TOTAL)),
    ("total of 99", "cuDeviceTotalMem_v2", (FREE, 99)),
    ("total null", "cuDeviceTotalMem_v2", (None, 0)),
    ("alloc 0", "cuMemAlloc_v2", (ADDRESS, Size(0))),
    ("alloc null", "cuMemAlloc_v2", (None, Size(8))),
    ("alloc 1 TiB", "cuMemAlloc_v2", (ADDRESS, Size(1 << 40))),
    ("alloc most", "cuMemAlloc_v2", (ADDRESS, Size(2**64 - 1))),
    ("free 0", "cuMemFree_v2", (Address(0),)),
    ("free wild", "cuMemFree_v2", (WILD,)),
    ("async 1 TiB", "cuMemAllocAsync", (ADDRESS, Size(1 << 40), None)),
    ("async 0", "cuMemAllocAsync", (ADDRESS, Size(0), None)),
    ("async free 0", "cuMemFreeAsync", (Address(0), None)),
    ("async free wild", "cuMemFreeAsync", (WILD, None)),
    ("pitch 0", "cuMemAllocPitch_v2", (ADDRESS, FREE, Size(0), Size(4), 4)),
    ("pitch element 3", "cuMemAllocPitch_v2", (ADDRESS, FREE, Size(8), Size(4), 3)),
    ("managed 0", "cuMemAllocManaged", (ADDRESS, Size(0), 1)),
    ("managed flag 9", "cuMemAllocManaged", (ADDRESS, Size(8), 9)),
    ("create of 1 byte", "cuMemCreate", (ADDRESS, Size(1), PINNED, Address(0))),
    ("create null", "cuMemCreate", (ADDRESS, Size(2 * MIB), None, Address(0))),
    ("release 0", "cuMemRelease", (Address(0),)),
    ("unmap wild", "cuMemUnmap", (WILD, Size(2 * MIB))),
    ("array null", "cuArrayCreate_v2", (POINTER, None)),
    ("array destroy 0", "cuArrayDestroy", (None,)),
    ("context on 99", "cuCtxCreate_v2", (POINTER, 0, 99)),
    ("retain on 99", "cuDevicePrimaryCtxRetain", (POINTER, 99)),
    ("context destroy 0", "cuCtxDestroy_v2", (None,)),
    ("limit 99", "cuCtxSetLimit", (99, Size(1))),
    ("get limit 0", "cuCtxGetLimit", (FREE, 0)),
    ("module of junk", "cuModuleLoadData", (POINTER, b"junk" * 64)),
    ("module of bad PTX", "cuModuleLoadData", (POINTER, BAD_PTX)),
    ("module of no file", "cuModuleLoad", (POINTER, b"/nonexistent")),
    ("module unload 0", "cuModuleUnload", (None,)),
    ("library of junk", "cuLibraryLoadData",
        (POINTER, b"junk" * 64, None, None, 0, None, None, 0)),
    ("launch 0", "cuLaunchKernel", (None, 1, 1, 1, 1, 1, 1, 0, None, None, None)),
    ("graph launch 0", "cuGraphLaunch", (None, None)),
    ("event record 0", "cuEventRecord", (None, None)),
    ("event query 0", "cuEventQuery", (None,)),
    ("stream wait", "cuStreamSynchronize", (None,)),
    ("context wait", "cuCtxSynchronize", ()),
    ("pool destroy 0", "cuMemPoolDestroy", (None,)),
    ("pool trim 0", "cuMemPoolTrimTo", (None, Size(0))),
    ("copy of 0 bytes", "cuMemcpyDtoH_v2", (None, Address(0), Size(0))),
    ("set 0 bytes", "cuMemsetD8_v2", (Address(0), 0, Size(0))),
    ("checkpoint state of 1", "cuCheckpointProcessGetState", (1, NUMBER)),
    ("checkpoint state of 0", "cuCheckpointProcessGetState", (0, NUMBER)),
    ("checkpoint state of itself", "cuCheckpointProcessGetState", (OWN, NUMBER)),
    ("checkpoint restore of itself", "cuCheckpointProcessRestore", (OWN, None)),
)  # fmt: skip
"""A title, the function, its arguments."""


def lines() -> Iterator[tuple[str, str]]:
    for title, name, arguments in CALLS:
        print(title, end="", flush=True)
        function = getattr(cuda, name, None)
        yield title, "absent" if function is None else str(function(*arguments))


def main() -> None:
    state = sys.argv[1]
    if state == "without a context":
        cuda.cuInit(0)
    elif state == "with a context":
        primary_context()
    for _, code in lines():
        print(f" = {code}", flush=True)


main()
