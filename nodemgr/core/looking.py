"""One look along the queues: what everybody would get, beside those who came before.

Knows: the order of service, and what an earlier request keeps from later ones. Must not know: what is done about it
(matching.py), and what those who wait are told (telling.py).

One may be overtaken only by what it could not use anyway. A request that is short of the node's GPUs keeps every GPU that
it could ever use: healthy, big enough, not held by its env. A later request gets a fresh GPU only outside of what is
kept; the GPUs that its own env holds it may always reuse, since that takes nothing from anybody. So a gang that wants all
GPUs is never starved by a stream of small requests. A request that is short only of what its own env has (its memory
quota, memory in its ledger, GPUs that it shares with nobody) keeps nothing from other envs, but its turn within its own.
A waiter that is away (disconnected, `timeout_ms` to come back) keeps its place: it is not served, and keeps its GPUs.
A job shares no GPU with its env's other tasks, unless it names its memory: nobody is there to see how crowded it becomes.
A job that takes no GPU takes nothing from anybody, and waits for others of its kind alone (cpu_jobs.py).
A job that nobody could start now, since its place is down (places.py), is passed by everybody and keeps nothing; so is a request
that needs more than its env's quota since that was lowered (admission.py).
Where time limits say when what runs will end, a later request may have a kept GPU as long as that delays nobody who came before
(backfill.py): so many who wait are planned as Config.backfill_depth says, and what the next ones keep is kept from everybody.

What a look costs is what it starts and what it passes: of requests that ask the same (Request.alike) the first that has to
wait answers for all that come later, an env whose requests ask differently is looked at up to Config.backfill_depth times,
and once every GPU is kept only those are looked at who may reuse one. An env whose first waits for its own tasks to end is not
even passed until something of its own changes: it sleeps (Scan.full).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core import admission, books, cpu_jobs, members, places
from nodemgr.core.allocator import ANY_NUMBER, POLICIES, Ask, Candidate, Choice, Shortage, choose, reused
from nodemgr.core.backfill import Board, is_roomy
from nodemgr.core.draft import Draft
from nodemgr.core.model import Gpu, Request, Transport, Uuid
from nodemgr.core.tables import first
from nodemgr.core.work_queue import Order, Walk


class Verdict(NamedTuple):
    """What a request would get now."""

    answer: Choice | Shortage
    ask: Ask
    rows: list[Candidate]

    def keeps(self) -> list[Uuid]:
        """What it keeps from later requests, if it is short of the node's GPUs: all that it could ever use."""
        return [row.uuid for row in self.rows if not row.used and row.big_enough and not row.kept]


@dataclass(slots=True)
class Scan:
    """What one look along the queues has found so far."""

    kept: dict[Uuid, Request] = field(default_factory=dict)
    """GPUs, and the request that keeps each."""
    turns: dict[str, Request] = field(default_factory=dict)
    """Envs whose later requests wait behind this one."""
    board: Board | None = None
    """Who may have kept GPUs for a while; None as long as nobody could."""
    asleep: list[tuple[Order, str]] = field(default_factory=list)
    """Envs that the look does not come by, and where the first of each stands, as far as the board does not know of them: the first
    one last."""
    all_kept: bool = False
    """Every GPU waits for somebody."""
    narrowed: bool = False
    """Only those are passed who hold GPUs."""
    full: set[str] = field(default_factory=set)
    """Envs of whom nobody can be served before one of their own tasks has ended or their quota is raised, whatever others do."""
    short: dict[str, Verdict] = field(default_factory=dict)
    """What those were told who are short of the node's GPUs: nobody who asks the same (Request.alike) is told better later."""
    planned: int = 0
    """How many had to wait while the board was looked at."""
    passed: Counter[str] = field(default_factory=Counter)
    """How many wait on of each env, of those that were looked at: when a later request of theirs is served, they may reuse what it
    holds."""
    holders: dict[str, bool] = field(default_factory=dict)
    """Envs, and whether they hold a GPU that could be reused."""
    wanting: set[str] = field(default_factory=set)
    """Requests that wait for memory in their env's ledger."""
    known: dict[tuple[object, ...], Verdict] = field(default_factory=dict)
    """Verdicts on requests that ask the same beside the same kept GPUs, as long as nothing is served; one for all envs that hold
    nothing and may have the same."""

    def settled(self) -> bool:
        """No kept GPU can be had for a while either: who asks the same as one who waits has to wait."""
        return self.board is None or not self.board.open(self.kept)

    def is_closed(self) -> bool:
        """Nobody gets a GPU any more that his env does not hold already: for the rest of this look."""
        return self.all_kept and self.settled()


