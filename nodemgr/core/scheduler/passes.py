"""One scheduling pass: the result of each waiting request, in the order of service.

Knows: the order of service, and the GPUs that an earlier request keeps from later ones. Must not
know: how one request is placed (placement.py), and how a result is applied (requests/matching.py)
or reported (requests/notify.py).

A later request may overtake only with GPUs that the earlier one could not use. So a stream of small
requests never starves a gang that wants all GPUs. It may always reuse the GPUs that its own env
holds, since that takes none from other envs. The first rule that fits a request holds for it; the
letter stands at the branch.

    the request                                   keeps from later ones
    A  takes no part (takes_part)                 nothing
    B  brings a suspended task back               the room on that task's GPUs; plans nothing beside
    C  takes no GPU                               nothing; it waits for such jobs alone
                                                  (cpu_jobs.py), or by L or M
    D  stands behind a first one of its env       what the first one's rule says: H, I
    E  could only reuse GPUs, and its env has     nothing: it is not considered
       none
    F  asks what one of rule G asks in vain       as that one, without being judged
    G  is short of the node's GPUs                each GPU that it could ever use: healthy, big
                                                  enough, not held by its env
    H  is short of GPUs in its env's quota, and   it is planned from its env's release times, and
       time limits give all ends of its env's     so are those behind it: a later request goes
       tasks                                      first only if that delays none of them
    I  is short of its env's own resources        holds the idle GPUs that it needs beside those
       alone in another way                       that its env's tasks give back (own_tasks.Sums)
    J  is short of GPUs in its env's quota, all   nothing: the env is inadmissible (`full`) until
       of which the env uses                      something of its own changes
    K  is short of compute on its env's GPUs      that compute, from requests with a share; and by I
    L  is short of CPUs or host memory of the     the GPUs that it would get, and what it asks
       node alone                                 for, from later jobs (delays_for_host)
    M  is short of those of its env's quota       what it asks for, from its env's later jobs
    N  is away: disconnected, `timeout_ms` to     as G, though it could be served: free memory in
       come back                                  its env's grants may be taken when it is back

An env's own resources are GPUs in its quota, its memory quota, memory in its ledger. The later
requests of the env wait behind H to K. A held GPU (I) may be had by a request with a time limit:
it does not lie idle while a task of the env runs on, and the delay is at most that limit, once. If
time limits give the latest time at which the env has room, that request has to end by then. As soon
as the env has room, rule G holds. An env never uses and holds more than its quota, and an overdue
task counts as one that ends now: an env with many equal jobs beyond its quota holds nothing.

Where time limits give the ends of running tasks, a later request may have a reserved GPU if that
delays no earlier request (backfill.py). Config.backfill_depth waiting requests are planned, of H so
many first ones and as many behind them; the GPUs that the next ones keep are kept from all. An env
with differing requests is considered up to Config.backfill_depth times. So the cost of a pass grows
with the requests that it starts and considers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core.model.entities import (
    END_GRACE_MS,
    MS,
    Gpu,
    Request,
    Suspension,
    Uuid,
)
from nodemgr.core.model.schema import Figures
from nodemgr.core.scheduler import (
    admission,
    launch_hosts,
    own_tasks,
    placement,
    preference,
    set_aside,
)
from nodemgr.core.scheduler.allocator import (
    Ask,
    Choice,
    Shortage,
    qualifies,
)
from nodemgr.core.scheduler.backfill import ReservationTable, is_counted, is_roomy
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.state import accounting, cpu_jobs, host_use
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import first
from nodemgr.core.state.work_queue import ServiceOrder, Walk


class Hold(NamedTuple):
    """A GPU that a request will need when its own env has room."""

    request: Request
    until_ns: int | None
    """The latest time of that; None: no time limit gives it."""

    def lets_pass(self, request: Request, now_ns: int) -> bool:
        """Does its time limit end by `until_ns`? If that is None, any limit will do."""
        limit_ms = request.planned_ms
        return limit_ms is not None and (
            self.until_ns is None or now_ns + limit_ms * MS <= self.until_ns
        )


@dataclass(slots=True)
class Holder:
    """An env with a first request that waits for the env's own tasks."""

    hold: Hold
    ask: Ask
    left: int
    """GPUs that its quota leaves."""
    sums: own_tasks.Sums
    gpus: int = 0
    """GPUs held for it."""


