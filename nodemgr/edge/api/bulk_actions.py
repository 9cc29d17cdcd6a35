"""Orders to many jobs, requests and leases, a step for each part: named, or by what they are.

A filter names a page of ids, and the client gives the order to them: what has changed meanwhile is
judged anew. An order to ids does what fits one step, and says where it goes on.

Knows: what a filter may say, which core event each order is. Must not know: sockets, how one job is
found and refused (job_orders).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from typing import Any, NamedTuple

from nodemgr.core.leases import ends
from nodemgr.core.lifecycle import job_actions
from nodemgr.core.model import array_rows, events, job_ids
from nodemgr.core.model.entities import (
    FINAL,
    Ended,
    Job,
    JobState,
    Request,
    Suspension,
    Task,
    TaskState,
)
from nodemgr.core.state.job_index import BEGINNING
from nodemgr.core.state.node_state import State
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.cost import Units
from nodemgr.edge.rpc.operation import (
    Argument,
    OperationError,
    choice,
    env_name,
    flag,
    optional,
    text,
)
from nodemgr.messages.orders import OTHER_ENV

MAX_HISTORY_MATCHED = 1_000
"""The most ended jobs, the last ones, that a filter with a final state matches."""
WAITING = "waiting"
"""The state of an interactive request."""
STATES = (*JobState, WAITING, TaskState.STALLED)
ORDERS = ("withdraw", "hold", "free", "requeue", "release")
ARGUMENTS = {
    "order": Argument(choice(*ORDERS), required=True),
    "jobs": Argument(kinds.ordered),
    "env": Argument(env_name),
    "name": Argument(kinds.name),
    "state": Argument(choice(*STATES)),
    "mine": Argument(flag),
    "user": Argument(text),
    "after": Argument(optional(kinds.cursor_of_many)),
    "skip": Argument(flag),
    "again": Argument(flag),
}
"""`skip`: an id for which the order makes no sense is left out.

`again`: the answer was lost; an id that is as the order leaves it counts as done."""
FILTERS = ("env", "name", "state", "mine", "user")

BulkAction = (
    events.WithdrawJob | events.HoldJob | events.UnholdJob | events.RequeueJob | events.ReleaseTask
)
OneAction = BulkAction | events.MoveJob


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions of a filter; None: any value."""

    env: str | None
    name: str | None
    state: str | None
    user: str | None

    def takes(self, env: str, name: str, state: str, users: Iterable[str]) -> bool:
        return (
            self.env in (None, env)
            and self.state in (None, state)
            and (self.user is None or self.user in users)
            and (self.name is None or fnmatchcase(name, self.name))
        )


def wanted(given: dict[str, Any], env: str | None, user: str | None) -> Wanted | None:
    """The filter of an order, None: it names what it is for.

    `env`: the speaker's own, None: an administrator; `user`: the speaker. Raises OperationError.
    """
    filtered = [name for name in FILTERS if given.get(name)]
    if bool(given.get("jobs")) is bool(filtered):
        raise OperationError(
            "this order takes ids or a filter, and not both",
            "name ids, or --name, --state, --mine or --all-of",
        )
    if not filtered:
        return None
    if env is not None and given.get("env") not in (None, env):
        raise OperationError(OTHER_ENV(env=env))
    if given.get("mine") and user is None:
        raise OperationError(
            "this connection does not identify your user", "name the user instead of --mine"
        )
    return Wanted(
        env or given.get("env"),
        given.get("name"),
        given.get("state"),
        user if given.get("mine") else given.get("user"),
    )


class MatchedPage(NamedTuple):
    """Ids that a filter matches, and where it goes on; None: there are no more."""

    ids: list[str]
    after: str | None


LIVING, ENDED = "living", "ended"


