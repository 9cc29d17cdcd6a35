"""Which control groups this machine has, as its mounts say.

Knows: /proc/self/mountinfo. Must not know: what is done with a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MOUNTINFO = Path("/proc/self/mountinfo")
V1_OPTIONS = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix"})
"""Of a mount of version 1 that are no controllers."""


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
            v1 |= {name: fields[4] for name in kinds[2].split(",") if name not in V1_OPTIONS and "=" not in name}
    return Hierarchies(v2, v1)
