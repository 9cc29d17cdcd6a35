"""Time passed: expired waits, silent processes, freed memory.

Knows: beats and figures that a Tick brings, and the deadlines of the agenda. Must not know: clocks;
`now_ns` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from nodemgr.core.leases import answers, ends, memory_grants, stalls
from nodemgr.core.lifecycle import jobs, resizing, waiting
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    MS,
    Grant,
    JobState,
    ProcessKey,
    Suspension,
    Task,
    TaskState,
)
from nodemgr.core.model.events import Tick
from nodemgr.core.model.schema import ASIDE, EXEMPT, GRANTS, PAUSE, RECALL, RESIZES, EnvGpu
from nodemgr.core.scheduler import reasons
from nodemgr.core.state import accounting, members
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def tick(draft: Draft, event: Tick) -> None:
    for what, key in draft.due():
        _DUE[what](draft, key)
    _shrink(draft, event.used_bytes)
    _ask_for_figures(draft)
    _wake_for_timers(draft)
    _hear(draft, event)
    if any(True for _ in draft.wants_figures):
        draft.wake_scheduler()


def _wake_for_timers(draft: Draft) -> None:
    """A pass makes the offers and orders that are due, and tries what was set aside."""
    for timer in (ASIDE, EXEMPT, RESIZES, GRANTS):
        if (draft.timers.get(timer) or draft.now_ns + 1) <= draft.now_ns:
            draft.timers.drop(timer)
            draft.wake_scheduler()


def _waited_too_long(draft: Draft, request_id: str) -> None:
    request = draft.requests.get(request_id)
    if request is not None:
        waiting.expire(draft, request)


def _stayed_away(draft: Draft, process: ProcessKey) -> None:
    waiting.leave(draft, process, "it did not come back")


def _stalled_too_long(draft: Draft, task_id: str) -> None:
    task = draft.tasks.get(task_id)
    if task is not None and task.job_id is not None:
        draft.schedule(("kill", task_id), None)
        job = draft.jobs[task.job_id]
        if job.then is None:
            _, since_wall_ns = draft.silent_jobs[task_id]
            jobs.stop(draft, job, JobState.FAILED, reasons.killed_as_stalled(since_wall_ns))
    elif task is not None:
        draft.schedule(("kill", task_id), None)
        for process in (draft.processes[key] for key in task.processes):
            if process.pid is not None:
                draft.emit(effects.Kill(process.key, process.pid))


_DUE: dict[str, Callable[[Draft, str], None]] = {
    "wait": _waited_too_long,
    "away": _stayed_away,
    "kill": _stalled_too_long,
    PAUSE: jobs.resume,
    RECALL: resizing.expire,
}


def _hear(draft: Draft, event: Tick) -> None:
    """A task is silent when all its processes are. Sets the time to listen next."""
    for task_id in list(draft.silent_jobs):
        stopped = draft.tasks[task_id]
        if not event.silent.issuperset(stopped.processes):
            stalls.job_heard(draft, stopped)
    members = [draft.processes.get(key) for key in sorted(event.silent)]
    for task_id in dict.fromkeys(member.task_id for member in members if member is not None):
        task = draft.tasks.get(task_id)
        if (
            task is not None
            and (listened_to := _listened_to(draft, task))
            and event.silent.issuperset(listened_to)
        ):
            _silent(draft, task, event.silent)
    for process in [key for key in draft.udp_askers if key in event.silent]:
        waiting.leave(draft, process, "silent")
    if any(True for _ in draft.udp_askers) or any(
        _listened_to(draft, task) for task in draft.tasks.values()
    ):
        last_ns = draft.now_ns if event.oldest_ns is None else event.oldest_ns
        draft.timers.put("silence", last_ns + draft.config.timeout_ms * MS)
    else:
        draft.timers.drop("silence")


def _listened_to(draft: Draft, task: Task) -> Sequence[ProcessKey]:
    """The processes of a running task for which a silence has consequences.

    The kernel reports the death of a suspended process. A program that got its lease at its start
    sends no beat before it uses CUDA.
    """
    if task.state is not TaskState.RUNNING or task.suspension is not Suspension.NONE:
        return ()
    over_udp = [key for key in task.processes if draft.processes[key].pid is None]
    is_quiet = any(draft.processes[key].starts for key in task.processes)
    return over_udp if is_quiet or (over_udp and task.job_id is not None) else task.processes


def _silent(draft: Draft, task: Task, silent: frozenset[ProcessKey]) -> None:
    """A silent process over UDP is reclaimed: it cannot be known whether it lives.

    On the UNIX socket it lives: its task is stalled, or shown so if it is a job's.
    """
    for process in [draft.processes[key] for key in task.processes]:
        if process.pid is None:
            answers.send_fence(draft, process.key, task.task_id, ends.RECLAIMED)
            task = members.depart(draft, task, process)
            ends.lose_member(draft, task, process, LeaseEnd.SILENT, ends.RECLAIMED, None)
    if not task.processes or any(draft.processes[key].starts for key in task.processes):
        return
    if task.job_id is None:
        stalls.stall(draft, task)
    elif _is_stopped(draft, task, silent):
        stalls.stall_job(draft, task)


def _is_stopped(draft: Draft, task: Task, silent: frozenset[ProcessKey]) -> bool:
    """Whether no process of the job runs, which was not so before; a program after exec runs."""
    return (
        task.task_id not in draft.silent_jobs
        and silent.issuperset(task.processes)
        and not all(key in draft.parted for key in task.processes)
    )


def watched_grants(state: State) -> Iterator[Grant]:
    """The grants with memory figures that the next Tick must bring."""
    envs = {state.requests[request_id].env for request_id in state.wants_figures}
    for grant in state.grants.values():
        shrinks = (grant.env, grant.uuid) in state.unsettled and accounting.target(
            state, grant
        ) < grant.memory_bytes
        if shrinks or grant.env in envs:
            yield grant


def _shrink(draft: Draft, figures: Mapping[EnvGpu, int]) -> None:
    """A grant above what it should be falls to what is still used."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        used_bytes = figures.get((env, uuid))
        target_bytes = accounting.target(draft, grant)
        if used_bytes is not None and target_bytes < grant.memory_bytes:
            left_bytes = max(target_bytes, min(grant.memory_bytes, used_bytes + grant.caps_bytes))
            if left_bytes < grant.memory_bytes:
                memory_grants.set_memory(draft, grant, left_bytes)
                draft.wake_scheduler()


def _ask_for_figures(draft: Draft) -> None:
    """Again after a beat, while some memory is waited for."""
    shrinking = any(
        accounting.target(draft, draft.grants[key]) < draft.grants[key].memory_bytes
        for key in draft.unsettled
    )
    if shrinking or any(True for _ in draft.wants_figures):
        draft.timers.put("figures", draft.now_ns + draft.config.beat_ms * MS)
    else:
        draft.timers.drop("figures")
