"""As many workers of a run as it may use processors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.session import processors, remove, some_files

AFFINITY = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "100000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/../out\n", {"cpu.max": "100000 100000\n"}, 1),
        ("3:cpuset:/x\n2:cpu,cpuacct:/a\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
         "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}, None),
        ("3:cpuset:/x\n2:cpu,cpuacct:/a\n", {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
         "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)  # fmt: skip
def test_a_quota_of_the_cgroup_counts_where_it_is_below_the_affinity(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert processors(groups, tmp_path) == min(expected or AFFINITY, AFFINITY)


def test_this_machine_has_a_number() -> None:
    assert 1 <= processors() <= AFFINITY


def test_a_directory_goes_although_a_process_still_puts_files_there(tmp_path: Path) -> None:
    place = tmp_path / "node"
    place.mkdir()
    writes = f"for each in $(seq 300); do : > {place}/$each || exit 0; done"
    writer = subprocess.Popen(["/bin/sh", "-c", writes], stderr=subprocess.DEVNULL)
    remove(place)
    writer.wait()
    assert not place.exists()


def test_what_is_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "empty").mkdir(parents=True)
    (tmp_path / "run" / "log").touch()
    assert some_files(tmp_path) == [f"{tmp_path}/run/log"]
    assert some_files(tmp_path / "gone") == []
