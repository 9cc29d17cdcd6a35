"""A client that rewrites the shared words of its launch gate: what others get meanwhile.

All on the simulated driver.

    python bench/launches/hostile.py [--ms N] [--mode MODE]... [--enforce warn|fence|kill] [--short]

A private manager is started for it and ended with it. In each row an environment with a share of
10 % runs bench/programs/hostile.c in one of its modes for N ms. Beside it, one with 45 % launches
kernels of 50 us without pause, and one with 45 % serves requests of 200 us, 20 ms apart in the
mean. `idle` is the same program without any write; `bypass` calls the driver past its gate.

- launches: of the first one, per second
- p50, worst: milliseconds of a request, from its arrival
- parted: milliseconds until the manager gave each environment a page of its own, and the fault
- offence: the first that the manager found in the hostile environment, and whether it ended

For hours: `--ms 3600000`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from launches.shares import Bench
from node import ROOT, Node

MODES = (
    "idle", "garbage", "zero", "ones", "urgent", "virtual", "token", "pass", "progress", "flags",
    "bypass",
)  # fmt: skip
SHARES = {"stream": 45, "service": 45, "hostile": 10}
GAP_US = 20_000


def compiled(bench: Bench) -> Path:
    program = bench.node.directory / "hostile"
    source = ROOT / "bench" / "programs" / "hostile.c"
    library = bench.node.run_dir / "sim" / "libcuda.so.1"
    command = ["cc", "-O2", f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)]
    subprocess.run([*command, "-Wl,--no-as-needed", str(library)], check=True)
    return program


def first(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((event for event in events if event["name"] == name), None)


def show_mode(bench: Bench, program: Path, mode: str, ms: int) -> None:
    stream = bench.start(bench.within("stream"), "stream", "sleep_us_50", ms, 1_000_000)
    service = bench.start(bench.within("service"), "service", "sleep_us_200", ms, GAP_US)
    library_path = str(bench.node.run_dir / "sim")
    before = max([event["sequence"] for event in events_of(bench, 0)], default=0)
    with subprocess.Popen(
        [str(program), mode],
        env=os.environ | {"LD_LIBRARY_PATH": library_path} | dict(bench.within("hostile")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as hostile:
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == "ready\n"
        began = time.time()
        for process in (stream, service):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        launches = int(stream.communicate()[0].split()[-1])
        latencies = sorted(int(line) / 1e6 for line in service.communicate()[0].split())
        found = events_of(bench, before)
        ended = hostile.poll() is not None
        hostile.kill()
    parted, offence = first(found, "gate.garbled"), first(found, "audit.violation")
    when = "-"
    if parted is not None:
        when = f"{parted['time_ns'] / 1e6 - began * 1e3:.0f} {parted['fault']}"
    what = offence["offence"] + (", ended" if ended else "") if offence else "-"
    print(
        f"{mode:<10}{launches * 1000 / ms:>10.0f}{statistics.median(latencies):>9.1f}"
        f"{latencies[-1]:>9.1f}{when:>20}  {what}",
        flush=True,
    )


def events_of(bench: Bench, since: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bench.node.call("events", since=since)["events"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ms", type=int, default=10_000, help="how long each row takes")
    parser.add_argument("--mode", action="append", choices=MODES, help="default: each of them")
    parser.add_argument("--enforce", choices=("warn", "fence", "kill"), default="warn")
    arguments = parse(parser, ms=300, mode=["garbage"])
    print(f"{'mode':<10}{'launches':>10}{'p50 ms':>9}{'worst':>9}{'parted':>20}  offence")
    for mode in arguments.mode or MODES:
        with Node("1xH100-80GiB") as node:
            bench = Bench(node, None)
            program = compiled(bench)
            for env, percent in SHARES.items():
                bench.environment(env, compute_percent=percent, enforce=arguments.enforce)
            show_mode(bench, program, mode, arguments.ms)


if __name__ == "__main__":
    main()
