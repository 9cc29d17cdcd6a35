"""The limits of a job's cgroup and of its environment's, as lines for the kernel's files. Pure.

Knows: the files of cgroup version 2. Must not know: where a cgroup is, who writes there
(csrc/jobs/leaf.c).

No `memory.high`: it throttles a job until it seems to hang. No swap in a limited cgroup: the job
would be slow beside its limit. All processes of a job end together.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodemgr.core.model.entities import Quota, RunSpec

MEMORY = "memory.max"
RUN = "run-"
"""Before the rest of the name of a command's cgroup: no name of a job has a dash."""
MOST_PROCESSES = 32_768
"""Processes and threads of one job."""
PERIOD_US = 100_000


def of_run(run: RunSpec) -> tuple[str, ...]:
    """`FILE VALUE` for each limit, of a job or of a command that a user runs."""
    limits = [f"pids.max {MOST_PROCESSES}"]
    if run.cpus is not None:
        limits.append(f"cpu.max {run.cpus * PERIOD_US} {PERIOD_US}")
    if run.host_memory_bytes is not None:
        limits += [
            f"{MEMORY} {run.host_memory_bytes}", "memory.swap.max 0", "memory.oom.group 1",
        ]  # fmt: skip
    return tuple(limits)


def of_env(quota: Quota, moved_bytes: int = 0) -> tuple[str, ...]:
    """The same for all jobs of an environment; a limit that was taken away is `max`.

    `moved_bytes`: host memory of its suspended tasks, which counts for no environment.
    """
    cpus, memory_bytes = quota.cpus, quota.host_memory_bytes
    cpu = "max" if cpus is None else f"{cpus * PERIOD_US} {PERIOD_US}"
    memory = "max" if memory_bytes is None else str(memory_bytes + moved_bytes)
    return (f"cpu.max {cpu}", f"{MEMORY} {memory}")


def command_name(pid: str, ticks: str, limits: Sequence[str]) -> str:
    """The name of a command's cgroup. It has the limit on memory, which no store has."""
    memory = [limit.partition(" ")[2] for limit in limits if limit.startswith(f"{MEMORY} ")]
    return ".".join((f"{RUN}{pid}", ticks, *memory))


def memory_of_command(name: str) -> int | None:
    """The limit in the name of a command's cgroup; None: it has none."""
    words = name.split(".")
    return int(words[2]) if len(words) == 3 and words[2].isdecimal() else None