class Matching:
    """The jobs that a filter matches, in the order of ids: a page for each step."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def page(self, order: str, asked: Wanted, after: tuple[str, int, int] | None) -> MatchedPage:
        state, (stage, *number) = self._daemon.state, after or (LIVING, *BEGINNING)
        if order == "release":
            return MatchedPage([*self._leases(state, asked), *self._requests(state, asked)], None)
        if stage == ENDED:
            return self._ended(asked, number[0])
        found: list[str] = []
        row = state.living.behind(asked.env, (number[0], number[1]))
        for job_id in islice(row, Units.MATCH.within()):
            number = [*job_ids.listed(job_id)]
            if self._is(state, job := state.jobs[job_id], asked):
                found.append(array_rows.waiting(job))
            if len(found) == kinds.MAX_JOBS_NAMED:
                break
        if next(row, None) is not None:
            return MatchedPage(found, f"{LIVING}:{number[0]}.{number[1]}")
        if order == "withdraw":
            found += self._requests(state, asked)
        has_past = order == "requeue" and asked.state in FINAL
        return MatchedPage(found, f"{ENDED}:0.0" if has_past else None)

    def _ended(self, asked: Wanted, number: int) -> MatchedPage:
        most = Units.PAST.within()
        rows = self._daemon.journal.ended_so(
            asked.env, JobState(asked.state or ""), number, most, MAX_HISTORY_MATCHED
        )
        found = [job.job_id for _, job in rows if self._is(self._daemon.state, job, asked)]
        return MatchedPage(found, f"{ENDED}:{rows[-1][0]}.0" if len(rows) == most else None)

    @staticmethod
    def _is(state: State, job: Job, asked: Wanted) -> bool:
        is_stalled = job.state is JobState.RUNNING and job.task_id in state.silent_jobs
        shown = TaskState.STALLED if is_stalled else job.state
        return asked.takes(job.env, job.name, shown.value, (job.user,))

    def _leases(self, state: State, asked: Wanted) -> list[str]:
        return [
            task.task_id
            for task in state.tasks.values()
            if asked.takes(task.env, *self._of_lease(state, task))
        ]

    @staticmethod
    def _of_lease(state: State, task: Task) -> tuple[str, str, set[str]]:
        job = None if task.job_id is None else state.jobs.get(task.job_id)
        users = {state.processes[key].user for key in task.processes} | (
            {job.user} if job is not None else set()
        )
        shown = TaskState.STALLED if task.task_id in state.silent_jobs else task.state
        return (task.run.command if job is None else job.name), shown.value, users

    @staticmethod
    def _requests(state: State, asked: Wanted) -> list[str]:
        """Interactive ones, and resumes that wait."""
        resumes = (
            ends.resume_id(task.task_id)
            for task in state.tasks.values()
            if task.suspension is Suspension.SUSPENDED
        )
        return [
            request.request_id
            for request_id in (*state.request_of_token.values(), *resumes)
            if (request := state.requests.get(request_id)) is not None
            and asked.takes(request.env, request.run.command, WAITING, _users(request))
        ]


def _users(request: Request) -> set[str]:
    return {asker.user for asker in request.askers}


def undone(state: State, event: OneAction) -> str | None:
    """Why an order of several has done nothing after all: one before it took the room."""
    if isinstance(event, events.RequeueJob):
        return (
            job_actions.objection(state, event)
            if event.job is not None and event.job_id not in state.jobs
            else None
        )
    if isinstance(event, events.UnholdJob):
        held = any(job.state is JobState.HELD for job in job_actions.living(state, event.job_id))
        return job_actions.objection(state, event) if held else None
    return None


def size(state: State, name: str, ended: Ended | None) -> int:
    """How many jobs the order to this id is for."""
    rows = job_actions.living(state, name) or ([] if ended is None else [ended.job])
    return sum(row.size for row in rows) or 1


def is_done(state: State, order: str, name: str, ended: Ended | None) -> bool:
    """Whether the job or array is as the order leaves it: the order was carried out before."""
    living = job_actions.living(state, name)
    if not living:
        withdrawn = ended is not None and ended.job.state is JobState.WITHDRAWN
        return order == "release" or (order == "withdraw" and withdrawn)
    if order == "withdraw":
        return all(job.then in FINAL for job in living)
    return all(job.state in _AFTER.get(order, ()) for job in living)


_AFTER: dict[str, frozenset[JobState]] = {
    "hold": frozenset({JobState.HELD}),
    "free": frozenset(JobState) - {JobState.HELD},
    "requeue": frozenset({JobState.QUEUED, JobState.PAUSED, JobState.STOPPING}),
}


FIRST = -2
"""Before the row of those that wait together, which stands before all indices."""


def few_of(state: State, name: str, behind: int, most: int) -> list[str]:
    """The rows of an array behind the one at this index, in order.

    That of the elements that wait together is the first, as `j12.*`.
    """
    elements = state.elements.get(name)
    if not elements:
        return []
    number, env = job_ids.order(name)[0], state.jobs[next(iter(elements))].env
    rest = state.living.behind(env, (number, behind))
    some = islice(takewhile(lambda one: job_ids.order(one)[0] == number, rest), most)
    return [array_rows.waiting(state.jobs[one]) for one in some]


def carry_out(
    daemon: Daemon,
    found: dict[str, OneAction],
    rows: dict[str, dict[str, Any]],
    *,
    goes_on: bool = False,
) -> None:
    """One step for these; completes their rows. Raises OperationError if it cannot be stored."""
    if not found:
        return
    orders, wall_ns = tuple(found.values()), daemon.clock.wall_ns()
    daemon.submit_or_refuse(events.OrderAll(orders, wall_ns, goes_on))
    for one, event in found.items():
        if (why := undone(daemon.state, event)) is not None:
            rows[one] = {"job": one, "error": why, "code": "refused"}
