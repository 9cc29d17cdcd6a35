"""Limits on host memory of the cgroups of an environment, beside suspended tasks.

Knows: the limit of each job, command and quota, and the host memory of each task's suspension. The
kernel charges that to the cgroups of the processes of the task, so their limits are higher by it
meanwhile. Must not know: the packets of the launcher, the calls of the driver.

A change is the difference between the wanted limits and the present files. So a manager that begins
in the middle of a suspension writes the same as the one before.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from nodemgr.core.model.entities import Task
from nodemgr.core.state.node_state import State
from nodemgr.edge.executor import leaf_limits
from nodemgr.edge.executor.interface import ResourceFactory, nothing
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.processes import pid_of

AGAIN_S = 5.0
"""A limit below the present use is lowered in steps."""
LAUNCHER_TRIES, LAUNCHER_S = 10, 0.1
"""How often, and at what interval, a suspension checks for a launcher that is about to answer."""
MOST_READ = 1_000
"""Jobs whose figures are read; the others have none."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
"""The kernel rounds a limit to it."""


class HostLimits:
    """The wanted limits, and those that differ."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, state: State, factory: ResourceFactory
    ) -> None:
        self._loop, self._state, self._factory = loop, state, factory
        self._later: set[str] = set()
        """Environments that are checked again."""
        self._timer: asyncio.TimerHandle | None = None

    def of_env(self, env: str) -> tuple[str, ...]:
        """`FILE VALUE` for all of the environment together."""
        moved_bytes = sum(task.suspended_bytes or 0 for task in self._suspended(env))
        return leaf_limits.of_env(self._state.envs[env].quota, moved_bytes)

    def set_env(self, env: str) -> None:
        """After a change of its quota. Its cgroup is made if no job has done so yet."""
        limits = self.of_env(env)
        self._factory.limit_cgroups([(env, limit) for limit in limits])
        self._check_later(env)

    def before_suspension(self, env: str, then: Callable[[], None]) -> None:
        """Calls `then` when the limits have room, or cannot have it.

        A manager that has just begun first hears from the launcher where the cgroups are.
        """
        self._wait_and_settle(env, then, LAUNCHER_TRIES)

    def _wait_and_settle(self, env: str, then: Callable[[], None], tries: int) -> None:
        if tries > 1 and not self._factory.state()[0]:
            self._loop.call_later(LAUNCHER_S, self._wait_and_settle, env, then, tries - 1)
        else:
            self.settle(env, then)

    def settle(self, env: str, then: Callable[[], None] = nothing) -> None:
        """Writes the limits of the environment that differ from the wanted ones."""
        changes = list(self._changes(env))
        if changes:
            self._check_later(env)
        self._factory.limit_cgroups(changes, then)

    def leaves(self) -> dict[str, Path]:
        """The directories of the first jobs under way on this node."""
        scope = self._factory.scope()
        if not scope:
            return {}
        rows = (self._state.jobs[name] for name in islice(self._state.under_way, MOST_READ))
        return {
            job.job_id: Path(scope, job.env, f"{job.job_id}.{job.attempt}")
            for job in rows
            if not job.run.place
        }

    def settle_all(self) -> None:
        """The launcher is there: an earlier manager's last changes may be missing."""
        for env in self._state.envs:
            self.settle(env)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_later(self, env: str) -> None:
        self._later.add(env)
        if self._timer is None:
            self._timer = self._loop.call_later(AGAIN_S, self._check_again)

    def _check_again(self) -> None:
        self._timer = None
        envs, self._later = self._later, set()
        for env in envs:
            self.settle(env)

    def _changes(self, env: str) -> Iterator[tuple[str, str]]:
        scope = self._factory.scope()
        if not scope or env not in self._state.envs:
            return
        directory, moved = Path(scope, env), self._moved(env)
        for limit in self.of_env(env):
            name, _, value = limit.partition(" ")
            if name == leaf_limits.MEMORY and _differs(directory, value):
                yield env, limit
        try:
            leaves = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
        except OSError:
            return
        for leaf in leaves:
            limit_bytes = self._limit_bytes(leaf)
            if limit_bytes is not None:
                wanted = str(limit_bytes + moved[directory / leaf])
                if _differs(directory / leaf, wanted):
                    yield f"{env}/{leaf}", f"{leaf_limits.MEMORY} {wanted}"

    def _suspended(self, env: str) -> list[Task]:
        tasks = (self._state.tasks[task_id] for task_id in self._state.env_tasks.get(env, ()))
        return [task for task in tasks if task.suspended_bytes]

    def _moved(self, env: str) -> Counter[Path | None]:
        """By cgroup, the bytes of the suspensions of all tasks with a process in it."""
        moved: Counter[Path | None] = Counter()
        for task in self._suspended(env):
            pids = [pid_of(key) for key in task.processes]
            for group in {cgroups.directory_of(pid) for pid in pids if pid is not None}:
                moved[group] += task.suspended_bytes or 0
        return moved

    def _limit_bytes(self, leaf: str) -> int | None:
        """The named limit of a command, or of the job's present attempt; None: it has none."""
        if leaf.startswith(leaf_limits.RUN):
            return leaf_limits.memory_of_command(leaf)
        job = self._state.jobs.get(leaf.rpartition(".")[0])
        is_present = job is not None and leaf == f"{job.job_id}.{job.attempt}"
        return job.run.host_memory_bytes if job is not None and is_present else None


def _differs(directory: Path, wanted: str) -> bool:
    """Without such a file no limit can be set."""
    try:
        present = (directory / leaf_limits.MEMORY).read_text().strip()
    except OSError:
        return False
    if present.isdecimal() and wanted.isdecimal():
        return int(present) // PAGE_BYTES != int(wanted) // PAGE_BYTES
    return present != wanted
