"""The launch gate in a model: shares, the use of the GPU, the latency of a service.

    python bench/launches/turns.py [--ms N] [--rounds N] [--only WORD]

The gate is the real one (csrc/launch). The clock, the threads and the GPU are a model's
(bench/programs/launch_model.c): a sleep ends 20 to 35 us late, and a woken thread runs after 15 to
35 us. Equal arguments give equal figures on each machine, however busy it is.

- shares: percent of the GPU time that each tenant got, the worst error in points, and the GPU time
  of all beside the same tenants without a gate, and what the waits cost: sleeps in a second, and
  the processor time of all but the switches of sleeps. Aims: 3 points, 0.95, and of two tenants
  with kernels of 50 us at most 1 600 sleeps (a sleep with its switches takes 30 to 60 us) and 7 %
  of a core, of which the launches take 4.
- limits: the same of a latency-sensitive program that never pauses, beside best effort: it has
  priority only within its share.
- pauses: the GPU time of all where one task of two uses a tenth of the GPU, in short requests; the
  median. Aim: 0.95.
- long: the same of kernels of 200 and 600 ms, in the second half of 40 N: their share is kept over
  time, not in each second. Aim: 3 points and one kernel.
- stops: the longest time without a kernel where a process is stopped (SIGSTOP) at a time that
  differs from run to run. Aim: 22 ms.
- pretenders: streams beside a client that holds the token and pretends that its work goes on, while
  the manager has not seen it. Aim: 0.6 of the share of each.
- services: requests in Poisson order, each a kernel and a wait: latency alone, and beside best
  effort, and the share of the remaining GPU time that best effort got. Aims: p99 at most 20 %
  above alone, 90 %.

Each figure is the worst of N rounds that differ in their chance; of the latencies, the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bench" / "programs"
GATE = ("suspended_calls", "binding", "estimates", "gate_wait", "keeper", "meter", "token")
POINTS_MOST, USE_LEAST, SLEEPS_MOST, CORE_MOST = 3.0, 0.95, 1_600, 7.0
SLOWER_MOST, REST_LEAST = 1.20, 0.90
PAUSE_MOST_MS = 22.0
BESIDE_PRETENDER_LEAST = 0.6
WINDOW_US, URGENT_WINDOW_US = 4_000, 100
"""The manager's; the second where latency-sensitive work shares the GPU."""
LONGER = 5
"""A run of services is longer by this factor: a hundredth of the requests counts."""
NEVER = 1_000_000
"""Launches between two waits of a program that does not wait."""


class Tenant(NamedTuple):
    share: int
    """Percent; 0: a process without a gate."""
    kernel_us: int
    kind: str = "stream"
    number: int = NEVER
    """Launches between two waits (stream), nanoseconds between two requests (service)."""
    klass: str = "n"
    stop_us: int = 0
    """When the process is stopped; 0: never."""

    def __str__(self) -> str:
        words = (self.share, self.klass, self.kind, self.kernel_us * 1000, self.number)
        return ":".join(map(str, (*words, self.stop_us)))

    def without_gate(self) -> Tenant:
        return self._replace(share=0)


class Got(NamedTuple):
    busy: float
    """Share of the time in which a kernel of the tenant ran."""
    launches: int
    helper: float
    """Share of a processor that the gate's thread took."""
    core: float
    """Share of a processor that all its threads took, without the switches of their sleeps."""
    sleeps: int
    p50_us: float
    p99_us: float


SHARES: dict[str, Sequence[Tenant]] = {
    "alone, 50 us": (Tenant(100, 50),),
    "alone, 5 us": (Tenant(100, 5),),
    "50:50, 50 us both": (Tenant(50, 50), Tenant(50, 50)),
    "10:90, 50 us both": (Tenant(10, 50), Tenant(90, 50)),
    "10:90, 20 ms and 5 us": (Tenant(10, 20_000), Tenant(90, 5)),
    "10:90, 5 us and 20 ms": (Tenant(10, 5), Tenant(90, 20_000)),
    "30:70, 500 us and 5 us": (Tenant(30, 500), Tenant(70, 5)),
    "50:50, 5 us and 500 us": (Tenant(50, 5), Tenant(50, 500)),
    "20:30:50, 5, 500, 2000 us": (Tenant(20, 5), Tenant(30, 500), Tenant(50, 2_000)),
    "50:50, a wait after 16": (Tenant(50, 50, number=16), Tenant(50, 50, number=16)),
}


