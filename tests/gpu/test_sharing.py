"""Shares, classes and suspension on a real GPU: the figures, and what must hold.

Each figure is printed; tests/gpu/run shows them. The goals are those of docs/figures.md.
"""

from __future__ import annotations

import time

import pytest

from client_plugin.ways.faults import Fault
from tests.gpu.keeper import answer_of
from tests.gpu.nvml import driver_bytes, driver_used_bytes, without_utilisation
from tests.gpu.sharing import GIB, KERNEL_US, MIB, SERVICE_US, SHARES, Bench, most_error_points
from tests.support.manager import Manager

pytestmark = pytest.mark.gpu
MS = 2_000
SHARES_MS = 5_000
RESTORED_MIB = 64
"""A process that was restored has so much more or less than before, at most."""


@pytest.fixture
def bench(node: Manager) -> Bench:
    return Bench(node)


def median_of_five(measure: list[float]) -> float:
    return sorted(measure)[len(measure) // 2]


@pytest.mark.parametrize("row", SHARES)
def test_tasks_get_their_shares(bench: Bench, row: str) -> None:
    tenants = SHARES[row]
    got = bench.shares(tenants, SHARES_MS)
    errors = [abs(each - tenant.percent) for each, tenant in zip(got, tenants, strict=True)]
    print(f"{row}: {' : '.join(f'{each:.1f}' for each in got)}, worst {max(errors):.1f} points")
    assert max(errors) <= most_error_points(bench.measured_us, tenants, SHARES_MS)


def test_the_cost_of_a_gated_launch(bench: Bench) -> None:
    plain, gated = bench.environment("plain"), bench.environment("gated", compute_percent=100)
    rows = {
        env: median_of_five([bench.launch_ns(env, 300) for _ in range(5)]) for env in (plain, gated)
    }
    print(f"a launch: {rows[plain]:.0f} ns without a gate, {rows[gated]:.0f} ns gated")
    assert rows[plain] > 0


def test_a_service_beside_best_effort(bench: Bench) -> None:
    service = bench.environment("service", compute_percent=50, task_class="latency-sensitive")
    effort = bench.environment("effort", compute_percent=50, task_class="best-effort")
    alone, _ = bench.service(service, None, MS)
    beside, launches = bench.service(service, effort, MS)
    left_us = MS * 1_000 - beside.count * SERVICE_US
    print(
        f"p99 alone {alone.p99:.0f} us, beside best effort {beside.p99:.0f} us"
        f" ({beside.p99 / alone.p99:.2f} times); p50 {alone.p50:.0f} and {beside.p50:.0f} us;"
        f" best effort got {100 * launches * KERNEL_US / left_us:.0f} % of the rest"
    )
    assert launches > 0
    assert beside.count > 0.8 * alone.count, "requests waited for their turns"


def test_streams_that_wait_for_each_other_end(bench: Bench) -> None:
    assert bench.cross(10_000) == ["done", "done"]


def test_no_byte_changes_in_a_suspension(bench: Bench) -> None:
    began_s = time.monotonic()
    assert bench.suspended_rounds(GIB // 2, 5) == ["same"] * 5
    print(f"suspend and resume of 0.5 GiB: {(time.monotonic() - began_s) / 5:.2f} s a round")


def test_a_suspended_task_takes_no_memory_and_comes_back(bench: Bench) -> None:
    bench.environment("alice")
    size_bytes = 512 * MIB
    program = bench.keeper("alice", size_bytes)
    task, shown_bytes = bench.task_of(program.pid), driver_bytes(program.pid)
    is_listed = shown_bytes >= size_bytes  # in some containers NVML lists no process
    used_bytes = driver_used_bytes()
    bench.node.call("task_suspend", task=task)
    assert used_bytes - driver_used_bytes() >= size_bytes
    assert driver_bytes(program.pid) == 0
    bench.node.call("task_resume", task=task)
    assert answer_of(program) == "same"
    if is_listed:
        assert abs(driver_bytes(program.pid) - shown_bytes) <= RESTORED_MIB * MIB


def test_a_launch_brings_a_suspended_task_back(bench: Bench) -> None:
    assert bench.launch_while_suspended() == "0\n0\n"


def refusal_of_suspension(bench: Bench, task: str) -> str:
    """The words; "": it is suspended."""
    try:
        bench.node.call("task_suspend", task=task)
    except Fault as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("kind", ["cuMemAllocManaged", "cuMemShared_v2"])
def test_shared_and_managed_memory_are_named_and_go_on(bench: Bench, kind: str) -> None:
    """A later driver may suspend such a process as a whole."""
    bench.environment("alice")
    program = bench.keeper("alice", 64 * MIB, kind)
    task = bench.task_of(program.pid)
    if refusal := refusal_of_suspension(bench, task):
        assert f"process {program.pid}, which shares GPU memory" in refusal
    else:
        assert bench.node.task(task)["suspended"]
        bench.node.call("task_resume", task=task)
    assert answer_of(program) == "same"


def test_figures_of_each_process(bench: Bench) -> None:
    """The driver shows the GPU time and the memory of a process, where it shows any PIDs."""
    env = bench.environment("alice", compute_percent=50)
    program = bench.start(env, bench.tenant, "stream", f"sleep_us_{KERNEL_US}", 8_000, 1_000)
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    task, used = bench.task_of(program.pid), None
    while not used and program.poll() is None:
        used = bench.node.task(task)["compute_used_percent"]
        time.sleep(0.2)
    shown_bytes = driver_bytes(program.pid)
    print(f"a task alone with 50 %: {used} % of the compute, {shown_bytes / MIB:.0f} MiB")
    if used is None and (reason := without_utilisation()):
        pytest.skip(reason)
    assert used
