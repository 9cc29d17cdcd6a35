"""The placement of one request: the GPUs that it would get now, or the shortage that makes it wait.

Knows: the request, its env's quota and GPUs, and the GPUs that it may not have. Must not know:
other requests, their order, and the reasons why a GPU is reserved (passes.py).

A job shares no GPU with its env's other tasks, unless it names its memory: no user watches how
crowded the GPU becomes. A request with a share of compute, or on a GPU with such tasks, needs that
compute too (state/compute.py). A suspended task gets its own GPUs with its whole former memory, or
waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nodemgr.core.model.entities import (
    WHOLE_PERCENT,
    Gpu,
    Grant,
    Request,
    Task,
    TaskClass,
    Transport,
    Uuid,
)
from nodemgr.core.model.schema import Figures
from nodemgr.core.placement.orders import ORDERS
from nodemgr.core.scheduler import preference, victims
from nodemgr.core.scheduler.allocator import (
    ANY_NUMBER,
    Ask,
    Candidate,
    Choice,
    Policy,
    Shortage,
    choose,
    reused,
)
from nodemgr.core.state import accounting, compute, elastic_grants, elastic_leases, members
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.elastic_grants import NO_SPARE, Spare


class PlacementResult(NamedTuple):
    """The GPUs that a request would get now, or the shortage."""

    answer: Choice | Shortage
    ask: Ask
    rows: list[Candidate]

    def reserves(self) -> list[Uuid]:
        """All GPUs that it could ever use. It keeps them if it is short of the node's GPUs."""
        return [
            row.uuid for row in self.rows if not row.used and row.big_enough and not row.reserved
        ]

    def waits_alone(self) -> bool:
        """Whether it is short of GPUs in its env's quota and shares none."""
        return self.answer is Shortage.OWN_GPUS and self.ask.reuse_below == 1


def candidates(
    draft: Draft,
    request: Request,
    reserved: Mapping[Uuid, Request],
    gpus: Iterable[Gpu],
    figures: Figures,
    spare: Spare = NO_SPARE,
) -> list[Candidate]:
    """The usable ones of the GPUs that the request does not avoid, as its env sees them.

    `spare`: memory of elastic grants that counts as free.
    """
    env, named_bytes, over_udp = request.env, request.run.memory_bytes, udp_askers(request)
    quota = draft.envs[env].quota
    counts_compute = request.run.compute_percent is not None or compute.in_use(draft)
    failed = avoided(draft, request) if request.avoids else ()
    has_range, spare_of = request.run.memory_most_bytes is not None, spare.of_gpu
    returning = elastic_leases.returning(draft, env)
    rows = []
    for gpu in gpus:
        if not gpu.healthy or gpu.drained or gpu.uuid in failed:
            continue
        grant = draft.grants.get((env, gpu.uuid))
        used = grant is not None and grant.tasks > grant.stalled_tasks
        full_bytes = fresh_bytes = accounting.full_grant(quota, gpu)
        growth_bytes = None
        if has_range or (grant is not None and grant.most_bytes):
            fresh_bytes = _fresh_bytes(draft, request, gpu, grant)
            growth_bytes = _growth_bytes(draft, request, gpu, spare)
        wanted_bytes = named_bytes
        if over_udp:
            wanted_bytes = over_udp * members.share(draft, env, gpu, named_bytes, request.world)
        rows.append(
            Candidate(
                gpu.uuid,
                gpu.index,
                used,
                draft.active.get(gpu.uuid) or 0,
                accounting.gpu_room(draft, gpu) + (spare_of.get(gpu.uuid, 0) if spare_of else 0),
                0 if used else accounting.need(draft, env, gpu.uuid, grant, fresh_bytes),
                named_bytes is None or named_bytes <= full_bytes,
                (
                    wanted_bytes is None
                    or members.has_free(
                        draft, env, gpu, wanted_bytes, figures, fresh_bytes, growth_bytes
                    )
                )
                and (
                    grant is None
                    or not grant.suspended_tasks
                    or _can_return(draft, grant, gpu, gpu.uuid in reserved)
                ),
                gpu.uuid in reserved,
            )
        )
    if returning:
        rows = [row._replace(may_return=row.uuid in returning) for row in rows]
    return _with_shares(draft, request, reserved, rows) if counts_compute else rows


def _fresh_bytes(draft: Draft, request: Request, gpu: Gpu, grant: Grant | None) -> int:
    """The size of the grant that the request would begin, where memory has a range."""
    named_bytes, most_bytes = request.run.memory_bytes, request.run.memory_most_bytes
    if grant is None:
        return accounting.least_of(draft.envs[request.env].quota, gpu, named_bytes, most_bytes)
    return accounting.least(draft, accounting.with_task(grant, named_bytes or 0, most_bytes))


