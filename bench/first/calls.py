"""The step `calls`: CPU time of driver calls, bare, under the shim, and gated.

bench/shim_calls.py is the same on the simulator, with aims.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from lacking import compiler
from machine import GIB, ROOT, Node, node

SOURCE = ROOT / "bench" / "programs" / "shim_calls.c"
BATCHES, TURNS = 9, 2
RUN_S = 30


class Row(NamedTuple):
    """An operation of shim_calls.c, the live blocks beside it, and the calls of a batch."""

    operation: str
    live: int
    calls: int

    def title(self) -> str:
        return f"{self.operation} beside {self.live}" if self.live > 1 else self.operation


ROWS = (
    Row("alloc", 1, 300),
    Row("alloc", 10_000, 300),
    Row("async", 1, 2_000),
    Row("info", 0, 2_000),
    Row("launch", 0, 500),  # a stream's queue holds about 1 000 launches; a full one blocks
    Row("launch-wait", 0, 500),
)


def calls(out: Path, limit_s: float) -> str:
    cc = compiler()
    with (
        tempfile.TemporaryDirectory(prefix="nmf", dir="/tmp") as folder,
        node(bare_suffices=True) as running,
    ):
        program = Path(folder) / "shim_calls"
        subprocess.run(
            [cc, "-O2", str(SOURCE), "-o", str(program), "-ldl", "-lpthread"], check=True
        )
        running.envs(20 * GIB)
        rows = "; ".join(measured(running, program, row) for row in ROWS)
        return f"ns bare, more by shim, more gated: {rows}{running.bare_alone()}"


def measured(running: Node, program: Path, row: Row) -> str:
    """The kinds take turns, so that a change of the clock's speed meets all."""
    kinds = running.kinds()
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(TURNS):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            process = running.start(kind, [program, row.operation, row.live, row.calls, BATCHES])
            printed, _ = process.communicate("go\n", timeout=RUN_S)
            if process.returncode:
                return f"{row.title()} failed {kind} with {process.returncode}"
            found[kind] += map(float, printed.split()[1:])
    print(row, found)
    medians = {kind: statistics.median(each) for kind, each in found.items()}
    more = [f"{medians[kind] - medians['bare']:+.0f}" for kind in kinds[1:]]
    return f"{row.title()} {medians['bare']:.0f} {' '.join(more)}"
