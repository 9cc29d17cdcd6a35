"""The file of the driver's libcuda for the suspension process.

Knows: the libraries that this process has mapped. Must not know: LD_LIBRARY_PATH, which may have
named NVML's directory and is not handed on; the driver's calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LIBRARY = "libcuda.so.1"
NVML_FILE = "/libnvidia-ml.so"
PATH_COLUMN = 5


def driver_file() -> str:
    """Beside the NVML that this process has loaded; else the name alone, for the linker."""
    with open("/proc/self/maps", "rb") as maps:
        beside = _beside_nvml(map(os.fsdecode, maps))
    return LIBRARY if beside is None else str(beside)


def _beside_nvml(maps: Iterable[str]) -> Path | None:
    """The libcuda in the directory of a mapped NVML."""
    for line in maps:
        columns = line.rstrip("\n").split(maxsplit=PATH_COLUMN)
        if len(columns) > PATH_COLUMN and NVML_FILE in columns[PATH_COLUMN]:
            found = Path(columns[PATH_COLUMN]).with_name(LIBRARY)
            if found.exists():
                return found
    return None
