"""Which GPUs elastic tasks must leave, and for which request.

Knows: the waiting requests in their order of service, and the GPUs above the least numbers. Must
not know: how a GPU leaves a lease (lifecycle/resizing.py).

A GPU is recalled only if that serves a request: if the request could start once all GPUs that are
recalled for it are idle. Of the possible GPUs, the fewest and the first in the order of recall go
(state/elastic_leases.py). A recall without a request is withdrawn. A request that recalls cannot
serve keeps the GPUs that it could use, as in every scheduling pass: no recall would help a later
request there.

An elastic task above a quota that was lowered leaves the GPUs beyond it, as far as they are above
its least number: those beyond the quota and what the quota lets the env borrow.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

from nodemgr.core.lifecycle import resizing
from nodemgr.core.model.entities import WHOLE_PERCENT, Request, Task, Uuid
from nodemgr.core.scheduler import passes, placement
from nodemgr.core.scheduler.allocator import Ask, Candidate, Choice, Shortage, choose
from nodemgr.core.state import accounting, compute, elastic_grants, elastic_leases
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.elastic_grants import Spare
from nodemgr.core.state.elastic_leases import HeldGpu

FOR_QUOTA = ""
"""Recall.receiver of a GPU that no request gets: its env's quota was lowered."""


@dataclass(slots=True)
class Recalls:
    """The GPUs that must be left, and those that waiting requests will get."""

    spare: Spare
    """Memory of elastic grants, which is lowered before a GPU is recalled for its memory."""
    receivers: dict[HeldGpu, str] = field(default_factory=dict)
    """The request that gets each."""
    claimed: set[Uuid] = field(default_factory=set)
    """Idle and recalled GPUs that waiting requests get."""
    reserved: dict[Uuid, Request] = field(default_factory=dict)
    """GPUs of requests that no recall can serve."""
    blocked: set[str] = field(default_factory=set)
    """Envs with a request that waits for its own env: the later ones wait behind it."""
    used_gpus: dict[str, int] = field(default_factory=dict)
    """By env: fresh GPUs of its requests in `claimed`, and the memory of their grants:"""
    used_bytes: dict[str, int] = field(default_factory=dict)


def plan(draft: Draft) -> Recalls:
    """The recalls that the waiting requests need now.

    Memory that may be free in a grant in use does not count: its figures come and go.
    """
    recalls, free = Recalls(elastic_grants.spare(draft)), elastic_leases.recallable(draft)
    recalled = {
        HeldGpu(lease.task_id, recall.uuid)
        for lease in draft.elastics.values()
        for recall in lease.recalls
    }
    free.sort(key=lambda held: held not in recalled)
    in_vain: set[str] = set()
    for request in waiting(draft):
        if not free:
            break
        group = request.equivalence_group
        if group in in_vain or request.env in recalls.blocked:
            continue
        if not _serve(draft, recalls, free, request):
            in_vain.add(group)
    _above_quotas(draft, recalls)
    return recalls


def _above_quotas(draft: Draft, recalls: Recalls) -> None:
    """GPUs beyond a lowered quota, and beyond what it lets the env borrow, return to the node."""
    envs = dict.fromkeys(draft.tasks[task_id].env for task_id in draft.elastics)
    for env in envs:
        quota = draft.envs[env].quota
        beyond = len(accounting.used_gpus(draft, env)) - quota.gpus - quota.borrow
        if beyond <= 0:
            continue
        held = elastic_leases.borrowed(draft, env)
        returns = sum(each in recalls.receivers for each in held)
        for each in [each for each in held if each not in recalls.receivers]:
            if returns < beyond:
                recalls.receivers[each] = FOR_QUOTA
                returns += 1


def apply(draft: Draft, recalls: Recalls) -> None:
    """Recalls what is not recalled yet, and withdraws what no request needs any more."""
    for lease in list(draft.elastics.values()):
        for recall in lease.recalls:
            receiver = recalls.receivers.get(HeldGpu(lease.task_id, recall.uuid))
            if receiver is None:
                resizing.withdraw(draft, lease.task_id, recall.uuid)
            elif receiver != recall.receiver:
                resizing.redirect(draft, lease.task_id, recall.uuid, receiver)
    for held, receiver in recalls.receivers.items():
        lease = draft.elastics[held.task_id]
        if held.uuid not in [recall.uuid for recall in lease.recalls]:
            resizing.recall(draft, draft.tasks[held.task_id], held.uuid, receiver)