@dataclass(slots=True)
class SchedulingPass:
    """The findings of one scheduling pass so far."""

    figures: Figures = field(default_factory=dict)
    """Bytes in use in each grant, as far as the step knows them."""
    left_out: Set[str] = frozenset()
    """The inadmissible envs that the walk leaves out, even if a resume changes one meanwhile."""
    reserved: dict[Uuid, Request] = field(default_factory=dict)
    """GPUs, and the request that keeps each."""
    turns: dict[str, Request] = field(default_factory=dict)
    """By env, the request behind which later ones wait."""
    chains: dict[str, PlacementResult] = field(default_factory=dict)
    """The envs in `turns` with planned later requests, and the first's result."""
    held: dict[Uuid, Hold] = field(default_factory=dict)
    """GPUs held, not reserved, for requests that wait for their own env's tasks."""
    holding: dict[str, Holder] = field(default_factory=dict)
    """By env. A second request that asks the same is considered too: it may run beside it."""
    host_turns: dict[str, Request] = field(default_factory=dict)
    """By env, the job that waits for CPUs or host memory of its quota; by "" of the node."""
    host_reserved: Counter[host_use.Reserved] = field(default_factory=Counter)
    """The amounts that those jobs ask for, and the jobs that wait behind them."""
    host_ends: dict[str, int] = field(default_factory=dict)
    """By env or "": when a job under way can first give some back."""
    reservations: ReservationTable | None = None
    """Decides which requests may have reserved GPUs for a while. None: not needed yet."""
    inadmissible_envs: list[tuple[ServiceOrder, str]] = field(default_factory=list)
    """Envs that the pass does not visit and the reservation table does not know yet.

    Each has the order of its first request. The earliest one is last.
    """
    all_reserved: bool = False
    """Every healthy GPU is reserved."""
    narrowed: bool = False
    """The walk is narrowed (`narrow`)."""
    full: set[str] = field(default_factory=set)
    """Envs that get nothing until one of their own tasks ends or their quota is raised.

    Other envs cannot change that.
    """
    short: dict[str, PlacementResult] = field(default_factory=dict)
    """By Request.equivalence_group, the shortage of the node's GPUs. No later result is better."""
    started: int = 0
    """Jobs that start."""
    planned: int = 0
    """Waiting requests that the reservation table planned."""
    foreseen: int = 0
    """First requests that are planned though they wait for their env's tasks."""
    followed: int = 0
    """Requests planned behind such a first request."""
    passed: Counter[str] = field(default_factory=Counter)
    """By env, the considered requests that still wait.

    They may reuse the GPUs of a later request of the env that is served.
    """
    resuming: set[str] = field(default_factory=set)
    """Envs with a suspended task that waits: a start of the env may bring its memory back."""
    holders: dict[str, bool] = field(default_factory=dict)
    """By env: whether it holds a GPU that could be reused."""
    wanting: set[str] = field(default_factory=set)
    """Requests that wait for memory in their env's ledger."""
    known: dict[tuple[object, ...], PlacementResult] = field(default_factory=dict)
    """Results by equal demand and equal reserved GPUs, until a request is served.

    Envs that hold nothing and have equal quotas share one.
    """

    def reserved_from(self, draft: Draft, request: Request) -> Mapping[Uuid, Request]:
        """The GPUs that it may not have."""
        reserved = (
            self.reserved
            if self.reservations is None
            else self.reservations.reserved(request, self.reserved)
        )
        held = self.held_from(draft, request)
        return {**held, **reserved} if held else reserved

    def held_from(self, draft: Draft, request: Request) -> dict[Uuid, Request]:
        """The held GPUs that it may not have, and the requests that they are held for."""
        return {
            uuid: hold.request
            for uuid, hold in self.held.items()
            if not hold.lets_pass(request, draft.now_ns)
        }

    def settled(self) -> bool:
        """No reserved GPU is open for a while: of equal requests, a later one waits too."""
        return self.reservations is None or not self.reservations.open(self.reserved)

    def is_closed(self) -> bool:
        """For the rest of this pass a request can only reuse GPUs that its env holds."""
        return self.all_reserved and self.settled()


