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
    ("mounts", "mode", "v2", "devices"),
    [
        (V2, "v2", "/sys/fs/cgroup", None),
        (UNIFIED + DEVICES + CPU, "hybrid", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/devices"),
        (DEVICES + CPU, "v1", None, "/sys/fs/cgroup/devices"),
        (PART + V2, "v2", "/sys/fs/cgroup", None),
        (PART, "none", None, None),
        ("", "none", None, None),
        ("garbage\n\xff - cgroup2\n1 2 3 / - x\n", "none", None, None),
    ],
)
def test_what_is_mounted(
    tmp_path: Path, mounts: str, mode: str, v2: str | None, devices: str | None
) -> None:
    (tmp_path / "mountinfo").write_text(mounts)
    found = hierarchies(tmp_path / "mountinfo")
    assert (found.mode, found.v2, found.v1.get("devices")) == (mode, v2, devices)


def test_mounts_that_cannot_be_read(tmp_path: Path) -> None:
    assert hierarchies(tmp_path / "absent").mode == "none"


def test_controllers_of_one_mount(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(CPU + NAMED)
    assert dict(hierarchies(tmp_path / "mountinfo").v1) == dict.fromkeys(
        ("cpu", "cpuacct"), "/sys/fs/cgroup/cpu,cpuacct"
    )
