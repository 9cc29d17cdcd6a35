"""Changes by admins and the hardware: quotas, GPUs, and tasks that an order takes away.

Knows: the effect of a change on holders and waiters. Must not know: the users that may order it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from client_plugin.messages.form import stated
from nodemgr.core.leases import answers, ends, memory_grants
from nodemgr.core.lifecycle import gpu_records, job_actions, jobs, waiting
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import DenyCode, Env, Gpu, Uuid
from nodemgr.core.model.events import GpusChanged, ReleaseTask, RemoveQuota, SetQuota
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler import reasons
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


def set_quota(draft: Draft, event: SetQuota) -> None:
    """Live: GPUs from the next request, memory from the next allocation of a running task.

    Waiting requests that it does not admit wait until it is raised (scheduler/admission.py).
    """
    before = {
        uuid: grant
        for uuid in draft.gpus
        if (grant := draft.grants.get((event.env, uuid))) is not None
    }
    draft.put_env(Env(event.env, event.quota))
    draft.emit(effects.EnvChanged(event.env))
    draft.publish(
        "quota.set",
        {"env": event.env, "by": event.by, "quota_gpus": event.quota.gpus, **event.quota.terms()},
    )
    for uuid, grant in before.items():
        if draft.grants[event.env, uuid] != grant:
            memory_grants.publish_grant(draft, event.env, uuid)
    memory_grants.raise_pending(draft)  # in this step: its answer says that the new limit holds
    draft.wake_scheduler()


def remove_quota(draft: Draft, event: RemoveQuota) -> None:
    reason = stated(
        f"the quota of {event.env} was removed by {event.by}", "ask an admin for a new one"
    )
    if event.env not in draft.envs:
        return
    for request in [
        request
        for request in draft.requests.values()
        if request.env == event.env and request.job_id is None
    ]:
        waiting.refuse(draft, request, DenyCode.UNKNOWN_ENV, reason)
    for task_id in list(draft.env_tasks.members(event.env)):
        task = draft.tasks[task_id]
        ends.fence(draft, task, LeaseEnd.QUOTA_REMOVED, reason, by=event.by)
    job_actions.environment_removed(draft, event.env, reason)
    draft.envs.drop(event.env)
    draft.emit(effects.EnvChanged(event.env))
    draft.publish("quota.removed", {"env": event.env, "by": event.by})
    draft.wake_scheduler()


def present_id(state: Draft | State, name: str) -> str:
    """The id under which a lease or a waiting request is known now.

    A request and the lease that it becomes have one number: `r12` is `t12` since it was granted.
    While `t12` is suspended and waits for its memory, it has a request `r12` again.
    """
    if name in state.requests or name in state.tasks:
        return name
    number = name[1:]
    if name == f"r{number}" and f"t{number}" in state.tasks:
        return f"t{number}"
    if name == f"t{number}" and f"r{number}" in state.requests:
        return f"r{number}"
    return name


def to_release(state: State, name: str, env: str | None) -> str | None:
    """The present id of the lease or waiting request that `name` means.

    `env`: the environment that may release it; None: all may. None: there is no such row, or it is
    another environment's.
    """
    row_id = present_id(state, name)
    row = state.tasks.get(row_id) or state.requests.get(row_id)
    return None if row is None or env not in (None, row.env) else row_id


def release_task(draft: Draft, event: ReleaseTask) -> None:
    """A lease, or a waiting request, of that id.

    Of another env than the asking user's, or unknown: nothing happens. A job goes with its lease or
    request: it is withdrawn.
    """
    task_id = present_id(draft, event.task_id)
    task, request = draft.tasks.get(task_id), draft.requests.get(task_id)
    row = task or request
    job = (
        None
        if row is None or row.job_id is None or event.env not in (None, row.env)
        else draft.jobs[row.job_id]
    )
    if job is not None:
        job_actions.withdraw_one(draft, job, event.by)
    elif task is not None and event.env in (None, task.env):
        why = reasons.taken_back(event.by)
        ends.fence(draft, task, LeaseEnd.TAKEN_BACK, why, by=event.by)
    elif request is not None and event.env in (None, request.env):
        waiting.refuse(draft, request, DenyCode.RELEASED, reasons.taken_out(event.by))


def gpus_changed(draft: Draft, event: GpusChanged) -> None:
    """Take the whole inventory.

    A GPU that is missing or ill stays known, and its leases stay the tasks' until they end. Until
    it is back, no request is given it, and its env's `used` does not count it.
    """
    seen = {gpu.uuid: gpu for gpu in event.gpus}
    before = set(draft.gpus)
    any_answers = any(gpu.healthy for gpu in event.gpus)
    lost: list[Gpu] = []
    for known in list(draft.gpus.values()):
        now = seen.get(known.uuid)
        healthy = now is not None and now.healthy
        changed = replace(
            known if now is None else now,
            index=known.index,
            healthy=healthy,
            drained=known.drained,
        )
        if changed != known:
            draft.put_gpu(changed)
            draft.wake_scheduler()
        if healthy != known.healthy:
            _publish_health(draft, changed)
            if not healthy:
                lost.append(changed)
    # all at once is the driver's end, and a drained one may be taken out on purpose
    failed = [gpu for gpu in lost if any_answers and not gpu.drained]
    gpu_records.vanished(draft, failed)
    for gpu in lost:
        jobs.blame(draft, gpu.uuid)
    _add(draft, [gpu for uuid, gpu in seen.items() if uuid not in draft.gpus])
    # those without a record are new ones, or of an older version's store
    new = [uuid for uuid in draft.gpus if uuid not in draft.gpu_records or uuid not in before]
    if new:
        gpu_records.begin(draft, new)


def _publish_health(draft: Draft, gpu: Gpu) -> None:
    draft.publish(
        "gpu.restored" if gpu.healthy else "gpu.lost",
        {**answers.named_gpus(draft, [gpu.uuid]), "gpu_name": gpu.name},
    )
    for task_id in draft.gpu_tasks.members(gpu.uuid):
        task = draft.tasks[task_id]
        answers.send_note(draft, task, reasons.gpu_health(gpu))
        if task.job_id is not None and not gpu.healthy:
            jobs.gpu_lost(draft, draft.jobs[task.job_id], gpu.uuid)


def _add(draft: Draft, gpus: Sequence[Gpu]) -> None:
    """Add unknown GPUs: an index is a row of the ledgers, so no other GPU may have it."""
    taken = {known.index: known for known in draft.gpus.values()} if gpus else {}
    free = (index for index in itertools.count() if index not in taken)
    gone: list[Uuid] = []
    for gpu in gpus:
        added, before = gpu, taken.get(gpu.index)
        if before is not None and _replaceable(draft, before):
            draft.gpus.drop(before.uuid)
            gone.append(before.uuid)
        elif before is not None:
            added = replace(gpu, index=next(free))
        draft.put_gpu(added)
        taken[added.index] = added
        draft.wake_scheduler()
    gpu_records.forget(draft, gone)


def _replaceable(draft: Draft, gpu: Gpu) -> bool:
    """Whether the GPU is gone and holds no lease, grant or unreclaimed memory."""
    return not gpu.healthy and not draft.charged.get(gpu.uuid) and not _held(draft, gpu.uuid)


def _held(draft: Draft, uuid: Uuid) -> bool:
    return any(True for _ in draft.gpu_tasks.members(uuid))
