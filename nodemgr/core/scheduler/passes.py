"""One scheduling pass: what everybody would get, beside those who came before.

Knows: the order of service, and what an earlier request keeps from later ones. Must not know: what is done about it
(lifecycle/matching.py), and what those who wait are told (lifecycle/notify.py).

One may be overtaken only by what it could not use anyway. A request that is short of the node's GPUs reserves every GPU that
it could ever use: healthy, big enough, not held by its env. A later request gets a fresh GPU only outside of what is
reserved; the GPUs that its own env holds it may always reuse, since that takes nothing from anybody. So a gang that wants all
GPUs is never starved by a stream of small requests.

A request may be short only of what its own env has: GPUs in its quota, its memory quota, memory in its ledger. The later requests
of its env wait behind it. What it keeps from other envs depends on what is known of the end of its env's own tasks:
- Time limits tell all ends: the request is planned like any other, and its env's release times are part of its earliest start
  (backfill.py). So are the requests behind it in its env. A later request goes first only if that delays none of them.
- Some end is unknown: the request holds the idle GPUs that it needs beside those that its own tasks give back (own_tasks.Sums).
  A request without a time limit may not have them, since it could stay for ever. A request with a limit may: the GPUs do not lie
  idle while a task of the env runs on, and the delay is at most that limit, once. If time limits tell when the env has room at the
  latest, a later request has to end by then. As soon as the env has room, the request is short of the node's GPUs and keeps them.
What an env uses and holds is never more than its quota. An env that submits many equal jobs beyond its quota holds nothing: one of
its tasks that ends gives back what its next job needs. An overdue task counts as one that ends now.

A waiter that is away (disconnected, `timeout_ms` to come back) keeps its place: it is not served, and keeps its GPUs.
A job shares no GPU with its env's other tasks, unless it names its memory: nobody is there to see how crowded it becomes.
A job that takes no GPU takes nothing from anybody, and waits for others of its kind alone (state/cpu_jobs.py).
A job that nobody could start now, since its place is down (launch_hosts.py), is passed by everybody and keeps nothing; so is a request
that needs more than its env's quota since that was lowered (admission.py).
Where time limits say when what runs will end, a later request may have a reserved GPU as long as that delays nobody who came before
(backfill.py): so many who wait are planned as Config.backfill_depth says, and what the next ones keep is kept from everybody.

What a scheduling pass costs is what it starts and what it passes: of requests that ask the same (Request.equivalence_group) the first that
has to
wait answers for all that come later, an env whose requests ask differently is looked at up to Config.backfill_depth times,
and once every GPU is reserved only those are looked at who may reuse one. An env that uses its whole quota and whose first waits for its
own tasks to end needs no idle GPU: it is not even passed until something of its own changes: it is inadmissible (SchedulingPass.full). Of
requests that
wait for their own env's tasks, at most Config.backfill_depth firsts and as many behind them are planned; for others GPUs are held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core.model.entities import MS, Gpu, Request, Transport, Uuid
from nodemgr.core.scheduler import admission, launch_hosts, own_tasks
from nodemgr.core.scheduler.allocator import ANY_NUMBER, POLICIES, Ask, Candidate, Choice, Shortage, choose, qualifies, reused
from nodemgr.core.scheduler.backfill import ReservationTable, is_counted, is_roomy
from nodemgr.core.state import accounting, cpu_jobs, members
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.overlay import first
from nodemgr.core.state.work_queue import ServiceOrder, Walk


class PlacementResult(NamedTuple):
    """What a request would get now."""

    answer: Choice | Shortage
    ask: Ask
    rows: list[Candidate]

    def reserves(self) -> list[Uuid]:
        """What it keeps from later requests, if it is short of the node's GPUs: all that it could ever use."""
        return [row.uuid for row in self.rows if not row.used and row.big_enough and not row.reserved]

    def waits_alone(self) -> bool:
        """Is it short of GPUs in its env's quota, none of which it would share?"""
        return self.answer is Shortage.OWN_GPUS and self.ask.reuse_below == 1

    def used(self, draft: Draft) -> list[Gpu]:
        """Those that its env uses."""
        return [draft.gpus[row.uuid] for row in self.rows if row.used]


class Hold(NamedTuple):
    """A GPU that somebody will need when his own env has given something back."""

    request: Request
    until_ns: int | None
    """When that is at the latest; None: no time limit tells."""

    def lets_pass(self, request: Request, now_ns: int) -> bool:
        """One that ends before that: whoever tells a limit ends before a time that nobody knows."""
        limit_ms = request.time_limit_ms
        return limit_ms is not None and (self.until_ns is None or now_ns + limit_ms * MS <= self.until_ns)


