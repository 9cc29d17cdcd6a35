"""symbols.py names every function that a driver exports.

Each function that takes memory there has a row in csrc/hooks/hooks.def.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from csrc.sim.names import read_driver_names
from tests.shim.hooks.symbols import (
    ALLOCATES,
    FREES,
    NEEDS_ROWS,
    NEUTRAL,
    STARTS,
    TELLS,
    alternatives,
    base_of,
    reasons,
)
from tests.shim.world import hooks
from tests.sim import headers

HEADERS = headers.find("cuda.h")
NEIGHBOURS = ("cuda.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h", "cudaProfiler.h")
INLINE = {"cuGetProcAddress_v2_ptsz"}  # defined in the header itself, never exported

EXPORTED = {name.symbol for name in read_driver_names()}


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


def unclassified(symbols: set[str]) -> list[str]:
    bases = {base_of(symbol) for symbol in symbols}
    return sorted(base for base in bases if (base in NEEDS_ROWS) + len(reasons(base)) != 1)


def without_row(symbols: set[str]) -> list[str]:
    return sorted(
        symbol for symbol in symbols if base_of(symbol) in NEEDS_ROWS and symbol not in hooks()
    )


def test_every_symbol_is_classified_once() -> None:
    assert unclassified(EXPORTED) == []


def test_what_takes_memory_has_a_row() -> None:
    assert without_row(EXPORTED) == []


def test_every_row_is_there_for_a_reason() -> None:
    rows = {hook.base for hook in hooks().values() if hook.library == "CUDA"}
    assert rows == NEEDS_ROWS


def test_a_function_is_of_one_class() -> None:
    assert len(NEEDS_ROWS) == len(STARTS) + len(ALLOCATES) + len(FREES) + len(TELLS)


@pytest.mark.frameworks
@pytest.mark.parametrize("header", HEADERS, ids=[str(path.parent.parent.name) for path in HEADERS])
def test_the_headers_declare_nothing_else(header: Path) -> None:
    """Red here: a newer CUDA.

    Enter its names into csrc/sim/driver/driver_names.txt (csrc/sim/names.py says how), then into
    symbols.py.
    """
    assert declared(header)
    assert sorted(declared(header) - EXPORTED) == []


INVENTED = [
    "cuMemAllocTiered",
    "cuMemcpyAllocAsync",
    "cuStreamCreatePooled",
    "cuGraphAddMemPoolNode",
    "cuLibraryLoadBatch",
    "cuFrob",
]


@pytest.mark.parametrize("invented", INVENTED)
def test_a_new_function_shows_itself(invented: str) -> None:
    assert unclassified({invented}) == [invented]


@pytest.mark.parametrize("invented", ["cuMemAlloc_v3", "cuCtxCreate_v5", "cuMemCreate_ptsz"])
def test_a_new_abi_of_a_known_function_shows_itself(invented: str) -> None:
    assert without_row({invented}) == [invented]


@pytest.mark.parametrize("reason", NEUTRAL)
def test_no_reason_is_left_over(reason: str) -> None:
    bases = {base_of(symbol) for symbol in EXPORTED}
    for part in alternatives(NEUTRAL[reason]):
        assert any(re.fullmatch(part, base) for base in bases), part
