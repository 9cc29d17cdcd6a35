"""Each way to each function of the driver: one line an answer. Standard library only.

    python driver_lookups.py FILE        FILE: a name a line

Lines: `before|after NAME dlsym PLACE`, `before|after NAME VERSION FLAGS CODE STATUS PLACE`; a place
is a library and an offset, 0 for none.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from driver_api import Address, Pointer, cuda

VERSIONS = (2000, 3000, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 8000, 9000, 10000, 10010,
    10020, 11000, 11010, 11020, 11030, 11040, 11060, 11080, 12000, 12010, 12030, 12050, 12080,
    13000, 13010, 13050, 99000)  # fmt: skip
BEFORE = (12080, 13000, 99000)
"""Before cuInit, these are enough."""
FLAGS = (0, 1, 2)
UNTOUCHED = -5


class Found(ctypes.Structure):
    """Dl_info."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


dladdr = ctypes.CDLL(None).dladdr
dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Found)]


def place(address: int | None) -> str:
    found = Found()
    if not address:
        return "0"
    if not dladdr(address, ctypes.byref(found)):
        return "?"
    library = os.path.basename(found.file.decode()).split(".so")[0]
    return f"{library}+{address - found.base:x}"


def ask(moment: str, name: str, versions: tuple[int, ...]) -> None:
    bound = getattr(cuda, name, None)
    print(moment, name, "dlsym", place(bound and ctypes.cast(bound, Pointer).value))
    function, status = Pointer(), ctypes.c_int()
    for version in versions:
        for flags in FLAGS:
            function.value, status.value = None, UNTOUCHED
            code = cuda.cuGetProcAddress_v2(
                name.encode(), ctypes.byref(function), version, Address(flags),
                ctypes.byref(status),
            )  # fmt: skip
            print(moment, name, version, flags, code, status.value, place(function.value))


def main() -> None:
    names = Path(sys.argv[1]).read_text().split()
    for name in names:
        ask("before", name, BEFORE)
    cuda.cuInit(0)
    for name in names:
        ask("after", name, VERSIONS)


main()
