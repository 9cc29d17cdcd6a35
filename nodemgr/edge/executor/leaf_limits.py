"""The limits of a job's cgroup and of its environment's, as lines for the kernel's files. Pure.

Knows: the files of cgroup version 2. Must not know: where a cgroup is, who writes there
(csrc/jobs/leaf.c).

No `memory.high`: it throttles a job until it seems to hang. No swap in a limited cgroup: the job
would be slow beside its limit. All processes of a job end together.
"""

from __future__ import annotations

from nodemgr.core.model.entities import Quota, RunSpec

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
            f"memory.max {run.host_memory_bytes}", "memory.swap.max 0", "memory.oom.group 1",
        ]  # fmt: skip
    return tuple(limits)


def of_env(quota: Quota) -> tuple[str, ...]:
    """The same for all jobs of an environment; a limit that was taken away is `max`."""
    cpus, memory_bytes = quota.cpus, quota.host_memory_bytes
    cpu = "max" if cpus is None else f"{cpus * PERIOD_US} {PERIOD_US}"
    memory = "max" if memory_bytes is None else str(memory_bytes)
    return (f"cpu.max {cpu}", f"memory.max {memory}")
