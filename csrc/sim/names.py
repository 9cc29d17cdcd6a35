"""Makes driver_names.txt and nvml_names.txt, the symbols of the real libraries, from headers.

Run by hand when a new CUDA version appears (`python -m csrc.sim.names DIRECTORY...`, one directory
per toolkit generation, each with cuda.h, cudaTypedefs.h and their neighbours, or with nvml.h); the
build reads only the lists. Known lines are kept: a symbol that a new header dropped is still
exported by drivers and still asked for.

Knows: how those headers spell a version (`PFN_cuMemAlloc_v3020` is the ABI of cuMemAlloc that came
with CUDA 3.2, and `PFN_cuMemcpyHtoD_v7000_ptds` the same with per-thread default streams). Must not
know: what any function does.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRIVER_LIST = HERE / "driver" / "driver_names.txt"
NVML_LIST = HERE / "nvml" / "nvml_names.txt"

DRIVER_HEADING = """\
# Every symbol of libcuda.so.1, as facts from the public headers (made by names.py).
# symbol, the name cuGetProcAddress knows it by, the CUDA version that brought this ABI, \
default stream of this variant
"""
NVML_HEADING = """\
# Every symbol of libnvidia-ml.so.1, as facts from the public header (made by names.py).
"""

_POINTER_TYPE = re.compile(r"\*\s*PFN_(cu\w+?)_v(\d+)(?:_(ptsz|ptds))?\s*\)")
_NVML_FUNCTION = re.compile(
    r"nvmlReturn_t\s+(?:DECLDIR\s+)?(nvml\w+)\s*\(|char\s*\*\s*(?:DECLDIR\s+)?(nvml\w+)\s*\("
)


@dataclass(frozen=True, order=True)
class DriverName:
    """One exported ABI of one driver function."""

    base: str
    version: int
    stream: str  # "-": legacy; "ptsz" or "ptds": the per-thread default stream
    symbol: str

    def line(self) -> str:
        return f"{self.symbol} {self.base} {self.version} {self.stream}"


def _symbol(base: str, version: int, stream: str, plain_versions: list[int]) -> str:
    """The k-th ABI of a function is exported as base, base_v2, base_v3, ...

    A per-thread one has the name of its ABI: the youngest that is not younger than it.
    """
    generation = sum(1 for plain in plain_versions if plain <= version)
    return (
        base
        + (f"_v{generation}" if generation > 1 else "")
        + ("" if stream == "-" else f"_{stream}")
    )


def driver_names(texts: list[str]) -> set[DriverName]:
    """The names in the texts of the *Typedefs.h headers."""
    found = {
        (base, int(version), stream or "-")
        for text in texts
        for base, version, stream in _POINTER_TYPE.findall(text)
    }
    plain: dict[str, list[int]] = defaultdict(list)
    for base, version, stream in sorted(found):
        if stream == "-":
            plain[base].append(version)
    return {
        DriverName(base, version, stream, _symbol(base, version, stream, plain[base]))
        for base, version, stream in found
    }


def nvml_names(text: str) -> set[str]:
    """The functions that the text of nvml.h declares."""
    return {first or second for first, second in _NVML_FUNCTION.findall(text)}


def read_driver_names() -> list[DriverName]:
    """driver_names.txt, sorted by (base, version, stream)."""
    rows = [
        line.split()
        for line in DRIVER_LIST.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return sorted(
        DriverName(base, int(version), stream, symbol) for symbol, base, version, stream in rows
    )


def read_nvml_names() -> list[str]:
    """nvml_names.txt, sorted."""
    return sorted(
        line for line in NVML_LIST.read_text().splitlines() if line and not line.startswith("#")
    )


def main(directories: list[Path]) -> None:
    typedefs = [
        path.read_text()
        for directory in directories
        for path in sorted(directory.glob("cuda*Typedefs.h"))
    ]
    if typedefs:
        known = set(read_driver_names()) if DRIVER_LIST.exists() else set()
        rows = sorted(known | driver_names(typedefs))
        DRIVER_LIST.write_text(DRIVER_HEADING + "".join(f"{name.line()}\n" for name in rows))
    headers = [path.read_text() for directory in directories for path in directory.glob("nvml.h")]
    if headers:
        functions = set(read_nvml_names()) if NVML_LIST.exists() else set()
        functions = functions.union(*(nvml_names(text) for text in headers))
        NVML_LIST.write_text(NVML_HEADING + "".join(f"{name}\n" for name in sorted(functions)))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
