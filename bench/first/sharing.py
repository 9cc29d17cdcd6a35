"""The steps `shares`, `service` and `kill`: tasks beside each other on one GPU.

Knows: the measurements of tests/gpu/sharing.py. Must not know: how a turn is given.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lacking import compiler
from machine import GIB, node

from tests.gpu.keeper import KEEPER
from tests.gpu.nvml import driver_bytes, driver_used_bytes
from tests.gpu.sharing import KERNEL_US, SHARES, Bench

SHARES_MS = 5_000
SERVICE_MS = 2_500
CROSSED = 1_000
GONE_S = 5.0
WAIT_S = 20.0


def shares(out: Path, limit_s: float) -> str:
    compiler()
    end, said = time.monotonic() + limit_s, []
    with node() as running:
        bench = Bench(running.manager)
        for title, tenants in SHARES.items():
            if time.monotonic() + 2.5 * SHARES_MS / 1e3 > end:
                said.append(f"{title}: no time left")
                continue
            got = bench.shares(tenants, SHARES_MS)
            worst = max(abs(each - of.percent) for each, of in zip(got, tenants, strict=True))
            said.append(f"{title}: {' : '.join(f'{each:.1f}' for each in got)}, {worst:.1f} points")
            print(said[-1], flush=True)
    return "; ".join([*said, f"us of kernels {bench.measured_us}"])


def service(out: Path, limit_s: float) -> str:
    compiler()
    with node() as running:
        bench = Bench(running.manager)
        urgent = bench.environment("urgent", compute_percent=50, task_class="latency-sensitive")
        effort = bench.environment("effort", compute_percent=50, task_class="best-effort")
        alone, _ = bench.service(urgent, None, SERVICE_MS)
        beside, launches = bench.service(urgent, effort, SERVICE_MS)
        plain, _ = bench.service(bench.environment("one"), bench.environment("other"), SERVICE_MS)
        crossed = bench.cross(CROSSED)
    rest = 100 * launches * KERNEL_US / (SERVICE_MS * 1_000)
    return (
        f"p50/p99 us alone {alone.p50:.0f}/{alone.p99:.0f},"
        f" beside best effort {beside.p50:.0f}/{beside.p99:.0f} (which has {rest:.0f} % of the"
        f" time), both without gates {plain.p50:.0f}/{plain.p99:.0f};"
        f" streams with crossed events: {' '.join(crossed)}"
    )


def kill(out: Path, limit_s: float) -> str:
    """SIGKILL of a process with much memory, to its end in NVML and to the next grant."""
    with node() as running:
        manager, size = running.manager, min(30 * GIB, running.total_bytes() // 2)
        command = [sys.executable, "-S", "-c", KEEPER, size, "cuMemAlloc_v2"]
        for env in ("first", "second"):
            manager.quota(env, 1)
        holder = running.start("first", command)
        assert holder.stdout is not None
        codes, before = holder.stdout.readline().strip(), driver_used_bytes()
        events = manager.events()
        waiter = running.start("second", command)
        try:
            events.expect("task.waiting", WAIT_S, env="second")
            killed_ns = time.time_ns()
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
            gone = gone_ms(holder, killed_ns)
            granted = events.expect("task.granted", WAIT_S, env="second")
            assert waiter.stdout is not None
            then = waiter.stdout.readline().strip()
        finally:
            waiter.kill()
            waiter.wait()
    return (
        f"{size / GIB:.0f} GiB (codes {codes}): out of NVML's list after {gone};"
        f" next grant after {(granted['time_ns'] - killed_ns) / 1e6:.1f} ms, its codes {then};"
        f" NVML {before} before, {driver_used_bytes()} after both"
    )


def gone_ms(process: subprocess.Popen[str], killed_ns: int) -> str:
    """Until NVML lists it no more."""
    end = time.monotonic() + GONE_S
    while time.monotonic() < end:
        if not driver_bytes(process.pid):
            return f"{(time.time_ns() - killed_ns) / 1e6:.0f} ms"
    return f"more than {GONE_S:.0f} s"
