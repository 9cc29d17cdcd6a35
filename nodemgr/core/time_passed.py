"""Time passed: who waited too long, who is silent, what memory was freed.

Knows: beats and figures that a Tick brings, and the deadlines of the agenda. Must not know: clocks; `now_ns` is told.
"""

from __future__ import annotations

from nodemgr.core import answers, books, effects, leases, members, waiting
from nodemgr.core.draft import Draft
from nodemgr.core.events import Tick
from nodemgr.core.model import MS, ProcessKey, Task, TaskState


def tick(draft: Draft, event: Tick, now_ns: int) -> None:
    draft.figures = event.used_bytes
    for what, key in draft.due(now_ns):
        _DUE[what](draft, key, now_ns)
    _shrink(draft)
    _ask_for_figures(draft, now_ns)
    _hear(draft, event, now_ns)
    draft.rescan = draft.rescan or any(True for _ in draft.wants_figures)


def _waited_too_long(draft: Draft, request_id: str, now_ns: int) -> None:
    request = draft.requests.get(request_id)
    if request is not None:
        waiting.expire(draft, request, now_ns)


def _stayed_away(draft: Draft, process: ProcessKey, now_ns: int) -> None:
    waiting.leave(draft, process, "it did not come back", now_ns)


def _stalled_too_long(draft: Draft, task_id: str, _now_ns: int) -> None:
    task = draft.tasks.get(task_id)
    if task is not None:
        draft.schedule(("kill", task_id), None)
        for process in (draft.processes[key] for key in task.processes):
            if process.pid is not None:
                draft.emit(effects.Kill(process.key, process.pid))


_DUE = {"wait": _waited_too_long, "away": _stayed_away, "kill": _stalled_too_long}


def _hear(draft: Draft, event: Tick, now_ns: int) -> None:
    """Who was silent for the timeout: a task when all its processes were. Sets the time to listen next."""
    timeout_ns = draft.config.timeout_ms * MS
    heard_ns = event.last_beat_ns.get
    earliest_ns = now_ns
    listening = False
    for task in list(draft.tasks.values()):
        listened_to = task.processes if task.job_id is None else _over_udp(draft, task)
        if task.state is TaskState.RUNNING and listened_to:
            last_ns = max([heard_ns(key, now_ns) for key in listened_to])
            if now_ns - last_ns >= timeout_ns:
                _silent(draft, task, now_ns, event.wall_ns)
            else:
                listening, earliest_ns = True, min(earliest_ns, last_ns)
    for process in list(draft.udp_askers):
        last_ns = heard_ns(process, now_ns)
        if now_ns - last_ns >= timeout_ns:
            waiting.leave(draft, process, "silent", now_ns)
        else:
            listening, earliest_ns = True, min(earliest_ns, last_ns)
    if listening:
        draft.timers.put("silence", earliest_ns + timeout_ns)
    else:
        draft.timers.drop("silence")


def _over_udp(draft: Draft, task: Task) -> list[ProcessKey]:
    """Whose silence matters in a job: of the others the kernel tells, and of the job itself its end is told."""
    return [key for key in task.processes if draft.processes[key].pid is None]


def _silent(draft: Draft, task: Task, now_ns: int, wall_ns: int) -> None:
    """Over UDP nobody can tell whether it lives: reclaimed. On the UNIX socket it lives: stalled, unless it is a job's."""
    for process in [draft.processes[key] for key in task.processes]:
        if process.pid is None:
            answers.fence(draft, process.key, task.task_id, leases.RECLAIMED)
            task = members.depart(draft, task, process)
            leases.lose_member(draft, task, process, leases.RECLAIMED, now_ns, wall_ns)
    if task.processes and task.job_id is None:
        leases.stall(draft, task, now_ns)


def _shrink(draft: Draft) -> None:
    """A grant above what it should be falls to what is still used."""
    for env, uuid in sorted(draft.unsettled):
        grant = draft.grants[env, uuid]
        used_bytes = draft.figures.get((env, uuid))
        target_bytes = books.target(draft, grant)
        if used_bytes is not None and target_bytes < grant.memory_bytes:
            left_bytes = max(target_bytes, min(grant.memory_bytes, used_bytes + grant.caps_bytes))
            if left_bytes < grant.memory_bytes:
                leases.set_memory(draft, grant, left_bytes)
                draft.rescan = True


def _ask_for_figures(draft: Draft, now_ns: int) -> None:
    """Again after a beat, while some memory is waited for."""
    shrinking = any(books.target(draft, draft.grants[key]) < draft.grants[key].memory_bytes for key in draft.unsettled)
    if shrinking or any(True for _ in draft.wants_figures):
        draft.timers.put("figures", now_ns + draft.config.beat_ms * MS)
    else:
        draft.timers.drop("figures")
