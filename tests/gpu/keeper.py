"""A program that keeps bytes in GPU memory and compares them on request, by ctypes alone.

It runs on a simulated driver and on a real one.

Knows: its lines of input and output. Must not know: what happens to the memory meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.manager import Manager

MIB = 2**20

KEEPER = """
import ctypes, hashlib, sys
cuda, size = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
kind = getattr(cuda, sys.argv[2].replace("Shared", "Alloc"))
more = (1,) if sys.argv[2] == "cuMemAllocManaged" else ()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context), kind(ctypes.byref(pointer), ctypes.c_size_t(size), *more)]
data = b"".join(hashlib.sha256(b"%d" % part).digest() for part in range(1 << 14))
back = ctypes.create_string_buffer(len(data))
codes.append(cuda.cuMemcpyHtoD_v2(pointer, data, ctypes.c_size_t(len(data))))
if "Shared" in sys.argv[2]:
    codes[-1] |= cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), pointer)
print(*codes, flush=True)
for line in sys.stdin:
    if line == "free\\n":
        print("freed", cuda.cuMemFree_v2(pointer), flush=True)
        continue
    if line == "info\\n":
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        print("info", code, total.value - free.value, flush=True)
        continue
    code = cuda.cuMemcpyDtoH_v2(back, pointer, ctypes.c_size_t(len(data)))
    print("same" if (code, back.raw) == (0, data) else f"differs {code}", flush=True)
"""
"""Keeps bytes on its GPU, and compares them for each line that it reads.

Its memory is of the kind of the function that it names; cuMemShared_v2: exported by CUDA IPC.
"""


def keeper(
    node: Manager,
    env: str = "alice",
    size: int = 64 * MIB,
    kind: str = "cuMemAlloc_v2",
    **variables: str,
) -> subprocess.Popen[str]:
    """Starts it, and returns when its memory has its bytes."""
    command = [sys.executable, "-S", "-c", KEEPER, str(size), kind]
    program = node.spawn(env, command, **variables)
    assert program.stdout is not None
    assert program.stdout.readline() == "0 0 0 0 0\n"
    return program


def ask(program: subprocess.Popen[str], what: str = "check") -> None:
    assert program.stdin is not None
    program.stdin.write(f"{what}\n")
    program.stdin.flush()


def answer(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def answer_of(program: subprocess.Popen[str]) -> str:
    ask(program)
    return answer(program)
