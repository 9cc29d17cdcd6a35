"""A pool beside Slurm alone in the same run: starts, growth by one node, many short jobs.

    python bench/cluster/slurm.py

As root, with a real Slurm of four nodes with eight GPUs each (tests/slurm/site.py). Wall time from
the submission, the command included, to the start of the job's process, as the process writes it:

- An idle node, in turns: sbatch of a job for a whole node, on two nodes that are Slurm's; a job of
  the cluster for a whole node, on two that pilots hold.
- Growth: a job of the cluster that no held node has room for. The head asks Slurm for a pilot, the
  pilot starts a manager and joins, the head gives it the job. Each round takes one more node.

And 1 000 jobs of 0.2 s on all 32 GPUs, an array each: from the submission to the end of the last.
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

NAME, GPUS, NODES = 34, 8, 4
SBATCH = ("sbatch", "--output=/dev/null", "--chdir=/")


def seconds(path: Path, lines: int, submit: Callable[[str], None], first: str = "") -> float:
    """From the submission of a script to its last line in `path`, of so many.

    `first`: what it does before.
    """
    path.write_text("")
    began_ns = time.time_ns()
    submit(f"{first}date +%s%N >>{path}; ")
    storm.until(lambda: path.read_text().count("\n") >= lines, storm.CALM_S)
    return (max(map(int, path.read_text().split())) - began_ns) / 1e9


class Both:
    """The same job of Slurm and of the cluster."""

    def __init__(self, made: storm.Cluster) -> None:
        self.made, self.path, self.gate = made, made.directory / "lines", made.directory / "gate"

    def of_slurm(self) -> float:
        def submit(script: str) -> None:
            node = ("--nodes=1", "--exclusive", f"--gres=gpu:{GPUS}")
            self.made.slurm.says(*SBATCH, *node, "--wrap", script)

        took_s = seconds(self.path, 1, submit)
        storm.until(lambda: "wrap" not in self.made.slurm.says("squeue", "-h"), storm.CALM_S)
        return took_s

    def of_cluster(self) -> float:
        def submit(script: str) -> None:
            words = ("--env", "alice", "--gpus", str(GPUS), "--", "sh", "-c")
            self.made.says(
                "submit", *words, f"{script}until [ -e {self.gate} ]; do sleep 0.1; done"
            )

        return seconds(self.path, 1, submit)

    def ends(self) -> None:
        """Ends the jobs of the cluster."""
        self.gate.touch()
        storm.until(self.made.is_calm, storm.CALM_S)

    def many_of_slurm(self, jobs: int) -> float:
        def submit(script: str) -> None:
            self.made.slurm.says(*SBATCH, f"--array=0-{jobs - 1}", "--gres=gpu:1", "--wrap", script)

        return seconds(self.path, jobs, submit, "sleep 0.2; ")

    def many_of_cluster(self, jobs: int) -> float:
        def submit(script: str) -> None:
            words = ("--env", "alice", "--gpus", "1", "--array", f"0-{jobs - 1}", "--", "sh", "-c")
            self.made.says("submit", *words, script)

        return seconds(self.path, jobs, submit, "sleep 0.2; ")


def line(what: str, times_s: list[float]) -> None:
    print(f"{what:{NAME}}{statistics.median(times_s):9.2f}{max(times_s):9.2f}", flush=True)


def pool(made: storm.Cluster, nodes: int) -> None:
    """So many nodes at most, from now on."""
    made.running["head"].terminate()
    made.running["head"].wait(storm.WAIT_LIMIT_S)
    made.says("head", "setup", "--max-nodes", str(nodes))
    made.head()
    storm.until(lambda: made.asked("head_checks"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1_000)
    args = parse(parser, rounds=1, jobs=20)
    if why := site.missing():
        print(f"skipped: {why}")
        return
    with storm.cluster("--idle-return", "1h", gpus=GPUS) as made:
        both = Both(made)
        made.says("quota", "set", "alice", "--cluster", "--gpus", str(GPUS * NODES))
        made.says("node", "drain", "own")
        alone_s = both.many_of_slurm(args.jobs)
        print(f"{'submission to start':{NAME}}{'s':>9}{'worst':>9}")
        pool(made, NODES // 2)
        grown = [both.of_cluster() for _ in range(NODES // 2)]
        both.ends()
        turns = [(both.of_slurm(), both.of_cluster()) for _ in range(args.rounds)]
        line("Slurm alone, an idle node", [alone for alone, _ in turns])
        line("a node that is held", [held for _, held in turns])
        both.gate.unlink()
        pool(made, NODES)
        for _ in range(NODES // 2):  # they fill the nodes that are held
            both.of_cluster()
        grown += [both.of_cluster() for _ in range(NODES // 2)]
        line("growth of the pool by one node", grown)
        both.ends()
        print(f"\n{f'{args.jobs} jobs of 0.2 s, {GPUS * NODES} GPUs':{NAME}}{'s':>9}")
        print(f"{'at least':{NAME}}{-(-args.jobs // (GPUS * NODES)) * 0.2:9.1f}")
        print(f"{'Slurm alone':{NAME}}{alone_s:9.1f}")
        print(f"{'the cluster':{NAME}}{both.many_of_cluster(args.jobs):9.1f}")
        print(f"{'load':{NAME}}{os.getloadavg()[0]:9.1f}")


if __name__ == "__main__":
    main()
