"""Files in RUN/gates/ENV by which a starting container's hook and the manager communicate.

They are about the device gate.

Knows: their layout. Must not know: the kernel's side of a gate, leases. Cheap to import.

    open            the device nodes that the env may open now, `MAJOR MINOR` a line, replaced
                    atomically; if there is a map, the map has them
    containers/X    one a container: `unified INODE DIRECTORY` or `devices INODE DIRECTORY`, its
                    cgroup

Neither side locks. The hook of a container that is gated by rules records it first. It then opens
the nodes of the map or of `open`, until these are the same afterwards. The manager changes the map
or `open` first and then turns to the recorded containers. The later side thus sees the other's
writes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nodemgr.edge.kernel.cgroups import Hierarchy
from nodemgr.edge.kernel.device_nodes import DeviceNode

DIRECTORY = "gates"


class GatedCgroup(NamedTuple):
    """Where a container is gated."""

    hierarchy: Hierarchy
    cgroup: Path
    inode: int

    @classmethod
    def of(cls, hierarchy: Hierarchy, cgroup: Path) -> GatedCgroup:
        """As it is now. OSError where it is not."""
        return cls(hierarchy, cgroup, cgroup.stat().st_ino)

    def is_there(self) -> bool:
        """The very same; not another one that has its name by now."""
        try:
            return self.cgroup.stat().st_ino == self.inode
        except OSError:
            return False


class Records:
    """Those of one env."""

    def __init__(self, run_dir: Path, env: str) -> None:
        self._directory = run_dir / DIRECTORY / env
        self._containers = self._directory / "containers"
        self._open_file = self._directory / "open"

    def make(self) -> None:
        for directory in (self._directory.parent, self._directory, self._containers):
            directory.mkdir(mode=0o700, exist_ok=True)

    def exists(self) -> bool:
        return self._containers.is_dir()

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def write_open(self, devices: set[DeviceNode]) -> None:
        _replace(
            self._open_file,
            "".join(f"{device.major} {device.minor}\n" for device in sorted(devices)),
        )

    def read_open(self) -> set[DeviceNode]:
        """Nothing, where the manager has said nothing yet."""
        try:
            lines = self._open_file.read_text().splitlines()
        except FileNotFoundError:
            return set()
        return {DeviceNode(*map(int, line.split())) for line in lines}

    def add(self, place: GatedCgroup) -> None:
        """A container of a removed env is none: OSError."""
        _replace(self._file_of(place), f"{place.hierarchy} {place.inode} {place.cgroup}\n")

    def drop(self, place: GatedCgroup) -> None:
        self._file_of(place).unlink(missing_ok=True)

    def gated(self) -> Iterator[GatedCgroup]:
        """As recorded; a cgroup may be gone meanwhile."""
        for path in sorted(self._containers.iterdir()) if self.exists() else ():
            if not path.name.startswith("."):
                hierarchy, inode, cgroup = path.read_text().rstrip("\n").split(" ", 2)
                yield GatedCgroup(Hierarchy(hierarchy), Path(cgroup), int(inode))

    def _file_of(self, place: GatedCgroup) -> Path:
        return (
            self._containers
            / hashlib.sha256(os.fsencode(f"{place.hierarchy} {place.cgroup}")).hexdigest()[:32]
        )


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.rename(path)
