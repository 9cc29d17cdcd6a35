"""The launch gate: its cost per launch, how exact shares are, the latency of a service.

All on the simulated driver, where a kernel takes the time in its name, with time slices of 2 ms.

    python bench/launches/shares.py [--ms N] [--rounds N] [--short] [--hami libvgpu.so]

A private manager with one environment for each tenant is started for it and ended with it. GPU time
is read from the simulator's own books, not from the gate. On a machine with other work, run it
under `chrt -f 20`: a tenant that gets no CPU cannot use its share.

With --hami the same programs run under HAMi-core's limiter too, each with a limit and a shared
region of its own, as in a container of its own. It has no classes: the service and best effort get
50 % each.

- cost: median nanoseconds of CPU time per launch: the bare driver, an environment without a share,
  a gated process alone, and a gated one whose share is limited to 30 % (also alone).
- shares: percent of the GPU time that each tenant got after N ms beside the others, the worst error
  in points, and the processor time of all tenants in percent of a core. The rows "no gate" have
  none.
- service: requests in Poisson order, each a kernel of 200 us, 2 ms apart in the mean: latency
  alone, beside best effort without a gate, and with it; and the share of the remaining GPU time
  that best effort got.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import ROOT, Node
from nodemgr.simulator import SimulatedNode

GIB = 1 << 30
SERVICE_US, GAP_US = 200, 2_000
PLAIN = "plain"
"""An environment without a share: its processes have no gate."""


class Tenant(NamedTuple):
    percent: int
    kernel: str


SHARES: dict[str, Sequence[Tenant]] = {
    "10:90, 20 ms and 5 us": (Tenant(10, "sleep_ms_20"), Tenant(90, "sleep_us_5")),
    **{
        f"{percent}:{100 - percent}, 50 us both": (
            Tenant(percent, "sleep_us_50"),
            Tenant(100 - percent, "sleep_us_50"),
        )
        for percent in (10, 30, 50)
    },
    "30:70, 500 us and 5 us": (Tenant(30, "sleep_us_500"), Tenant(70, "sleep_us_5")),
    "50:50, 5 us and 500 us": (Tenant(50, "sleep_us_5"), Tenant(50, "sleep_us_500")),
    "20:30:50, 5, 500, 2000 us": (
        Tenant(20, "sleep_us_5"),
        Tenant(30, "sleep_us_500"),
        Tenant(50, "sleep_us_2000"),
    ),
}


Around = Mapping[str, str]
"""The variables around a program beside those of the simulated node."""
BARE: Around = {}


class Bench:
    """A node, its environments, and the programs in them."""

    def __init__(self, node: Node, hami: Path | None) -> None:
        self.node = node
        self.hami = hami
        self._regions = itertools.count()
        self.program = node.directory / "tenant"
        library = node.run_dir / "sim" / "libcuda.so.1"
        command = [os.environ.get("CC", "cc"), "-O2", f"-I{ROOT / 'csrc'}"]
        command += [str(ROOT / "bench" / "programs" / "tenant.c"), "-o", str(self.program)]
        subprocess.run([*command, "-Wl,--no-as-needed", str(library), "-lm"], check=True)
        self.simulated = SimulatedNode.open(node.run_dir / "sim")

    def environment(self, name: str, **quota: object) -> None:
        self.node.call("quota_set", env=name, gpus=1, memory_bytes=4 * GIB, **quota)

    def within(self, env: str) -> Around:
        return {
            "NODEMGR_ENV_DIR": str(self.node.env_dir(env)),
            "LD_PRELOAD": str(ROOT / "client_plugin" / "_lib" / "libnodemgr.so"),
        }

    def limited(self, percent: int) -> Around:
        """Under HAMi-core's limiter."""
        return {
            "LD_PRELOAD": str(self.hami),
            "CUDA_REDIRECT": str(self.hami),
            "CUDA_DEVICE_SM_LIMIT": str(percent),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(
                self.node.directory / f"region{next(self._regions)}"
            ),
            "LIBCUDA_LOG_LEVEL": "0",
        }

    def start(self, around: Around, *words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(self.program), *map(str, words)],
            env={**os.environ, "LD_LIBRARY_PATH": str(self.node.run_dir / "sim"), **around},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != "ready\n":
            raise SystemExit(f"the tenant did not come up: {line}")
        return process

    def busy_ns(self, processes: Sequence[subprocess.Popen[str]]) -> list[int]:
        by_pid = self.simulated.times(0).by_pid
        return [by_pid.get(process.pid, 0) for process in processes]


