"""Joins, removals and deaths in an elastic training: their times, and the steps lost.

    python bench/elastic/changes.py [--rounds 3] [--only three-lines,script,torchrun,tensorflow]
        [--json FILE]

The same training on the processor, with gloo: by the three lines of nodemgr_client.elastic, as an
unmodified script under nodemgr, and under torchrun in the same run; and by the three lines of
TensorFlow. GPUs are those of the simulator. Every step takes at least 20 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from managed import ManagedTask
from steps import LIMIT_S, POLL_S, StepFile
from torchrun_group import TorchrunGroup

from arguments import parse
from node import against_target, finish, quantile, table

Figures = dict[str, list[float]]
SETTLE_S = 1.5
WAYS = ("three-lines", "script", "torchrun", "tensorflow")
TARGETS = {
    "warm: offer to a step on it": 1.0, "cold: offer to a step on it": 6.0,
    "warm: pause of the others": 0.2, "removal: recall to the next grant": 1.0,
    "leader killed: workers ended": 2.0,
}  # fmt: skip
"""Of the three lines, in seconds (ELASTIC goals)."""
chance = random.Random(1)


def add(figures: Figures, name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


def settle(steps: StepFile, size: int) -> None:
    """The training runs at this size for a while."""
    steps.await_size(size, time.monotonic())
    steps.await_size(size, time.monotonic() + SETTLE_S)


def joins(task: ManagedTask, figures: Figures, *, spare: bool) -> None:
    """Two GPUs become free at once: a spare trains on the first, a new process on the second.

    Without spares the first is the only one.
    """
    freed_s = task.free(2 if spare else 1)
    if spare:
        first = task.steps.await_size(2, freed_s)
        warm_s, cold_s = task.event_s("task.grown", freed_s, 2)
        add(figures, "warm: freed GPU to a step on it", first.at_s - freed_s)
        add(figures, "warm: offer to a step on it", first.at_s - warm_s)
        add(figures, "warm: pause of the others", task.steps.pause_s(warm_s, first.at_s))
        size = 3
    else:
        [cold_s] = task.event_s("task.grown", freed_s)
        size = 2
    last = task.steps.await_size(size, freed_s)
    add(figures, "cold: freed GPU to a step on it", last.at_s - freed_s)
    add(figures, "cold: offer to a step on it", last.at_s - cold_s)
    begin_s = cold_s if not spare else first.at_s
    add(figures, "cold: pause of the others", task.steps.pause_s(begin_s, last.at_s))
    add(figures, "join: steps lost", task.steps.lost(freed_s))


def removal(task: ManagedTask, figures: Figures, size: int) -> None:
    """Another environment asks for a GPU; `size` workers are left."""
    asked_s = task.take()
    [recall_s] = task.event_s("task.recalled", asked_s)
    granted_s = task.event_s("task.granted", recall_s)[0]
    step = task.steps.await_size(size, recall_s)
    add(figures, "removal: recall to the next grant", granted_s - recall_s)
    add(figures, "removal: pause of the others", task.steps.pause_s(recall_s, step.at_s))
    add(figures, "removal: steps lost", task.steps.lost(recall_s))


def death(steps: StepFile, figures: Figures, who: str, rank: int, size: int) -> None:
    """SIGKILL of a worker; the training is whole again with a worker in its place."""
    victim, began_s = steps.pid_of(rank), time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while not _is_whole(steps, size, victim, began_s):
        if time.monotonic() > began_s + LIMIT_S:
            raise SystemExit(f"no training of {size} after the death of {who}")
        time.sleep(POLL_S)
    whole_s = steps.steps[-1].at_s
    add(figures, f"{who} killed: pause of the others", steps.pause_s(began_s, whole_s))
    add(figures, f"{who} killed: all workers train", whole_s - began_s)
    add(figures, f"{who} killed: steps lost", steps.lost(began_s))


def _is_whole(steps: StepFile, size: int, victim: int, began_s: float) -> bool:
    """Whether the newest steps are of as many workers as before, with a new one among them."""
    last = steps.read()[-size:]
    pids = {each.pid for each in last}
    is_new = all(each.at_s > began_s and each.size == size for each in last)
    return is_new and len(pids) == size and victim not in pids


def under_nodemgr(script: str, rounds: int, *options: str, spare: bool = True) -> Figures:
    """One task, `rounds` times through all changes."""
    figures: Figures = {}
    task = ManagedTask(script, *options)
    try:
        for _ in range(2):
            task.take()
        task.start()
        settle(task.steps, 1)
        for _ in range(rounds):
            if spare:
                await_spare(task, 2)
            joins(task, figures, spare=spare)
            settle(task.steps, 3 if spare else 2)
            if spare:
                removal(task, figures, 2)
                settle(task.steps, 2)
            _deaths(task, figures, spare=spare)
            _leader(task, figures)
            removal(task, figures, 1)
            settle(task.steps, 1)
    except SystemExit:
        print(task.log()[-3_000:], file=sys.stderr)
        raise
    finally:
        task.close()
    return figures


def briefly() -> Figures:
    """A warm join, a removal and the leader's death: an import of the framework less for each."""
    figures: Figures = {}
    task = ManagedTask("three_lines.py")
    try:
        for _ in range(2):
            task.take()
        task.start()
        await_spare(task, 2)
        freed_s = task.free(1)
        step = task.steps.await_size(2, freed_s)
        [warm_s] = task.event_s("task.grown", freed_s)
        add(figures, "warm: offer to a step on it", step.at_s - warm_s)
        removal(task, figures, 1)
        killed_s, ended_s = task.kill_leader()
        add(figures, "leader killed: workers ended", ended_s - killed_s)
    finally:
        task.close()
    return figures


