"""The use of the host by jobs that run, from the files of their cgroups (version 2).

Knows: these files. Must not know: where a cgroup is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from nodemgr.core.views.figures import CgroupUse

FILES = "cpu.stat", "memory.current", "memory.peak", "io.stat"
USED_US = re.compile(r"^usage_usec ([0-9]+)$", re.MULTILINE)
READ, WRITTEN = (re.compile(rf" {name}bytes=([0-9]+)") for name in "rw")


def of_jobs(leaves: Mapping[str, Path]) -> dict[str, CgroupUse]:
    """By job; a job without a cgroup is absent. Four files of each are read."""
    found = ((job_id, _use(leaf)) for job_id, leaf in leaves.items())
    return {job_id: use for job_id, use in found if use is not None}


def _use(leaf: Path) -> CgroupUse | None:
    cpu, memory, peak, io = (_text(leaf / name) for name in FILES)
    used = USED_US.search(cpu)
    if used is None:
        return None
    read, written = (sum(map(int, each.findall(io))) for each in (READ, WRITTEN))
    now_bytes, most_bytes = (
        int(text) if text.strip().isdecimal() else None for text in (memory, peak)
    )
    return CgroupUse(int(used[1]) // 1_000, now_bytes or 0, most_bytes, read, written)


def _text(path: Path) -> str:
    """Without the controller of a file there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
