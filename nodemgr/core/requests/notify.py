"""Sends waiting requests their position and reason, and gives a listing the same.

Knows: the result of a scheduling pass (scheduler/passes.py). Must not know: how it decides.
An interactive request's standing is kept, and sent again when it changes. A job's is never sent:
it is made only for a listing, so ten thousand waiting jobs cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import NamedTuple

from client_plugin.messages.form import Reason, reason_of
from nodemgr.core.leases import answers
from nodemgr.core.model.causes import Standing, WaitCause
from nodemgr.core.model.entities import Request, Uuid
from nodemgr.core.scheduler import (
    admission,
    launch_hosts,
    passes,
    placement,
    reasons,
    set_aside,
)
from nodemgr.core.scheduler.allocator import Choice, Shortage, choose
from nodemgr.core.scheduler.placement import PlacementResult
from nodemgr.core.scheduler.set_aside import EntryFailed
from nodemgr.core.state import accounting, cpu_jobs, host_use
from nodemgr.core.state.draft import Draft, line_of
from nodemgr.core.state.work_queue import ServiceOrder


def notify(draft: Draft, scheduling_pass: passes.SchedulingPass) -> None:
    """Sends the standing of each waiter where it changed.

    (A no-wait request is refused in this step.)
    """
    waiters = [draft.requests[request_id] for request_id in set(draft.request_of.values())]
    if not waiters:
        return
    positions, words = QueuePositions(draft), WaitReasons(draft, scheduling_pass)
    for request in sorted(waiters, key=draft.order):
        position, ahead = positions.of(request)
        try:
            standing = words.standing(request, position, ahead)
        except Exception as error:
            raise EntryFailed(request.request_id, error) from error
        if draft.standings.get(request.request_id) != standing:
            draft.standings.put(request.request_id, standing)
            if (draft.agenda.get(("wait", request.request_id)) or draft.now_ns + 1) > draft.now_ns:
                for asker in request.askers:
                    answers.send_wait(draft, asker.process, asker.rid, standing)


class Judged(NamedTuple):
    """Why one request waits, and what its reason is made of."""

    cause: WaitCause
    before: Request | None = None
    """The request of its own env that comes first."""
    reserved: dict[Uuid, Request] | None = None
    """The GPUs that earlier requests keep."""
    result: PlacementResult | None = None
    """Its result beside those."""


class WaitReasons:
    """Why requests wait, at one scheduling pass. Equal reasons are computed once."""

    def __init__(self, draft: Draft, scheduling_pass: passes.SchedulingPass) -> None:
        self._draft = draft
        self._scheduling_pass = scheduling_pass
        self._keepers = sorted(
            {draft.order(keeper) for keeper in scheduling_pass.reserved.values()}
        )
        """Service orders of the requests that keep GPUs."""
        self._reserved: dict[int, dict[Uuid, Request]] = {}
        """By n: the GPUs that the first n of them keep."""
        self._said: dict[tuple[object, ...], tuple[PlacementResult, Reason]] = {}

    def standing(self, request: Request, position: int, ahead: int) -> Standing:
        """`position` in its queue; `ahead`: number in other queues served before it."""
        judged = self.judge(request)
        is_last = request.is_default and position + ahead == sum(self._draft.queued.values())
        why = self._why(request, is_last, judged)
        return Standing(request.priority, position, ahead, judged.cause, why)

    def judge(self, request: Request) -> Judged:
        """The cause, given the GPUs that earlier requests keep."""
        draft = self._draft
        if set_aside.has(draft, request.request_id):
            return Judged(WaitCause.SET_ASIDE)
        if request.resumes is not None:
            reserved = self._reserved_before(draft.order(request), request)
            result = placement.judge(draft, request, reserved, {})
            return Judged(WaitCause.NODE, None, reserved, result)
        if not passes.is_confirmed(draft, request):
            return Judged(WaitCause.UNCONFIRMED)
        if not launch_hosts.is_up(draft, request):
            return Judged(WaitCause.PLACE_DOWN)
        if not admission.fits_quota(draft, request) or host_use.beyond(draft, request):
            return Judged(WaitCause.ABOVE_QUOTA)
        if not admission.fits_node(draft, request):
            return Judged(WaitCause.ABOVE_NODE)
        if request.run.gpus == 0 and cpu_jobs.limit(draft, request.env) is not None:
            return Judged(WaitCause.CPU_JOBS)
        if request.run.gpus == 0 and host_use.needs(request.run):
            return Judged(WaitCause.HOST)
        order = draft.order(request)
        before = self._turn(request.env)
        if before is not None and draft.order(before) < order:
            return Judged(WaitCause.BEHIND_OWN, before)
        reserved = self._reserved_before(order, request)
        result = passes.result_beside(draft, self._scheduling_pass, request, reserved)
        if isinstance(result.answer, Choice):
            away = passes.away(draft, request)
            if not away and self._lacks_host(request):
                return Judged(WaitCause.HOST)
            return Judged(WaitCause.AWAY if away else WaitCause.NEXT)
        if reserved and (before := self._bars_backfill(request)) is not None:
            return Judged(WaitCause.BEHIND_OWN, before)
        return Judged(WaitCause(result.answer.value), None, reserved, result)

    def _lacks_host(self, request: Request) -> bool:
        return host_use.needs(request.run) and (
            host_use.short_of(self._draft, request.env, request.run) is not None
            or passes.delays_for_host(self._draft, self._scheduling_pass, request)
        )

    def _bars_backfill(self, request: Request) -> Request | None:
        """The first entry of its environment, if their quota has no room for both.

        No backfill start may take that room (backfill.ReservationTable), however short it is.
        """
        if request.planned_ms is None:
            return None
        draft = self._draft
        first = passes.first_of(draft, request.env)
        if first is None or draft.order(first) >= draft.order(request):
            return None
        used = len(accounting.used_gpus(draft, request.env))
        if used + first.run.gpus + request.run.gpus <= draft.envs[request.env].quota.gpus:
            return None
        alone = passes.result_beside(draft, self._scheduling_pass, request, {})
        return first if isinstance(alone.answer, Choice) else None

    def _why(self, request: Request, is_last: bool, judged: Judged) -> Reason:
        """The reason, for people."""
        draft = self._draft
        if judged.cause is WaitCause.SET_ASIDE:
            return reason_of(
                "set aside, because the decision about it failed ({fault}): keeps no GPU, and is "
                "tried again once it or a GPU has changed, at most once a minute. Please report "
                "this with the manager's log",
                fault=draft.set_aside[request.request_id].why,
            )
        if request.resumes is not None:
            assert judged.result is not None
            assert judged.reserved is not None
            return reasons.of_resume(draft, request, judged.result.rows, judged.reserved)
        match judged.cause:
            case WaitCause.PLACE_DOWN:
                return reasons.nowhere(request, launch_hosts.why_down(draft, request.run.place))
            case WaitCause.UNCONFIRMED:
                head = reasons.head_of(draft.jobs[request.job_id or ""])
                return reason_of(
                    "waits for the word of {head}, which assigned it: the manager has started anew "
                    "since then",
                    head=head,
                )
            case WaitCause.ABOVE_QUOTA:
                if (bound := host_use.beyond(draft, request)) is not None:
                    return reasons.short_of_host(request, bound)
                quota = draft.envs[request.env].quota
                share = admission.share_above_quota(quota, request)
                if share is not None and request.run.compute_percent is not None:
                    form = "waits until an admin raises its quota: {refusal}"
                    return reason_of(form, refusal=share[1])
                return reasons.above_quota(request, quota.gpus, admission.most_memory(draft, quota))
            case WaitCause.ABOVE_NODE:
                return reasons.above_node(draft, request)
            case WaitCause.CPU_JOBS:
                limit = cpu_jobs.limit(draft, request.env)
                assert limit is not None
                return reasons.cpu_jobs(*limit)
            case WaitCause.HOST:
                return self._short_of_host(request)
            case WaitCause.BEHIND_OWN:
                assert judged.before is not None
                return reasons.behind(request, judged.before)
            case WaitCause.AWAY:
                return reasons.away(request)
            case WaitCause.NEXT:
                return reasons.at_once(request)
            case _:
                return self._shortage(request, is_last, judged)

    def _short_of_host(self, request: Request) -> Reason:
        bound = host_use.short_of(self._draft, request.env, request.run)
        turns = self._scheduling_pass.host_turns
        before = turns.get(request.env) or turns.get("")
        if bound is None and before is not None and before is not request:
            form = "an earlier job, {first}, waits for CPUs or host memory"
            return reason_of(form, first=before.job_id)
        return reasons.at_once(request) if bound is None else reasons.short_of_host(request, bound)

    def _shortage(self, request: Request, is_last: bool, judged: Judged) -> Reason:
        """The reason of a request that lacks GPUs or memory."""
        draft, result, reserved = self._draft, judged.result, judged.reserved
        assert result is not None
        assert reserved is not None
        assert isinstance(result.answer, Shortage)
        whose = None if result.answer is Shortage.NODE else request.env
        fewer = _fewer(draft, result) if is_last else None
        same = (id(result), whose, request.run.gpus, request.run.memory_bytes, fewer)
        said = self._said.get(same)
        if said is None:
            text = reasons.of_shortage(
                draft, request, result.answer, result.ask, result.rows, reserved, fewer
            )
            said = self._said[same] = result, text
        return said[1]

    def _turn(self, env: str) -> Request | None:
        """The request that the env's others wait behind."""
        before = self._scheduling_pass.turns.get(env)
        if (
            before is None
            and env in self._scheduling_pass.left_out
            and (before := passes.first_of(self._draft, env)) is not None
        ):
            self._scheduling_pass.turns[env] = before
        return before

    def _reserved_before(self, order: ServiceOrder, request: Request) -> dict[Uuid, Request]:
        held = [
            (uuid, hold.request)
            for uuid, hold in self._scheduling_pass.held.items()
            if not hold.lets_pass(request, self._draft.now_ns)
        ]
        before = {uuid: holder for uuid, holder in held if self._draft.order(holder) < order}
        reserved = self._all_reserved_before(order)
        return {**before, **reserved} if before else reserved

    def _all_reserved_before(self, order: ServiceOrder) -> dict[Uuid, Request]:
        count = bisect_left(self._keepers, order)
        reserved = self._reserved.get(count)
        if reserved is None:
            keepers = self._scheduling_pass.reserved.items()
            reserved = self._reserved[count] = {
                uuid: keeper for uuid, keeper in keepers if self._draft.order(keeper) < order
            }
        return reserved


