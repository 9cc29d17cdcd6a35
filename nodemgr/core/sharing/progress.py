"""Progress of tasks: each report is kept in memory, and may change the task's share.

Knows: the last report of each task, and the report that its pace is measured from. Must not know:
how a program counts its work, the rules by which a share changes (scheduler/qos.py).

The time of a task is its deadline, else its time limit, else the time that it is expected to run;
its suspensions do not count. Until its pace is measured for the first time, its forecast gives the
rest of its time; where it reports no total, the forecast gives the number of steps.
"""

from __future__ import annotations

from nodemgr.core.leases import begins
from nodemgr.core.model.entities import MS, Progress, Task, TaskClass, Uuid
from nodemgr.core.model.events import Progressed
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import qos
from nodemgr.core.scheduler.qos import Estimate, GpuShares, QosState
from nodemgr.core.state import compute
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

LEAST_INTERVAL_NS = 500 * MS
"""A task is heard no more often, however many of its processes report."""
LEAST_PACE_NS = 2_000 * MS
"""A pace that was measured for less time changes no share."""


def is_due(state: State, task_id: str, now_ns: int) -> bool:
    """Whether a report of the task is worth a step now."""
    before = state.progress.get(task_id)
    return before is None or now_ns - before.at_ns >= LEAST_INTERVAL_NS


def progressed(draft: Draft, event: Progressed) -> None:
    process = draft.processes.get(event.process)
    task = None if process is None or process.fenced else draft.tasks.get(process.task_id)
    if task is None or not is_due(draft, task.task_id, draft.now_ns):
        return
    if event.total is not None and not event.done <= event.total > 0:
        return
    before = draft.progress.get(task.task_id)
    if before is not None and before.total is not None and event.total is None:
        return  # another process of the task knows more
    report = _next(before, event, draft.now_ns)
    if _keep_time(draft, task, report):
        report = replace(report, from_done=report.done, from_ns=draft.now_ns)
    draft.progress.put(task.task_id, report)


def _next(before: Progress | None, event: Progressed, now_ns: int) -> Progress:
    """A pace is measured anew where the work begins again, or is another one."""
    if before is None or event.done < before.done or event.total != before.total:
        return Progress(event.done, event.total, now_ns, event.done, now_ns)
    return replace(before, done=event.done, at_ns=now_ns)


def _keep_time(draft: Draft, task: Task, report: Progress) -> bool:
    """Gives the task the share that it needs to keep its time; whether its share has changed."""
    preset_ms = task.run.time_limit_ms if task.run.deadline_ms is None else task.run.deadline_ms
    preset_ms = task.run.expected_ms if preset_ms is None else preset_ms
    share_percent, asked_percent = task.granted_percent, task.run.compute_percent
    if task.run.task_class is not TaskClass.LATENCY_SENSITIVE or not compute.computes(task):
        return False
    if preset_ms is None or share_percent is None or asked_percent is None:
        return False
    state = QosState(
        elapsed_ms=task.ran_ns(draft.now_ns) // MS,
        remaining=_remaining(task, report, draft.now_ns),
        preset=Estimate(preset_ms),
        asked_percent=asked_percent,
        share_percent=share_percent,
        gpus=tuple(_shares(draft, uuid) for uuid in task.gpus),
        is_contended=_is_contended(draft, task),
    )
    change = qos.next_share(state)
    if change.share_percent == share_percent:
        return False
    for task_id, percent in change.taken:
        other = draft.tasks[task_id]
        begins.set_share(draft, other, (other.granted_percent or 0) - percent)
    begins.set_share(draft, task, change.share_percent)
    return True


def _remaining(task: Task, report: Progress, now_ns: int) -> Estimate | None:
    """The rest of the time at the pace with the present share; before that, by the forecast."""
    total = report.total or task.expected_steps
    if total is None or report.done > total:
        return None
    measured_ns = now_ns - report.from_ns
    if measured_ns >= LEAST_PACE_NS:
        return qos.remaining(
            measured_ns // MS, report.done - report.from_done, total - report.from_done
        )
    if task.run.expected_ms is None or task.granted_percent != task.run.compute_percent:
        return None  # after a change of the share a forecast says nothing
    return qos.predicted(task.run.expected_ms, report.done, total)


def _shares(draft: Draft, uuid: Uuid) -> GpuShares:
    return GpuShares(
        max(0, compute.free_percent(draft, uuid, plain=False)),
        tuple(
            (task.task_id, task.granted_percent or 0) for task in compute.best_effort(draft, uuid)
        ),
    )


def _is_contended(draft: Draft, task: Task) -> bool:
    """Whether a task on its GPUs has less than it asked for, or any request waits."""
    return any(True for _ in draft.requests) or any(
        task_id in draft.shrunk for uuid in task.gpus for task_id in draft.gpu_tasks.members(uuid)
    )