def candidates(draft: Draft, request: Request, kept: Mapping[Uuid, Request], gpus: Iterable[Gpu]) -> list[Candidate]:
    """Those of the GPUs that are healthy, as the request's env sees them."""
    env, named_bytes, udp_askers = request.env, request.memory_bytes, _udp_askers(request)
    quota = draft.envs[env].quota
    rows = []
    for gpu in gpus:
        if not gpu.healthy:
            continue
        grant = draft.grants.get((env, gpu.uuid))
        used = grant is not None and grant.tasks > grant.stalled_tasks
        full_bytes = books.full_grant(quota, gpu)
        wanted_bytes = named_bytes
        if udp_askers:
            wanted_bytes = udp_askers * members.share(draft, env, gpu, named_bytes, request.world)
        rows.append(
            Candidate(
                gpu.uuid,
                gpu.index,
                used,
                draft.active.get(gpu.uuid) or 0,
                books.gpu_room(draft, gpu),
                0 if used else books.need(draft, env, gpu.uuid, grant, full_bytes),
                named_bytes is None or named_bytes <= full_bytes,
                wanted_bytes is None or members.has_free(draft, env, gpu, wanted_bytes),
                gpu.uuid in kept,
            )
        )
    return rows


def _udp_askers(request: Request) -> int:
    return sum([asker.transport is Transport.UDP for asker in request.askers])


def judge(draft: Draft, request: Request, kept: Mapping[Uuid, Request]) -> Verdict:
    """What the request would get now, beside those who keep some GPUs."""
    quota, policy = draft.envs[request.env].quota, POLICIES[draft.config.placement]
    ask = Ask(
        request.gpus, quota.gpus, books.quota_room(draft, request.env), draft.config.max_tasks_per_gpu, _reuse_below(draft, request)
    )
    used = books.used_gpus(draft, request.env)
    if ask.reuse_below == 1 and ask.gpus > max(0, ask.quota_gpus - len(used)):  # whatever the node has
        return Verdict(Shortage.OWN_GPUS, ask, candidates(draft, request, kept, used))
    if len(used) >= quota.gpus:  # nothing can be fresh: most requests of a busy node need no look at the others
        rows = candidates(draft, request, kept, used)
        answer = choose(ask, rows, policy)
        if isinstance(answer, Choice):
            return Verdict(answer, ask, rows)
    rows = candidates(draft, request, kept, draft.gpus.values())
    return Verdict(choose(ask, rows, policy), ask, rows)


def reuse(draft: Draft, request: Request) -> Choice | None:
    """What `judge` answers to most requests of a busy node, in few steps: to an interactive one without a named memory, of an env that
    holds all the GPUs that it may. None: only a closer look can tell."""
    held = books.used_gpus(draft, request.env)
    if request.gpus > len(held) or len(held) < draft.envs[request.env].quota.gpus:
        return None
    if request.job_id is not None or request.memory_bytes is not None or _udp_askers(request):
        return None
    active = draft.active.get
    rows = [Candidate(gpu.uuid, gpu.index, True, active(gpu.uuid) or 0, books.gpu_room(draft, gpu), 0) for gpu in held]
    return Choice((), reused(rows, request.gpus), len(held))


def _reuse_below(draft: Draft, request: Request) -> int:
    if request.job_id is None:
        return ANY_NUMBER
    return 1 if request.memory_bytes is None else draft.config.max_tasks_per_gpu


def survey(draft: Draft) -> Scan:
    """What a look finds when everybody who can be served has been."""
    scan = Scan()
    walk = draft.walk()
    for request_id in walk:
        verdict = look(draft, scan, draft.requests[request_id], plan=False)
        if verdict is None or not isinstance(verdict.answer, Choice):
            walk.drop(walk.group)
        narrow(draft, scan, walk)
    return scan


def narrow(draft: Draft, scan: Scan, walk: Walk) -> None:
    """Once nobody gets a fresh GPU any more, the rest of the walk is along those who hold some, and who need none."""
    if not scan.narrowed and scan.is_closed():
        scan.narrowed = True
        walk.narrow({"", *draft.env_tasks.base, *draft.env_tasks.added})


def look(draft: Draft, scan: Scan, request: Request, *, plan: bool = True) -> Verdict | None:
    """What the request would get, noting what it keeps if it has to wait; None: nothing, without a look. `plan`: it may get what
    others keep, for a while."""
    env = request.env
    if not takes_part(draft, request):
        return None
    if request.gpus == 0:  # a job that takes nothing from anybody
        return Verdict(Choice((), (), 0), Ask(0, 0, None, 0), []) if cpu_jobs.limit(draft, env) is None else None
    if env in scan.turns or _all_kept(draft, scan, request):
        scan.passed[env] += 1
        return None
    if scan.board is not None:
        _passes_sleepers(draft, scan, scan.board, request)
    known = scan.short.get(request.alike)
    if known is not None:
        _wait(draft, scan, request, known, plan=plan)
        return known
    kept = scan.kept if scan.board is None else scan.board.kept(request, scan.kept)
    verdict = verdict_beside(draft, scan, request, kept)
    if isinstance(verdict.answer, Choice) and not away(draft, request):
        return verdict
    if verdict.answer is Shortage.NODE:
        scan.short[request.alike] = verdict
    _wait(draft, scan, request, verdict, plan=plan)
    return verdict