def waiting(draft: Draft) -> list[Request]:
    """The first requests in the order of service, with those of this step.

    An array's row stands there once for each of its elements.
    """
    most = draft.config.backfill_depth
    ids = dict.fromkeys(islice(draft.queue, most + len(draft.requests.old)))
    ids |= dict.fromkeys(draft.requests.old)
    found = [request for each in ids if (request := draft.requests.get(each)) is not None]
    counted = [
        request
        for request in found
        if request.run.gpus and request.resumes is None and passes.takes_part(draft, request)
    ]
    return [
        request
        for row in sorted(counted, key=draft.order)[:most]
        for request in [row] * min(row.size, most)
    ][:most]


def _serve(draft: Draft, recalls: Recalls, free: list[HeldGpu], request: Request) -> bool:
    """Finds GPUs for the request; returns whether there are any."""
    ask = _ask(draft, recalls, request)
    taken = dict.fromkeys(recalls.claimed, request) | recalls.reserved
    rows = [
        row._replace(remaining_bytes=row.remaining_bytes + _coming_bytes(draft, row.uuid))
        for row in placement.candidates(
            draft, request, taken, draft.gpus.values(), {}, recalls.spare
        )
    ]
    possible = [held for held in free if held.uuid not in taken]
    answer = _answer(draft, request, ask, rows, possible)
    if not isinstance(answer, Choice):
        if answer is Shortage.NODE:
            keeps = [row.uuid for row in rows if not row.used and row.big_enough]
            recalls.reserved = dict.fromkeys(keeps, request) | recalls.reserved
        else:
            recalls.blocked.add(request.env)
        return False
    needed = _fewest(draft, request, ask, rows, possible)
    answer = _answer(draft, request, ask, rows, needed)
    assert isinstance(answer, Choice)
    for held in needed:
        recalls.receivers[held] = request.request_id
        free.remove(held)
    fresh = [gpu.uuid for gpu in answer.fresh]
    recalls.claimed.update(fresh)
    _add(recalls.used_gpus, request.env, len(fresh))
    _add(recalls.used_bytes, request.env, sum(gpu.need_bytes for gpu in answer.fresh))
    return True


def _add(sums: dict[str, int], key: str, more: int) -> None:
    sums[key] = sums.get(key, 0) + more


def _ask(draft: Draft, recalls: Recalls, request: Request) -> Ask:
    """The request's demand, beside its env's earlier requests that recalls serve."""
    ask = placement.ask_of(draft, request, accounting.used_gpus(draft, request.env))
    left_bytes = ask.quota_remaining_bytes
    if left_bytes is not None:
        left_bytes += recalls.spare.of_env.get(request.env, 0)
        left_bytes -= recalls.used_bytes.get(request.env, 0)
    quota_gpus = ask.quota_gpus - recalls.used_gpus.get(request.env, 0)
    return ask._replace(quota_gpus=quota_gpus, quota_remaining_bytes=left_bytes)


def _fewest(
    draft: Draft, request: Request, ask: Ask, rows: list[Candidate], possible: list[HeldGpu]
) -> list[HeldGpu]:
    """The fewest of the possible GPUs that suffice, the first in their order."""
    needed: list[HeldGpu] = []
    for held in possible:
        if isinstance(_answer(draft, request, ask, rows, needed), Choice):
            break
        needed.append(held)
    for held in reversed(needed[:-1]):
        less = [other for other in needed if other is not held]
        if isinstance(_answer(draft, request, ask, rows, less), Choice):
            needed = less
    return needed