def survey(draft: Draft) -> SchedulingPass:
    """A pass over the queue that serves nothing, after all possible requests are served."""
    scheduling_pass = SchedulingPass(left_out=draft.inadmissible_envs())
    walk = draft.walk()
    for request_id in walk:
        request = draft.requests[request_id]
        result = consider(draft, scheduling_pass, request, plan=False)
        if result is None or (
            not isinstance(result.answer, Choice) and request.env not in scheduling_pass.holding
        ):
            walk.drop(walk.group)
        narrow(draft, scheduling_pass, walk)
    return scheduling_pass


def narrow(draft: Draft, scheduling_pass: SchedulingPass, walk: Walk) -> None:
    """Once no fresh GPU is left, walk only envs with tasks, and jobs without GPUs."""
    if not scheduling_pass.narrowed and scheduling_pass.is_closed():
        scheduling_pass.narrowed = True
        walk.narrow({"", *draft.env_tasks, *(env for env, _, _ in draft.env_tasks.old)})


def consider(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request, *, plan: bool = True
) -> PlacementResult | None:
    """The request's result; records the GPUs that it keeps if it waits.

    None: it gets nothing and was not judged. `plan`: later requests may have its GPUs for a while.
    """
    env = request.env
    if not takes_part(draft, request):  # A
        return None
    if request.resumes is not None:  # B
        return _consider_resume(draft, scheduling_pass, request, plan=plan)
    if request.run.gpus == 0:  # C
        is_short = cpu_jobs.limit(draft, env) is not None or lacks_host(
            draft, scheduling_pass, request
        )
        return None if is_short else PlacementResult(Choice((), (), 0), Ask(0, 0, None, 0), [])
    if env in scheduling_pass.turns:  # D
        scheduling_pass.passed[env] += 1
        return _follow(draft, scheduling_pass, request)
    if _is_all_reserved(draft, scheduling_pass, request):  # E
        scheduling_pass.passed[env] += 1
        return None
    if scheduling_pass.reservations is not None:
        _pass_inadmissible(draft, scheduling_pass, scheduling_pass.reservations, request)
    known = scheduling_pass.short.get(request.equivalence_group)
    if known is not None:  # F
        _wait(draft, scheduling_pass, request, known, plan=plan)
        return known
    result = placement.short_of_quota(draft, request, scheduling_pass.figures) or _result_now(
        draft, scheduling_pass, request
    )
    if isinstance(result.answer, Choice) and not away(draft, request):
        if not lacks_host(draft, scheduling_pass, request):
            return result
        if env in scheduling_pass.host_turns:  # M
            scheduling_pass.passed[env] += 1
            return None
        # L
        result = result._replace(answer=Shortage.HOST, rows=list(result.answer.fresh))
    if result.answer is Shortage.NODE:
        scheduling_pass.short[request.equivalence_group] = result
    _wait(draft, scheduling_pass, request, result, plan=plan)
    return result