def _growth_bytes(draft: Draft, request: Request, gpu: Gpu, spare: Spare) -> int:
    """The bytes that its env's grant on the GPU may have more, besides its own surplus."""
    grant = draft.grants.get((request.env, gpu.uuid))
    own_bytes = 0 if grant is None or not spare else elastic_grants.surplus(draft, grant)
    room_bytes = accounting.gpu_room(draft, gpu)
    room_bytes += max(0, spare.of_gpu.get(gpu.uuid, 0) - own_bytes)
    quota_bytes = accounting.quota_room(draft, request.env)
    if quota_bytes is not None:
        quota_bytes += max(0, spare.of_env.get(request.env, 0) - own_bytes)
        room_bytes = min(room_bytes, quota_bytes // max(1, request.run.gpus))
    return max(0, room_bytes)


def avoided(draft: Draft, request: Request) -> tuple[Uuid, ...]:
    """The GPUs that failed under the job; none where the node has too few others."""
    others = [gpu for gpu in draft.gpus.values() if gpu.usable and gpu.uuid not in request.avoids]
    return request.avoids if len(others) >= request.run.gpus else ()


def _with_shares(
    draft: Draft, request: Request, reserved: Mapping[Uuid, Request], rows: list[Candidate]
) -> list[Candidate]:
    """The rows with compute, and with risks of failure where the policy counts failures."""
    rows = [_with_compute(draft, request, reserved, row) for row in rows]
    if preference.name_of(draft, request.env, request.priority) in ORDERS:
        return rows
    return [preference.with_failures(draft, request, row) for row in rows]


def _with_compute(
    draft: Draft, request: Request, reserved: Mapping[Uuid, Request], row: Candidate
) -> Candidate:
    """The row with the compute that the request may have there.

    A request with a share takes none of a GPU that an earlier request waits for, even if its env
    holds the GPU.
    """
    plain = request.run.compute_percent is None
    if not plain and row.uuid in reserved:
        return row._replace(free_percent=0)
    takes = request.run.task_class is TaskClass.LATENCY_SENSITIVE
    name = draft.gpus[row.uuid].name
    found = request.predicted_on(name) if request.run.predicted else None
    # several GPUs have one share, which is that of the model with the largest need
    return row._replace(
        free_percent=compute.free_percent(draft, row.uuid, plain=plain),
        releasable_percent=compute.best_effort_percent(draft, row.uuid) if takes else 0,
        need_percent=None if found is None or request.run.gpus != 1 else found.share_percent,
        time_ms=None if found is None else found.run_ms,
    )


def _can_return(draft: Draft, grant: Grant, gpu: Gpu, reserved: bool) -> bool:
    """Whether the GPU has room for a grant whose tasks are all suspended; true for any other."""
    if not accounting.is_parked(grant):
        return True
    room_bytes = accounting.gpu_room(draft, gpu)
    return not reserved and accounting.return_bytes(draft, grant) <= room_bytes


def udp_askers(request: Request) -> int:
    return sum([asker.transport is Transport.UDP for asker in request.askers])


def order_of(draft: Draft, request: Request) -> Policy:
    """The key of a GPU for this request; the smallest is chosen first."""
    name = preference.name_of(draft, request.env, request.priority)
    if (plain := ORDERS.get(name)) is not None:
        return plain.key
    return preference.order_by_rates(draft, name, request)


def judge(
    draft: Draft, request: Request, reserved: Mapping[Uuid, Request], figures: Figures
) -> PlacementResult:
    """The request's result now, beside the reserved GPUs."""
    if request.resumes is not None:
        return result_of_resume(draft, request, reserved)
    quota, policy = draft.envs[request.env].quota, order_of(draft, request)
    alone = short_of_quota(draft, request, figures)
    if alone is not None:
        return alone
    used = accounting.used_gpus(draft, request.env)
    ask = ask_of(draft, request, used)
    if len(used) >= quota.gpus:  # no fresh GPU: most requests of a busy node skip the rest
        rows = candidates(draft, request, reserved, used, figures)
        answer = choose(ask, rows, policy)
        if isinstance(answer, Choice):
            return PlacementResult(answer, ask, rows)
    rows = candidates(draft, request, reserved, draft.gpus.values(), figures)
    return PlacementResult(choose(ask, rows, policy), ask, rows)


def short_of_quota(draft: Draft, request: Request, figures: Figures) -> PlacementResult | None:
    """The result if the request shares no GPU and wants more than its quota leaves, else None.

    Other GPUs and reservations do not count.
    """
    if _reuse_below(draft, request) > 1:
        return None
    quota_gpus, used = draft.envs[request.env].quota.gpus, accounting.used_gpus(draft, request.env)
    if request.run.gpus <= max(0, quota_gpus - len(used)):
        return None
    ask = ask_of(draft, request, used)
    return PlacementResult(Shortage.OWN_GPUS, ask, candidates(draft, request, {}, used, figures))


def ask_of(draft: Draft, request: Request, used: Collection[Gpu]) -> Ask:
    """Its demand; `used`: the GPUs that its env uses."""
    elsewhere = sum([gpu.drained for gpu in used])
    if request.avoids and used:
        failed = avoided(draft, request)
        elsewhere = sum([gpu.drained or gpu.uuid in failed for gpu in used])
    return Ask(
        request.run.gpus,
        draft.envs[request.env].quota.gpus - elsewhere,
        accounting.quota_room(draft, request.env),
        draft.config.max_tasks_per_gpu,
        _reuse_below(draft, request),
        WHOLE_PERCENT if request.run.compute_percent is None else request.run.compute_percent,
        request.run.task_class,
        elsewhere,
    )


def reuse(draft: Draft, request: Request) -> Choice | None:
    """The answer of `judge` for most requests of a busy node, in few steps.

    Such a request is interactive, without a named memory or share, of an env that uses its whole
    GPU quota, on a node without shares.
    None: call `judge`.
    """
    held = accounting.used_gpus(draft, request.env)
    if request.run.gpus > len(held) or len(held) < draft.envs[request.env].quota.gpus:
        return None
    if any(
        gpu.drained or accounting.is_parked(draft.grants[request.env, gpu.uuid]) for gpu in held
    ):
        return None
    if request.job_id is not None or request.run.memory_bytes is not None or udp_askers(request):
        return None
    if request.run.compute_percent is not None or compute.in_use(draft):
        return None
    if elastic_leases.any_there(draft):
        return None
    active = draft.active.get
    rows = [
        Candidate(
            gpu.uuid, gpu.index, True, active(gpu.uuid) or 0, accounting.gpu_room(draft, gpu), 0
        )
        for gpu in held
    ]
    return Choice((), reused(rows, request.run.gpus), len(held))


def _reuse_below(draft: Draft, request: Request) -> int:
    if request.job_id is None:
        return ANY_NUMBER
    return 1 if request.run.memory_bytes is None else draft.config.max_tasks_per_gpu


def result_of_resume(
    draft: Draft, request: Request, reserved: Mapping[Uuid, Request]
) -> PlacementResult:
    """The result of `judge`: the whole former memory on each of its GPUs, or it waits."""
    assert request.resumes is not None
    task, limit = draft.tasks[request.resumes], draft.config.max_tasks_per_gpu
    rows = [_row_of_resume(draft, task, draft.gpus[uuid], reserved.get(uuid)) for uuid in task.gpus]
    fits = all(
        draft.gpus[row.uuid].healthy
        and row.tasks < limit
        and not row.reserved
        and (row.used or row.need_bytes <= row.remaining_bytes)
        and has_share(draft, task, row)
        for row in rows
    )
    ask = Ask(len(rows), draft.envs[request.env].quota.gpus, None, limit)
    return PlacementResult(Choice((), tuple(rows), len(rows)) if fits else Shortage.NODE, ask, rows)


def has_share(draft: Draft, task: Task, row: Candidate) -> bool:
    """Whether the task's share of compute is free again; best effort takes the rest.

    A latency-sensitive task takes it from best effort.
    """
    free_percent = compute.free_percent(draft, row.uuid, plain=task.run.compute_percent is None)
    if task.run.compute_percent is None:
        return free_percent > 0
    if task.run.task_class is TaskClass.BEST_EFFORT:
        return True
    if task.run.task_class is TaskClass.LATENCY_SENSITIVE:
        free_percent += compute.best_effort_percent(draft, row.uuid)
    return (task.granted_percent or 0) <= free_percent


def _row_of_resume(draft: Draft, task: Task, gpu: Gpu, keeper: Request | None) -> Candidate:
    """The GPU as the suspended task sees it; `keeper`: the earlier request that keeps the GPU.

    Where a task of its env runs on, the memory is charged and the GPU is kept in vain. Even then a
    best-effort task waits for a latency-sensitive request: what it gave must reach that one.
    """
    grant = draft.grants[task.env, gpu.uuid]
    is_used = any(
        other.env == task.env and compute.computes(other) and not victims.is_going(draft, other)
        for other in map(draft.tasks.__getitem__, draft.gpu_tasks.members(gpu.uuid))
    )
    gives = (
        keeper is not None
        and keeper.run.task_class is TaskClass.LATENCY_SENSITIVE
        and task.run.task_class is TaskClass.BEST_EFFORT
    )
    return Candidate(
        gpu.uuid,
        gpu.index,
        is_used,
        draft.active.get(gpu.uuid) or 0,
        accounting.gpu_room(draft, gpu),
        accounting.return_bytes(draft, grant),
        reserved=keeper is not None and (gives or not is_used),
    )
