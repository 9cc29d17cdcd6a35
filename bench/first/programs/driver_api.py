"""libcuda by ctypes: a context, timed kernels, times of calls.

Standard library only: it runs on a bare machine.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping

cuda = ctypes.CDLL("libcuda.so.1")
Size, Pointer, Address = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64

KERNEL = """.visible .entry %s()
{
  .reg .u64 %%now, %%end;
  .reg .pred %%early;
  mov.u64 %%now, %%globaltimer;
  add.u64 %%end, %%now, %d;
AGAIN:
  mov.u64 %%now, %%globaltimer;
  setp.lt.u64 %%early, %%now, %%end;
  @%%early bra AGAIN;
  ret;
}
"""
"""A kernel that spins until the GPU's timer has gone on; as in timed_kernels.h."""


def timed(call: Callable[..., int], *arguments: object) -> tuple[int, float]:
    """The code of a call, and its milliseconds."""
    began_s = time.perf_counter()
    code = call(*arguments)
    return code, round((time.perf_counter() - began_s) * 1e3, 3)


def module_text(kernels_ns: Mapping[str, int]) -> bytes:
    """PTX of kernels by name; each takes so many nanoseconds."""
    head = ".version 6.0\n.target sm_60\n.address_size 64\n"
    return (head + "".join(KERNEL % named for named in kernels_ns.items())).encode()


def free_and_total() -> tuple[int, int, int]:
    """The code of cuMemGetInfo, free bytes, total bytes."""
    free, total = Size(), Size()
    code = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return code, free.value, total.value


def primary_context() -> ctypes.c_void_p:
    """Of the first device, made current. Raises RuntimeError with the call and its code."""
    context = Pointer()
    for name, call in (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(
            ctypes.byref(context), 0)),
        ("cuCtxSetCurrent", lambda: cuda.cuCtxSetCurrent(context)),
    ):  # fmt: skip
        if code := call():
            raise RuntimeError(f"{name}: {code}")
    return context