def await_spare(task: ManagedTask, processes: int) -> None:
    """Until the task has so many processes, and each is ready: one is the spare."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        task.steps.read()
        workers = set(task.workers())
        if len(workers) == processes and workers <= set(task.steps.ready):
            return
        if time.monotonic() > end_s:
            raise SystemExit("no spare was started")
        time.sleep(POLL_S)


def _deaths(task: ManagedTask, figures: Figures, *, spare: bool) -> None:
    for who, rank in (("random worker", chance.randrange(2)), ("worker 0", 0)):
        if spare:
            await_spare(task, 3)
        death(task.steps, figures, who, rank, 2)
        settle(task.steps, 2)


def _leader(task: ManagedTask, figures: Figures) -> None:
    """SIGKILL of the leader, and the same command again."""
    killed_s, ended_s = task.kill_leader()
    add(figures, "leader killed: workers ended", ended_s - killed_s)
    began_s = task.start()
    step = task.steps.await_size(2, ended_s)
    add(figures, "leader killed: started again, to a step", step.at_s - began_s)
    add(figures, "leader killed: steps lost", task.steps.lost(killed_s))
    settle(task.steps, 2)


def under_torchrun(rounds: int) -> Figures:
    figures: Figures = {}
    group = TorchrunGroup()
    steps = group.steps
    try:
        group.add()
        settle(steps, 1)
        for _ in range(rounds):
            began_s = group.add()
            step = steps.await_size(2, began_s)
            add(figures, "cold: freed GPU to a step on it", step.at_s - began_s)
            add(figures, "cold: pause of the others", steps.pause_s(began_s, step.at_s))
            add(figures, "join: steps lost", steps.lost(began_s))
            settle(steps, 2)
            for who, rank in (("random worker", chance.randrange(2)), ("worker 0", 0)):
                death(steps, figures, who, rank, 2)
                settle(steps, 2)
            asked_s, freed_s = group.remove()
            add(figures, "removal: recall to the next grant", freed_s - asked_s)
            step = steps.await_size(1, asked_s)
            add(figures, "removal: pause of the others", steps.pause_s(asked_s, step.at_s))
            add(figures, "removal: steps lost", steps.lost(asked_s))
            settle(steps, 1)
            killed_s, ended_s = group.kill_leader()
            add(figures, "leader killed: workers ended", ended_s - killed_s)
            began_s = group.add()
            step = steps.await_size(1, began_s)
            add(figures, "leader killed: started again, to a step", step.at_s - began_s)
            add(figures, "leader killed: steps lost", steps.lost(killed_s))
            settle(steps, 1)
    except SystemExit:
        print((group.directory / "log").read_text()[-3_000:], file=sys.stderr)
        raise
    finally:
        group.close()
    return figures


def measured(way: str, rounds: int) -> Figures:
    runs: dict[str, Callable[[], Figures]] = {
        "three-lines": lambda: under_nodemgr("three_lines.py", rounds),
        "script": lambda: under_nodemgr(
            "for_torchrun.py", rounds, "--checkpoint", "{}", spare=False
        ),
        "torchrun": lambda: under_torchrun(rounds),
        "tensorflow": lambda: under_nodemgr("three_lines_tensorflow.py", rounds),
    }
    return runs[way]()


def show(every: dict[str, Figures]) -> None:
    """Two tables: times, and steps that were made again."""
    names = list(dict.fromkeys(name for figures in every.values() for name in figures))
    rows = [
        (f"{name}, {way}", figures[name])
        for name in names for way, figures in every.items() if name in figures
    ]  # fmt: skip
    times = [(name, [1_000 * each for each in values]) for name, values in rows]
    table("a change of the GPUs", [row for row in times if "steps lost" not in row[0]], "ms")
    table("the same", [row for row in rows if "steps lost" in row[0]], "steps")


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parse(parser, only="three-lines")
    ways = options.only.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"no such way: {', '.join(sorted(unknown))}")
    loads, every = [os.getloadavg()[0]], {}
    for way in ways:
        every[way] = briefly() if options.short else measured(way, options.rounds)
        loads.append(os.getloadavg()[0])
        if options.json is not None:  # after each way: a whole run takes long
            said = {"load": loads, "cores": os.cpu_count(), "seconds": every}
            options.json.write_text(json.dumps(said, indent=1) + "\n")
    show(every)
    print(f"\nload of the machine: {min(loads):.0f} to {max(loads):.0f}, {os.cpu_count()} cores")
    own = every.get("three-lines", {})
    for name, limit_s in TARGETS.items():
        if name in own:
            against_target(f"three lines, {name}", quantile(own[name], 0.5), limit_s, "s")
    return options


if __name__ == "__main__":
    finish(main())
