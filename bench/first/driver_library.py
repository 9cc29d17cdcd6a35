"""Where libcuda is, and whether it is the simulator's.

Knows: the dynamic linker's ways, and folders where containers keep the library. Must not know: the
driver's calls. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
SEARCHED = ("/usr", "/opt", "/run", "/lib64", "/lib")
SEARCH_S = 10.0
LOAD_S = 30.0
ROOT = Path(__file__).resolve().parents[2]
MAPPED = f"""
import ctypes
ctypes.CDLL("{LIBRARY}")
print(next(line.split(maxsplit=5)[-1] for line in open("/proc/self/maps") if "libcuda" in line))
"""


class Driver(NamedTuple):
    """The folder of libcuda; None: there is none, and `reason` says so."""

    folder: Path | None
    is_simulated: bool
    reason: str

    def line(self) -> str:
        if self.folder is None:
            return self.reason
        return f"driver: {LIBRARY} in {self.folder}{self.of_figures()}"

    def of_figures(self) -> str:
        return " (THE SIMULATOR: no figure here is a GPU's)" if self.is_simulated else ""


def find_driver(environ: dict[str, str]) -> Driver:
    """Puts the folder of libcuda into LD_LIBRARY_PATH where the linker does not find it."""
    folder = folder_of_linker(environ)
    if folder is None:
        for folder in _folders_with_both():
            tried = {**environ, "LD_LIBRARY_PATH": _path_with(folder, environ)}
            if folder_of_linker(tried) is not None:
                environ |= tried
                break
        else:
            searched = ", ".join(SEARCHED)
            return Driver(None, False, f"no driver: {LIBRARY} loads from nowhere ({searched})")
    return Driver(folder, (folder / "node.state").exists(), "")


def make_simulated(folder: Path, node: str, environ: dict[str, str]) -> None:
    """A simulated node, found by LD_LIBRARY_PATH like a driver. Raises RuntimeError, one line."""
    code = (
        "import sys; from pathlib import Path; from nodemgr import simulator;"
        " simulator.create_of(Path(sys.argv[1]), simulator.parse_gpus(sys.argv[2])).close()"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(folder), node],
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise RuntimeError(f"there is no simulated node: {last}")
    environ["LD_LIBRARY_PATH"] = _path_with(folder, environ)


def _path_with(folder: Path, environ: dict[str, str]) -> str:
    return os.pathsep.join(filter(None, [str(folder), environ.get("LD_LIBRARY_PATH")]))


def folder_of_linker(environ: dict[str, str]) -> Path | None:
    """Of the library that a process with these variables loads."""
    try:
        loaded = subprocess.run(
            [sys.executable, "-S", "-c", MAPPED],
            env=environ, capture_output=True, text=True, timeout=LOAD_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return Path(loaded.stdout.strip()).parent if loaded.returncode == 0 else None


def _folders_with_both() -> Iterator[Path]:
    """Folders of libcuda beside NVML first, then those of libcuda alone; no toolkit's stubs."""
    end, alone = time.monotonic() + SEARCH_S, []
    for top in SEARCHED:
        for folder, _, files in os.walk(top):
            if time.monotonic() > end:
                break
            if LIBRARY in files and "stubs" not in Path(folder).parts:
                if NVML in files:
                    yield Path(folder)
                else:
                    alone.append(Path(folder))
    yield from alone
