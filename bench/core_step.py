"""The cost of one decision: `manager.step` and `Draft.apply` at a small and at a crowded node.

Standard library only.

    python bench/core_step.py

Prints medians in microseconds of processor time, which other programs do not add to (by the clock
on the wall a pass of some milliseconds takes ten times as long beside a load of ten), and the ratio
of the crowded node to the small one. The cost of a step should depend on the rows that it changes,
not on the number of rows. bench/queue_operations.py measures the queue by itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import parse
from nodemgr.core.manager import Draft, Transition, step
from nodemgr.core.model.entities import (
    Config,
    Gpu,
    JobPayload,
    JobSpec,
    JobState,
    Quota,
    RunSpec,
    Transport,
)
from nodemgr.core.model.events import (
    Acquire,
    Caller,
    Event,
    GpusChanged,
    JobEnded,
    LaunchHostChanged,
    Match,
    ProcessGone,
    Release,
    SetQuota,
    Submission,
    SubmitJobs,
    Tick,
    WithdrawJob,
)
from nodemgr.core.model.values import replace
from nodemgr.core.views import snapshot

GIB = 1 << 30
WALL = 1_700_000_000_000_000_000
NOW = 1_000_000_000_000
ENVS = 100
Sample = tuple[float, float]
Measure = Callable[[Draft, int], Iterator[Sample]]
"""Microseconds of step and of apply, so many times where one state serves for several."""


def caller(pid: int, env: str) -> Caller:
    return Caller(pid, env, f"unix:{pid}:1", Transport.UNIX, pid, "ann", (1,))


def acquire(pid: int, env: str, token: str = "") -> Acquire:
    return Acquire(
        caller(pid, env),
        f"a{pid}",
        token or f"token{pid}",
        RunSpec("python train.py", 1, None, None),
        1,
        None,
        WALL,
    )


def take(state: Draft, event: Event, now_ns: int = NOW) -> None:
    transition = step(state, event, now_ns)
    transition.apply()
    if transition.then is not None:
        take(state, transition.then, now_ns)


def node(tasks: int) -> Draft:
    """Eight GPUs, a hundred envs, tasks spread over them; one env is left without a task."""
    state = Draft(Config(max_tasks_per_gpu=1_000_000))
    take(
        state,
        GpusChanged(
            tuple(Gpu(f"GPU-{index}", index, "bench", 800 * GIB) for index in range(8)), WALL
        ),
    )
    for number in range(ENVS):
        take(state, SetQuota(f"env{number}", Quota(1, GIB), "root", WALL))
    for pid in range(tasks):
        take(state, acquire(pid + 1, f"env{pid % (ENVS - 1)}"))
    return state


def timed(work: Callable[[], object]) -> float:
    start_ns = time.process_time_ns()
    work()
    return (time.process_time_ns() - start_ns) / 1e3


def counted(work: Callable[[], object]) -> float:
    """The bytecodes that Python runs for it: the same at each run, whatever runs beside."""
    codes = 0

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal codes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return codes


class Meter:
    """How a step is measured."""

    measure = staticmethod(timed)


def both(state: Draft, event: Event) -> Sample:
    """A step and its apply; the step is made once before, as in a manager that has run a while."""
    step(state, event, NOW).discard()
    made: list[Transition] = []
    stepped = Meter.measure(lambda: made.append(step(state, event, NOW)))
    return stepped, Meter.measure(made[0].apply)


def discarded(state: Draft, event: Event) -> float:
    """A step alone; the state stays as it was."""
    made: list[Transition] = []
    stepped = Meter.measure(lambda: made.append(step(state, event, NOW)))
    made[0].discard()
    return stepped


def grant(state: Draft, rounds: int) -> Iterator[Sample]:
    """A first request: step and apply, each by itself."""
    for pid in range(1_000_000, 1_000_000 + rounds):
        event = acquire(pid, f"env{ENVS - 1}")
        yield both(state, event)
        take(state, ProcessGone(f"unix:{pid}:1", WALL))


def join(state: Draft, rounds: int) -> Iterator[Sample]:
    take(state, acquire(900_000, f"env{ENVS - 1}", "job"))
    for pid in range(1_000_000, 1_000_000 + rounds):
        event = acquire(pid, f"env{ENVS - 1}", "job")
        yield both(state, event)
        take(state, ProcessGone(f"unix:{pid}:1", WALL))
    take(state, ProcessGone("unix:900000:1", WALL))


def death(state: Draft, rounds: int) -> Iterator[Sample]:
    for pid in range(1_000_000, 1_000_000 + rounds):
        take(state, acquire(pid, f"env{ENVS - 1}"))
        event = ProcessGone(f"unix:{pid}:1", WALL)
        yield both(state, event)
        take(state, Match(WALL))


def release(state: Draft, rounds: int) -> Iterator[Sample]:
    for pid in range(1_000_000, 1_000_000 + rounds):
        take(state, acquire(pid, f"env{ENVS - 1}"))
        event = Release(caller(pid, f"env{ENVS - 1}"), f"l{pid}", WALL)
        yield both(state, event)
        take(state, ProcessGone(f"unix:{pid}:1", WALL))


def match(state: Draft, rounds: int) -> Iterator[Sample]:
    for _ in range(rounds):
        yield both(state, Match(WALL))


def tick(state: Draft, rounds: int) -> Iterator[Sample]:
    for _ in range(min(20, rounds)):
        event = Tick(WALL, frozenset(), NOW)
        yield both(state, event)


def status(state: Draft, rounds: int) -> Iterator[Sample]:
    beats = dict.fromkeys(state.processes, NOW)
    for _ in range(min(10, rounds)):
        yield (
            Meter.measure(lambda: snapshot.status(state, NOW, used_bytes={}, last_beat_ns=beats)),
            0.0,
        )


STEPS: tuple[tuple[str, Measure], ...] = (
    ("Acquire -> grant", grant),
    ("Acquire -> join", join),
    ("ProcessGone -> end", death),
    ("Release", release),
    ("Match, nobody waits", match),
    ("Tick, all heard", tick),
    ("status", status),
)


def submission(number: int) -> Submission:
    spec = JobSpec("", "ann", 1000, 1000)
    payload = JobPayload(
        ("python", "train.py"), "/home/ann", tuple(f"NAME{each}=value" for each in range(40))
    )
    return Submission(
        number,
        "ann",
        f"env{number % 10}",
        spec,
        payload,
        "train",
        RunSpec("python train.py", 1, None, None),
        None,
    )


def backlog(jobs: int) -> Draft:
    """A node on which so many jobs of ten envs wait, and one of each runs."""
    state = node(0)
    take(state, LaunchHostChanged("", True, "", WALL))
    take(state, SubmitJobs(tuple(map(submission, range(jobs))), WALL))
    return state


def submit(state: Draft, rounds: int) -> Iterator[Sample]:
    """One job more, at the end of the queue."""
    for number in range(rounds):
        event = SubmitJobs((submission(number),), WALL)
        yield both(state, event)
        step(state, WithdrawJob(f"j{state.counters['jobs']}", "root", WALL), NOW).apply()


def job_ended(state: Draft, rounds: int) -> Iterator[Sample]:
    running = [job for job in state.jobs.values() if job.state is JobState.STARTING]
    for job in running:
        event = JobEnded(job.job_id, job.attempt, 0, None, "", False, "", WALL, WALL)
        yield both(state, event)


def next_started(state: Draft, rounds: int) -> Iterator[Sample]:
    """The scheduling pass that follows, when the jobs of ten envs have ended."""
    steps_us = [discarded(state, Match(WALL)) for _ in range(min(20, rounds))]
    _, apply_us = both(state, Match(WALL))
    for step_us in steps_us:
        yield step_us, apply_us


JOBS: tuple[tuple[str, Measure], ...] = (
    ("SubmitJobs", submit),
    ("JobEnded", job_ended),
    ("Match, 10 jobs start", next_started),
)


def behind_one(jobs: int) -> Draft:
    """As many jobs wait for the one GPU, which is held without an end."""
    state = Draft(Config())
    take(state, GpusChanged((Gpu("GPU-0", 0, "bench", 80 * GIB),), WALL))
    take(state, LaunchHostChanged("", True, "", WALL))
    take(state, SetQuota("env0", Quota(1), "root", WALL))
    take(state, SetQuota("other", Quota(1), "root", WALL))
    take(state, acquire(1, "other"))
    take(
        state, SubmitJobs(tuple(replace(submission(0), ref=number) for number in range(jobs)), WALL)
    )
    return state


def of_each_env(envs: int, *, own: bool) -> Draft:
    """A job of each env waits: for the node's one GPU, or (`own`) for the env's own task.

    That task holds one GPU of as many.
    """
    state = Draft(Config())
    gpus = envs if own else 1
    take(
        state,
        GpusChanged(
            tuple(Gpu(f"GPU-{index}", index, "bench", 80 * GIB) for index in range(gpus)), WALL
        ),
    )
    take(state, LaunchHostChanged("", True, "", WALL))
    take(state, SetQuota("other", Quota(1), "root", WALL))
    for number in range(envs):
        take(state, SetQuota(f"env{number}", Quota(1), "root", WALL))
    for number in range(envs if own else 0):
        take(state, acquire(number + 1, f"env{number}"))
    if not own:
        take(state, acquire(1, "other"))
    take(
        state,
        SubmitJobs(
            tuple(replace(submission(number), env=f"env{number}") for number in range(envs)), WALL
        ),
    )
    return state


def beside_idle_gpus(envs: int, limit_ms: int | None) -> Draft:
    """Each env holds one GPU of the two in its quota and has a job that waits for both.

    As many GPUs are idle. `limit_ms`: of each env's own task.
    """
    state = Draft(Config())
    gpus = tuple(Gpu(f"GPU-{index}", index, "bench", 80 * GIB) for index in range(2 * envs))
    take(state, GpusChanged(gpus[:envs], WALL))
    take(state, LaunchHostChanged("", True, "", WALL))
    for number in range(envs):
        take(state, SetQuota(f"env{number}", Quota(2), "root", WALL))
    run = RunSpec("python train.py", 1, None, limit_ms)
    own = [replace(submission(number), env=f"env{number}", run=run) for number in range(envs)]
    take(state, SubmitJobs(tuple(own), WALL))
    take(state, SubmitJobs(tuple(replace(job, run=replace(run, gpus=2)) for job in own), WALL))
    take(state, GpusChanged(gpus, WALL))
    assert len(state.requests) == envs
    return state


def show_passes(many: int, rounds: int) -> None:
    """Scheduling passes that start no job."""
    envs = many // 10
    passes = (
        (f"{many:,} jobs behind one lease", behind_one(many)),
        (f"{envs:,} envs wait for the node", of_each_env(envs, own=False)),
        (f"{envs:,} envs wait for their own tasks", of_each_env(envs, own=True)),
        ("8 envs wait so beside 8 idle GPUs, no limits", beside_idle_gpus(8, None)),
        ("8 envs wait so beside 8 idle GPUs, limits", beside_idle_gpus(8, 3_600_000)),
    )
    print(f"{'a look that starts nobody, ' + unit() + ', median':48}{'step':>12}")
    for name, state in passes:
        found = [discarded(state, Match(WALL)) for _ in range(rounds)]
        print(f"{name:48}{statistics.median(found):12.1f}")


def unit() -> str:
    return "bytecodes" if Meter.measure is counted else "microseconds"


def show_steps(many: int, rounds: int) -> None:
    show(STEPS, "tasks", node(10), node(many), rounds)
    print()
    show(JOBS, "jobs", backlog(30), backlog(many), rounds)


def show(
    measures: Iterable[tuple[str, Measure]], of: str, small: Draft, crowded: Draft, rounds: int
) -> None:
    print(f"{unit() + ', median':24}{f'few {of}':>20}{f'many {of}':>20}{'ratio':>8}")
    print(f"{'':24}{'step    apply':>20}{'step    apply':>20}{'step':>8}")
    for name, measure in measures:
        columns = []
        for state in (small, crowded):
            steps, applies = zip(*measure(state, rounds), strict=True)
            columns.append((statistics.median(steps), statistics.median(applies)))
        (few, few_apply), (many, many_apply) = columns
        print(f"{name:24}{few:12.1f}{few_apply:8.1f}{many:12.1f}{many_apply:8.1f}{many / few:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--many",
        type=int,
        default=10_000,
        help="tasks and jobs; a tenth as many environments that wait",
    )
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--bytecodes", action="store_true", help="count bytecodes, not time")
    options = parse(parser, many=50, rounds=5)
    if options.bytecodes:
        Meter.measure = staticmethod(counted)
    show_steps(options.many, options.rounds)
    print()
    show_passes(options.many, options.rounds)


if __name__ == "__main__":
    main()
