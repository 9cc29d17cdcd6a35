"""The cost of one scrape of /metrics on a big node: the manager's values, and the page's text.

    python bench/web/scrape.py [--gpus 16] [--tasks 50] [--waiting 1000] [--envs 100]

`--tasks` is per GPU. Prints medians in milliseconds and the size of each text. The reference is the
status of the same node, which the page of an administrator is made from. The ledgers are a stub: a
real one adds a call of C for each environment and GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from core_step import GIB, NOW, WALL, acquire, take
from nodemgr.core.manager import Draft
from nodemgr.core.model.entities import Config, Gpu, Quota
from nodemgr.core.model.events import GpusChanged, SetQuota
from nodemgr.core.views import snapshot
from nodemgr.core.views.figures import GpuSensors, Readings
from nodemgr.edge.engine.event_measures import EventMeasures
from nodemgr.edge.host.measures import STEP_S, Histogram
from nodemgr.edge.page.metrics import render
from nodemgr.edge.rpc.turns import Work
from nodemgr.edge.web.metric_values import env_values, public_values

TARGET_BYTES = 200_000
END = object()


def crowded(gpus: int, tasks: int, waiting: int, envs: int) -> Draft:
    """Half of the environments have so many tasks on each GPU; requests of the others wait."""
    half = (envs + 1) // 2  # they have 1 GiB on each GPU, which leaves none for the others
    state = Draft(Config(max_tasks_per_gpu=tasks))
    found = tuple(Gpu(f"GPU-{index:036}", index, "bench", half * GIB) for index in range(gpus))
    take(state, GpusChanged(found, WALL))
    for number in range(envs):
        take(state, SetQuota(f"env{number}", Quota(gpus, gpus * GIB), "root", WALL))
    for pid in range(1_000, 1_000 + gpus * tasks):
        take(state, acquire(pid, f"env{pid % half}"))
    for pid in range(1_000_000, 1_000_000 + waiting):
        take(state, acquire(pid, f"env{half + pid % (envs - half)}"))
    assert len(state.tasks) == gpus * tasks
    assert len(state.requests) == waiting
    return state


class LedgersOf:
    """A ledger of each environment, with the same figure on each GPU."""

    def __init__(self, state: Draft) -> None:
        self._envs = state.envs

    def __contains__(self, env: str) -> bool:
        return env in self._envs

    def envs(self) -> Iterable[str]:
        return self._envs

    def used(self, env: str, row: int) -> int:
        return GIB


def node_of(state: Draft) -> tuple[Any, Any]:
    """A daemon and its views, as far as the values read them."""
    used = {gpu.uuid: 40 * GIB for gpu in state.gpus.values()}
    reading = SimpleNamespace(used_bytes=used, fault=None, at_ns=NOW)
    daemon = SimpleNamespace(
        state=state,
        clock=SimpleNamespace(monotonic_ns=lambda: NOW, wall_ns=lambda: WALL),
        gpus=SimpleNamespace(last=reading),
        ledgers=LedgersOf(state),
        node=SimpleNamespace(audited=list),
        measures=EventMeasures(),
        engine=SimpleNamespace(step_time=Histogram(STEP_S)),
        journal=SimpleNamespace(fault=None, commit_time=Histogram(STEP_S), failed_commits=0),
        event_loop=SimpleNamespace(passes=0),
        jobs=SimpleNamespace(orders_given=0),
        hub=SimpleNamespace(counters=Counter()),
        compute=SimpleNamespace(gates=SimpleNamespace(uses=dict)),
    )
    sensors = {gpu.uuid: GpuSensors(50, 60, 300.0) for gpu in state.gpus.values()}
    return daemon, SimpleNamespace(readings=lambda: Readings(NOW, sensors))


def in_one_piece(work: Work[dict[str, Any]]) -> dict[str, Any]:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def longest_turn_ms(work: Work[dict[str, Any]]) -> float:
    """The longest time that the manager's loop does nothing else."""
    longest_ns, is_over = 0, False
    while not is_over:
        began_ns = time.perf_counter_ns()
        is_over = next(work, END) is END
        longest_ns = max(longest_ns, time.perf_counter_ns() - began_ns)
    return longest_ns / 1e6


def median_ms(work: Callable[[], object], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        began_ns = time.perf_counter_ns()
        work()
        found.append((time.perf_counter_ns() - began_ns) / 1e6)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=50, help="on each GPU")
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--envs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    options = parse(parser, gpus=2, tasks=3, waiting=4, envs=5, rounds=2)
    state = crowded(options.gpus, options.tasks, options.waiting, options.envs)
    daemon, views = node_of(state)
    envs = sorted(state.envs)
    beats = dict.fromkeys(state.processes, NOW)

    def status() -> str:
        return json.dumps(snapshot.status(state, NOW, used_bytes={}, last_beat_ns=beats))

    def public() -> dict[str, Any]:
        return public_values(daemon, views, 0.0)

    def every() -> dict[str, Any]:
        return {**public(), **in_one_piece(env_values(daemon, {}, envs))}

    sent = {name: json.loads(json.dumps(make())) for name, make in (("no", public), ("all", every))}
    rows = (
        ("status, all environments (reference)", status, len(status())),
        ("values, no environment", lambda: json.dumps(public()), len(json.dumps(public()))),
        ("values, all environments", lambda: json.dumps(every()), len(json.dumps(every()))),
        ("text, no environment", lambda: render(sent["no"]), len(render(sent["no"]))),
        ("text, all environments", lambda: render(sent["all"]), len(render(sent["all"]))),
    )
    print(
        f"{options.gpus} GPUs, {len(state.tasks)} tasks, {len(state.requests)} waiting,"
        f" {len(envs)} environments"
    )
    print(f"{'':40}{'ms, median':>12}{'bytes':>12}")
    for name, work, size in rows:
        print(f"{name:40}{median_ms(work, options.rounds):12.2f}{size:12,}")
    turns = [longest_turn_ms(env_values(daemon, {}, envs)) for _ in range(options.rounds)]
    print(f"{'all environments, longest turn':40}{statistics.median(turns):12.2f}")
    if rows[-1][2] >= TARGET_BYTES and not options.short:
        print(f"the text is not below {TARGET_BYTES:,} bytes")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
