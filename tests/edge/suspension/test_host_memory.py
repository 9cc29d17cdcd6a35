"""Host memory: of the node with its reserve, and of a container with its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodemgr.edge.kernel import cgroups
from nodemgr.edge.suspension import host_memory
from nodemgr.edge.suspension.host_memory import HostShortage, free_of_group, free_of_node, shortage

KIB = 1024


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  64000 kB\nMemFree:  100 kB\nMemAvailable:  5000 kB\n")
    return path


def test_a_part_of_the_node_stays_free(meminfo: Path) -> None:
    assert free_of_node(meminfo) == 4000 * KIB


def test_what_the_node_lacks_is_named(meminfo: Path) -> None:
    pid = os.getpid()
    assert shortage({pid: 4001 * KIB}, meminfo) == HostShortage(4001 * KIB, 4000 * KIB, None)
    assert shortage({pid: 2001 * KIB, 1: 2000 * KIB}, meminfo) == HostShortage(
        4001 * KIB, 4000 * KIB, None
    )


def test_an_unknown_figure_refuses_nothing(tmp_path: Path) -> None:
    assert free_of_node(tmp_path / "absent") is None
    (tmp_path / "meminfo").write_text("garbage\nMemTotal: x kB\n")
    assert free_of_node(tmp_path / "meminfo") is None


@pytest.mark.parametrize(
    ("limit", "used", "cache"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_limit_leaves_its_rest_and_its_page_cache(
    tmp_path: Path, limit: str, used: str, cache: str
) -> None:
    (tmp_path / limit).write_text("1000\n")
    (tmp_path / used).write_text("900\n")
    assert free_of_group(tmp_path) == 100
    (tmp_path / "memory.stat").write_text(f"anon 500\n{cache} 50\n")
    assert free_of_group(tmp_path) == 150


def test_a_group_without_a_limit_has_none(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert free_of_group(tmp_path) is None


def test_the_limit_of_a_group_above_counts_for_all_its_processes(
    tmp_path: Path, meminfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = tmp_path / "cgroup" / "pod"
    for name in ("a", "b"):
        (pod / name).mkdir(parents=True)
    (pod / "memory.max").write_text("1000\n")
    (pod / "memory.current").write_text("400\n")
    monkeypatch.setattr(cgroups, "mount_point", lambda: tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "directory_of", lambda pid: pod / "ab"[pid % 2])
    monkeypatch.setattr(host_memory, "_v1_directory", lambda pid: None)
    assert shortage({10: 300, 11: 300}, meminfo) is None
    assert shortage({10: 300, 11: 301}, meminfo) == HostShortage(601, 600, 10)
