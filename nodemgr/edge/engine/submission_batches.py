"""Submissions of jobs: those that arrive together become one step and one commit.

Knows: the batch limits, the facts of the past that a submission needs. Must not know: the decisions
on a job (core), how a submission is transported.

A batch waits for the disk once. Requests for a grant run between two batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from client_plugin.messages.form import notice
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import DenyCode
from nodemgr.core.model.values import replace
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.rpc.cost import STEP_UNITS, Units
from nodemgr.edge.rpc.turns import InTurn, Took
from nodemgr.edge.store.database import StoreFailed

RUN_BYTES = 32
"""A run of an array's indices, in its rows."""
TURN_SUBMISSIONS = Units.SUBMIT.within()
"""Most submissions in one step of the core; requests for a grant run between two such steps."""
BEHIND_NS, BEHIND_READING_S = 10_000_000_000, 0.02
"""Longest wait of submissions for a log beyond its limit, and the interval of the checks."""
GATHER_NS = 30_000_000
"""Longest time to gather arriving submissions for one commit."""

Answer = Callable[[effects.SubmitAnswered], None]


def submission_units(submission: events.Submission) -> int:
    """The cost of taking the submission."""
    kib = (submission.payload.size_bytes + RUN_BYTES * len(submission.array)) // 1_024
    return Units.SUBMIT + Units.KIB * kib + Units.FIND * len(submission.after)


class _Arrived(NamedTuple):
    submission: events.Submission
    answer: Answer
    took: Took
    units: int


class SubmissionBatches:
    """Gathers submissions, commits them, and calls back with the core's answers."""

    def __init__(self, base: Foundation, engine: StepEngine) -> None:
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._journal, self._engine = base.journal, engine
        self._arrived: InTurn[_Arrived] = InTurn()
        self._answers: dict[int, Answer] = {}
        self._references = itertools.count(1)

    def handlers(self) -> Handlers:
        """The effect that answers a submission."""
        return {effects.SubmitAnswered: self._answered}

    def submit(
        self, submission: events.Submission, answer: Answer, took: Took = lambda _ns: None
    ) -> None:
        """`answer` is called in the loop when the job is stored or refused.

        `ref` and `ended` of the submission are filled in here.
        """
        submission = replace(submission, ref=next(self._references))
        arrived = _Arrived(submission, answer, took, submission_units(submission))
        self._arrived.add(submission.env, arrived)
        if len(self._arrived) == 1:
            self._loop.call_soon(self._gather, 0, self._clock.monotonic_ns() + GATHER_NS)

    def _gather(self, seen: int, until_ns: int) -> None:
        """Commits when a loop turn brings no further submission, or at a limit.

        A connection delivers one submission in each turn.
        """
        arrived = len(self._arrived)
        if seen < arrived < TURN_SUBMISSIONS and self._clock.monotonic_ns() < until_ns:
            self._loop.call_soon(self._gather, arrived, until_ns)
        else:
            self._commit()

    def _next(self) -> list[_Arrived]:
        """The submissions of one step: one of each env in turn, so that none waits long."""
        found = [self._arrived.take()]
        left = STEP_UNITS - found[0].units
        while self._arrived and (left := left - self._arrived.first().units) >= 0:
            found.append(self._arrived.take())
        return found

    def _commit(self, until_ns: int | None = None) -> None:
        """Wait for room in the log, at most BEHIND_NS.

        Another program may prevent its checkpoint.
        """
        began_ns = self._clock.monotonic_ns()
        if self._journal.is_behind():
            until_ns = began_ns + BEHIND_NS if until_ns is None else until_ns
            if began_ns < until_ns:
                self._loop.call_later(BEHIND_READING_S, self._commit, until_ns)
                return
        arrived = self._next()
        if self._arrived:
            self._loop.call_soon(self._commit)
        self._take(arrived)
        took_ns, units = self._clock.monotonic_ns() - began_ns, sum(each.units for each in arrived)
        for each in arrived:
            each.took(took_ns * each.units // units)

    def _take(self, arrived: list[_Arrived]) -> None:
        submissions = []
        for submission, answer, _, _ in arrived:
            self._answers[submission.ref] = answer
            try:
                if (known := self._ended_under(submission)) is not None:
                    self._answered(effects.SubmitAnswered(submission.ref, known, None, ""))
                else:
                    submissions.append(self._with_ended(submission))
            except StoreFailed as error:
                reason = notice(f"the manager cannot look into its store now: {error}")
                self._answered(
                    effects.SubmitAnswered(submission.ref, None, DenyCode.STORE_FULL, reason)
                )
        if submissions and not self._engine.submit(
            events.SubmitJobs(tuple(submissions), self._clock.wall_ns())
        ):
            reason = notice(f"the manager cannot store a job now: {self._journal.refused}")
            for submission in submissions:
                self._answered(
                    effects.SubmitAnswered(submission.ref, None, DenyCode.STORE_FULL, reason)
                )

    def _ended_under(self, submission: events.Submission) -> str | None:
        """The ended job of a repeated submission with a lost answer.

        (The core has the living jobs.)
        """
        key = submission.env, submission.key
        return (
            None
            if not submission.key or key in self._state.job_of_key
            else self._journal.job_of_key(*key)
        )

    def _with_ended(self, submission: events.Submission) -> events.Submission:
        """Adds the states of its dependencies that have ended, from the history."""
        if not submission.after:
            return submission
        return replace(
            submission, ended=self._journal.ended_states(submission.env, submission.after)
        )

    def _answered(self, effect: effects.SubmitAnswered) -> None:
        self._answers.pop(effect.ref)(effect)
