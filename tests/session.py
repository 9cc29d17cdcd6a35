"""One run of the tests: how many processors it may use, where its files lie, which it leaves.

The tests make and remove small files all the time. An ext4 without a journal keeps a freed inode
for up to five minutes, and looks at each of them for each new file: that took two thirds of the
processor time. Managers' directories lie in memory where the node has enough of it, and share a
copy of the client (a manager makes two of its own, of 200 files, at its first start in a place).
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from nodemgr.edge.containers import payload
from nodemgr.paths import client_dir, payload_dir
from tests.client_c.compiled import objects_dir
from tests.support.limits import until

DISK, MEMORY = "/tmp", "/dev/shm"  # short: a UNIX socket's path has at most 107 bytes
ENOUGH_BYTES = 4 * 2**30


def _place() -> str:
    mounts = Path("/proc/self/mounts").read_text()
    if f" {DISK} tmpfs " in mounts or f" {MEMORY} tmpfs " not in mounts:
        return DISK
    found = os.statvfs(MEMORY)
    runs_programs = not found.f_flag & os.ST_NOEXEC
    is_enough = found.f_bavail * found.f_frsize >= ENOUGH_BYTES
    return MEMORY if runs_programs and is_enough and os.access(MEMORY, os.W_OK) else DISK


TMP = os.environ.setdefault("TESTS_PLACE", _place())
"""The same for all workers of a run and the programs that they start."""

OURS = re.compile(
    r"nm[a-z]?-?[a-z0-9_]{8}|nm-shim-.*|nodemgr-.*|torchinductor_.*|torchelastic_.*|vgdb-pipe-.*"
)


class Leftovers:
    """Made when the run begins, before it has a temporary file."""

    def __init__(self) -> None:
        self._places = {DISK, TMP, tempfile.gettempdir()}
        self._before = self._names()
        self.are_ours = not os.listdir(DISK)
        """Nothing else was there, as in the /tmp that .ci/run mounts: what is left is ours."""

    def _names(self) -> set[str]:
        return {
            f"{place}/{name}"
            for place in self._places
            for name in os.listdir(place)
            if OURS.fullmatch(name)
        }

    def found(self, *, but: str) -> list[str]:
        """`but`: a path that may be there."""
        return sorted(self._names() - self._before - {but})


def remove(directory: Path) -> None:
    """Removes it with all that is in it; a process that ends may put a last file there."""

    def is_gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    until(is_gone, lambda: f"it stays: {', '.join(some_files(directory))}")


def some_files(directory: Path, most: int = 5) -> list[str]:
    """Some files of a directory that should be gone, for the reader to see who made it."""
    return sorted(f"{at}/{name}" for at, _, files in os.walk(directory) for name in files)[:most]


def share_client(state_dir: Path) -> None:
    """Makes the state directory; a manager that starts there finds both copies of the client.

    tests/edge/containers/test_payload.py shows how it makes them itself.
    """
    copy = _copy_of_client()
    state_dir.mkdir(mode=0o700)
    for directory in (payload.current(state_dir).parent, client_dir(state_dir)):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        if not (directory / copy.name).exists():  # after a store was lost it is there
            (directory / copy.name).symlink_to(copy)


@cache
def _copy_of_client() -> Path:
    return payload.place_for_programs(payload_dir(), objects_dir() / payload.CLIENT_DIR)


def processors(groups: str | None = None, root: Path = Path("/sys/fs/cgroup")) -> int:
    """At least one. `groups`: the lines of /proc/self/cgroup."""
    if groups is None:
        groups = Path("/proc/self/cgroup").read_text()
    quotas = [math.ceil(quota) for quota in _quotas(groups, root)]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _quotas(groups: str, root: Path) -> Iterator[float]:
    """The quota of each cgroup that has one, from this process's up to the root, in processors."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers  # of version 2: no controllers, and the root itself
        here = top / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(top):
                yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return
    if quota.strip() not in ("max", "-1"):
        yield int(quota) / int(period)
