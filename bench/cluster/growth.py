"""Growth of a pool by one node, beside Slurm alone in the same run: a real Slurm of four nodes.

    python bench/cluster/growth.py

As root, with Slurm (tests/slurm/site.py); each node has two GPUs. Wall time from the submission to
the start of the job's process, as the process writes it:

- Slurm alone: sbatch of a job for a whole idle node.
- Growth: a job of the cluster that no held node has room for. The head asks Slurm for a pilot, the
  pilot starts a manager and joins, the head gives it the job. Each round takes one more node.
- Held: the same job on a node that a pilot holds already.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from arguments import parse
from tests.slurm import site, storm

NAME = 34


def begun_after_s(path: Path, submit: Callable[[str], None]) -> float:
    """From the submission of a script to the time that it writes first."""
    path.unlink(missing_ok=True)
    script = f"date +%s%N >{path}.new; mv {path}.new {path}; "
    began_ns = time.time_ns()
    submit(script)
    storm.until(path.exists, storm.CALM_S)
    return (int(path.read_text()) - began_ns) / 1e9


def of_slurm(made: storm.Cluster, path: Path) -> float:
    def submit(script: str) -> None:
        made.slurm.says(
            "sbatch", "--nodes=1", "--exclusive", "--gres=gpu:2", "--output=/dev/null", "--chdir=/",
            "--wrap", script,
        )  # fmt: skip

    took_s = begun_after_s(path, submit)
    storm.until(lambda: not made.slurm.says("squeue", "-h").strip(), storm.CALM_S)
    return took_s


def of_cluster(made: storm.Cluster, path: Path, gate: Path) -> float:
    def submit(script: str) -> None:
        waits = f"until [ -e {gate} ]; do sleep 0.1; done"
        made.says("submit", "--env", "alice", "--gpus", "2", "--", "sh", "-c", script + waits)

    return begun_after_s(path, submit)


def line(what: str, times_s: list[float]) -> None:
    print(f"{what:{NAME}}{statistics.median(times_s):9.2f}{max(times_s):9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4, choices=range(1, 5))
    args = parse(parser, nodes=1)
    if why := site.missing():
        print(f"skipped: {why}")
        return
    with storm.cluster("--idle-return", "1h") as made:
        path = made.directory / "begun"
        print(f"{'submission to start':{NAME}}{'s':>9}{'worst':>9}")
        line("Slurm alone, an idle node", [of_slurm(made, path) for _ in range(args.nodes)])
        gate = made.directory / "gate"
        line(
            "growth of the pool by one node",
            [of_cluster(made, path, gate) for _ in range(args.nodes)],
        )
        gate.touch()
        storm.until(lambda: '"queue": []' in made.says("queue", "--env", "alice", "--json"))
        storm.until(lambda: '"running": []' in made.says("queue", "--env", "alice", "--json"))
        line("a node that is held", [of_cluster(made, path, gate) for _ in range(args.nodes)])
        print(f"{'load':{NAME}}{os.getloadavg()[0]:9.1f}")


if __name__ == "__main__":
    main()
