"""Measurements of shared GPUs: shares, a service beside best effort, crossed events, suspension.

Each runs on a real GPU (test_sharing.py) and on a simulated one (tests/launches/test_on_gpu.py).

Knows: the programs, and how a node is asked. Must not know: which driver the node has, and what a
figure should be.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nodemgr.edge.host.rundir import SIMULATOR_DIR
from tests.gpu.keeper import answer_of, keeper
from tests.launches.gated import SOURCE, launching_program
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

GIB, MIB = 2**30, 2**20
CROSSED = SOURCE.parents[2] / "tests" / "launches" / "programs" / "crossed.c"
KERNEL_US = 50
SERVICE_US, GAP_US = 200, 2_000
WARM_MS = 2_000
"""Not counted: the GPU's clock rises, the gate learns the kernels' lengths.

It then takes back what it let through until then: some kernels of 20 ms are some points of 5 s.
"""
LENGTH_MS = 100
SYNC_EVERY = 1_000_000
"""Launches between two waits of a stream: never, in these runs."""


class Tenant(NamedTuple):
    """A share, and the nominal length of the kernels of the task that has it."""

    percent: int
    kernel_us: int


SHARES: Mapping[str, Sequence[Tenant]] = {
    "10:90, 20 ms and 5 us": (Tenant(10, 20_000), Tenant(90, 5)),
    "10:90, 50 us both": (Tenant(10, 50), Tenant(90, 50)),
    "30:70, 500 us and 5 us": (Tenant(30, 500), Tenant(70, 5)),
    "50:50, 5 us and 500 us": (Tenant(50, 5), Tenant(50, 500)),
}


WORST_POINTS = 3.0


def most_error_points(
    measured_us: Mapping[int, float], tenants: Sequence[Tenant], ms: int
) -> float:
    """The goal, and two of the longest kernels, which end in one turn or in the next."""
    longest_us = max(measured_us[tenant.kernel_us] for tenant in tenants)
    return WORST_POINTS + 100 * 2 * longest_us / (ms * 1_000)


class Latencies(NamedTuple):
    """Of one service, in microseconds."""

    p50: float
    p99: float
    count: int


class Bench:
    """A node with one GPU, and the programs that launch on it."""

    def __init__(self, node: Manager) -> None:
        self.node = node
        simulated = node.run_dir / SIMULATOR_DIR
        self.variables = {}
        if simulated.is_dir():
            driver = simulated / "libcuda.so.1"
        else:
            driver = _path_of_driver()
            self.variables["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        self.tenant = launching_program(SOURCE, driver)
        self.crossed = launching_program(CROSSED, driver)
        self.measured_us: dict[int, float] = {}
        """The real length of a kernel, by its nominal one; for a short kernel they differ."""

    def environment(self, name: str, **quota: object) -> str:
        self.node.quota(name, 1, memory_bytes=4 * GIB, **quota)
        return name

    def start(
        self, env: str, program: Path, *words: object, shim: bool = True
    ) -> subprocess.Popen[str]:
        """Started and ready; it begins at a line of input."""
        command = [str(program), *map(str, words)]
        process = self.node.spawn(env, command, shim=shim, **self.variables)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", line
        return process

    def end(self, *processes: subprocess.Popen[str]) -> list[list[str]]:
        """All begin at once; the lines that each prints until its end."""
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [process.communicate(timeout=WAIT_LIMIT_S)[0].splitlines() for process in processes]

    # -- the measurements --

    def length_us(self, kernel_us: int) -> float:
        """By events, of a process alone on the GPU and without the shim."""
        if kernel_us not in self.measured_us:
            count = max(2, min(200, LENGTH_MS * 1_000 // kernel_us))
            words = ("length", f"sleep_us_{kernel_us}", LENGTH_MS, count)
            (lines,) = self.end(self.start("bare", self.tenant, *words, shim=False))
            self.measured_us[kernel_us] = float(lines[0])
        return self.measured_us[kernel_us]

    def shares(self, tenants: Sequence[Tenant], ms: int) -> list[float]:
        """Percent of the GPU time that each got after a warm-up.

        GPU time: its launches times the measured length of its kernels.
        """
        warm_ms = min(WARM_MS, ms // 2)
        lengths_us = [self.length_us(tenant.kernel_us) for tenant in tenants]
        processes = [
            self.start(
                self.environment(f"e{index}", compute_percent=tenant.percent),
                self.tenant, "stream", f"sleep_us_{tenant.kernel_us}", ms + warm_ms,
                SYNC_EVERY, warm_ms,
            )
            for index, tenant in enumerate(tenants)
        ]  # fmt: skip
        lines = self.end(*processes)
        got = [
            int(line[0].removeprefix("launches ")) * length_us
            for line, length_us in zip(lines, lengths_us, strict=True)
        ]
        return [100 * each / max(1, sum(got)) for each in got]

    def launch_ns(self, env: str, ms: int) -> float:
        """CPU time of a launch, by the median of batches."""
        process = self.start(env, self.tenant, "cost", "sleep_ns_1000", ms, 500)
        (lines,) = self.end(process)
        return statistics.median(map(float, lines))

    def service(self, env: str, effort: str | None, ms: int) -> tuple[Latencies, int]:
        """Requests in Poisson order, alone or beside best effort; and launches of best effort."""
        server = self.start(env, self.tenant, "service", f"sleep_us_{SERVICE_US}", ms, GAP_US)
        processes = [server]
        if effort is not None:
            words = ("stream", f"sleep_us_{KERNEL_US}", ms, SYNC_EVERY)
            processes.append(self.start(effort, self.tenant, *words))
        lines = [*self.end(*processes), ["launches 0"]]
        found = sorted(int(line) / 1_000 for line in lines[0])
        tail = found[min(len(found) - 1, int(len(found) * 0.99))]
        launches = int(lines[1][0].removeprefix("launches "))
        return Latencies(statistics.median(found), tail, len(found)), launches

    def cross(self, rounds: int) -> list[str]:
        """Two processes with streams that wait for events of each other; the end of each."""
        processes = [
            self.start(
                self.environment(f"c{percent}", compute_percent=percent), self.crossed, rounds
            )
            for percent in (40, 60)
        ]
        return [lines[-1] for lines in self.end(*processes)]

    def keeper(self, env: str, size: int, kind: str = "cuMemAlloc_v2") -> subprocess.Popen[str]:
        return keeper(self.node, env, size, kind, **self.variables)

    def task_of(self, pid: int) -> str:
        (name,) = (row["id"] for row in self.node.status()["tasks"] if pid in row["pids"])
        return str(name)

    def suspended_rounds(self, size: int, rounds: int) -> list[str]:
        """The result of the comparison of its bytes after each suspension and resume."""
        self.environment("keeper")
        program = self.keeper("keeper", size)
        task, found = self.task_of(program.pid), []
        for _ in range(rounds):
            self.node.call("task_suspend", task=task)
            assert self.node.task(task)["suspended"]
            self.node.call("task_resume", task=task)
            found.append(answer_of(program))
        program.communicate(timeout=WAIT_LIMIT_S)  # a plain task takes the whole GPU
        return found

    def launch_while_suspended(self) -> str:
        """The result of a launch that finds its task suspended: it asks for the resume itself."""
        env = self.environment("sleeper", compute_percent=50)
        program = self.start(env, self.tenant, "step", f"sleep_us_{KERNEL_US}")
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("go\nlaunch 1\nwait\n")
        program.stdin.flush()
        first = [program.stdout.readline() for _ in range(2)]
        assert first == ["0\n", "0\n"]
        self.node.call("task_suspend", task=self.task_of(program.pid))
        program.stdin.write("launch 1\nwait\nstop\n")
        program.stdin.flush()
        return program.communicate(timeout=WAIT_LIMIT_S)[0]


def _path_of_driver() -> Path:
    """The file of the machine's driver, which a program is linked with."""
    ctypes.CDLL("libcuda.so.1")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcuda.so" in line:
            return Path(line.split(maxsplit=5)[-1])
    raise FileNotFoundError("libcuda.so.1 is loaded from no file")
