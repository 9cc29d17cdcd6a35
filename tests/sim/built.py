"""The simulator's libraries, as the sources say they are.

Knows: file times. Must not know: tests. A conftest that imports the fixture has it.
"""

from __future__ import annotations

import fcntl
import os

import pytest

from csrc.sim import build
from nodemgr import simulator


@pytest.fixture(scope="session", autouse=True)
def built_libraries() -> None:
    """A checkout with libraries older than their sources has them built anew."""
    directory = os.open(simulator.library_directory(), os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # test workers start at the same time
        _build_if_older()
    finally:
        os.close(directory)


def _build_if_older() -> None:
    outputs = [simulator.library_directory() / name for name in build.ROOMS]
    listed = [*build.HERE.rglob("*"), build.CSRC / "base" / "abi.h"]
    sources = [path for path in listed if path.is_file() and path.suffix != ".pyc"]
    newest = max(path.stat().st_mtime for path in sources)
    if not all(path.exists() and path.stat().st_mtime >= newest for path in outputs):
        build.build(simulator.library_directory())
