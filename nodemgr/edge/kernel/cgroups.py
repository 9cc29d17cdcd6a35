"""Which control groups this machine has, as its mounts say, and in which of them a process lives.

Knows: /proc/self/mountinfo, /proc/PID/cgroup, cgroup.procs. Must not know: what is done with a
group. Cheap to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")
V1_OPTIONS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix"})
"""Of a mount of version 1 that are no controllers."""


class Hierarchy(StrEnum):
    """Those that can gate devices: version 2, and the devices controller of version 1."""

    UNIFIED = "unified"
    DEVICES = "devices"


class Hierarchies(NamedTuple):
    """Where they are mounted, whole."""

    v2: str | None
    v1: Mapping[str, str]
    """By controller."""

    @property
    def mode(self) -> str:
        if self.v2 is None:
            return "v1" if self.v1 else "none"
        return "hybrid" if self.v1 else "v2"


def hierarchies(mountinfo: Path = MOUNTINFO) -> Hierarchies:
    """Those that can be seen from here; none where the mounts cannot be read."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return Hierarchies(None, {})
    v2: str | None = None
    v1: dict[str, str] = {}
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        fields, kinds = mount.split(" "), filesystem.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or fields[3] != "/":
            continue
        if kinds[0] == "cgroup2":
            v2 = v2 or fields[4]
        elif kinds[0] == "cgroup":
            v1 |= {
                name: fields[4]
                for name in kinds[2].split(",")
                if name not in V1_OPTIONS and "=" not in name
            }
    return Hierarchies(v2, v1)


def mount_of(hierarchy: Hierarchy) -> Path | None:
    """Where its root is mounted; None: nowhere."""
    here = hierarchies()
    point = here.v2 if hierarchy is Hierarchy.UNIFIED else here.v1.get("devices")
    return None if point is None else Path(point)


def directory_of(hierarchy: Hierarchy, pid: int | str) -> Path | None:
    """The directory of a process's cgroup.

    None if it has no name here, or the process is gone.
    """
    mount = mount_of(hierarchy)
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_here = (
            number == "0" if hierarchy is Hierarchy.UNIFIED else "devices" in controllers.split(",")
        )
        if is_here and mount is not None and path.startswith("/") and ".." not in path.split("/"):
            return mount / path[1:]
    return None


def is_alone(directory: Path, pid: int) -> bool:
    """Whether this process is alone in its cgroup and below it, and the cgroup is not the root."""
    if directory in (mount_of(Hierarchy.UNIFIED), mount_of(Hierarchy.DEVICES)):
        return False
    found: set[str] = set()
    for procs in directory.rglob("cgroup.procs"):
        found.update(procs.read_text().split())
    return found == {str(pid)}