@dataclass(slots=True)
class Holder:
    """An env whose first waits for its own tasks."""

    hold: Hold
    ask: Ask
    left: int
    """So many GPUs more it may have."""
    sums: own_tasks.Sums
    gpus: int = 0
    """So many are held for it."""


@dataclass(slots=True)
class SchedulingPass:
    """What one scheduling pass has found so far."""

    reserved: dict[Uuid, Request] = field(default_factory=dict)
    """GPUs, and the request that keeps each."""
    turns: dict[str, Request] = field(default_factory=dict)
    """Envs whose later requests wait behind this one."""
    chains: dict[str, PlacementResult] = field(default_factory=dict)
    """Those of them whose later requests are planned behind it, and what it was told."""
    held: dict[Uuid, Hold] = field(default_factory=dict)
    """GPUs that are held for requests that wait for their own env's tasks, and are not reserved."""
    holding: dict[str, Holder] = field(default_factory=dict)
    """By env, for how many. Of those that ask the same, the second is looked at, too: it may run beside the first."""
    reservations: ReservationTable | None = None
    """Who may have reserved GPUs for a while; None as long as nobody could."""
    inadmissible_envs: list[tuple[ServiceOrder, str]] = field(default_factory=list)
    """Envs that the scheduling pass does not come by, and where the first of each stands, as far as the reservation table does not know of
    them: the first
    one last."""
    all_reserved: bool = False
    """Every GPU waits for somebody."""
    narrowed: bool = False
    """Only those are passed who hold GPUs."""
    full: set[str] = field(default_factory=set)
    """Envs of whom nobody can be served before one of their own tasks has ended or their quota is raised, whatever others do."""
    short: dict[str, PlacementResult] = field(default_factory=dict)
    """What those were told who are short of the node's GPUs: nobody who asks the same (Request.equivalence_group) is told better later."""
    planned: int = 0
    """How many had to wait while the reservation table was looked at."""
    foreseen: int = 0
    """How many envs' firsts are planned though they wait for their own tasks;"""
    followed: int = 0
    """and how many of those that come behind them in their envs."""
    passed: Counter[str] = field(default_factory=Counter)
    """How many wait on of each env, of those that were looked at: when a later request of theirs is served, they may reuse what it
    holds."""
    holders: dict[str, bool] = field(default_factory=dict)
    """Envs, and whether they hold a GPU that could be reused."""
    wanting: set[str] = field(default_factory=set)
    """Requests that wait for memory in their env's ledger."""
    known: dict[tuple[object, ...], PlacementResult] = field(default_factory=dict)
    """Placement results on requests that ask the same beside the same reserved GPUs, as long as nothing is served; one for all envs that
    hold
    nothing and may have the same."""

    def reserved_from(self, draft: Draft, request: Request) -> Mapping[Uuid, Request]:
        """The GPUs that this one may not have."""
        reserved = self.reserved if self.reservations is None else self.reservations.reserved(request, self.reserved)
        held = {uuid: hold.request for uuid, hold in self.held.items() if not hold.lets_pass(request, draft.now_ns)}
        return {**held, **reserved} if held else reserved

    def settled(self) -> bool:
        """No reserved GPU can be had for a while either: who asks the same as one who waits has to wait."""
        return self.reservations is None or not self.reservations.open(self.reserved)

    def is_closed(self) -> bool:
        """Nobody gets a GPU any more that his env does not hold already: for the rest of this scheduling pass."""
        return self.all_reserved and self.settled()


def candidates(draft: Draft, request: Request, reserved: Mapping[Uuid, Request], gpus: Iterable[Gpu]) -> list[Candidate]:
    """Those of the GPUs that are healthy, as the request's env sees them."""
    env, named_bytes, udp_askers = request.env, request.memory_bytes, _udp_askers(request)
    quota = draft.envs[env].quota
    rows = []
    for gpu in gpus:
        if not gpu.healthy:
            continue
        grant = draft.grants.get((env, gpu.uuid))
        used = grant is not None and grant.tasks > grant.stalled_tasks
        full_bytes = accounting.full_grant(quota, gpu)
        wanted_bytes = named_bytes
        if udp_askers:
            wanted_bytes = udp_askers * members.share(draft, env, gpu, named_bytes, request.world)
        rows.append(
            Candidate(
                gpu.uuid,
                gpu.index,
                used,
                draft.active.get(gpu.uuid) or 0,
                accounting.gpu_room(draft, gpu),
                0 if used else accounting.need(draft, env, gpu.uuid, grant, full_bytes),
                named_bytes is None or named_bytes <= full_bytes,
                wanted_bytes is None or members.has_free(draft, env, gpu, wanted_bytes),
                gpu.uuid in reserved,
            )
        )
    return rows