def _fewer(draft: Draft, result: PlacementResult) -> int | None:
    """The largest smaller number of GPUs that could be placed now; None: there is none.

    This holds for a new request only while this one is last in the order of service: those behind
    it precede a new one.
    """
    numbers = range(result.ask.gpus - 1, 0, -1)
    return next(
        (
            gpus
            for gpus in numbers
            if isinstance(choose(result.ask._replace(gpus=gpus), result.rows), Choice)
        ),
        None,
    )


class QueuePositions:
    """Positions of requests as a step leaves the queues."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._queue = draft.queue
        changes: dict[str, list[tuple[ServiceOrder, int]]] = {}
        """By queue, what came (more) or went (less) at each place."""
        for request_id, before, request in draft.requests.changes():
            size = 0 if request is None else request.size
            if before is not None:
                name, order = before.priority, self._queue.order(request_id)
                size -= self._queue.size(request_id)
            elif request is not None:
                name, order = request.priority, draft.order(request)
            if size:
                changes.setdefault(name, []).append((order, size))
        for rows in changes.values():
            rows.sort()
        self._changes = {
            name: ([order for order, _ in rows], [0, *accumulate(size for _, size in rows)])
            for name, rows in changes.items()
        }

    def of(self, request: Request) -> tuple[int, int]:
        """Its position in its queue, from 1, and the number in other queues served before it."""
        name, order = request.priority, self._draft.order(request)
        if request.request_id in self._queue:
            position = self._queue.position(request.request_id)
        else:
            position = self._queue.count_up_to(line_of(request), request.queued_ns) + 1
        position += self._changed(name, order)
        others = self._changes.keys() - {name}
        return position, self._queue.ahead(line_of(request), request.queued_ns) + sum(
            self._changed(other, order) for other in others
        )

    def _changed(self, name: str, order: ServiceOrder) -> int:
        """How many more stand before this place than the queue knows."""
        orders, sums = self._changes.get(name, ([], [0]))
        return sums[bisect_left(orders, order)]


def listing(
    state: Draft, now_ns: int, env: str | None = None, after: tuple[str, int] | None = None
) -> Iterator[tuple[Request, Standing]]:
    """Yields every waiting request (of this env) in the order of service.

    Each comes with its standing (of an array's row: that of the first). `after`: a queue and a
    stamp; the listing starts behind that place, even if its request is gone. The state may not
    change meanwhile.
    """
    draft = state.at(now_ns)
    words = WaitReasons(draft, passes.survey(draft))
    for request_id, position, ahead in state.queue.listed(
        after, None if env is None else (env, "")
    ):
        request = state.requests[request_id]
        if env in (None, request.env):
            sent = state.standings.get(request_id)
            if sent is None:
                yield request, words.standing(request, position, ahead)
            else:
                cause = words.judge(request).cause
                yield request, Standing(request.priority, position, ahead, cause, sent.why)


def counts(
    state: Draft, now_ns: int, most: int
) -> tuple[Counter[tuple[str, WaitCause]], Counter[str]]:
    """How many wait, by queue and cause: of the first `most` rows in the order of service.

    Also how many those are, by queue.
    """
    draft = state.at(now_ns)
    words = WaitReasons(draft, passes.survey(draft))
    found: Counter[tuple[str, WaitCause]] = Counter()
    judged: Counter[str] = Counter()
    for request_id in islice(state.queue, most):
        request = state.requests[request_id]
        found[request.priority, words.judge(request).cause] += request.size
        judged[request.priority] += request.size
    return found, judged


class Standings:
    """The standing of single requests, valid while the state does not change."""

    def __init__(self, state: Draft, now_ns: int) -> None:
        draft = state.at(now_ns)
        self._positions = QueuePositions(draft)
        self._words = WaitReasons(draft, passes.survey(draft))

    def of(self, request: Request) -> Standing:
        return self._words.standing(request, *self._positions.of(request))
