"""The measurements of tests/gpu on a simulated GPU, in short form: they stay ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.edge.host.rundir import SIMULATOR_DIR
from tests.gpu.keeper import answer_of
from tests.gpu.nvml import missing_gpu
from tests.gpu.sharing import MIB, SHARES, WORST_POINTS, Bench, Tenant, most_error_points
from tests.support.manager import Manager

MS = 300


@pytest.fixture
def bench(make_manager: Callable[..., Manager]) -> Bench:
    return Bench(make_manager(simulate="1x32GiB"))


def test_shares(bench: Bench) -> None:
    got = bench.shares(SHARES["30:70, 500 us and 5 us"], MS)
    assert all(got)
    assert round(sum(got)) == 100
    assert bench.measured_us[500] >= 500  # by events, not by its name


def test_an_error_of_shares_may_have_two_of_the_longest_kernels() -> None:
    tenants, measured_us = (Tenant(10, 20_000), Tenant(90, 5)), {20_000: 25_000.0, 5: 7.5}
    assert most_error_points(measured_us, tenants, 5_000) == WORST_POINTS + 1


def test_a_gpu_that_answers_is_no_file_of_a_driver(bench: Bench, tmp_path: Path) -> None:
    driver = {"LD_LIBRARY_PATH": str(bench.node.run_dir / SIMULATOR_DIR)}
    assert missing_gpu(driver) == ""
    assert missing_gpu({**driver, "CUDA_VISIBLE_DEVICES": "-1"}) == "cuInit: 100"
    (tmp_path / "libcuda.so.1").touch()
    assert "libcuda.so.1" in missing_gpu({"LD_LIBRARY_PATH": str(tmp_path)})


def test_costs(bench: Bench) -> None:
    assert bench.launch_ns(bench.environment("gated", compute_percent=100), MS) > 0


def test_a_service(bench: Bench) -> None:
    service = bench.environment("service", compute_percent=50, task_class="latency-sensitive")
    effort = bench.environment("effort", compute_percent=50, task_class="best-effort")
    alone, nothing = bench.service(service, None, MS)
    beside, launches = bench.service(service, effort, MS)
    assert (alone.count > 0, nothing) == (True, 0)
    assert beside.p50 <= beside.p99
    assert launches > 0


def test_crossed_events(bench: Bench) -> None:
    assert bench.cross(50) == ["done", "done"]


def test_suspensions(bench: Bench) -> None:
    assert bench.suspended_rounds(16 * MIB, 2) == ["same"] * 2
    assert bench.launch_while_suspended() == "0\n0\n"
    bench.environment("alice")
    program = bench.keeper("alice", 16 * MIB, "cuMemShared_v2")
    with pytest.raises(Fault, match=f"process {program.pid}, which shares GPU memory"):
        bench.node.call("task_suspend", task=bench.task_of(program.pid))
    assert answer_of(program) == "same"