def _answer(
    draft: Draft, request: Request, ask: Ask, rows: list[Candidate], gone: Collection[HeldGpu]
) -> Choice | Shortage:
    """The request's result once these GPUs have left their leases."""
    own_bytes = 0
    ask = ask._replace(quota_gpus=ask.quota_gpus + _drained_freed(draft, request.env, gone))
    changed = []
    left = {held.uuid for held in gone}
    for row in rows:
        if row.uuid in left:
            task_ids = {held.task_id for held in gone if held.uuid == row.uuid}
            row, freed_bytes = _without(draft, request, row, task_ids)
            own_bytes += freed_bytes
        changed.append(row)
    if ask.quota_remaining_bytes is not None:
        ask = ask._replace(quota_remaining_bytes=ask.quota_remaining_bytes + own_bytes)
    return choose(ask, changed, placement.order_of(draft, request))


def _drained_freed(draft: Draft, env: str, gone: Collection[HeldGpu]) -> int:
    """The drained GPUs that the env no longer uses then: no request gets one, the quota does."""
    drained: dict[Uuid, set[str]] = {}
    for held in gone:
        if draft.gpus[held.uuid].drained and draft.tasks[held.task_id].env == env:
            drained.setdefault(held.uuid, set()).add(held.task_id)
    return sum(
        accounting.is_used(draft, env, uuid)
        and accounting.active_tasks(draft.grants.get((env, uuid))) == len(task_ids)
        for uuid, task_ids in drained.items()
    )


def _without(
    draft: Draft, request: Request, row: Candidate, gone: set[str]
) -> tuple[Candidate, int]:
    """The row as it is without these tasks, and the bytes that the request's env gets back."""
    env, there = request.env, map(draft.tasks.__getitem__, draft.gpu_tasks.members(row.uuid))
    staying: list[Task] = []
    going: list[Task] = []
    for task in there:
        (going if task.task_id in gone else staying).append(task)
    leaving = {task.env for task in going} - {task.env for task in staying}
    freed = {each: _freed_bytes(draft, each, row.uuid) for each in leaving}
    row = row._replace(
        remaining_bytes=row.remaining_bytes + sum(freed.values()),
        tasks=row.tasks - len(going),
        used=row.used and env not in leaving,
    )
    if not any(compute.computes(task) for task in staying):
        row = row._replace(free_percent=WHOLE_PERCENT)
    if env not in leaving:
        return row, 0
    quota, gpu, run = draft.envs[env].quota, draft.gpus[row.uuid], request.run
    need_bytes = accounting.least_of(quota, gpu, run.memory_bytes, run.memory_most_bytes)
    return row._replace(need_bytes=need_bytes, has_free=True), freed[env]


def _freed_bytes(draft: Draft, env: str, uuid: Uuid) -> int:
    """The bytes of the GPU that the end of the env's grant gives back."""
    alive_bytes, _ = _staying_bytes(draft, env, uuid)
    return max(0, accounting.on_gpu(draft.grants.get((env, uuid))) - alive_bytes)


def _coming_bytes(draft: Draft, uuid: Uuid) -> int:
    """The charge of lost processes that is about to end.

    Until the driver is read, the whole grant is charged for each process that leaves; and a process
    that is ended has some time to be gone.
    """
    coming_bytes = 0
    for env in {row.env for row in draft.unreclaimed.values() if row.uuid == uuid}:
        alive_bytes, dead_bytes = _staying_bytes(draft, env, uuid)
        granted_bytes = accounting.on_gpu(draft.grants.get((env, uuid)))
        coming_bytes += accounting.gpu_charge(draft, env, uuid)
        coming_bytes -= max(granted_bytes, alive_bytes) + dead_bytes
    return coming_bytes


def _staying_bytes(draft: Draft, env: str, uuid: Uuid) -> tuple[int, int]:
    """The memory of the env's lost processes that may stay: of living ones, and of dead ones."""
    if (draft.left_until.get(uuid) or 0) > draft.now_ns:
        return 0, 0
    rows = [row for row in draft.unreclaimed.values() if (row.env, row.uuid) == (env, uuid)]
    alive_bytes = sum(row.memory_bytes for row in rows if row.alive and row.told)
    return alive_bytes, sum(row.memory_bytes for row in rows if not row.alive)