PAUSES: dict[str, Sequence[Tenant]] = {
    "200 us each 2 ms, and 50 us": (Tenant(50, 200, "service", 2_000_000), Tenant(50, 50)),
    "16 x 200 us each 20 ms": (Tenant(50, 200, "burst", 20_000_000), Tenant(50, 50)),
}

LIMITS: dict[str, Sequence[Tenant]] = {
    f"{percent}:{100 - percent}, 50 us both": (
        Tenant(percent, 50, klass="l"),
        Tenant(100 - percent, 50, klass="b"),
    )
    for percent in (10, 30, 60)
}

LONG: dict[str, Sequence[Tenant]] = {
    "10:90, 600 ms and 50 us": (Tenant(10, 600_000), Tenant(90, 50)),
    "10:90, 600 ms and 20 ms": (Tenant(10, 600_000), Tenant(90, 20_000)),
    "10:90, 600 ms, waits": (Tenant(10, 600_000, number=1), Tenant(90, 50, number=16)),
    "30:70, 200 ms and 50 us": (Tenant(30, 200_000), Tenant(70, 50)),
}
LONG_HALF = 20
"""A half of a run of long kernels is longer by this factor."""

STOPS: dict[str, Sequence[Tenant]] = {
    "the holder of the token": (Tenant(90, 50), Tenant(10, 50)),
    "a latency-sensitive process": (Tenant(90, 50, klass="l"), Tenant(10, 50, klass="b")),
}

PRETENDER = Tenant(10, 50, "pretender")
PRETENDED: dict[str, Sequence[Tenant]] = {
    "45:45, 50 us both": (Tenant(45, 50), Tenant(45, 50)),
    "70:20, 5 us and 500 us": (Tenant(70, 5), Tenant(20, 500)),
    "45:45, 16 x 200 us": (Tenant(45, 200, "burst", 2_000_000),) * 2,
}

SERVICE = Tenant(50, 200, "service", 2_000_000, "l")
SERVICES: dict[str, tuple[Tenant, Sequence[Tenant]]] = {
    "beside kernels of 50 us": (SERVICE, (Tenant(50, 50, klass="b"),)),
    "beside kernels of 5 us": (SERVICE, (Tenant(50, 5, klass="b"),)),
    "beside two tasks": (SERVICE, (Tenant(30, 50, klass="b"), Tenant(20, 20, klass="b"))),
    "2 ms each 10 ms": (
        Tenant(50, 2_000, "service", 10_000_000, "l"),
        (Tenant(50, 50, klass="b"),),
    ),
}


class Run(NamedTuple):
    busy: float
    """Share of the time in which a kernel ran."""
    tenants: list[Got]
    pause_ms: float
    """The longest time without a kernel."""


