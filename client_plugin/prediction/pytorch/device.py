"""Lets PyTorch make fake tensors on `cuda` and run their backward pass without a GPU.

A build without CUDA has no device guard for it, and no answer to "is CUDA built". Both stand in
tables of C++: an entry in the registry of guards, and two virtual functions of the hooks. A new
version of PyTorch may have other tables: the caller tests the result (self_test) before it relies
on it. Knows: torch's libraries and headers. Must not know: what is recorded.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
from typing import Any, Dict, List, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = 1
"""The index of the device type in the registry of guards."""
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
HOOKS = "_ZN2at6detail12getCUDAHooksEv"
HEADER = "include/ATen/detail/AcceleratorHooksInterface.h"
TRUE_FOR = ("isBuilt", "hasPrimaryContext")
"""The functions of the hooks that the backward pass asks."""
KNOWN_SLOTS = {"isBuilt": 2, "hasPrimaryContext": 4}
"""Where torch 2.13 has them; used where the headers are not installed."""
TABLE_SIZE = 72
MAX_ERROR_BYTES = 4_096
VIRTUAL = re.compile(r"^\s*virtual [^\n(]*?(~?\w+)\s*\(", re.MULTILINE)

WHOLE = ("silu_backward", "mish_backward", "native_channel_shuffle")
"""Operators of which PyTorch knows both a kernel and a way to take them to pieces."""

_alive: List[Any] = []
"""Objects to which C++ has pointers now."""
_replaced: List[Any] = []
"""Pointers to tables of functions, each with its first value."""


def uninstall() -> None:
    """The hooks have their own table again."""
    while _replaced:
        hooks, start = _replaced.pop()
        hooks[0] = start


def slots(header: str) -> Dict[str, int]:
    """Virtual function -> its place in the table. The destructor has two positions."""
    names = VIRTUAL.findall(header)
    return {name: place + 1 for place, name in enumerate(names) if not name.startswith("~")}


def install() -> None:
    """Raises OSError, AttributeError or ValueError where this build has other tables."""
    atexit.register(uninstall)  # the interpreter frees `_alive` before PyTorch's own destructors
    folder = os.path.dirname(torch.__file__)
    core = ctypes.CDLL(os.path.join(folder, "lib", "libc10.so"))
    cpu = ctypes.CDLL(os.path.join(folder, "lib", "libtorch_cpu.so"))
    _set_guard(core)
    getattr(torch._C, "_ensureCUDADeviceGuardSet")()  # noqa: B009 (absent from the type stubs)
    _answer_true(cpu, _slots_of(folder))
    _keep_whole()
    getattr(torch._C, "_set_only_lift_cpu_tensors")(True)  # noqa: B009 (torch.tensor on cuda)


def _keep_whole() -> None:
    """These operators have one kernel on a GPU. Without it PyTorch takes them to pieces."""
    library = torch.library.Library("aten", "IMPL")
    _alive.append(library)
    for name in WHOLE:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, _no_kernel, "CUDA")


def _no_kernel(*_args: Any, **_kwargs: Any) -> None:
    raise NotImplementedError("a tensor on the fake GPU has no values")


def _set_guard(core: ctypes.CDLL) -> None:
    """An entry whose every function returns 0: ensureCUDADeviceGuardSet puts its own there."""
    registry = (ctypes.c_void_p * 24).in_dll(core, REGISTRY)
    if registry[CUDA]:
        return
    zero = ctypes.CFUNCTYPE(ctypes.c_long)(lambda: 0)
    table = (ctypes.c_void_p * TABLE_SIZE)(*[_address(zero)] * TABLE_SIZE)
    guard = (ctypes.c_void_p * 8)(ctypes.addressof(table))
    _alive.extend((zero, table, guard))
    registry[CUDA] = ctypes.addressof(guard)


def _answer_true(cpu: ctypes.CDLL, positions: Sequence[int]) -> None:
    """The hooks get a copy of their own table of functions, with these replaced."""
    get = getattr(cpu, HOOKS)
    get.restype = ctypes.c_void_p
    hooks = ctypes.cast(get(), ctypes.POINTER(ctypes.c_void_p))
    one = ctypes.CFUNCTYPE(ctypes.c_long)(lambda: 1)
    word = ctypes.sizeof(ctypes.c_void_p)
    before = 2  # the two words in front of a table: the offset and the type
    start = hooks[0] - before * word if hooks[0] else 0
    if not start:
        raise ValueError("the hooks have no table")
    copy = (ctypes.c_void_p * (TABLE_SIZE + before)).from_buffer_copy(
        (ctypes.c_char * (word * (TABLE_SIZE + before))).from_address(start)
    )
    for place in positions:
        copy[before + place] = _address(one)
    _alive.extend((one, copy))
    _replaced.append((hooks, hooks[0]))
    hooks[0] = ctypes.addressof(copy) + before * word


def _slots_of(folder: str) -> List[int]:
    try:
        with open(os.path.join(folder, HEADER)) as file:
            found = slots(file.read())
    except OSError:
        found = KNOWN_SLOTS
    return [found[name] for name in TRUE_FOR]


def _address(function: Any) -> Any:
    return ctypes.cast(function, ctypes.c_void_p).value


def renew_threads() -> None:
    """Let PyTorch make its pool of threads anew, in a process that was just forked.

    The first use of the pool does that. Without this call it is the backward pass, whose threads
    use the pool at the same moment: one of them finds no pool and ends the process (PyTorch 2.13).
    """
    torch.set_num_threads(torch.get_num_threads())


def self_test() -> None:
    """One layer in a child, which a wrong table can end. Raises RuntimeError on any failure.

    A backward pass here would start threads of PyTorch: then no child of the script can run one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            renew_threads()
            _run_layer()
            os._exit(0)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:MAX_ERROR_BYTES])
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(told or f"the fake GPU ended a process with status {status}")


def _run_layer() -> None:
    """Mixed precision and the backward pass on the fake GPU."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.float16):
            result = torch.nn.functional.linear(torch.ones(2, 4, device="cuda"), weight)
        result.float().sum().backward()
    if weight.grad is None or weight.grad.device.type != "cuda":
        raise RuntimeError("the gradient is not on the fake GPU")
