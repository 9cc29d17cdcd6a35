"""The life of a job: submitted, queued, started, ended; and the orders on the way.

Knows: what each of these does to jobs and their requests. Must not know: who may order it, how a program is run.
"""

from __future__ import annotations

from nodemgr.core import effects, events
from nodemgr.core.draft import Draft
from nodemgr.core.model import DenyCode


def submit(draft: Draft, event: events.SubmitJobs, _now_ns: int) -> None:
    for submission in event.submissions:
        draft.emit(effects.SubmitAnswered(submission.ref, None, DenyCode.BAD_REQUEST, "this manager takes no jobs yet"))


def started(_draft: Draft, _event: events.JobStarted, _now_ns: int) -> None: ...


def ended(_draft: Draft, _event: events.JobEnded, _now_ns: int) -> None: ...


def withdraw(_draft: Draft, _event: events.WithdrawJob, _now_ns: int) -> None: ...


def hold(_draft: Draft, _event: events.HoldJob, _now_ns: int) -> None: ...


def free(_draft: Draft, _event: events.FreeJob, _now_ns: int) -> None: ...


def requeue(_draft: Draft, _event: events.RequeueJob, _now_ns: int) -> None: ...


def move(_draft: Draft, _event: events.MoveJob, _now_ns: int) -> None: ...


def set_queue(_draft: Draft, _event: events.SetQueue, _now_ns: int) -> None: ...


def remove_queue(_draft: Draft, _event: events.RemoveQueue, _now_ns: int) -> None: ...