def _udp_askers(request: Request) -> int:
    return sum([asker.transport is Transport.UDP for asker in request.askers])


def judge(draft: Draft, request: Request, reserved: Mapping[Uuid, Request]) -> PlacementResult:
    """What the request would get now, beside those who keep some GPUs."""
    quota, policy = draft.envs[request.env].quota, POLICIES[draft.config.placement]
    ask = Ask(
        request.gpus, quota.gpus, accounting.quota_room(draft, request.env), draft.config.max_tasks_per_gpu, _reuse_below(draft, request)
    )
    alone = short_of_quota(draft, request)
    if alone is not None:
        return alone
    used = accounting.used_gpus(draft, request.env)
    if len(used) >= quota.gpus:  # nothing can be fresh: most requests of a busy node need no look at the others
        rows = candidates(draft, request, reserved, used)
        answer = choose(ask, rows, policy)
        if isinstance(answer, Choice):
            return PlacementResult(answer, ask, rows)
    rows = candidates(draft, request, reserved, draft.gpus.values())
    return PlacementResult(choose(ask, rows, policy), ask, rows)


def short_of_quota(draft: Draft, request: Request) -> PlacementResult | None:
    """What is answered to a request that shares no GPU and is beyond what its quota leaves: whatever the node has, and others keep."""
    if _reuse_below(draft, request) > 1:
        return None
    quota_gpus, used = draft.envs[request.env].quota.gpus, accounting.used_gpus(draft, request.env)
    if request.gpus <= max(0, quota_gpus - len(used)):
        return None
    ask = Ask(request.gpus, quota_gpus, accounting.quota_room(draft, request.env), draft.config.max_tasks_per_gpu, 1)
    return PlacementResult(Shortage.OWN_GPUS, ask, candidates(draft, request, {}, used))


def reuse(draft: Draft, request: Request) -> Choice | None:
    """What `judge` answers to most requests of a busy node, in few steps: to an interactive one without a named memory, of an env that
    holds all the GPUs that it may. None: only a closer look can tell."""
    held = accounting.used_gpus(draft, request.env)
    if request.gpus > len(held) or len(held) < draft.envs[request.env].quota.gpus:
        return None
    if request.job_id is not None or request.memory_bytes is not None or _udp_askers(request):
        return None
    active = draft.active.get
    rows = [Candidate(gpu.uuid, gpu.index, True, active(gpu.uuid) or 0, accounting.gpu_room(draft, gpu), 0) for gpu in held]
    return Choice((), reused(rows, request.gpus), len(held))


def _reuse_below(draft: Draft, request: Request) -> int:
    if request.job_id is None:
        return ANY_NUMBER
    return 1 if request.memory_bytes is None else draft.config.max_tasks_per_gpu


def survey(draft: Draft) -> SchedulingPass:
    """What a scheduling pass finds when everybody who can be served has been."""
    scheduling_pass = SchedulingPass()
    walk = draft.walk()
    for request_id in walk:
        request = draft.requests[request_id]
        result = consider(draft, scheduling_pass, request, plan=False)
        if result is None or (not isinstance(result.answer, Choice) and request.env not in scheduling_pass.holding):
            walk.drop(walk.group)
        narrow(draft, scheduling_pass, walk)
    return scheduling_pass


def narrow(draft: Draft, scheduling_pass: SchedulingPass, walk: Walk) -> None:
    """Once nobody gets a fresh GPU any more, the rest of the walk is along those who hold some, and who need none."""
    if not scheduling_pass.narrowed and scheduling_pass.is_closed():
        scheduling_pass.narrowed = True
        walk.narrow({"", *draft.env_tasks.base, *draft.env_tasks.added})


def consider(draft: Draft, scheduling_pass: SchedulingPass, request: Request, *, plan: bool = True) -> PlacementResult | None:
    """What the request would get, noting what it keeps if it has to wait; None: nothing, without a scheduling pass. `plan`: it may get what
    others keep, for a while."""
    env = request.env
    if not takes_part(draft, request):
        return None
    if request.gpus == 0:  # a job that takes nothing from anybody
        return PlacementResult(Choice((), (), 0), Ask(0, 0, None, 0), []) if cpu_jobs.limit(draft, env) is None else None
    if env in scheduling_pass.turns:
        scheduling_pass.passed[env] += 1
        return _follow(draft, scheduling_pass, request)
    if _is_all_reserved(draft, scheduling_pass, request):
        scheduling_pass.passed[env] += 1
        return None
    if scheduling_pass.reservations is not None:
        _pass_inadmissible(draft, scheduling_pass, scheduling_pass.reservations, request)
    known = scheduling_pass.short.get(request.equivalence_group)
    if known is not None:
        _wait(draft, scheduling_pass, request, known, plan=plan)
        return known
    result = short_of_quota(draft, request) or result_beside(draft, scheduling_pass, request, scheduling_pass.reserved_from(draft, request))
    if isinstance(result.answer, Choice) and not away(draft, request):
        return result
    if result.answer is Shortage.NODE:
        scheduling_pass.short[request.equivalence_group] = result
    _wait(draft, scheduling_pass, request, result, plan=plan)
    return result


