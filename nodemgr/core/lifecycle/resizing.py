"""The GPUs of an elastic lease change: one is added, one leaves.

Knows: the effects on the task, its grants and its processes. Must not know: why a GPU is offered or
recalled (core/elastic).

A process that is bound to a GPU is ended when the GPU leaves the lease: it has no other. A process
that is bound to none keeps the rest, and its memory on the GPU stays charged until the driver shows
that it is gone.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.leases import answers, begins, ends
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    MS,
    RETAINED_RESIZES,
    ElasticLease,
    Recall,
    Resize,
    Task,
    Uuid,
)
from nodemgr.core.model.schema import RECALL, recall_key
from nodemgr.core.model.values import replace
from nodemgr.core.state import accounting, elastic_leases, members
from nodemgr.core.state.draft import Draft

GRACE_MS = 5_000
"""The time that ended processes have to be gone, with their memory, before another GPU is asked."""


def grow(draft: Draft, task: Task, uuid: Uuid) -> None:
    """Adds a free GPU to the lease; the leader gets an offer."""
    lease = draft.elastics[task.task_id]
    before = len(task.gpus)
    uuids = sorted((*task.gpus, uuid), key=lambda each: draft.gpus[each].index)
    task = replace(task, gpus=tuple(uuids), fresh=(*task.fresh, uuid))
    _write(draft, task)
    for key in task.processes:
        unreclaimed = draft.unreclaimed.get((key, uuid))
        if unreclaimed is not None:
            draft.drop_unreclaimed(unreclaimed)
    begins.hold(draft, task, uuid, {})
    arrivals, offered = (*lease.arrivals, uuid), (*lease.offered, uuid)
    lease = replace(lease, arrivals=arrivals, offered=offered)
    draft.put_elastic(lease)
    _send_grants(draft, task, lease)
    send_offer(draft, lease, uuid)
    why = _why_grown(draft, task.env)
    _record(draft, task, Resize(draft.wall_ns, uuid, before, before + 1, why))
    draft.publish("task.grown", {**_facts(draft, task, lease, uuid), "reason": why})


def shrink(draft: Draft, task: Task, uuid: Uuid, why: str) -> None:
    """Takes a GPU out of the lease, which keeps at least one. Ends the processes bound to it."""
    lease = draft.elastics[task.task_id]
    bound = [worker.process for worker in lease.workers if worker.uuid == uuid]
    for process in [draft.processes[key] for key in elastic_leases.unbound(lease, task)]:
        members.charge_unreclaimed(draft, process, uuid)
    for process in [draft.processes[key] for key in bound]:
        answers.send_fence(draft, process.key, task.task_id, why)
        if process.pid is not None:
            draft.emit(effects.Kill(process.key, process.pid))
        task = members.depart(draft, task, process, (uuid,))
    if not task.processes and task.job_id is None:
        draft.put_task(task)
        ends.end(draft, task, LeaseEnd.PROCESS_ENDED, why)
        return
    ends.leave_grant(draft, task, uuid)
    gpus, fresh = _less(task.gpus, uuid), _less(task.fresh, uuid)
    task = replace(task, gpus=gpus, fresh=fresh)
    _write(draft, task)
    _record(draft, task, Resize(draft.wall_ns, uuid, len(gpus) + 1, len(gpus), why))
    if uuid in draft.calm_since:
        draft.calm_since.drop(uuid)
    draft.left_until.put(uuid, draft.now_ns + GRACE_MS * MS)
    lease = _without(lease, uuid)
    draft.put_elastic(lease)
    _withdraw_needless(draft, lease)
    _send_grants(draft, task, lease)
    draft.wake_scheduler()
    draft.publish("task.shrunk", {**_facts(draft, task, lease, uuid), "reason": why})


def _write(draft: Draft, task: Task) -> None:
    """The task's new GPUs; a job's attempt has the same."""
    draft.resize_task(task)
    if task.job_id is not None:
        job = draft.jobs[task.job_id]
        attempt = replace(job.attempts[-1], gpus=task.gpus)
        draft.put_job(replace(job, attempts=(*job.attempts[:-1], attempt)))


def _record(draft: Draft, task: Task, resize: Resize) -> None:
    """The resize stays in the record of the lease; a job's attempt has the same."""
    record = draft.records[task.task_id]
    resizes = (*record.resizes, resize)[-RETAINED_RESIZES:]
    draft.records.put(task.task_id, replace(record, resizes=resizes))
    if task.job_id is not None:
        job = draft.jobs[task.job_id]
        attempt = replace(job.attempts[-1], resizes=resizes)
        draft.put_job(replace(job, attempts=(*job.attempts[:-1], attempt)))


def _why_grown(draft: Draft, env: str) -> str:
    quota = draft.envs[env].quota
    if len(accounting.used_gpus(draft, env)) > quota.gpus:
        return f"it was idle, and {env} borrows it beyond its quota of {quota.gpus}"
    return "it was idle"


def _less(uuids: tuple[Uuid, ...], uuid: Uuid) -> tuple[Uuid, ...]:
    return tuple(each for each in uuids if each != uuid)


def _without(lease: ElasticLease, uuid: Uuid) -> ElasticLease:
    return replace(
        lease,
        arrivals=_less(lease.arrivals, uuid),
        offered=_less(lease.offered, uuid),
        recalls=tuple(recall for recall in lease.recalls if recall.uuid != uuid),
        workers=tuple(worker for worker in lease.workers if worker.uuid != uuid),
    )


