"""The time that the shim adds to a driver call, on the simulated driver.

Runs of one program, bare and in an environment, are interleaved.

    python bench/shim_calls.py [--rounds N] [--only TITLE]

Prints a table: median nanoseconds of CPU time per call without and with the shim, the difference,
the ratio, and the most that the difference should be. A private manager on a simulated node is
started for it and ended with it.

The column without the shim is the simulated driver's own cost, the floor under a gate in front of
a launch. For cuInit the table has the elapsed time.

A process that has asked for its lease before (at a framework's import) pays for a look at it. A
process that asks in cuInit itself, or joins its task's lease there, pays for the connection, the
manager's answer and the ledger, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from arguments import parse

HERE = Path(__file__).resolve().parent
TASK = "5" * 32  # processes with this are one task: the first asks, the others join


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    title: str
    operation: str
    live: int
    calls: int
    processes: int
    most_ns: int | None
    environ: str = "shim"
    """Which of Node's."""


ROWS = (
    Row("cuMemAlloc+cuMemFree, 1 live block", "alloc", 1, 20_000, 1, 150),
    Row("cuMemAlloc+cuMemFree, 1 000 live", "alloc", 1_000, 20_000, 1, 150),
    Row("cuMemAlloc+cuMemFree, 100 000 live", "alloc", 100_000, 20_000, 1, 150),
    Row("cuMemAlloc+cuMemFree, 8 processes", "alloc", 1, 20_000, 8, 400),
    Row("cuMemAllocAsync+cuMemFreeAsync", "async", 1, 20_000, 1, None),
    Row("cuMemGetInfo", "info", 1, 200_000, 1, 60),
    Row("cuLaunchKernel", "launch", 1, 500_000, 1, 0),
    Row("cuLaunchKernel, 4 processes", "launch", 1, 100_000, 4, None),
    Row("cuLaunchKernel + cuEventRecord", "launch-record", 1, 200_000, 1, None),
    Row("cuLaunchKernel + cuCtxSynchronize", "launch-wait", 1, 100_000, 1, None),
    Row("cuInit, lease held before", "init-held", 0, 1, 1, 500_000),
    Row("cuInit, joins its task's lease", "init", 0, 1, 1, None),
    Row("cuInit, asks for its own lease", "init", 0, 1, 1, 500_000, "own_task"),
    Row("cuInit, the same, alone in its env", "init", 0, 1, 1, 500_000, "alone"),
)


@dataclass(frozen=True)
class Node:
    """A running manager, and how programs reach it and its simulated driver."""

    program: Path
    bare: dict[str, str]
    shim: dict[str, str]
    own_task: dict[str, str]
    """Without the common task's token."""
    alone: dict[str, str]
    """The same in another environment, which has no other process."""

    def start(self, row: Row, batches: int, *, shim: bool) -> subprocess.Popen[str]:
        command = [str(self.program), row.operation, str(row.live), str(row.calls), str(batches)]
        environ: dict[str, str] = getattr(self, row.environ) if shim else self.bare
        return subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def sample(self, row: Row, batches: int, *, shim: bool) -> list[float]:
        """Nanoseconds per call of each batch of each process; all begin together."""
        processes = [self.start(row, batches, shim=shim) for _ in range(row.processes)]
        if not row.operation.startswith("init"):
            _let_go(processes)
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert not any(process.returncode for process in processes), "the program failed"
        return [float(line) for output in outputs for line in output.split()]


def _let_go(processes: list[subprocess.Popen[str]]) -> None:
    """All at once, when all are ready."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the program did not come up"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


@contextmanager
def node() -> Iterator[Node]:
    compiler = os.environ.get("CC", "cc")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nmb")))
        program = directory / "shim_calls"
        subprocess.run(
            [
                compiler,
                "-O2",
                str(HERE / "programs" / "shim_calls.c"),
                "-o",
                str(program),
                "-ldl",
                "-lpthread",
            ],
            check=True,
        )
        run_dir, environ = directory / "run", dict(os.environ)
        environ.update(NODEMGR_RUN_DIR=str(run_dir), NODEMGR_STATE_DIR=str(directory / "state"))
        serve = [sys.executable, "-P", "-m", "nodemgr", "serve", "--simulate", "2x80GiB"]
        manager = subprocess.Popen(serve, env=environ, stderr=subprocess.PIPE, text=True)
        stack.callback(_end, manager)
        assert manager.stderr is not None
        while "ready on" not in (line := manager.stderr.readline()):
            assert line, "the manager did not start"
        for name in ("bench", "alone"):
            quota = [
                sys.executable,
                "-P",
                "-m",
                "nodemgr",
                "quota",
                "set",
                name,
                "--gpus",
                "1",
                "--memory",
                "79GiB",
            ]
            subprocess.run(quota, env=environ, check=True, stdout=subprocess.DEVNULL)
        bare = {**os.environ, "LD_LIBRARY_PATH": str(run_dir / "sim")}
        own_task, alone = _inside("bench", environ), _inside("alone", environ)
        held = Node(program, bare, {**own_task, "NODEMGR_TASK": TASK}, own_task, alone)
        holder = held.start(Row("", "info", 0, 1, 1, 0), 1, shim=True)
        stack.callback(_end, holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        yield held


def _inside(env: str, environ: dict[str, str]) -> dict[str, str]:
    """The environment variables of a program in the env."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "nodemgr",
        "run",
        "--env",
        env,
        "--",
        shutil.which("env") or "env",
        "-0",
    ]
    shown = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    found = dict(entry.split("=", 1) for entry in shown.split("\0") if "=" in entry)
    return {name: value for name, value in found.items() if name != "NODEMGR_TASK"}


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)


def compare(node: Node, row: Row, rounds: int) -> tuple[float, float]:
    """Medians without and with the shim.

    The two take turns, so that other work on the machine slows both.
    """
    bare: list[float] = []
    shim: list[float] = []
    for number in range(rounds):
        pair = [(bare, False), (shim, True)]
        for sink, with_shim in pair if number % 2 == 0 else reversed(pair):
            sink += node.sample(row, 3, shim=with_shim)
    return statistics.median(bare), statistics.median(shim)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs per line")
    parser.add_argument("--only", default="", help="lines whose title begins so")
    parser.add_argument(
        "--calls", type=int, help="at most so many of a line's calls, and so many live blocks"
    )
    arguments = parse(parser, rounds=1, calls=100)
    rounds = arguments.rounds
    print(f"{'':36}{'bare ns':>12}{'shim ns':>12}{'more ns':>10}{'ratio':>8}{'at most':>10}")
    with node() as running:
        for row in (row for row in ROWS if row.title.startswith(arguments.only)):
            most = arguments.calls or max(row.calls, row.live)
            bare, shim = compare(
                running, replace(row, calls=min(row.calls, most), live=min(row.live, most)), rounds
            )
            aim = row.most_ns if row.most_ns is not None else "-"
            print(
                f"{row.title:36}{bare:12.1f}{shim:12.1f}{shim - bare:10.1f}{shim / bare:8.2f}"
                f"{aim:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