@contextmanager
def running(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """All start at once, and have ended behind it."""
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def figures(process: subprocess.Popen[str]) -> list[float]:
    output, _ = process.communicate("go\n", timeout=600)
    return [float(line) for line in output.split()]


def show_cost(bench: Bench, rounds: int, ms: int) -> None:
    rows = {
        "bare driver": BARE,
        "environment without a share": bench.within(PLAIN),
        "gated": bench.within("whole"),
        "gated, limited to 30 %": bench.within("limited"),
    }
    if bench.hami:
        rows |= {f"HAMi-core, {percent} %": bench.limited(percent) for percent in (100, 30)}
    found: dict[str, list[float]] = {title: [] for title in rows}
    for _ in range(rounds):
        for title, around in rows.items():
            found[title] += figures(bench.start(around, "cost", "sleep_ns_1000", ms // 2, 500))
    floor = statistics.median(found["bare driver"])
    print(f"{'cost of a launch':<34}{'ns':>8}{'added':>8}")
    for title, values in found.items():
        median = statistics.median(values)
        print(f"{title:<34}{median:>8.0f}{median - floor:>8.0f}")


class Got(NamedTuple):
    shares: list[float]
    """Percent of the GPU time."""
    core_percent: float
    """The processor time of all tenants."""


def processor_ns(pid: int) -> int:
    """Of all its threads that live."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def shares_of(bench: Bench, tenants: Sequence[Tenant], around: Sequence[Around], ms: int) -> Got:
    processes = [
        bench.start(each, "stream", tenant.kernel, 100 * ms, 1_000_000)
        for each, tenant in zip(around, tenants, strict=True)
    ]
    with running(processes):
        time.sleep(ms / 2000)
        used_ns, began_ns = [processor_ns(each.pid) for each in processes], time.monotonic_ns()
        time.sleep(ms / 2000)
        busy_ns = bench.busy_ns(processes)
        used_ns = [
            processor_ns(each.pid) - used for each, used in zip(processes, used_ns, strict=True)
        ]
    core = 100 * sum(used_ns) / (time.monotonic_ns() - began_ns)
    return Got([100 * each / max(1, sum(busy_ns)) for each in busy_ns], core)


def ungated(bench: Bench, tenants: Sequence[Tenant]) -> list[Around]:
    envs = [f"{PLAIN}{index}" for index in range(len(tenants))]
    for env in envs:
        bench.environment(env)
    return [bench.within(env) for env in envs]


def gated(bench: Bench, tenants: Sequence[Tenant]) -> list[Around]:
    envs = [f"e{tenant.percent}x{index}" for index, tenant in enumerate(tenants)]
    for env, tenant in zip(envs, tenants, strict=True):
        bench.environment(env, compute_percent=tenant.percent)
    return [bench.within(env) for env in envs]


def hami(bench: Bench, tenants: Sequence[Tenant]) -> list[Around]:
    return [bench.limited(tenant.percent) for tenant in tenants]


def show_shares(bench: Bench, rounds: int, ms: int) -> None:
    head = f"\n{f'shares after {ms} ms':<38}{'got':>20}{'worst':>8}"
    print(f"{head}{'of ' + str(rounds):>8}{'core %':>8}")
    free = ("10:90, 20 ms and 5 us", "10:90, 50 us both")
    cases = [(f"no gate: {title}", SHARES[title], ungated) for title in free]
    cases += [(title, tenants, gated) for title, tenants in SHARES.items()]
    if bench.hami:
        cases += [(f"HAMi-core: {title}", tenants, hami) for title, tenants in SHARES.items()]
    for title, tenants, around in cases:
        rows = [shares_of(bench, tenants, around(bench, tenants), ms) for _ in range(rounds)]
        errors = sorted(
            max(abs(got - tenant.percent) for got, tenant in zip(row.shares, tenants, strict=True))
            for row in rows
        )
        middle = [
            statistics.median(each) for each in zip(*[row.shares for row in rows], strict=True)
        ]
        core = statistics.median(row.core_percent for row in rows)
        text = " : ".join(f"{got:.1f}" for got in middle)
        print(
            f"{title:<38}{text:>20}{errors[len(errors) // 2]:>8.1f}{errors[-1]:>8.1f}{core:>8.1f}"
        )


def serve(
    bench: Bench, service: Around, effort: Around | None, ms: int
) -> tuple[list[float], float]:
    """Latencies in microseconds, and the percent of the rest that best effort got."""
    words = (f"sleep_us_{SERVICE_US}", ms, GAP_US)
    server = bench.start(service, "service", *words)
    others = []
    if effort is not None:
        others = [bench.start(effort, "stream", "sleep_us_50", 100 * ms, 1_000_000)]
    began_ns = time.monotonic_ns()
    with running(others):
        latencies = [value / 1000 for value in figures(server)]
        (busy_ns, *_), elapsed_ns = (*bench.busy_ns(others), 0), time.monotonic_ns() - began_ns
    left_ns = elapsed_ns - len(latencies) * SERVICE_US * 1000
    return latencies, 100 * busy_ns / max(1, left_ns)


def show_service(bench: Bench, rounds: int, ms: int) -> None:
    urgent, effort = bench.within("urgent"), bench.within("effort")
    cases: dict[str, tuple[Around, Around | None]] = {
        "alone": (urgent, None),
        "beside best effort, no gate": (bench.within(f"{PLAIN}0"), bench.within(f"{PLAIN}1")),
        "beside best effort": (urgent, effort),
    }
    if bench.hami:
        cases["beside best effort, HAMi-core"] = (bench.limited(50), bench.limited(50))
    print(f"\n{'latency of a service':<34}{'p50 us':>8}{'p99 us':>8}{'to best effort %':>18}")
    for title, (service, beside) in cases.items():
        found = [serve(bench, service, beside, ms) for _ in range(rounds)]
        halves = [statistics.median(latencies) for latencies, _ in found]
        tails = [sorted(latencies)[int(len(latencies) * 0.99)] for latencies, _ in found]
        got = statistics.median(percent for _, percent in found)
        shown = f"{got:>18.1f}" if beside is not None else f"{'-':>18}"
        print(
            f"{title:<34}{statistics.median(halves):>8.0f}{statistics.median(tails):>8.0f}{shown}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ms", type=int, default=1000, help="how long each run takes")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row; the median counts")
    parser.add_argument(
        "--hami", type=Path, metavar="LIBRARY", help="libvgpu.so of HAMi-core, to compare with"
    )
    arguments = parse(parser, ms=150, rounds=1)
    if arguments.hami and not arguments.hami.is_file():
        parser.error(f"--hami: there is no file {arguments.hami}")
    with Node("1xH100-80GiB") as node:
        bench = Bench(node, arguments.hami and arguments.hami.resolve())
        bench.environment(PLAIN)
        bench.environment("whole", compute_percent=100)
        bench.environment("limited", compute_percent=30)
        show_cost(bench, arguments.rounds, arguments.ms)
        show_shares(bench, arguments.rounds, arguments.ms)
        bench.environment("urgent", compute_percent=50, task_class="latency-sensitive")
        bench.environment("effort", compute_percent=50, task_class="best-effort")
        show_service(bench, arguments.rounds, arguments.ms)


if __name__ == "__main__":
    main()