def _withdraw_needless(draft: Draft, lease: ElasticLease) -> None:
    """A task that left other GPUs than the recalled ones keeps its least number of them."""
    above = elastic_leases.above_least(lease)
    for recall in lease.recalls:
        if recall.uuid not in above:
            withdraw(draft, lease.task_id, recall.uuid)


def recall(draft: Draft, task: Task, uuid: Uuid, receiver: str) -> None:
    """Asks the task to leave the GPU; at its deadline the GPU leaves the lease (`expire`)."""
    lease = draft.elastics[task.task_id]
    lease = replace(lease, recalls=(*lease.recalls, Recall(uuid, receiver)))
    draft.put_elastic(lease)
    in_ms = draft.config.recall_ms
    send_recall(draft, lease, uuid, receiver, in_ms)
    more = {"receiver": receiver, "in_ms": in_ms, "reason": _why_recalled(draft, task, receiver)}
    draft.publish("task.recalled", {**_facts(draft, task, lease, uuid), **more})


def named(draft: Draft, env: str, request_id: str) -> str:
    """The request, or the job that it is made for, with its environment, for people.

    Without an id: the quota of `env`, which was lowered.
    """
    if not request_id:
        return f"the lowered quota of {env}"
    request = draft.requests.get(request_id)
    if request is None:
        return request_id
    return f"{request.job_id or request_id} of {request.env}"


def redirect(draft: Draft, task_id: str, uuid: Uuid, receiver: str) -> None:
    """Another request gets the recalled GPU; its deadline stays."""
    lease = draft.elastics[task_id]
    recalls = tuple(
        replace(recall, receiver=receiver) if recall.uuid == uuid else recall
        for recall in lease.recalls
    )
    draft.put_elastic(replace(lease, recalls=recalls))


def withdraw(draft: Draft, task_id: str, uuid: Uuid) -> None:
    """Takes a recall back."""
    task, lease = draft.tasks[task_id], draft.elastics[task_id]
    recalls = tuple(recall for recall in lease.recalls if recall.uuid != uuid)
    lease = replace(lease, recalls=recalls)
    draft.put_elastic(lease)
    connection = draft.connections.get(lease.leader)
    if connection is not None:
        draft.emit(effects.SendWithdrawn(connection, task_id, uuid))
    draft.publish("task.recall_withdrawn", _facts(draft, task, lease, uuid))


def expire(draft: Draft, key: str) -> None:
    """The deadline of a recall has passed: the GPU leaves the lease."""
    task_id, _, uuid = key.partition("/")
    task = draft.tasks.get(task_id)
    if task is not None:
        seconds = draft.config.recall_ms / 1_000
        receivers = [
            recall.receiver for recall in draft.elastics[task_id].recalls if recall.uuid == uuid
        ]
        why = stated(
            f"GPU {draft.gpus[uuid].index} was recalled for "
            f"{named(draft, task.env, receivers[0])}, and the task did not leave it within "
            f"{seconds:g} s",
            "the task goes on with its other GPUs",
        )
        shrink(draft, task, uuid, why)


def say_again(draft: Draft, lease: ElasticLease) -> None:
    """The leader is back on a new connection: it gets what is open once more."""
    for uuid in lease.offered:
        send_offer(draft, lease, uuid)
    for recall in lease.recalls:
        due_ns = draft.agenda.get((RECALL, recall_key(lease.task_id, recall.uuid)))
        in_ms = max(0, (due_ns or draft.now_ns) - draft.now_ns) // MS
        send_recall(draft, lease, recall.uuid, recall.receiver, in_ms)


def send_offer(draft: Draft, lease: ElasticLease, uuid: Uuid) -> None:
    connection = draft.connections.get(lease.leader)
    if connection is not None:
        draft.emit(effects.SendOffer(connection, lease.task_id, uuid))


def send_recall(draft: Draft, lease: ElasticLease, uuid: Uuid, receiver: str, in_ms: int) -> None:
    connection = draft.connections.get(lease.leader)
    if connection is not None:
        reason = _why_recalled(draft, draft.tasks[lease.task_id], receiver)
        draft.emit(effects.SendRecall(connection, lease.task_id, uuid, in_ms, reason))


def _why_recalled(draft: Draft, task: Task, receiver: str) -> str:
    if receiver:
        return f"{named(draft, task.env, receiver)} waits for it"
    quota = draft.envs[task.env].quota
    return (
        f"the quota of {task.env} was lowered to {quota.gpus} GPUs, and it may borrow "
        f"{quota.borrow}"
    )


def _send_grants(draft: Draft, task: Task, lease: ElasticLease) -> None:
    """The processes that may use all GPUs get the new set."""
    for process in [draft.processes[key] for key in elastic_leases.unbound(lease, task)]:
        begins.send_grant(draft, process, task, process.rid)


def _facts(draft: Draft, task: Task, lease: ElasticLease, uuid: Uuid) -> dict[str, object]:
    return {
        "env": task.env,
        "task": task.task_id,
        **answers.named_gpus(draft, [uuid]),
        "held": len(task.gpus),
        "gpus_min": lease.least,
        "gpus_max": lease.most,
        "borrowed": len(elastic_leases.borrowed(draft, task.env)),
    }
