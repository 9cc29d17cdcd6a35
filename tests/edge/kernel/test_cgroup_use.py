"""The use of the host by jobs that run, from plain files in place of the kernel's."""

from __future__ import annotations

from pathlib import Path

from nodemgr.core.model.entities import Config
from nodemgr.core.state.node_state import State
from nodemgr.core.views import figures
from nodemgr.core.views.figures import UNKNOWN, CgroupUse, Readings
from nodemgr.edge.kernel.cgroup_use import of_jobs


def test_each_job_has_the_counts_of_its_cgroup(tmp_path: Path) -> None:
    for name in ("j1.1", "j2.1", "j4.1"):
        (tmp_path / name).mkdir()
    (tmp_path / "j1.1" / "cpu.stat").write_text("usage_usec 2500999\nuser_usec 1\n")
    (tmp_path / "j1.1" / "memory.current").write_text("4096\n")
    io_stat = "8:0 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=5\n8:16 rbytes=1 wbytes=2 rios=0\n"
    (tmp_path / "j1.1" / "io.stat").write_text(io_stat)
    (tmp_path / "j2.1" / "cpu.stat").write_text("usage_usec 7000\n")
    leaves = {name: tmp_path / f"{name}.1" for name in ("j1", "j2", "j3", "j4")}
    (tmp_path / "j1.1" / "memory.peak").write_text("8192\n")
    assert of_jobs(leaves) == {
        "j1": CgroupUse(2_500, 4_096, 8_192, 11, 22), "j2": CgroupUse(7, 0, None, 0, 0),
    }  # fmt: skip
    readings = Readings(jobs=of_jobs(leaves))
    assert figures.job_row("j1", readings) == {
        "cpu_seconds": 2.5, "host_memory_bytes": 4_096, "host_peak_bytes": 8_192,
        "read_bytes": 11, "written_bytes": 22,
    }  # fmt: skip
    assert set(figures.job_row("j3", readings).values()) == {None}
    assert figures.frame(State(Config()), UNKNOWN, {})["gpus"] == []