class Model:
    """The built model."""

    def __init__(self, directory: Path) -> None:
        self.library, self.program = directory / "gate.so", directory / "model"
        compile_c = [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-O1"]
        compile_c += ["-I", str(ROOT / "csrc")]
        sources = [ROOT / "csrc" / "launch" / f"{name}.c" for name in GATE]
        sources.append(PROGRAMS / "launch_model_process.c")
        shared = [*compile_c, "-shared", "-fPIC", *map(str, sources), "-o", str(self.library)]
        subprocess.run(shared, check=True)
        parts = ("gate/gate_page.c", "base/sealed_file.c", "sim/node/schedule.c")
        sources = [PROGRAMS / "launch_model.c", *(ROOT / "csrc" / part for part in parts)]
        program = [*compile_c, "-rdynamic", *map(str, sources), "-ldl", "-lm"]
        subprocess.run([*program, "-o", str(self.program)], check=True)

    def run(self, tenants: Sequence[Tenant], ms: int, seed: int, window_us: int = WINDOW_US) -> Run:
        words = [self.program, ms, seed, self.library, window_us, *tenants]
        output = subprocess.run(
            list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        (_, gpu, pause), *rows = (line.split() for line in output.splitlines())
        got = [
            Got(
                int(row[1]) / 1e6,
                int(row[2]),
                int(row[3]) / 1e6,
                int(row[4]) / 1e6,
                int(row[5]),
                *(int(ns) / 1e3 for ns in row[6:]),
            )
            for row in rows
        ]
        return Run(int(gpu) / 1e6, got, int(pause) / 1e6)


class Shared(NamedTuple):
    percents: list[float]
    """Of the GPU time of all, for each tenant."""
    error: float
    """The largest difference from a share, in points."""
    use: float
    """GPU time of all, beside the same tenants without a gate."""
    helper: float
    """The most of a processor in percent that a gate's thread took."""
    core: float
    """The processor time of all tenants in percent of a core, without the switches of sleeps."""
    sleeps: float
    """Sleeps of all tenants in a second."""


def share(model: Model, tenants: Sequence[Tenant], ms: int, seed: int, window_us: int) -> Shared:
    gpu, got, _ = model.run(tenants, ms, seed, window_us)
    bare, _, _ = model.run([tenant.without_gate() for tenant in tenants], ms, seed)
    percents = [100 * each.busy / gpu for each in got]
    off = [abs(mine - each.share) for mine, each in zip(percents, tenants, strict=True)]
    helper = max(100 * each.helper for each in got)
    core = sum(100 * each.core for each in got)
    sleeps = sum(each.sleeps for each in got) * 1000 / ms
    return Shared(percents, max(off), gpu / bare, helper, core, sleeps)


def show_shares(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    """The titles of rows that miss an aim."""
    missed = []
    tables = (("shares", SHARES, WINDOW_US), ("limits", LIMITS, URGENT_WINDOW_US))
    for table, rows, window_us in tables:
        head = f"{table} after {ms} ms"
        names = f"{'got':>20}{'worst':>8}{'of ungated':>12}{'helper %':>10}"
        print(f"{head:<28}{names}{'core %':>8}{'sleeps/s':>10}")
        for title, tenants in rows.items():
            if only not in f"{table} {title}":
                continue
            found = [share(model, tenants, ms, seed, window_us) for seed in range(1, rounds + 1)]
            worst = max(found, key=lambda each: each.error)
            use = min(each.use for each in found)
            helper = max(each.helper for each in found)
            core = statistics.median(each.core for each in found)
            sleeps = statistics.median(each.sleeps for each in found)
            text = " : ".join(f"{percent:.1f}" for percent in worst.percents)
            print(
                f"{title:<28}{text:>20}{worst.error:>8.1f}{use:>12.3f}{helper:>10.1f}"
                f"{core:>8.1f}{sleeps:>10.0f}"
            )
            is_costly = sleeps > SLEEPS_MOST or core > CORE_MOST
            is_costly &= table == "shares" and title.endswith("50 us both")
            if worst.error > POINTS_MOST or use < USE_LEAST or is_costly:
                missed.append(f"{table} {title}")
        print()
    return missed


def show_pauses(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    missed = []
    print(f"{'beside a task with pauses':<28}{'of ungated':>12}")
    for title, tenants in PAUSES.items():
        if only not in f"pauses {title}":
            continue
        runs = [share(model, tenants, ms, seed, WINDOW_US) for seed in range(1, rounds + 1)]
        use = statistics.median(run.use for run in runs)
        print(f"{title:<28}{use:>12.3f}")
        missed += [f"pauses {title}"] if use < USE_LEAST else []
    print()
    return missed


def show_long(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    missed = []
    half_ms = LONG_HALF * ms
    print(f"{f'long kernels, {half_ms} ms':<28}{'got':>20}{'before':>16}{'worst':>8}")
    for title, tenants in LONG.items():
        if only not in f"long {title}":
            continue
        worst, row = 0.0, ""
        for seed in range(1, rounds + 1):
            first, both = (
                [got.busy * length_ms for got in model.run(tenants, length_ms, seed).tenants]
                for length_ms in (half_ms, 2 * half_ms)
            )
            later = [late - early for early, late in zip(first, both, strict=True)]
            percents = [[100 * part / sum(half) for part in half] for half in (later, first)]
            error = abs(percents[0][0] - tenants[0].share)
            if error >= worst:
                texts = [" : ".join(f"{part:.1f}" for part in half) for half in percents]
                worst, row = error, f"{texts[0]:>20}{texts[1]:>16}"
        print(f"{title:<28}{row}{worst:>8.1f}")
        if worst > POINTS_MOST + 100 * tenants[0].kernel_us / 1000 / half_ms:
            missed.append(f"long {title}")
    print()
    return missed


def show_stops(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    missed = []
    print(f"{'stops of':<28}{'longest pause, ms':>18}")
    for title, (stopped, other) in STOPS.items():
        if only not in f"stops {title}":
            continue
        longest = 0.0
        for seed in range(1, rounds + 1):
            tenants = [stopped._replace(stop_us=ms * 500 + seed * 700), other]
            longest = max(longest, model.run(tenants, ms, seed, URGENT_WINDOW_US).pause_ms)
        print(f"{title:<28}{longest:>18.1f}")
        if longest > PAUSE_MOST_MS:
            missed.append(f"stops {title}")
    print()
    return missed


def show_pretended(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    missed = []
    print(f"{'beside a pretender':<28}{'least part of a share':>22}")
    for title, tenants in PRETENDED.items():
        if only not in f"pretenders {title}":
            continue
        runs = [model.run([*tenants, PRETENDER], ms, seed) for seed in range(1, rounds + 1)]
        least = min(
            100 * got.busy / tenant.share
            for run in runs
            for got, tenant in zip(run.tenants, tenants, strict=False)
        )
        print(f"{title:<28}{least:>22.3f}")
        if least < BESIDE_PRETENDER_LEAST:
            missed.append(f"pretenders {title}")
    print()
    return missed


def show_services(model: Model, rounds: int, ms: int, only: str) -> list[str]:
    missed = []
    print(
        f"{'latency of a service, us':<28}{'alone: p50':>12}{'p99':>8}{'beside: p50':>13}"
        f"{'p99':>8}{'ratio':>8}{'to the others %':>17}"
    )
    for title, (service, others) in SERVICES.items():
        if only not in f"services {title}":
            continue
        alone, beside, rest = [], [], 1.0
        for seed in range(1, rounds + 1):
            _, (got,), _ = model.run([service], ms, seed, URGENT_WINDOW_US)
            alone.append(got)
            _, (got, *best), _ = model.run([service, *others], ms, seed, URGENT_WINDOW_US)
            beside.append(got)
            rest = min(rest, sum(each.busy for each in best) / (1 - got.busy))
        p50, beside_p50 = (
            statistics.median(each.p50_us for each in row) for row in (alone, beside)
        )
        p99, beside_p99 = (
            statistics.median(each.p99_us for each in row) for row in (alone, beside)
        )
        ratio = beside_p99 / p99
        print(
            f"{title:<28}{p50:>12.0f}{p99:>8.0f}{beside_p50:>13.0f}"
            f"{beside_p99:>8.0f}{ratio:>8.2f}{100 * rest:>17.1f}"
        )
        if ratio > SLOWER_MOST or rest < REST_LEAST:
            missed.append(f"services {title}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ms", type=int, default=1000, help="the model's time of each run")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row; the worst counts")
    parser.add_argument("--only", default="", help="rows with this in table and title")
    arguments = parse(parser, ms=100, rounds=1)
    with tempfile.TemporaryDirectory(prefix="nm") as directory:
        model = Model(Path(directory))
        missed = show_shares(model, arguments.rounds, arguments.ms, arguments.only)
        missed += show_pauses(model, arguments.rounds, arguments.ms, arguments.only)
        missed += show_long(model, arguments.rounds, arguments.ms, arguments.only)
        missed += show_stops(model, arguments.rounds, arguments.ms, arguments.only)
        missed += show_pretended(model, arguments.rounds, arguments.ms, arguments.only)
        longer_ms = LONGER * arguments.ms
        missed += show_services(model, arguments.rounds, longer_ms, arguments.only)
    for title in missed:
        print(f"missed: {title}")
    sys.exit(1 if missed and not arguments.short else 0)


if __name__ == "__main__":
    main()
