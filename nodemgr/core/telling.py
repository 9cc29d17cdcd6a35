"""What those who wait are told, and what a listing says of them: the place of each, and why it waits.

Knows: what a look along the queues found (looking.py). Must not know: how it is decided who is served.
An interactive waiter's line is kept and sent again when it changes. Nobody is told of a job's: its line is made when somebody
looks, so ten thousand of them that wait cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from nodemgr.core import answers, cpu_jobs, looking, places, reasons
from nodemgr.core.allocator import Choice
from nodemgr.core.draft import Draft
from nodemgr.core.model import Request
from nodemgr.core.state import State
from nodemgr.core.work_queue import Order


def tell(draft: Draft, scan: looking.Scan, now_ns: int) -> None:
    """Tells those who wait, where it changed for them. (Who would not wait is refused within this step.)"""
    waiters = [draft.requests[request_id] for request_id in set(draft.request_of.values())]
    if not waiters:
        return
    places = Places(draft)
    for request in sorted(waiters, key=draft.order):
        position, ahead = places.of(request)
        line = reasons.line(request.priority, position, ahead, why(draft, scan, request))
        if draft.reasons.get(request.request_id) != line:
            draft.reasons.put(request.request_id, line)
            draft.positions.put(request.request_id, position)
            if (draft.agenda.get(("wait", request.request_id)) or now_ns + 1) > now_ns:
                for asker in request.askers:
                    answers.wait(draft, asker.process, asker.rid, position, line)


def why(draft: Draft, scan: looking.Scan, request: Request) -> str:
    """Why it waits: what those before it keep, whatever the look passed by."""
    if not places.is_up(draft, request):
        return reasons.nowhere(request, places.why_down(draft, request.place))
    if request.gpus == 0 and (limit := cpu_jobs.limit(draft, request.env)) is not None:
        return reasons.cpu_jobs(*limit)
    order = draft.order(request)
    before = scan.turns.get(request.env)
    if before is not None and draft.order(before) < order:
        return reasons.behind(request, before)
    kept = {uuid: keeper for uuid, keeper in scan.kept.items() if draft.order(keeper) < order}
    verdict = looking.verdict_beside(draft, scan, request, kept)
    if isinstance(verdict.answer, Choice):
        return reasons.away(request) if looking.away(draft, request) else reasons.at_once(request)
    return reasons.of_shortage(draft, request, verdict.answer, verdict.ask, verdict.rows, kept)


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


def listing(state: State, env: str | None = None, skip: int = 0) -> Iterator[tuple[Request, int, str]]:
    """Every waiting request (of this env, after the first `skip`) in the order of service, with its position in its queue and its line."""
    draft = Draft(state)
    scan = looking.survey(draft)
    known: dict[tuple[object, ...], str] = {}
    orders = sorted(draft.order(request) for request in {*scan.kept.values(), *scan.turns.values()})
    places = ((count, *place) for count, place in enumerate(state.waiting()) if env in (None, place[0].env))
    for count, request, position in islice(places, skip, None):
        told = state.reasons.get(request.request_id)
        if told is None:
            same = (request.alike, bisect_left(orders, draft.order(request)))
            text = known.get(same)
            if text is None:
                text = known[same] = why(draft, scan, request)
            told = reasons.line(request.priority, position, count + 1 - position, text)
        yield request, position, told


def standing(state: State, request: Request) -> tuple[int, str]:
    """One request's position in its queue, and its line."""
    draft = Draft(state)
    position, ahead = Places(draft).of(request)
    return position, reasons.line(request.priority, position, ahead, why(draft, looking.survey(draft), request))
