"""Control groups as the mounts of different machines show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemgr.edge.kernel.cgroups import hierarchies

V2 = "31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
UNIFIED = "31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
DEVICES = "40 22 0:35 / /sys/fs/cgroup/devices rw shared:18 - cgroup cgroup rw,devices\n"
CPU = "41 22 0:36 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
NAMED = "42 22 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
PART = "43 22 0:27 /pod/1 /mnt/part rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "mode", "v2"),
    [
        (V2, "v2", "/sys/fs/cgroup"),
        (UNIFIED + DEVICES + CPU, "hybrid", "/sys/fs/cgroup/unified"),
        (CPU + UNIFIED, "hybrid", "/sys/fs/cgroup/unified"),
        (DEVICES + CPU, "v1", None),
        (V2 + NAMED, "v2", "/sys/fs/cgroup"),  # a named hierarchy has no controller
        (NAMED, "none", None),
        (PART + V2, "v2", "/sys/fs/cgroup"),
        (PART, "none", None),
        ("", "none", None),
        ("garbage\n\xff - cgroup2\n1 2 3 / - x\n", "none", None),
    ],
)
def test_what_is_mounted(tmp_path: Path, mounts: str, mode: str, v2: str | None) -> None:
    (tmp_path / "mountinfo").write_text(mounts)
    found = hierarchies(tmp_path / "mountinfo")
    assert (found.mode, found.v2) == (mode, v2)


def test_mounts_that_cannot_be_read(tmp_path: Path) -> None:
    assert hierarchies(tmp_path / "absent").mode == "none"
