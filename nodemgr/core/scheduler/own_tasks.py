"""An env's own tasks and its quota: the end of each, and the idle GPUs of its next request.

The next request needs idle GPUs beside those that the tasks give back.

Knows: an env's tasks, their GPUs and their time limits. Must not know: other envs, and which
request is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodemgr.core.model.entities import MS, UNDER_WAY, Gpu, Job, JobState, Task, TaskState
from nodemgr.core.state import elastic_leases, host_use
from nodemgr.core.state.draft import Draft


def ends(draft: Draft, env: str, used: Iterable[Gpu]) -> list[int | None]:
    """When the env gives back each GPU that it uses; None: unknown.

    A task beyond its time limit is being ended, so its end is now. A GPU above the least number of
    an elastic task may come back at any moment.
    """
    return [_end(draft, env, gpu) for gpu in used]


def _end(draft: Draft, env: str, gpu: Gpu) -> int | None:
    tasks = list(_tasks(draft, env, gpu))
    if any(elastic_leases.may_return(draft, task, gpu.uuid) for task in tasks):
        return None
    ends_ns = [end_ns(task, draft.now_ns) for task in tasks]
    known = [found_ns for found_ns in ends_ns if found_ns is not None]
    return max(draft.now_ns, *known) if len(known) == len(ends_ns) else None


def end_ns(task: Task, now_ns: int) -> int | None:
    """When its time limit ends it, else when it is expected to end.

    None: it has neither, is stalled or suspended, or has run for longer than was expected.
    """
    if task.state is not TaskState.RUNNING:
        return None
    if task.run.time_limit_ms is not None:
        limit_ms = task.extended_limit_ms
        return None if limit_ms is None else task.since_ns + limit_ms * MS
    if task.run.expected_ms is None or task.suspended_since_ns is not None:
        return None
    expected_ns = task.since_ns + (task.run.expected_ms + task.suspended_ms) * MS
    return expected_ns if expected_ns > now_ns else None


def first_host_end(draft: Draft, env: str) -> int:
    """When a job that reserves CPUs or host memory can first give them back; now: at any moment.

    Of this env, or of the node ("").
    """
    if env == host_use.NODE and host_use.NODE in draft.host_bytes:
        return draft.now_ns  # a suspended task may resume
    ids = {*draft.under_way, *(job_id for job_id, _, _ in draft.jobs.changes())}
    jobs = (draft.jobs.get(job_id) for job_id in ids)
    ends_ns = [
        _job_end(draft, job) or draft.now_ns
        for job in jobs
        if job is not None
        and job.state in UNDER_WAY
        and host_use.needs(job.run)
        and env in (host_use.NODE, job.env)
    ]
    return min(ends_ns, default=draft.now_ns)


def _job_end(draft: Draft, job: Job) -> int | None:
    if job.state is JobState.STOPPING:
        return None
    if job.task_id is not None:
        return end_ns(draft.tasks[job.task_id], draft.now_ns)
    if job.run.time_limit_ms is None:
        return None
    ran_ns = 0 if job.started_wall_ns is None else draft.wall_ns - job.started_wall_ns
    return draft.now_ns - ran_ns + job.run.time_limit_ms * MS


def room_at(ends_ns: list[int | None], gpus: int) -> int | None:
    """The latest time at which `gpus` of these GPUs are given back; None: unknown."""
    known = sorted(end_ns for end_ns in ends_ns if end_ns is not None)
    return known[gpus - 1] if 0 < gpus <= len(known) else None


def _tasks(draft: Draft, env: str, gpu: Gpu) -> Iterator[Task]:
    return (
        task
        for task_id in draft.gpu_tasks.members(gpu.uuid)
        if (task := draft.tasks[task_id]).env == env
    )


class Sums:
    """The possible numbers of GPUs that an env's tasks hold while some of them have ended.

    They are the bits of an integer.
    """

    def __init__(self, draft: Draft, env: str, used: list[Gpu]) -> None:
        self._quota_gpus = draft.envs[env].quota.gpus
        self._bits = 1
        self.used = sum(not gpu.drained for gpu in used)
        """Of them, those that another task may get."""
        sizes: dict[str, int] = {}
        for gpu in used:
            holders = [task.task_id for task in _tasks(draft, env, gpu)]
            # a shared one may come back by itself
            owner = holders[0] if len(holders) == 1 else gpu.uuid
            sizes[owner] = sizes.get(owner, 0) + 1
        for size in sizes.values():
            self._bits |= self._bits << size

    def beside(self, gpus: int) -> int:
        """The most unused GPUs that a request for so many needs, once its quota has room.

        It is the number that it asks for plus the GPUs of tasks that may run on beside it, less the
        GPUs that the env uses now.
        """
        within = self._bits & ((1 << (self._quota_gpus - gpus + 1)) - 1)
        # a task that runs on may hold drained ones: then these are more than it needs
        return min(gpus, max(0, gpus + within.bit_length() - 1 - self.used))

    def follow(self, gpus: int) -> None:
        """Requests for so many GPUs each come before the next one, and may run beside it."""
        for _ in range(self._quota_gpus // gpus):
            self._bits |= self._bits << gpus
        self._bits &= (1 << (self._quota_gpus + 1)) - 1
