"""State machines of jobs and tasks: one table each, and the function that refuses other changes.

The lifecycle modules take each change of a state from here. The invariants check each step
against the same tables, and docs/inside/states.md has diagrams made from them (tests/diagrams.py).
Must not know: how an event arises, and which other fields change with the state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from nodemgr.core.model.entities import JobState, Suspension, TaskState

S = TypeVar("S", bound=enum.StrEnum)
E = TypeVar("E", bound=enum.StrEnum)


class JobEvent(enum.StrEnum):
    """Reasons for which a job changes its state."""

    SUBMIT = "submit"
    RUN_AGAIN = "run again"
    HOLD = "hold"
    UNHOLD = "unhold"
    MOVE = "move"
    DEPENDENCIES_MET = "dependencies met"
    DEPENDENCY_FAILED = "dependency failed"
    PAUSE_OVER = "pause over"
    GPU_FAILED = "gpu failed"
    START = "start"
    STARTED = "started"
    STOP = "stop"
    END = "end"
    REQUEUED_BEFORE_START = "requeued before start"
    WITHDRAW = "withdraw"
    ENV_REMOVED = "env removed"


class TaskEvent(enum.StrEnum):
    """Reasons for which a task changes its state."""

    GRANT = "grant"
    SILENCE = "silence"
    HEARD = "heard"
    END = "end"


class Targets(NamedTuple, Generic[S]):
    """The next states that an event allows. None: the row leaves the state."""

    states: tuple[S | None, ...]
    why: str


_HELD, _PAUSED, _DEPENDENCY = JobState.HELD, JobState.PAUSED, JobState.DEPENDENCY
_QUEUED, _STARTING, _RUNNING = JobState.QUEUED, JobState.STARTING, JobState.RUNNING
_STOPPING, _DONE, _FAILED = JobState.STOPPING, JobState.DONE, JobState.FAILED
_WITHDRAWN = JobState.WITHDRAWN

_BY_USER = "A user or an administrator withdraws the job."
_IN_VAIN = "A job that it waits for ended badly, so it can never start."
_NO_ENV = "Its environment is removed, and its jobs are withdrawn."

JOB_TRANSITIONS: Mapping[tuple[JobState | None, JobEvent], Targets[JobState]] = {
    (None, JobEvent.SUBMIT): Targets(
        (_QUEUED, _HELD, _DEPENDENCY),
        "A new job enters its queue, unless it is submitted held or waits for other jobs.",
    ),
    (None, JobEvent.RUN_AGAIN): Targets(
        (_QUEUED, _DEPENDENCY),
        "An ended job leaves the history and enters its queue again, or waits for what it waited "
        "for.",
    ),
    (_HELD, JobEvent.UNHOLD): Targets(
        (_QUEUED, _DEPENDENCY), "It enters its queue, or waits for the jobs that it depends on."
    ),
    (_HELD, JobEvent.WITHDRAW): Targets((_WITHDRAWN,), _BY_USER),
    (_HELD, JobEvent.DEPENDENCY_FAILED): Targets((_WITHDRAWN,), _IN_VAIN),
    (_HELD, JobEvent.ENV_REMOVED): Targets((_WITHDRAWN,), _NO_ENV),
    (_DEPENDENCY, JobEvent.DEPENDENCIES_MET): Targets(
        (_QUEUED,), "The last job that it waits for ended well."
    ),
    (_DEPENDENCY, JobEvent.HOLD): Targets((_HELD,), "It keeps its dependencies while it is held."),
    (_DEPENDENCY, JobEvent.WITHDRAW): Targets((_WITHDRAWN,), _BY_USER),
    (_DEPENDENCY, JobEvent.DEPENDENCY_FAILED): Targets((_WITHDRAWN,), _IN_VAIN),
    (_DEPENDENCY, JobEvent.ENV_REMOVED): Targets((_WITHDRAWN,), _NO_ENV),
    (_QUEUED, JobEvent.START): Targets(
        (_STARTING,), "A scheduling pass gives it its GPUs; the store has it before the start."
    ),
    (_QUEUED, JobEvent.MOVE): Targets(
        (_QUEUED,), "It moves to another queue, or to the front of its own."
    ),
    (_QUEUED, JobEvent.HOLD): Targets((_HELD,), "It leaves its queue."),
    (_QUEUED, JobEvent.WITHDRAW): Targets((_WITHDRAWN,), _BY_USER),
    (_QUEUED, JobEvent.ENV_REMOVED): Targets((_WITHDRAWN,), _NO_ENV),
    (_PAUSED, JobEvent.PAUSE_OVER): Targets(
        (_QUEUED, _FAILED), "It returns to its old place; or its failure was its own (jobs.py)."
    ),
    (_PAUSED, JobEvent.UNHOLD): Targets((_QUEUED, _FAILED), "A user ends the pause early."),
    (_PAUSED, JobEvent.GPU_FAILED): Targets(
        (_PAUSED, _FAILED),
        "Its GPU failed just after its attempt, by no fault of it; an assigned job is over then.",
    ),
    (_PAUSED, JobEvent.HOLD): Targets((_HELD,), "It stays out of its queue after the pause."),
    (_PAUSED, JobEvent.WITHDRAW): Targets((_WITHDRAWN,), _BY_USER),
    (_PAUSED, JobEvent.ENV_REMOVED): Targets((_WITHDRAWN,), _NO_ENV),
    (_STARTING, JobEvent.STARTED): Targets((_RUNNING,), "The supervisor reports its process."),
    (_STARTING, JobEvent.REQUEUED_BEFORE_START): Targets(
        (_QUEUED,), "No launcher or runner could begin the attempt; it keeps its old place."
    ),
    (_STARTING, JobEvent.STOP): Targets((_STOPPING,), "Its supervisor is asked to end it."),
    (_STARTING, JobEvent.END): Targets(
        (_DONE, _FAILED, _QUEUED, _PAUSED),
        "The end is reported before the start: the consequences are those of a running job.",
    ),
    (_RUNNING, JobEvent.STOP): Targets((_STOPPING,), "Its supervisor is asked to end it."),
    (_RUNNING, JobEvent.END): Targets(
        (_DONE, _FAILED, _QUEUED, _PAUSED),
        "Done if it ended well; else endings.py says if it fails, is retried or pauses.",
    ),
    (_STOPPING, JobEvent.STOP): Targets(
        (_STOPPING,), "A second reason to stop replaces the next state (`Job.then`)."
    ),
    (_STOPPING, JobEvent.STARTED): Targets(
        (_STOPPING,), "The report of the start arrives after the request to stop."
    ),
    (_STOPPING, JobEvent.END): Targets(
        (_WITHDRAWN, _FAILED, _QUEUED, _PAUSED), "The attempt ended; `Job.then` is the next state."
    ),
    (_STOPPING, JobEvent.REQUEUED_BEFORE_START): Targets(
        (_WITHDRAWN, _FAILED, _QUEUED, _PAUSED), "The attempt never began; `Job.then` still holds."
    ),
}
"""A job that ends leaves the state for the history, so DONE, FAILED and WITHDRAWN have no rows."""

TASK_TRANSITIONS: Mapping[tuple[TaskState | None, TaskEvent], Targets[TaskState]] = {
    (None, TaskEvent.GRANT): Targets(
        (TaskState.RUNNING,), "A request or a job gets its GPUs, and the lease begins."
    ),
    (TaskState.RUNNING, TaskEvent.SILENCE): Targets(
        (TaskState.STALLED,),
        "No process of it was heard within the timeout, and one of them still lives.",
    ),
    (TaskState.RUNNING, TaskEvent.END): Targets(
        (None,), "Its last process left, its job ended, or the lease was taken away."
    ),
    (TaskState.STALLED, TaskEvent.HEARD): Targets(
        (TaskState.RUNNING,), "A process is heard again, and the GPUs still have room for it."
    ),
    (TaskState.STALLED, TaskEvent.END): Targets(
        (None,), "Its processes died, the lease was taken away, or its room went to others."
    ),
}


SUSPENSIONS: Mapping[Suspension, tuple[Suspension, ...]] = {
    Suspension.NONE: (Suspension.SUSPENDING,),
    Suspension.SUSPENDING: (Suspension.SUSPENDED, Suspension.NONE),
    Suspension.SUSPENDED: (Suspension.RESUMING,),
    Suspension.RESUMING: (Suspension.NONE, Suspension.SUSPENDED),
}
"""The suspension of a task, and what may follow it. A task may end in each of them."""


class TransitionRefused(Exception):
    """The code asked for a change of state that the table lacks: an error of the program."""


def checked(
    table: Mapping[tuple[S | None, E], Targets[S]], before: S | None, event: E, after: Any
) -> Any:
    """Returns `after` if the table allows it. Raises TransitionRefused if it does not."""
    row = table.get((before, event))
    if row is None or after not in row.states:
        raise TransitionRefused(f"the event {event} does not lead from {before} to {after}")
    return after
