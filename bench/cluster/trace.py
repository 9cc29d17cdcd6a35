"""A cluster's trace scaled up to many nodes, on a head's core: waits, passes, messages, memory.

    python bench/cluster/trace.py [TRACE.csv.gz] [--nodes 1000] [--day 77] [--hours 24]

TRACE (or NODEMGR_PHILLY_TRACE): as in bench/trace/replay.py, which names its sources. The day, and
the one before it, are those of bench/trace/day.py: the first one fills the nodes, figures are of
the other. Each job of the trace comes so often that the nodes get --load of the work that they can
do, at other instants of the same 10 minutes. Jobs of more GPUs than a node has are left out. Half
of the jobs have a time limit, of twice their time.

The clock is simulated, in steps of --step seconds; each step with an event is a pass. Messages are
the frames that a head would say and hear; the time of the processor is that of the decisions:
the store and the frames are not there (bench/cluster/head.py has them). Memory is that of the whole
process beyond what it had without jobs.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from arguments import parse
from bench.cluster.head import ENVS, Clocked, reported
from bench.trace.day import DAY_S, made_up, of_trace, percentile, span
from nodemgr.core.cluster import events, messages
from nodemgr.core.cluster.entities import ClusterJob, GivenJob, NodeGpu
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.model.entities import JobState
from nodemgr.placement.batches import BadTrace, TraceJob, read_trace

S = 1_000_000_000
GIB = 1 << 30
SPREAD_S = 600
IDLE = (NodeGpu(80 * GIB, 80 * GIB),)


class Replay:
    """The head, and nodes that do what it says."""

    def __init__(
        self, nodes: int, gpus: int, jobs: Sequence[TraceJob], until_s: int, step_s: int
    ) -> None:
        self.head, self.gpus, self.until_s, self.step_s = Clocked(), gpus, until_s, step_s
        self.jobs, self.numbers = jobs, dict[str, int]()
        self.waits_s: list[tuple[int, int]] = []
        """Of each job that has begun: when it came, how long it waited."""
        self.passes: list[tuple[int, float, int]] = []
        """When, the time of the processor in ms, the jobs that waited."""
        self.frames, self.other_ms, self.most_mib = 0, 0.0, 0.0
        self.of_job: dict[str, TraceJob] = {}
        for env in range(ENVS):
            self.head.happens(events.SetEnv(f"e{env}", nodes * gpus // 5))
        for number in range(nodes):
            name = f"n{number:04}"
            self.head.happens(events.AddNode(name, f"key {number}"))
            shares = IDLE * gpus
            self.head.happens(events.Synced(name, 1, "g", "b", 0, gpus, (), (), shares=shares))

    def run(self) -> None:
        state, dice = self.head.state, Random("limits")
        coming, ends = iter(self.jobs), list[tuple[int, int]]()
        job, now_s = next(coming, None), 0
        while (job is not None or ends) and now_s < self.until_s:
            now_s = min(job.comes_s if job else ends[0][0], ends[0][0] if ends else self.until_s)
            now_s = -(-now_s // self.step_s) * self.step_s
            self.head.now_ns = max(self.head.now_ns, now_s * S)
            while job is not None and job.comes_s <= now_s:
                self._submit(job, dice)
                job = next(coming, None)
            while ends and ends[0][0] <= now_s:
                self._report(state.assignments[heapq.heappop(ends)[1]], over=True)
            before = state.counters[""].number
            self._pass(now_s)
            for number in range(before + 1, state.counters[""].number + 1):
                row = state.assignments[number]
                self.frames += len([*messages.to_say(state, row.node)])
            # jobs that wait at a node begin when it has room
            for row in [row for row in state.assignments.values() if row.began_ns is None]:
                if self._fits(row):
                    self._begin(row, now_s)
                    heapq.heappush(ends, (now_s + self.of_job[row.job_id].lasts_s, row.number))

    def _fits(self, row: GivenJob) -> bool:
        state = self.head.state
        used = sum(one.gpus for one in state.at(row.node) if one.began_ns is not None)
        return row.gpus <= self.gpus - used

    def _submit(self, job: TraceJob, dice: Random) -> None:
        limit_ms = 2_000 * job.lasts_s if dice.random() < 0.5 else None
        row = ClusterJob("", f"e{dice.randrange(ENVS)}", "ann", job.gpus, limit_ms)
        self.other_ms += self.head.happens(events.Submit((row,)))
        self.of_job[f"c{self.head.state.counters[''].job}"] = job
        self.frames += 2  # the order of a node, and its answer

    def _pass(self, now_s: int) -> None:
        waiting = len(self.head.state.queue)
        self.most_mib = max(self.most_mib, memory_mib())
        self.passes.append((now_s, self.head.happens(events.Pass()), waiting))

    def _begin(self, row: GivenJob, now_s: int) -> None:
        job = self.of_job[row.job_id]
        self.waits_s.append((job.comes_s, now_s - job.comes_s))
        self._report(row, over=False)

    def _report(self, row: GivenJob, *, over: bool) -> None:
        """Of a node, about a job that has begun or ended, and the head's word that it knows."""
        number = self.numbers[row.node] = self.numbers.get(row.node, 0) + 1
        state = JobState.DONE if over else JobState.RUNNING
        answer = NodeAnswer(row.key, row.number, over, True, False, True, state, ran_ms=10_000)
        shares = reported(self.head.state, row.node, row.number if over else 0)
        said = events.NodeReport(row.node, 1, number, self.gpus, (), (answer,), shares=shares)
        self.other_ms += self.head.happens(said)
        self.frames += 1 + over


