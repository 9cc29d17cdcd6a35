"""Orders to many jobs, requests and leases in one step: named, or by what they are.

Knows: what a filter may say, which core event each order is. Must not know: sockets, how one job is
found and refused (job_orders).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nodemgr.core.lifecycle import job_actions
from nodemgr.core.model import events
from nodemgr.core.model.entities import FINAL, Job, JobState, Request, Task, TaskState
from nodemgr.core.state.node_state import State
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import Argument, OperationError, choice, env_name, flag, text
from nodemgr.messages import jobs as messages
from nodemgr.messages.orders import NOT_STORED, OTHER_ENV

MAX_ORDERED = 10_000
"""The most ids in one step: as many as an array may have."""
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
}
FILTERS = ("env", "name", "state", "mine", "user")

BulkAction = (
    events.WithdrawJob | events.HoldJob | events.UnholdJob | events.RequeueJob | events.ReleaseTask
)


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
        raise OperationError(messages.IDS_OR_FILTER())
    if not filtered:
        return None
    if env is not None and given.get("env") not in (None, env):
        raise OperationError(OTHER_ENV(env=env))
    if given.get("mine") and user is None:
        raise OperationError(messages.NO_SPEAKER())
    return Wanted(
        env or given.get("env"),
        given.get("name"),
        given.get("state"),
        user if given.get("mine") else given.get("user"),
    )


class Matching:
    """The jobs that a filter matches, in the order of ids."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def of(self, order: str, asked: Wanted) -> list[str]:
        state = self._daemon.state
        if order == "release":
            return [*self._leases(state, asked), *self._requests(state, asked)]
        found = [job.job_id for job in state.jobs.values() if self._is(job, asked)]
        if order == "withdraw":
            found += self._requests(state, asked)
        if order == "requeue" and asked.state in FINAL:
            found += [
                job.job_id
                for job in self._daemon.journal.ended_last(asked.env, MAX_HISTORY_MATCHED)
                if self._is(job, asked)
            ]
        return found

    @staticmethod
    def _is(job: Job, asked: Wanted) -> bool:
        return asked.takes(job.env, job.name, job.state.value, (job.user,))

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
        return (task.command if job is None else job.name), task.state.value, users

    @staticmethod
    def _requests(state: State, asked: Wanted) -> list[str]:
        """Interactive ones."""
        return [
            request.request_id
            for request in state.requests.values()
            if request.job_id is None
            and asked.takes(request.env, request.command, WAITING, _users(request))
        ]


def _users(request: Request) -> set[str]:
    return {asker.user for asker in request.askers}


def undone(state: State, event: BulkAction) -> str | None:
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


Find = Callable[[str], BulkAction]
"""The event that an order to this id is. Raises OperationError where it makes no sense."""


def carry_out(
    daemon: Daemon, ids: Iterable[str], find: Find, *, skip: bool
) -> list[dict[str, Any]]:
    """One step for all; a row for each: its id, and the error where there is one.

    `skip`: what an order makes no sense for is left out. Raises OperationError where nothing can be
    stored.
    """
    rows: dict[str, dict[str, Any]] = {}
    found: dict[str, BulkAction] = {}
    for one in ids:
        try:
            found[one] = find(one)
            rows[one] = {"job": one, "error": None}
        except OperationError as error:
            if not skip:
                rows[one] = {"job": one, "error": str(error), "code": error.code}
    if len(found) > MAX_ORDERED:
        raise OperationError(messages.MANY_JOBS(jobs=len(found), limit=MAX_ORDERED))
    if found:
        if not daemon.submit(events.OrderAll(tuple(found.values()), daemon.clock.wall_ns())):
            raise OperationError(NOT_STORED(fault=daemon.journal.refused))
        for one, event in found.items():
            if (why := undone(daemon.state, event)) is not None:
                rows[one] = {"job": one, "error": why, "code": "refused"}
    return list(rows.values())
