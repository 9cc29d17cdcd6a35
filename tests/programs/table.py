"""Programs that once noticed nodemgr: each alone on the node, and the same program under `run`.

A row is a script for bash in an empty folder. `$UNDER` is empty for the bare run, and
`nodemgr run --env alice --` for ours. `$PYTHON` runs the tests' Python. The two results are all
that the script prints, stdout and stderr together. SAME: the program notices nothing.

The node has two GPUs of 16 GiB; alice may use both, and 8 GiB in all. To extend the table, add a
row: the script with the least that shows the fault, and the results as the pages promise them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SAME = "the same as bare"


@dataclass(frozen=True)
class Program:
    name: str
    script: str
    bare: str
    ours: str
    files: Mapping[str, str] = field(default_factory=dict)


TOO_MUCH = """
import ctypes, os, socket, sys
cuda = ctypes.CDLL("libcuda.so.1")
def use_cuda():
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(15 << 30))
"""
"""Beyond the quota of 8 GiB: the shim has a line to print."""

DATA = {
    "file.py": TOO_MUCH
    + """
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
assert data == 2
os.write(data, b"one ")
use_cuda()
os.write(data, b"two")
os.write(1, open("data", "rb").read())
""",
    "pair.py": TOO_MUCH
    + """
near, far = socket.socketpair()
assert near.fileno() == 2
near.send(b"one ")
use_cuda()
near.send(b"two")
os.write(1, far.recv(1000))
""",
    "put.py": TOO_MUCH
    + """
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(data, b"one ")
os.dup2(data, 2)
use_cuda()
os.write(2, b"two")
os.write(1, open("data", "rb").read())
""",
}

PROGRAMS = [
    Program(
        "a data file is descriptor 2, because the parent closed stderr",
        "$UNDER $PYTHON -I file.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "the same in a Python with the hook",
        "$UNDER $PYTHON file.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "a connection is descriptor 2",
        "$UNDER $PYTHON -I pair.py 2>&-",
        bare="one two", ours=SAME, files=DATA,
    ),
    Program(
        "a program puts a file of its own in the place of stderr",
        "$UNDER $PYTHON put.py",
        bare="one two", ours=SAME, files=DATA,
    ),
]  # fmt: skip
