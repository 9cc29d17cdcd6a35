"""Host memory that a suspension may take: of the node, and of the containers of its processes.

Knows: /proc/meminfo, and the memory limits of cgroups of both versions. Must not know: GPUs, tasks.
The driver puts a process's device memory into that process, so its cgroups are charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from nodemgr.edge.kernel import cgroups

MEMINFO = Path("/proc/meminfo")
V1_MEMORY = Path("/sys/fs/cgroup/memory")
NODE_RESERVE = 64
"""One part in so many of the node's memory stays free."""


class HostShortage(NamedTuple):
    """Host memory that does not suffice."""

    need_bytes: int
    free_bytes: int
    pid: int | None
    """A process in the container whose limit it is; None: the node itself."""


def shortage(needs: Mapping[int, int], meminfo: Path = MEMINFO) -> HostShortage | None:
    """The first limit that these bytes by PID would break; None: they fit."""
    need_bytes = sum(needs.values())
    free_bytes = free_of_node(meminfo)
    if free_bytes is not None and need_bytes > free_bytes:
        return HostShortage(need_bytes, free_bytes, None)
    groups: dict[Path, dict[int, int]] = {}
    for pid, bytes_of_pid in needs.items():
        for group in _groups(pid):
            groups.setdefault(group, {})[pid] = bytes_of_pid
    for group, members in groups.items():
        need_bytes, free_bytes = sum(members.values()), free_of_group(group)
        if free_bytes is not None and need_bytes > free_bytes:
            return HostShortage(need_bytes, free_bytes, min(members))
    return None


def free_of_node(meminfo: Path = MEMINFO) -> int | None:
    """MemAvailable, less a reserve; None: unknown."""
    found = _total_and_free(meminfo)
    return None if found is None else max(0, found[1] - found[0] // NODE_RESERVE)


def most_of_node(meminfo: Path = MEMINFO) -> int | None:
    """The same of a node without other work."""
    found = _total_and_free(meminfo)
    return None if found is None else found[0] - found[0] // NODE_RESERVE


def _total_and_free(meminfo: Path) -> tuple[int, int] | None:
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total_bytes, free_bytes = (
            int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
        )
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return total_bytes, free_bytes


def free_of_group(directory: Path) -> int | None:
    """The rest of the group's limit, with the page cache that the kernel drops first.

    None: it has no limit.
    """
    limit = _number(directory / "memory.max")
    if limit is not None:
        used, cache = _number(directory / "memory.current"), "inactive_file"
    else:
        limit = _number(directory / "memory.limit_in_bytes")
        used, cache = _number(directory / "memory.usage_in_bytes"), "total_inactive_file"
    if limit is None or used is None:
        return None
    return max(0, limit - used + _statistic(directory / "memory.stat", cache))


def _groups(pid: int) -> Iterator[Path]:
    """The process's memory cgroup and all above it, of both versions."""
    own = cgroups.directory_of(pid)
    root = cgroups.mount_point()
    if own is not None and root is not None:
        yield from _up(own, root)
    yield from _up(_v1_directory(pid), V1_MEMORY)


def _up(directory: Path | None, root: Path) -> Iterator[Path]:
    while directory is not None and directory != root and root in directory.parents:
        yield directory
        directory = directory.parent


def _v1_directory(pid: int) -> Path | None:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(",") and ".." not in path.split("/"):
            return V1_MEMORY / path.lstrip("/")
    return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _statistic(path: Path, name: str) -> int:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name), 0)
    except (OSError, ValueError):
        return 0
