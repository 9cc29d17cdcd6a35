"""The control groups of this machine by its mounts, and the cgroup (version 2) of a process.

Knows: /proc/self/mountinfo, /proc/PID/cgroup, cgroup.procs. Must not know: what is done with a
group. Cheap to import.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")
V1_OPTIONS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix"})
"""Options of a mount of version 1 that are no controllers."""


class Hierarchies(NamedTuple):
    """The hierarchies with a mounted root."""

    v2: str | None
    """Where version 2 is mounted."""
    has_v1: bool
    """Whether a controller of version 1 is mounted."""

    @property
    def mode(self) -> str:
        if self.v2 is None:
            return "v1" if self.has_v1 else "none"
        return "hybrid" if self.has_v1 else "v2"


def hierarchies(mountinfo: Path = MOUNTINFO) -> Hierarchies:
    """The hierarchies that can be seen from here; none if the mounts cannot be read."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return Hierarchies(None, False)
    v2: str | None = None
    has_v1 = False
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        fields, kinds = mount.split(" "), filesystem.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or fields[3] != "/":
            continue
        if kinds[0] == "cgroup2":
            v2 = v2 or fields[4]
        elif kinds[0] == "cgroup":
            has_v1 |= any(
                name not in V1_OPTIONS and "=" not in name for name in kinds[2].split(",")
            )
    return Hierarchies(v2, has_v1)


def mount_point() -> Path | None:
    """Where the root of version 2 is mounted; None: nowhere."""
    point = hierarchies().v2
    return None if point is None else Path(point)


def directory_of(pid: int | str) -> Path | None:
    """The directory of a process's cgroup (version 2).

    None if it has no name here, or the process is gone.
    """
    mount = mount_point()
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        number, _, rest = line.partition(":")
        path = rest.partition(":")[2]
        is_named = path.startswith("/") and ".." not in path.split("/")
        if number == "0" and mount is not None and is_named:
            return mount / path[1:]
    return None


def delegated_to(uid: int) -> Path | None:
    """The cgroup of the user's own systemd, if this process is below it.

    A login is not: that systemd ends after the last login, and what is left in a login goes on.
    """
    own, service = directory_of("self") or Path(), f"user@{uid}.service"
    return next((path for path in own.parents if path.name == service), None)


def is_alone(directory: Path, pid: int) -> bool:
    """Whether this process is alone in its cgroup and below it, and the cgroup is not the root."""
    if directory == mount_point():
        return False
    found: set[str] = set()
    for procs in directory.rglob("cgroup.procs"):
        found.update(procs.read_text().split())
    return found == {str(pid)}