def takes_part(draft: Draft, request: Request) -> bool:
    """False: the request is passed as if it were not there."""
    return launch_hosts.is_up(draft, request) and admission.fits_quota(draft, request)


def _pass_inadmissible(draft: Draft, scheduling_pass: SchedulingPass, reservations: ReservationTable, request: Request) -> None:
    """The reservation table knows of all who wait before it from now on, also of those that the scheduling pass does not come by."""
    while scheduling_pass.inadmissible_envs and scheduling_pass.inadmissible_envs[-1][0] < draft.order(request):
        reservations.waits_for_itself(scheduling_pass.inadmissible_envs.pop()[1])


def _wait(draft: Draft, scheduling_pass: SchedulingPass, request: Request, result: PlacementResult, *, plan: bool) -> None:
    """It keeps what it waits for from others, or from its own env."""
    env = request.env
    scheduling_pass.passed[env] += 1
    if isinstance(result.answer, Choice) or result.answer is Shortage.NODE:
        _reserve(draft, scheduling_pass, request, result.reserves())
        if plan and (reservations := _plan(draft, scheduling_pass, request)) is not None:
            if isinstance(result.answer, Choice):
                reservations.comes_back(result.rows)
            else:
                reservations.blocked(request, result.ask, result.rows)
            scheduling_pass.planned += 1
            if scheduling_pass.planned >= draft.config.backfill_depth:
                reservations.shut()
        if scheduling_pass.passed[env] >= draft.config.backfill_depth:
            scheduling_pass.turns[env] = request
        return
    used = result.used(draft)
    left = result.ask.quota_gpus - len(used)
    scheduling_pass.turns[env] = request
    if left > 0 and result.waits_alone() and _is_foreseen(draft, scheduling_pass, request, used):
        _foresee(draft, scheduling_pass, request, result, used, plan=plan)
        return
    if scheduling_pass.reservations is not None:
        scheduling_pass.reservations.waits_for_itself(env)
    if result.answer is Shortage.LEDGER:
        scheduling_pass.wanting.add(request.request_id)
    if left > 0:
        _hold(draft, scheduling_pass, request, result, used)
    elif result.waits_alone() and scheduling_pass.passed[env] == 1:
        scheduling_pass.full.add(env)


def _reserve(draft: Draft, scheduling_pass: SchedulingPass, request: Request, gpus: Iterable[Uuid]) -> None:
    scheduling_pass.reserved = {**dict.fromkeys(gpus, request), **scheduling_pass.reserved}
    scheduling_pass.all_reserved = all(gpu.uuid in scheduling_pass.reserved for gpu in draft.gpus.values() if gpu.healthy)


def _is_foreseen(draft: Draft, scheduling_pass: SchedulingPass, request: Request, used: list[Gpu]) -> bool:
    """Can it be planned like one that waits for the node: do time limits tell when all of its env's own tasks end?"""
    if scheduling_pass.foreseen >= draft.config.backfill_depth or None in own_tasks.ends(draft, request.env, used):
        return False
    gpus = [gpu for gpu in draft.gpus.values() if gpu.healthy]
    return request.gpus <= len(gpus) and is_counted(draft, request, gpus)


def _foresee(
    draft: Draft, scheduling_pass: SchedulingPass, request: Request, result: PlacementResult, used: list[Gpu], *, plan: bool
) -> None:
    scheduling_pass.foreseen += 1
    mine = {gpu.uuid for gpu in used}
    _reserve(draft, scheduling_pass, request, [gpu.uuid for gpu in draft.gpus.values() if gpu.healthy and gpu.uuid not in mine])
    if plan and (reservations := _plan(draft, scheduling_pass, request)) is not None and reservations.foresee(request):
        scheduling_pass.chains[request.env] = result


