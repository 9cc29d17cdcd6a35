"""csrc/hooks/hooks.def names each function that a driver exports: hooked, called or left."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from csrc.sim.names import DriverName, driver_names, read_driver_names
from tests.shim.world import ROOT, every_row, hooks_table
from tests.sim import headers

HEADERS = headers.find("cuda.h")
NEIGHBOURS = ("cuda.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h", "cudaProfiler.h")
INLINE = {"cuGetProcAddress_v2_ptsz"}  # defined in the header itself, never exported

EXPORTED = {name.symbol for name in read_driver_names()}
ROWS = {row.name for row in every_row() if row.library == "CUDA"}
HOOKED = {row.base for row in every_row() if row.library == "CUDA"}
CALLED = set(re.findall(r"^NM_CALL\(CUDA, (\w+),", hooks_table(), flags=re.MULTILINE))
LEFT = {
    base: reason
    for reason, bases in re.findall(r"^NM_LEFT\((\w+), ([^)]*)\)", hooks_table(), re.MULTILINE)
    for base in re.split(r",\s+", bases)
}


def declared(header: Path) -> set[str]:
    """Declarations of the header and its neighbours, and the newer names of their macros."""
    texts = [
        path.read_text() for path in (header.parent / name for name in NEIGHBOURS) if path.exists()
    ]
    text = re.sub(r"/\*.*?\*/", "", "".join(texts), flags=re.DOTALL)
    functions = re.findall(r"\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(", text)
    return {
        *functions,
        *re.findall(r"#define\s+cu\w+\s+(cu\w+)\s*$", text, flags=re.MULTILINE),
    } - INLINE


def unknown(names: Iterable[DriverName]) -> list[str]:
    return sorted(
        name.symbol
        for name in names
        if name.symbol not in ROWS | CALLED and (name.base in HOOKED or name.base not in LEFT)
    )


def test_each_function_stands_in_the_table() -> None:
    """Red here: a newer CUDA.

    Enter its names into csrc/sim/driver/driver_names.txt (csrc/sim/names.py says how), then into
    hooks.def: as NM_HOOK what takes, frees or reports memory.
    """
    assert unknown(read_driver_names()) == []


def test_no_function_is_both_hooked_and_left() -> None:
    assert not set(LEFT) & HOOKED
    assert not CALLED & ROWS


def test_the_table_names_nothing_else() -> None:
    assert ROWS | CALLED <= EXPORTED
    assert set(LEFT) <= {name.base for name in read_driver_names()}


def test_each_reason_to_leave_a_function_is_documented() -> None:
    """A row of the table in docs/memory.md."""
    page = (ROOT / "docs" / "memory.md").read_text()
    assert set(re.findall(r"^\| `([A-Z]+)` \|", page, flags=re.MULTILINE)) == set(LEFT.values())


@pytest.mark.frameworks
@pytest.mark.parametrize("header", HEADERS, ids=[str(path.parent.parent.name) for path in HEADERS])
def test_the_headers_declare_nothing_else(header: Path) -> None:
    assert declared(header)
    assert sorted(declared(header) - EXPORTED) == []


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("cuda.h"))
def test_each_abi_in_the_headers_stands_in_the_table(header: Path) -> None:
    """Without its row, cuGetProcAddress answers with the hook of an ABI with other arguments."""
    texts = [path.read_text() for path in header.parent.glob("cuda*Typedefs.h")]
    assert unknown(driver_names(texts)) == []


@pytest.mark.parametrize(
    "name",
    [
        DriverName("cuFrob", 99010, "-", "cuFrob"),
        DriverName("cuMemAlloc", 99010, "-", "cuMemAlloc_v3"),
        DriverName("cuCtxCreate", 99010, "-", "cuCtxCreate_v5"),
        DriverName("cuLaunchHostFunc", 99010, "ptsz", "cuLaunchHostFunc_v3_ptsz"),
    ],
    ids=lambda name: name.symbol,
)
def test_a_new_function_or_abi_shows_itself(name: DriverName) -> None:
    assert unknown([name]) == [name.symbol]