def takes_part(draft: Draft, request: Request) -> bool:
    """False: the request is passed as if it were not there."""
    return places.is_up(draft, request) and admission.is_admissible(draft, request)


def _passes_sleepers(draft: Draft, scan: Scan, board: Board, request: Request) -> None:
    """The board knows of all who wait before it from now on, also of those that the look does not come by."""
    while scan.asleep and scan.asleep[-1][0] < draft.order(request):
        board.waits_for_itself(scan.asleep.pop()[1])


def _wait(draft: Draft, scan: Scan, request: Request, verdict: Verdict, *, plan: bool) -> None:
    """It keeps what it waits for from others, or from its own env."""
    env = request.env
    scan.passed[env] += 1
    if isinstance(verdict.answer, Choice) or verdict.answer is Shortage.NODE:
        scan.kept = {**dict.fromkeys(verdict.keeps(), request), **scan.kept}
        scan.all_kept = all(gpu.uuid in scan.kept for gpu in draft.gpus.values() if gpu.healthy)
        if plan:
            _plan(draft, scan, request, verdict)
        if scan.passed[env] >= draft.config.backfill_depth:
            scan.turns[env] = request
    else:
        scan.turns[env] = request
        if scan.board is not None:
            scan.board.waits_for_itself(env)
        if verdict.answer is Shortage.LEDGER:
            scan.wanting.add(request.request_id)
        elif verdict.answer is Shortage.OWN_GPUS and verdict.ask.reuse_below == 1 and scan.passed[env] == 1:
            scan.full.add(env)


def _plan(draft: Draft, scan: Scan, request: Request, verdict: Verdict) -> None:
    """When will it be served, and who may have what it keeps until then? Nobody asks while nothing of it is free."""
    if scan.board is None:
        if not any(gpu.healthy and is_roomy(draft, gpu) for gpu in draft.gpus.values()):
            return
        scan.board = Board(draft)
        for env in scan.turns:
            scan.board.waits_for_itself(env)
        firsts = [first for env in draft.asleep() if (first := first_of(draft, env)) is not None]
        scan.asleep = sorted([(draft.order(first), first.env) for first in firsts], reverse=True)
        _passes_sleepers(draft, scan, scan.board, request)
    if isinstance(verdict.answer, Choice):
        scan.board.comes_back(verdict.rows)
    else:
        scan.board.blocked(request, verdict.ask, verdict.rows)
    scan.planned += 1
    if scan.planned >= draft.config.backfill_depth:
        scan.board.shut()


def first_of(draft: Draft, env: str) -> Request | None:
    """Of an env that sleeps him behind whom its others wait."""
    firsts = [draft.requests[request_id] for request_id in draft.state.queue.firsts_of(env)]
    return min([request for request in firsts if takes_part(draft, request)], key=draft.order, default=None)


def verdict_beside(draft: Draft, scan: Scan, request: Request, kept: Mapping[Uuid, Request]) -> Verdict:
    """As `judge`, each question once."""
    udp, is_job = _udp_askers(request), request.job_id is not None
    same = (_whose(draft, request.env), request.gpus, request.memory_bytes, request.world, udp, is_job, frozenset(kept))
    verdict = scan.known.get(same)
    if verdict is None:
        verdict = scan.known[same] = judge(draft, request, kept)
    return verdict


def _whose(draft: Draft, env: str) -> str | tuple[int, int | None, int | None]:
    """What of its env counts for a verdict: of one that has nothing on the node its quota alone."""
    if draft.env_charged.get(env) or first(draft.env_tasks.members(env)) is not None:
        return env
    quota = draft.envs[env].quota
    return quota.gpus, quota.memory_bytes, quota.memory_per_gpu_bytes


def away(draft: Draft, request: Request) -> bool:
    return request.job_id is None and all(asker.process in draft.away for asker in request.askers)


def _all_kept(draft: Draft, scan: Scan, request: Request) -> bool:
    """Every GPU waits for somebody and is not to be had even for a while, and it could reuse none."""
    if not scan.is_closed():
        return False
    holds = scan.holders.get(request.env)
    if holds is None:
        holds = scan.holders[request.env] = bool(books.used_gpus(draft, request.env))
    return not holds
