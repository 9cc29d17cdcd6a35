"""What those who wait are told, and what a listing says of them: the place of each, and why it waits.

Knows: what a look along the queues found (scheduler/looking.py). Must not know: how it is decided who is served.
An interactive waiter's line is kept and sent again when it changes. Nobody is told of a job's: its line is made when somebody
looks, so ten thousand of them that wait cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from nodemgr.core.lifecycle import answers
from nodemgr.core.model.model import Request, Uuid
from nodemgr.core.scheduler import admission, looking, places, reasons
from nodemgr.core.scheduler.allocator import POLICIES, Choice, Shortage, choose
from nodemgr.core.scheduler.looking import Verdict
from nodemgr.core.state import cpu_jobs
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.state import State
from nodemgr.core.state.work_queue import Order


def tell(draft: Draft, scan: looking.Scan, now_ns: int) -> None:
    """Tells those who wait, where it changed for them. (Who would not wait is refused within this step.)"""
    waiters = [draft.requests[request_id] for request_id in set(draft.request_of.values())]
    if not waiters:
        return
    places, words = Places(draft), Words(draft, scan)
    for request in sorted(waiters, key=draft.order):
        position, ahead = places.of(request)
        line = words.line(request, position, ahead)
        if draft.reasons.get(request.request_id) != line:
            draft.reasons.put(request.request_id, line)
            draft.positions.put(request.request_id, position)
            if (draft.agenda.get(("wait", request.request_id)) or now_ns + 1) > now_ns:
                for asker in request.askers:
                    answers.wait(draft, asker.process, asker.rid, position, line)


class Words:
    """Why requests wait, at one look: what is true of many is worked out once."""

    def __init__(self, draft: Draft, scan: looking.Scan) -> None:
        self._draft = draft
        self._scan = scan
        self._keepers = sorted({draft.order(keeper) for keeper in scan.kept.values()})
        """Where those stand who keep GPUs."""
        self._asleep = draft.asleep()
        """Envs that the look did not come by."""
        self._kept: dict[int, dict[Uuid, Request]] = {}
        """What the first so many of them keep."""
        self._said: dict[tuple[object, ...], tuple[Verdict, str]] = {}

    def line(self, request: Request, position: int, ahead: int) -> str:
        """`position` in its queue; `ahead`: how many in other queues are served before it."""
        is_last = request.is_default and position + ahead == sum(self._draft.queued.values())
        return reasons.line(request.priority, position, ahead, self._why(request, is_last))

    def _why(self, request: Request, is_last: bool) -> str:
        """What those before it keep, whatever the look passed by."""
        draft = self._draft
        if not places.is_up(draft, request):
            return reasons.nowhere(request, places.why_down(draft, request.place))
        if not admission.is_admissible(draft, request):
            quota = draft.envs[request.env].quota
            return reasons.inadmissible(request, quota.gpus, admission.most_memory(draft, quota))
        if request.gpus == 0 and (limit := cpu_jobs.limit(draft, request.env)) is not None:
            return reasons.cpu_jobs(*limit)
        order = draft.order(request)
        before = self._turn(request.env)
        if before is not None and draft.order(before) < order:
            return reasons.behind(request, before)
        kept = self._kept_before(order, request)
        verdict = looking.verdict_beside(draft, self._scan, request, kept)
        if isinstance(verdict.answer, Choice):
            return reasons.away(request) if looking.away(draft, request) else reasons.at_once(request)
        whose = None if verdict.answer is Shortage.NODE else request.env
        fewer = _fewer(draft, verdict) if is_last else None
        same = (id(verdict), whose, request.gpus, request.memory_bytes, fewer)
        said = self._said.get(same)
        if said is None:
            text = reasons.of_shortage(draft, request, verdict.answer, verdict.ask, verdict.rows, kept, fewer)
            said = self._said[same] = verdict, text
        return said[1]

    def _turn(self, env: str) -> Request | None:
        """Behind whom its others wait."""
        before = self._scan.turns.get(env)
        if before is None and env in self._asleep and (before := looking.first_of(self._draft, env)) is not None:
            self._scan.turns[env] = before
        return before

    def _kept_before(self, order: Order, request: Request) -> dict[Uuid, Request]:
        held = [(uuid, hold.request) for uuid, hold in self._scan.held.items() if not hold.lets_pass(request, self._draft.now_ns)]
        before = {uuid: holder for uuid, holder in held if self._draft.order(holder) < order}
        kept = self._all_kept_before(order)
        return {**before, **kept} if before else kept

    def _all_kept_before(self, order: Order) -> dict[Uuid, Request]:
        count = bisect_left(self._keepers, order)
        kept = self._kept.get(count)
        if kept is None:
            keepers = self._scan.kept.items()
            kept = self._kept[count] = {uuid: keeper for uuid, keeper in keepers if self._draft.order(keeper) < order}
        return kept


def _fewer(draft: Draft, verdict: Verdict) -> int | None:
    """The most GPUs that would do now in place of what is asked; None: no number would. This holds for a new request only while the
    other one is the last in the order of service: those behind it come before a new one."""
    policy = POLICIES[draft.config.placement]
    numbers = range(verdict.ask.gpus - 1, 0, -1)
    return next((gpus for gpus in numbers if isinstance(choose(verdict.ask._replace(gpus=gpus), verdict.rows, policy), Choice)), None)


class Places:
    """Where requests stand, as a step leaves the queues."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._queue = draft.state.queue
        self._gone: dict[str, list[Order]] = {}
        self._came: dict[str, list[Order]] = {}
        for request_id, request in draft.requests.changes.items():
            if request_id in self._queue:
                if request is None:
                    self._gone.setdefault(draft.state.requests[request_id].priority, []).append(self._queue.order(request_id))
            elif request is not None:
                self._came.setdefault(request.priority, []).append(draft.order(request))
        for orders in (*self._gone.values(), *self._came.values()):
            orders.sort()

    def of(self, request: Request) -> tuple[int, int]:
        """Its position in its queue, from 1, and how many in other queues are served before it."""
        name, order = request.priority, self._draft.order(request)
        if request.request_id in self._queue:
            position = self._queue.position(request.request_id)
        else:
            position = self._queue.count_up_to(name, request.queued_ns) + 1
        position += self._changed(name, order)
        others = {*self._gone, *self._came} - {name}
        return position, self._queue.ahead(name, request.queued_ns) + sum(self._changed(other, order) for other in others)

    def _changed(self, name: str, order: Order) -> int:
        return bisect_left(self._came.get(name, []), order) - bisect_left(self._gone.get(name, []), order)


def listing(state: State, env: str | None = None, after: tuple[str, int] | None = None) -> Iterator[tuple[Request, int, str]]:
    """Every waiting request (of this env) in the order of service, with its position in its queue and its line; behind where one of a
    queue with a stamp stands or stood. The state may not change meanwhile."""
    draft = Draft(state)
    words = Words(draft, looking.survey(draft))
    for request_id, position, ahead in state.queue.listed(after, None if env is None else (env, "")):
        request = state.requests[request_id]
        if env in (None, request.env):
            told = state.reasons.get(request_id)
            yield request, position, told or words.line(request, position, ahead)


class Standings:
    """Where single requests stand, for as long as the state does not change."""

    def __init__(self, state: State) -> None:
        draft = Draft(state)
        self._places = Places(draft)
        self._words = Words(draft, looking.survey(draft))

    def of(self, request: Request) -> tuple[int, str]:
        """One's position in its queue, and its line."""
        position, ahead = self._places.of(request)
        return position, self._words.line(request, position, ahead)