def _hold(draft: Draft, scheduling_pass: SchedulingPass, request: Request, result: PlacementResult, used: list[Gpu]) -> None:
    """Holds GPUs that it needs beside what its env's own tasks give back."""
    env, left = request.env, result.ask.quota_gpus - len(used)
    until_ns = None
    if result.waits_alone():
        until_ns = own_tasks.room_at(own_tasks.ends(draft, env, used), request.gpus - left)
    sums = own_tasks.Sums(draft, env, used)
    holder = scheduling_pass.holding[env] = Holder(Hold(request, until_ns), result.ask, left, sums)
    _hold_more(draft, scheduling_pass, holder, request, shares=result.ask.reuse_below > 1)


def _hold_more(draft: Draft, scheduling_pass: SchedulingPass, holder: Holder, request: Request, *, shares: bool) -> None:
    """So that its env has enough for this one, too."""
    sums = holder.sums
    needs = max(0, request.gpus - sums.used) if shares else sums.beside(request.gpus)
    sums.follow(request.gpus)
    more = min(needs, holder.left) - holder.gpus
    if more > 0:
        holder.gpus += more
        open_gpus = [
            gpu for gpu in draft.gpus.values() if gpu.uuid not in scheduling_pass.held and gpu.uuid not in scheduling_pass.reserved
        ]
        roomy = [gpu for gpu in open_gpus if is_roomy(draft, gpu)]
        rows = [row for row in candidates(draft, holder.hold.request, {}, roomy) if not row.used and row.big_enough]
        policy = POLICIES[draft.config.placement]
        # Others have the first. One that it could not have now may lose its room to those who share GPUs.
        last = sorted(rows, key=lambda row: (qualifies(row, holder.ask), policy(row)))[-more:]
        scheduling_pass.held |= dict.fromkeys([row.uuid for row in last], holder.hold)


def _follow(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> PlacementResult | None:
    """Behind its env's first: it is planned behind it, or the same is held for both."""
    env = request.env
    holder, result = scheduling_pass.holding.get(env), scheduling_pass.chains.get(env)
    if holder is not None:
        _hold_more(draft, scheduling_pass, holder, request, shares=request.job_id is None or request.memory_bytes is not None)
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


def _plan(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> ReservationTable | None:
    """What tells when it will be served, and who may have what it keeps until then. None: nobody asks while nothing is free."""
    if scheduling_pass.reservations is None:
        if not any(gpu.healthy and is_roomy(draft, gpu) for gpu in draft.gpus.values()):
            return None
        scheduling_pass.reservations = ReservationTable(draft)
        for env in scheduling_pass.turns:
            if env != request.env:
                scheduling_pass.reservations.waits_for_itself(env)
        firsts = [first for env in draft.inadmissible_envs() if (first := first_of(draft, env)) is not None]
        scheduling_pass.inadmissible_envs = sorted([(draft.order(first), first.env) for first in firsts], reverse=True)
        _pass_inadmissible(draft, scheduling_pass, scheduling_pass.reservations, request)
    return scheduling_pass.reservations


def first_of(draft: Draft, env: str) -> Request | None:
    """Of an inadmissible env him behind whom its others wait."""
    firsts = [draft.requests[request_id] for request_id in draft.state.queue.firsts_of(env)]
    return min([request for request in firsts if takes_part(draft, request)], key=draft.order, default=None)


def result_beside(draft: Draft, scheduling_pass: SchedulingPass, request: Request, reserved: Mapping[Uuid, Request]) -> PlacementResult:
    """As `judge`, each question once."""
    udp, is_job = _udp_askers(request), request.job_id is not None
    same = (_whose(draft, request.env), request.gpus, request.memory_bytes, request.world, udp, is_job, frozenset(reserved))
    result = scheduling_pass.known.get(same)
    if result is None:
        result = scheduling_pass.known[same] = judge(draft, request, reserved)
    return result


def _whose(draft: Draft, env: str) -> str | tuple[int, int | None, int | None]:
    """What of its env counts for a placement result: of one that has nothing on the node its quota alone."""
    if draft.env_charged.get(env) or first(draft.env_tasks.members(env)) is not None:
        return env
    quota = draft.envs[env].quota
    return quota.gpus, quota.memory_bytes, quota.memory_per_gpu_bytes


def away(draft: Draft, request: Request) -> bool:
    return request.job_id is None and all(asker.process in draft.away for asker in request.askers)


def _is_all_reserved(draft: Draft, scheduling_pass: SchedulingPass, request: Request) -> bool:
    """Every GPU waits for somebody and is not to be had even for a while, and it could reuse none."""
    if not scheduling_pass.is_closed():
        return False
    holds = scheduling_pass.holders.get(request.env)
    if holds is None:
        holds = scheduling_pass.holders[request.env] = bool(accounting.used_gpus(draft, request.env))
    return not holds
