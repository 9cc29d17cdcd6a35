"""One run of the tests: how many processors it may use, and the temporary files that it leaves."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

OURS = re.compile(
    r"nm[a-z]?-?[a-z0-9_]{8}|nm-shim-.*|nodemgr-.*|torchinductor_.*|torchelastic_.*|vgdb-pipe-.*"
)


class Leftovers:
    """Made when the run begins, before it has a temporary file."""

    def __init__(self) -> None:
        self._places = {"/tmp", tempfile.gettempdir()}
        self._before = self._names()
        self.are_ours = not os.listdir("/tmp")
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