class Figures(NamedTuple):
    replay: Replay
    from_s: int
    copies: float

    def say(self) -> None:
        replay = self.replay
        hours = (replay.until_s - self.from_s) / 3_600
        waits = [wait for comes, wait in replay.waits_s if comes >= self.from_s]
        passes = [(ms, waiting) for at, ms, waiting in replay.passes if at >= self.from_s]
        times = [ms for ms, _ in passes]
        print(
            f"{len(waits)} jobs begin in {hours:.0f} h; each of the trace {self.copies:.1f} times"
        )
        mean, median, last = (
            statistics.mean(waits),
            statistics.median(waits),
            percentile(waits, 0.99),
        )
        line("wait: mean, median, 99 %", span(mean), span(median), span(last))
        many = [one for _, one in passes]
        line("jobs that wait: median, most", f"{statistics.median(many):.0f}", f"{max(many)}")
        found = statistics.median(times), percentile(times, 0.99), max(times)
        line(f"{len(times)} passes, ms: median, 99 %, worst", *(f"{ms:.1f}" for ms in found))
        took_s = (sum(ms for _, ms, _ in replay.passes) + replay.other_ms) / 1e3
        line("messages, a second of the trace", f"{replay.frames / replay.until_s:.1f}")
        line("decisions, % of a core", f"{took_s / replay.until_s * 100:.2f}")


def line(what: str, *figures: str) -> None:
    print(f"{what:42}" + "".join(f"{figure:>10}" for figure in figures))


def scaled(jobs: Sequence[TraceJob], copies: float) -> list[TraceJob]:
    """Each so often, in whole numbers by chance."""
    dice, found = Random("copies"), list[TraceJob]()
    for job in jobs:
        for _ in range(int(copies + dice.random())):
            found.append(job._replace(comes_s=job.comes_s + dice.randrange(SPREAD_S)))
    return sorted(found)


def memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", nargs="?", default=os.environ.get("NODEMGR_PHILLY_TRACE"))
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--day", type=int, default=77)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--load", type=float, default=1)
    parser.add_argument("--step", type=int, default=10)
    args = parse(parser, nodes=4, trace="")
    if args.trace:
        try:
            day = of_trace(read_trace(Path(args.trace)), args.day, 1, args.gpus)
        except BadTrace as fault:
            sys.exit(str(fault))
    elif args.short:
        day = made_up()
    else:
        sys.exit("name a trace: the docstring of bench/trace/replay.py says which")
    work = sum(job.lasts_s * job.gpus for job in day.jobs) / (2 * DAY_S * args.gpus)
    copies = args.load * args.nodes / work
    jobs = scaled(day.jobs, copies)
    began, before = time.monotonic(), memory_mib()
    until_s = DAY_S + int(args.hours * 3_600)
    replay = Replay(args.nodes, args.gpus, jobs, until_s, args.step)
    gc.collect()
    gc.freeze()
    replay.run()
    print(f"{args.nodes} nodes of {args.gpus} GPUs, load {args.load}")
    Figures(replay, DAY_S, copies).say()
    line("memory, MiB", f"{replay.most_mib - before:.0f}")
    line("this took, s", f"{time.monotonic() - began:.0f}")


if __name__ == "__main__":
    main()
