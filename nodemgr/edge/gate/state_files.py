"""Files in RUN/gates/ENV by which a starting container's hook informs the manager.

They are about the device gate.

Knows: their layout. Must not know: the kernel's side of a gate, leases. Cheap to import.

    containers/X    one a container: `unified INODE DIRECTORY`, its cgroup

Neither side locks. The hook records the container first, and then attaches the gate's program to
its cgroup. The map of open devices belongs to the env, so the manager need not turn to a container
to open or shut a device.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DIRECTORY = "gates"
KIND = "unified"
"""The first word of each record: the hierarchy of the cgroup, version 2."""


class GatedCgroup(NamedTuple):
    """The cgroup at which a container is gated."""

    cgroup: Path
    inode: int

    @classmethod
    def of(cls, cgroup: Path) -> GatedCgroup:
        """The cgroup as it is now. OSError if it does not exist."""
        return cls(cgroup, cgroup.stat().st_ino)

    def is_there(self) -> bool:
        """The very same cgroup; not a later one of the same name."""
        try:
            return self.cgroup.stat().st_ino == self.inode
        except OSError:
            return False


class Records:
    """The records of one env."""

    def __init__(self, run_dir: Path, env: str) -> None:
        self._directory = run_dir / DIRECTORY / env
        self._containers = self._directory / "containers"

    def make(self) -> None:
        for directory in (self._directory.parent, self._directory, self._containers):
            directory.mkdir(mode=0o700, exist_ok=True)

    def exists(self) -> bool:
        return self._containers.is_dir()

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def add(self, place: GatedCgroup) -> None:
        """OSError if the env was removed."""
        path = self._file_of(place)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(f"{KIND} {place.inode} {place.cgroup}\n")
        fresh.rename(path)

    def drop(self, place: GatedCgroup) -> None:
        self._file_of(place).unlink(missing_ok=True)

    def gated(self) -> Iterator[GatedCgroup]:
        """The recorded cgroups; one may be gone meanwhile."""
        for path in sorted(self._containers.iterdir()) if self.exists() else ():
            if path.name.startswith("."):
                continue
            _, inode, cgroup = path.read_text().rstrip("\n").split(" ", 2)
            yield GatedCgroup(Path(cgroup), int(inode))

    def _file_of(self, place: GatedCgroup) -> Path:
        name = hashlib.sha256(os.fsencode(f"{KIND} {place.cgroup}")).hexdigest()[:32]
        return self._containers / name