def lacks_host(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> bool:
    """Whether it waits for CPUs or host memory, or behind an earlier job that does."""
    if not host_use.needs(request.run):
        return False
    turns, env = scheduling_pass.host_turns, request.env
    bound = host_use.short_of(draft, env, request.run)
    if bound is None and not delays_for_host(draft, scheduling_pass, request):
        return False
    if bound is None:
        bound = host_use.Bound(host_use.NODE if host_use.NODE in turns else env, False, 0, 0)
    turns.setdefault(bound.env, request)
    scheduling_pass.host_reserved += host_use.keeps(env, bound, request.run)
    return True


def delays_for_host(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> bool:
    """Whether it could delay an earlier job that waits for CPUs or host memory.

    It cannot if it leaves what those need, or surely ends before anything is given back.
    """
    turns = {host_use.NODE, request.env} & scheduling_pass.host_turns.keys()
    if not turns:
        return False
    if host_use.has_room_beside(draft, request.env, request.run, scheduling_pass.host_reserved):
        return False
    limit_ms = request.run.time_limit_ms
    over_ns = None if limit_ms is None else draft.now_ns + (limit_ms + END_GRACE_MS) * MS
    if over_ns is None:
        return True
    ends_ns = scheduling_pass.host_ends
    for env in turns - ends_ns.keys():
        # a job that starts behind the one that waits gives back no more than it takes
        ends_ns[env] = own_tasks.first_host_end(draft, env)
    return any(over_ns > ends_ns[env] for env in turns)


def _result_now(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> PlacementResult:
    """Its result beside the reserved GPUs, of which it may have some for a while.

    A start on those may use GPUs of its own env too, but not for longer than they are used anyway.
    An earlier request may be planned on them.
    """
    result = result_beside(
        draft, scheduling_pass, request, scheduling_pass.reserved_from(draft, request)
    )
    answer, reserved = result.answer, scheduling_pass.reserved
    if (
        scheduling_pass.reservations is not None
        and isinstance(answer, Choice)
        and answer.reused
        and any(gpu.uuid in reserved for gpu in answer.fresh)
        and scheduling_pass.reservations.prolongs(request, [gpu.uuid for gpu in answer.reused])
    ):
        everything = {**scheduling_pass.held_from(draft, request), **reserved}
        return result_beside(draft, scheduling_pass, request, everything)
    return result


def is_confirmed(draft: Draft, request: Request) -> bool:
    """Whether its head has named the job since the manager's start; true for all other requests."""
    return not request.is_assigned or (request.job_id or "") not in draft.unconfirmed


def takes_part(draft: Draft, request: Request) -> bool:
    """False: the pass skips the request.

    It was set aside; its place is down (launch_hosts.py); its head has not confirmed the job since
    the manager's start (lifecycle/assignments.py); it needs more than its env's quota since that
    was lowered, or more GPUs than are in service (admission.py); or it is a suspended task's, and
    one of its GPUs is lost.
    """
    if set_aside.has(draft, request.request_id):
        return False
    if request.resumes is not None:
        task = draft.tasks[request.resumes]
        return task.suspension is Suspension.SUSPENDED and all(
            draft.gpus[uuid].healthy for uuid in task.gpus
        )
    return (
        launch_hosts.is_up(draft, request)
        and is_confirmed(draft, request)
        and admission.fits_quota(draft, request)
        and admission.fits_node(draft, request)
        and host_use.beyond(draft, request) is None
    )


def _consider_resume(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request, *, plan: bool
) -> PlacementResult:
    """A suspended task gets its own GPUs or none; it keeps their room from later requests.

    Nothing is planned beside it: its memory may be needed at any moment.
    """
    reserved = scheduling_pass.reserved_from(draft, request)
    result = placement.result_of_resume(draft, request, reserved)
    if not isinstance(result.answer, Choice):
        scheduling_pass.resuming.add(request.env)
        _reserve(draft, scheduling_pass, request, result.reserves())
        if plan and (reservations := _plan(draft, scheduling_pass, request)) is not None:
            reservations.shut()
    return result


def _pass_inadmissible(
    draft: Draft, scheduling_pass: SchedulingPass, reservations: ReservationTable, request: Request
) -> None:
    """Adds the unvisited envs that stand before the request to the reservation table."""
    while scheduling_pass.inadmissible_envs and scheduling_pass.inadmissible_envs[-1][
        0
    ] < draft.order(request):
        reservations.waits_for_itself(scheduling_pass.inadmissible_envs.pop()[1])


def _wait(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    result: PlacementResult,
    *,
    plan: bool,
) -> None:
    """Records what it keeps from other envs, or only from its own."""
    env = request.env
    scheduling_pass.passed[env] += 1
    if isinstance(result.answer, Choice) or result.answer in (Shortage.NODE, Shortage.HOST):
        # G, L; N: a Choice that waits is that of a request that is away
        _reserve(draft, scheduling_pass, request, result.reserves())
        if plan and (reservations := _plan(draft, scheduling_pass, request)) is not None:
            if isinstance(result.answer, Choice) or result.answer is Shortage.HOST:
                reservations.comes_back(result.rows)
            else:
                reservations.blocked(request, result.ask, result.rows)
            scheduling_pass.planned += 1
            if scheduling_pass.planned >= draft.config.backfill_depth:
                reservations.shut()
        if scheduling_pass.passed[env] >= draft.config.backfill_depth:
            scheduling_pass.turns[env] = request
        return
    used = accounting.used_gpus(draft, env)
    left = draft.envs[env].quota.gpus - len(used)
    scheduling_pass.turns[env] = request
    # H
    if left > 0 and result.waits_alone() and _is_foreseen(draft, scheduling_pass, request, used):
        _foresee(draft, scheduling_pass, request, result, used, plan=plan)
        return
    if scheduling_pass.reservations is not None:
        scheduling_pass.reservations.waits_for_itself(env)
    if result.answer is Shortage.COMPUTE:  # K
        _reserve(draft, scheduling_pass, request, [gpu.uuid for gpu in used])
    if result.answer is Shortage.LEDGER:
        scheduling_pass.wanting.add(request.request_id)
    if left > 0:  # I
        _hold(draft, scheduling_pass, request, result, used)
    elif result.waits_alone() and scheduling_pass.passed[env] == 1:  # J
        scheduling_pass.full.add(env)


def _reserve(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request, gpus: Iterable[Uuid]
) -> None:
    scheduling_pass.reserved = {**dict.fromkeys(gpus, request), **scheduling_pass.reserved}
    scheduling_pass.all_reserved = all(
        gpu.uuid in scheduling_pass.reserved for gpu in draft.gpus.values() if gpu.usable
    )


def _is_foreseen(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request, used: list[Gpu]
) -> bool:
    """Can it be planned: do time limits give the ends of all its env's own tasks?"""
    if scheduling_pass.foreseen >= draft.config.backfill_depth or None in own_tasks.ends(
        draft, request.env, used
    ):
        return False
    gpus = [gpu for gpu in draft.gpus.values() if gpu.usable]
    return request.run.gpus <= len(gpus) and is_counted(draft, request, gpus)


def _foresee(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    result: PlacementResult,
    used: list[Gpu],
    *,
    plan: bool,
) -> None:
    scheduling_pass.foreseen += 1
    mine = {gpu.uuid for gpu in used}
    _reserve(
        draft,
        scheduling_pass,
        request,
        [gpu.uuid for gpu in draft.gpus.values() if gpu.usable and gpu.uuid not in mine],
    )
    if (
        plan
        and (reservations := _plan(draft, scheduling_pass, request)) is not None
        and reservations.foresee(request)
    ):
        scheduling_pass.chains[request.env] = result


def _hold(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    result: PlacementResult,
    used: list[Gpu],
) -> None:
    """Holds the GPUs that it needs beside those its env's tasks give back."""
    env = request.env
    left = draft.envs[env].quota.gpus - len(used)
    until_ns = None
    if result.waits_alone():
        until_ns = own_tasks.room_at(own_tasks.ends(draft, env, used), request.run.gpus - left)
    sums = own_tasks.Sums(draft, env, used)
    holder = scheduling_pass.holding[env] = Holder(Hold(request, until_ns), result.ask, left, sums)
    _hold_more(draft, scheduling_pass, holder, request, shares=result.ask.reuse_below > 1)


def _hold_more(
    draft: Draft, scheduling_pass: SchedulingPass, holder: Holder, request: Request, *, shares: bool
) -> None:
    """Holds enough for this request, too."""
    sums = holder.sums
    needs = max(0, request.run.gpus - sums.used) if shares else sums.beside(request.run.gpus)
    sums.follow(request.run.gpus)
    more = min(needs, holder.left) - holder.gpus
    if more > 0:
        holder.gpus += more
        open_gpus = [
            gpu
            for gpu in draft.gpus.values()
            if gpu.uuid not in scheduling_pass.held and gpu.uuid not in scheduling_pass.reserved
        ]
        roomy = [gpu for gpu in open_gpus if is_roomy(draft, gpu)]
        rows = [
            row
            for row in placement.candidates(
                draft, holder.hold.request, {}, roomy, scheduling_pass.figures
            )
            if not row.used and row.big_enough
        ]
        policy = placement.order_of(draft, holder.hold.request)
        # Others get the first rows. A GPU that does not qualify may lose its room to sharers, one
        # in use before an idle one: the start of another entry may not move the hold to its GPU.
        ranked = [(2 if qualifies(row, holder.ask) else int(not row.tasks), row) for row in rows]
        last = sorted(ranked, key=lambda each: (each[0], policy(each[1])))[-more:]
        scheduling_pass.held |= dict.fromkeys([row.uuid for _, row in last], holder.hold)


def _follow(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request
) -> PlacementResult | None:
    """Plans it behind its env's first request, or holds GPUs for both."""
    env = request.env
    holder, result = scheduling_pass.holding.get(env), scheduling_pass.chains.get(env)
    if holder is not None:
        _hold_more(
            draft,
            scheduling_pass,
            holder,
            request,
            shares=request.job_id is None or request.run.memory_bytes is not None,
        )
    if result is None or scheduling_pass.reservations is None:
        return None
    _pass_inadmissible(draft, scheduling_pass, scheduling_pass.reservations, request)
    scheduling_pass.followed += 1
    if scheduling_pass.followed >= draft.config.backfill_depth:
        scheduling_pass.reservations.stops(env)
    elif scheduling_pass.reservations.follows(request):
        return result
    del scheduling_pass.chains[env]
    return None


def _plan(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request
) -> ReservationTable | None:
    """The reservation table, made at first use. None: not made while no healthy GPU has room."""
    if scheduling_pass.reservations is None:
        if not any(gpu.usable and is_roomy(draft, gpu) for gpu in draft.gpus.values()):
            return None
        scheduling_pass.reservations = ReservationTable(draft)
        for env in scheduling_pass.turns:
            if env != request.env:
                scheduling_pass.reservations.waits_for_itself(env)
        firsts = [
            first for env in scheduling_pass.left_out if (first := first_of(draft, env)) is not None
        ]
        scheduling_pass.inadmissible_envs = sorted(
            [(draft.order(first), first.env) for first in firsts], reverse=True
        )
        _pass_inadmissible(draft, scheduling_pass, scheduling_pass.reservations, request)
    return scheduling_pass.reservations


def first_of(draft: Draft, env: str) -> Request | None:
    """The first request of an inadmissible env, if any."""
    firsts = [draft.requests[request_id] for request_id in draft.queue.firsts_of(env)]
    return min(
        [request for request in firsts if takes_part(draft, request)], key=draft.order, default=None
    )


def result_beside(
    draft: Draft,
    scheduling_pass: SchedulingPass,
    request: Request,
    reserved: Mapping[Uuid, Request],
) -> PlacementResult:
    """The result of `judge`, computed once per distinct demand."""
    udp, is_job = placement.udp_askers(request), request.job_id is not None
    figures = {} if away(draft, request) else scheduling_pass.figures
    run = request.run
    same = (
        _whose(draft, request.env),
        request.resumes,
        run.gpus,
        request.avoids,
        preference.of_job(draft, request),
        run.memory_bytes,
        run.memory_most_bytes,
        request.world,
        udp,
        is_job,
        None
        if run.compute_percent is None
        else (run.task_class, run.compute_percent, run.predicted),
        frozenset(reserved),
        bool(figures),
    )
    result = scheduling_pass.known.get(same)
    if result is None:
        result = scheduling_pass.known[same] = placement.judge(draft, request, reserved, figures)
    return result


def _whose(draft: Draft, env: str) -> str | tuple[int, int | None, int | None]:
    """The env as a key of `known`: its quota alone if it has nothing on the node."""
    if draft.env_charged.get(env) or first(draft.env_tasks.members(env)) is not None:
        return env
    quota = draft.envs[env].quota
    return quota.gpus, quota.memory_bytes, quota.memory_per_gpu_bytes


def away(draft: Draft, request: Request) -> bool:
    if request.job_id is not None or request.resumes is not None:
        return False
    return all(asker.process in draft.away for asker in request.askers)


def _is_all_reserved(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> bool:
    """All GPUs are reserved, none is open for a while, and it could reuse none."""
    if not scheduling_pass.is_closed():
        return False
    holds = scheduling_pass.holders.get(request.env)
    if holds is None:
        holds = scheduling_pass.holders[request.env] = any(
            not gpu.drained for gpu in accounting.used_gpus(draft, request.env)
        )
    return not holds
