"""The figures of GPUs and tasks in the tables of `status`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Run, RunningManager, status


def measured(**changes: Any) -> dict[str, Any]:
    """A status with figures."""
    shown = status()
    shown["gpus"][0] |= {"utilization_percent": 87, "temperature_c": 61, "power_w": 322.5}
    shown["tasks"][0] |= {
        "memory_bytes": 3 << 30,
        "utilization_percent": 87,
        "idle_seconds": 0,
        "idle_source": "nvml",
        "host_cpu_percent": 250,
        "host_memory_bytes": 5 << 30,
    }
    shown["tasks"][0] |= changes
    return shown


def test_the_tables_have_the_figures(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = measured()
    lines = nodemgr("status").stdout.splitlines()
    assert lines[0].split()[4:9] == ["GRANTED", "USED", "UTIL", "TEMP", "POWER"]
    assert "1 GiB  87 %  61 C  322 W" in lines[1]
    (title,) = (line for line in lines if line.startswith("TASK"))
    row = lines[lines.index(title) + 1]
    assert "USED  UTIL     IDLE" in title
    assert "3 GiB  87 %  0:00:00" in row
    assert "250 %  5 GiB" in row


@pytest.mark.parametrize(
    ("seconds", "source", "shown"),
    [
        (None, None, "-"),
        (59, "nvml", "0:00:59"),
        (60, "nvml_at_least", ">0:01:00"),
        (7_199, "nvml", "1:59:59"),
        (90_000, "nvml_at_least", ">1 d 01:00:00"),
    ],
)
def test_idle_time_in_the_table(
    nodemgr: Run, manager: RunningManager, seconds: int | None, source: str | None, shown: str
) -> None:
    manager.answers["status"] = measured(idle_seconds=seconds, idle_source=source)
    lines = nodemgr("status").stdout.splitlines()
    (title,) = (line for line in lines if line.startswith("TASK"))
    end = title.index("IDLE") + len("IDLE")
    assert lines[lines.index(title) + 1][:end].endswith(f" {shown}")


def test_unknown_figures_are_a_dash(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = measured(memory_bytes=None, utilization_percent=None)
    lines = nodemgr("status").stdout.splitlines()
    (row,) = (line for line in lines if line.startswith("t1"))
    assert row.split()[5:7] == ["-", "-"]
