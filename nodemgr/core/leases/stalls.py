"""A lease whose processes fall silent, and beat again.

Knows: what a stalled task offers to others, and whether it fits in again. Must not know: how
silence is found.
"""

from __future__ import annotations

from nodemgr.core.leases import answers, begins, ends, memory_grants
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import MS, WHOLE_PERCENT, ProcessKey, Task, TaskClass, TaskState
from nodemgr.core.model.transitions import TASK_TRANSITIONS, TaskEvent, checked
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import reasons
from nodemgr.core.state import accounting, compute, elastic_leases, members
from nodemgr.core.state.draft import Draft


def stall(draft: Draft, task: Task) -> None:
    """All its processes are silent, and some of them alive: its GPUs are offered to others.

    Its memory stays charged.
    """
    state = checked(TASK_TRANSITIONS, task.state, TaskEvent.SILENCE, TaskState.STALLED)
    draft.put_task(replace(task, state=state, stalled_since_ns=draft.now_ns))
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        draft.put_grant(replace(grant, stalled_tasks=grant.stalled_tasks + 1))
    _set_slots(draft, task, "stalled")
    draft.wake_scheduler()
    _publish_stalled(draft, task)


def stall_job(draft: Draft, task: Task) -> None:
    """All processes of a job are silent, and live: it is shown as stalled, and keeps its GPUs."""
    draft.silent_jobs.put(task.task_id, (draft.now_ns, draft.wall_ns))
    draft.put_task(replace(task))  # a view of the task shows it
    _publish_stalled(draft, task)


def job_heard(draft: Draft, task: Task) -> None:
    """A process of a job beats, or joins it: it is stalled no more, if it was."""
    since_ns, _ = draft.silent_jobs.get(task.task_id) or (None, None)
    if since_ns is not None:
        draft.drop_silence(task.task_id)
        draft.put_task(replace(task))  # a view of the task shows it
        _publish_resumed(draft, task, draft.now_ns - since_ns)


def _publish_stalled(draft: Draft, task: Task) -> None:
    """Publishes it, and sets the time at which it is ended, if the policy says so."""
    grace_ms = draft.config.stalled_grace_ms if draft.config.stalled == "kill" else None
    if grace_ms is not None:
        draft.schedule(("kill", task.task_id), draft.now_ns + grace_ms * MS)
    gpus = answers.named_gpus(draft, task.gpus)
    draft.publish(
        "task.stalled", {"env": task.env, "task": task.task_id, **gpus, "grace_ms": grace_ms}
    )


def _publish_resumed(draft: Draft, task: Task, stalled_ns: int) -> None:
    fields = {"env": task.env, "task": task.task_id, **answers.named_gpus(draft, task.gpus)}
    draft.publish("task.resumed", {**fields, "stalled_ns": stalled_ns})


def resume(draft: Draft, task: Task, heard: ProcessKey) -> Task | None:
    """A stalled task beats again: it keeps its lease, if no other task got what it needs.

    Returns None if another did. All its processes get a GRANT except `heard`, which the caller
    answers.
    """
    if not _has_room(draft, task):
        return None
    state = checked(TASK_TRANSITIONS, task.state, TaskEvent.HEARD, TaskState.RUNNING)
    if task.run.task_class is TaskClass.LATENCY_SENSITIVE:
        begins.take_compute(draft, task.granted_percent or 0, task.gpus)
    resumed = replace(
        task,
        state=state,
        stalled_since_ns=None,
        granted_percent=_returning_percent(draft, task),
    )
    for uuid in task.gpus:
        grant = draft.grants[task.env, uuid]
        full_bytes = (
            grant.memory_bytes
            if accounting.is_used(draft, task.env, uuid)
            else memory_grants.regrown(draft, grant)
        )
        draft.put_grant(
            replace(grant, memory_bytes=full_bytes, stalled_tasks=grant.stalled_tasks - 1)
        )
    draft.put_task(resumed)
    draft.wake_scheduler()  # its env's other requests may reuse what it holds again
    _set_slots(draft, resumed, "live")
    draft.at_latest("silence", draft.now_ns + draft.config.timeout_ms * MS)
    _publish_resumed(draft, task, draft.now_ns - (task.stalled_since_ns or draft.now_ns))
    for process in (draft.processes[key] for key in task.processes if key != heard):
        begins.send_grant(draft, process, resumed, process.rid)
    return resumed


def _returning_percent(draft: Draft, task: Task) -> int | None:
    """The share with which a task comes back: best effort may have to do with less than before."""
    if task.granted_percent is None or task.run.task_class is not TaskClass.BEST_EFFORT:
        return task.granted_percent
    free = min([compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus])
    return min(task.granted_percent, free)


def _has_compute(draft: Draft, task: Task) -> bool:
    """Whether a task that had none could compute on its GPUs again."""
    if task.run.task_class is TaskClass.BEST_EFFORT or not (
        task.granted_percent is not None or compute.in_use(draft)
    ):
        return True
    takes = task.run.task_class is TaskClass.LATENCY_SENSITIVE
    percent = WHOLE_PERCENT if task.granted_percent is None else task.granted_percent
    return all(
        compute.free_percent(draft, uuid, plain=task.is_plain)
        + (compute.best_effort_percent(draft, uuid) if takes else 0)
        >= percent
        for uuid in task.gpus
    )


def wake(draft: Draft, task: Task, heard: ProcessKey) -> Task | None:
    """A process of a stalled task beats again: resumes the task, or fences it and returns None."""
    resumed = resume(draft, task, heard)
    if resumed is None:
        why = reasons.not_resumed(draft, task)
        ends.fence(draft, task, LeaseEnd.NOT_RESUMED, why)
    return resumed


def _has_room(draft: Draft, task: Task) -> bool:
    """Would all of its GPUs be this task's again within quota, memory, tasks and health?"""
    again = [uuid for uuid in task.gpus if not accounting.is_used(draft, task.env, uuid)]
    used = len(accounting.used_gpus(draft, task.env))
    quota = draft.envs[task.env].quota
    most = quota.gpus
    if elastic_leases.of_task(draft, task.task_id) is not None:
        most += quota.borrow
    if any(not draft.gpus[uuid].healthy for uuid in task.gpus) or (
        again and used + len(again) > most
    ):
        return False
    if any((draft.active.get(uuid) or 0) >= draft.config.max_tasks_per_gpu for uuid in again):
        return False
    if not _has_compute(draft, task):
        return False
    grown = {uuid: memory_grants.regrown(draft, draft.grants[task.env, uuid]) for uuid in again}
    needs = {
        uuid: accounting.need(draft, task.env, uuid, grant, grown_bytes)
        for uuid, grown_bytes in grown.items()
        if grown_bytes > (grant := draft.grants[task.env, uuid]).memory_bytes
    }
    quota_bytes = accounting.quota_room(draft, task.env)
    if needs and quota_bytes is not None and sum(needs.values()) > quota_bytes:
        return False
    return all(
        need_bytes <= accounting.gpu_room(draft, draft.gpus[uuid])
        for uuid, need_bytes in needs.items()
    )


def _set_slots(draft: Draft, task: Task, state: str) -> None:
    for key in task.processes:
        process = draft.processes[key]
        if process.slot is not None:
            slot = process.slot, process.generation
            draft.emit(effects.SetSlot(process.env, *slot, state, members.capped(task)))
