"""The memory of the host that is left for one more process, and what a process takes.

Knows: /proc and the cgroups of this process. Must not know: workers.
"""

from __future__ import annotations

import os
from typing import Iterator, Optional

UNLIMITED_BYTES = 1 << 62


def free_bytes() -> int:
    """Memory left for new processes: the least of the host and of each cgroup with a limit."""
    return min([_available_bytes(), *_left_in_cgroups()])


def resident_bytes(pid: int) -> int:
    """0: the process has ended."""
    pages = _read(f"/proc/{pid}/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _available_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNLIMITED_BYTES


def _left_in_cgroups() -> Iterator[int]:
    path = next(
        (line[3:] for line in _read("/proc/self/cgroup").splitlines() if line[:3] == "0::"), ""
    )
    while path:
        limit = _number(f"/sys/fs/cgroup{path}/memory.max")
        used = _number(f"/sys/fs/cgroup{path}/memory.current")
        if limit is not None and used is not None:
            yield max(0, limit - used)
        path = "" if path == "/" else os.path.dirname(path)


def _number(path: str) -> Optional[int]:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
