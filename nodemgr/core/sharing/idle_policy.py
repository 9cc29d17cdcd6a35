"""Idle tasks give their room to a request that waits: a warning first, then the quota's action.

Knows: which task is idle, kept or warned, and the action. Must not know: how its idle time was
measured, and which of several idle tasks must go (scheduler/victims.py).

A task is idle from the time that its env's quota names (`--idle`). An action follows only while a
request waits for the GPUs that it holds, and not before the warning has stood for a while. A use of
the GPU, or `nodemgr keep`, ends all this.
"""

from __future__ import annotations

from client_plugin.messages.form import Notice, stated
from nodemgr.core.leases import answers, ends
from nodemgr.core.lifecycle import administration
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import MS, Request, Task
from nodemgr.core.model.events import IdleSeen, KeepTask
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import victims
from nodemgr.core.scheduler.allocator import Shortage
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.sharing import suspension
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

WARNING_MS = 30_000
"""The time between the warning and the action."""


def is_set(state: State) -> bool:
    """Whether any env has an idle policy that acts."""
    return any(
        env.quota.idle_ms is not None and env.quota.when_idle != "keep"
        for env in state.envs.values()
    )


def seen(draft: Draft, event: IdleSeen) -> None:
    """The idle times of tasks, as far as they are known. A use ends a warning."""
    for task_id in list(draft.idle_since):
        if task_id not in event.idle_ms or task_id not in draft.tasks:
            draft.idle_since.drop(task_id)
            draft.idle_warned.drop(task_id)
    for task_id, idle_ms in event.idle_ms.items():
        since_ns, warned_ns = draft.now_ns - idle_ms * MS, draft.idle_warned.get(task_id)
        if warned_ns is not None and since_ns > warned_ns:
            draft.idle_warned.drop(task_id)
        draft.idle_since.put(task_id, since_ns)
    draft.wake_scheduler()


def keep(draft: Draft, event: KeepTask) -> None:
    """No policy acts on the task until then."""
    task = draft.tasks.get(administration.present_id(draft, event.task_id))
    if task is None or event.env not in (None, task.env):
        return
    draft.put_task(replace(task, exempt_until_ns=draft.now_ns + event.for_ms * MS))
    draft.idle_warned.drop(task.task_id)


def give_room(draft: Draft, request: Request, result: PlacementResult) -> None:
    """Idle tasks are warned, and then suspended or released, for a request that waits."""
    if result.answer is not Shortage.NODE:
        return
    idle = victims.victims(draft, result.ask, result.rows, lambda task: may_go(draft, task))
    named = {task.task_id for task in idle}
    for task_id in [task_id for task_id in draft.idle_warned if task_id not in named]:
        draft.idle_warned.drop(task_id)
    for task in idle:
        warned_ns = draft.idle_warned.get(task.task_id)
        if warned_ns is None:
            _warn(draft, task, request)
        elif draft.now_ns - warned_ns >= WARNING_MS * MS:
            _act(draft, task, request)


def may_go(draft: Draft, task: Task) -> bool:
    """Whether the policy of its env's quota allows an action on the task now."""
    env, since_ns = draft.envs.get(task.env), draft.idle_since.get(task.task_id)
    if env is None or env.quota.idle_ms is None or since_ns is None:
        return False
    if (
        draft.now_ns - since_ns < env.quota.idle_ms * MS
        or (task.exempt_until_ns or 0) > draft.now_ns
    ):
        return False
    if env.quota.when_idle == "release":
        return task.job_id is None
    return (
        env.quota.when_idle == "suspend"
        and not task.suspension_fault
        and suspension.can_suspend(draft, task)
    )


def _span(draft: Draft, task: Task) -> str:
    """How long it has been idle, in whole minutes or, before the first, seconds."""
    seconds = (draft.now_ns - (draft.idle_since.get(task.task_id) or draft.now_ns)) // (1_000 * MS)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"


def _warn(draft: Draft, task: Task, request: Request) -> None:
    draft.idle_warned.put(task.task_id, draft.now_ns)
    row = (
        Notice(
            "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPUs "
            "are taken back; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents it"
        )
        if draft.envs[task.env].quota.when_idle == "release"
        else Notice(
            "{task} has used no GPU for {span}, and a task of {env} waits: in {seconds} s its GPU "
            "memory goes to host memory; %gpu keep 2h, or `nodemgr keep {task} --for 2h`, prevents "
            "it"
        )
    )
    text = row(
        task=task.task_id,
        span=_span(draft, task),
        env=request.env,
        seconds=WARNING_MS // 1_000,
    )
    answers.send_note(draft, task, text)


def _act(draft: Draft, task: Task, request: Request) -> None:
    draft.idle_warned.drop(task.task_id)
    if draft.envs[task.env].quota.when_idle == "suspend":
        suspension.begin(draft, task)
        return
    why = stated(
        f"its GPUs were taken back after {_span(draft, task)} without a use, for a task of "
        f"{request.env}",
        "run it again to ask anew",
    )
    ends.fence(draft, task, LeaseEnd.TAKEN_BACK, why, by="nodemgr")
