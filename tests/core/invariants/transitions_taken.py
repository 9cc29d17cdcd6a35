"""Each job's and task's state before and after a step: a row of the tables in model/transitions.py.

Knows: the rows of a draft, before and after. Must not know: which code changed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodemgr.core.model.array_rows import element
from nodemgr.core.model.entities import Job, JobState
from nodemgr.core.model.events import Event, OrderAll
from nodemgr.core.model.job_ids import array_of
from nodemgr.core.model.transitions import JOB_TRANSITIONS, SUSPENSIONS, TASK_TRANSITIONS
from nodemgr.core.state.draft import Draft

Pairs = frozenset[tuple[object, object]]


def pairs(table: Mapping[Any, Any]) -> Pairs:
    """The states before and after, for each row of a table."""
    return frozenset((before, after) for (before, _), row in table.items() for after in row.states)


def chains(single: Pairs) -> Pairs:
    """The states before and after any number of rows in turn."""
    found, size = single, 0
    while size < len(found):
        size = len(found)
        found |= {(a, d) for a, b in found for c, d in single if b == c}
    return found


_JOB_PAIRS, _TASK_PAIRS = pairs(JOB_TRANSITIONS), pairs(TASK_TRANSITIONS)
_JOB_CHAINS = chains(_JOB_PAIRS)


def check(draft: Draft, event: Event) -> Iterator[str]:
    """Several orders in one step may take a job through several rows; other events take one."""
    allowed = _JOB_CHAINS if isinstance(event, OrderAll) else _JOB_PAIRS
    yield from _differences("job", _jobs(draft), allowed)
    tasks = (
        (task_id, getattr(before, "state", None), getattr(task, "state", None))
        for task_id, before, task in draft.tasks.changes()
    )
    yield from _differences("task", tasks, _TASK_PAIRS)
    for task_id, before, task in draft.tasks.changes():
        if before is None or task is None or before.suspension is task.suspension:
            continue
        if task.suspension not in SUSPENSIONS[before.suspension]:
            yield f"task {task_id} went from {before.suspension} to {task.suspension}"


def _jobs(draft: Draft) -> Iterator[tuple[str, JobState | None, JobState | None]]:
    for job_id, was, job in draft.jobs.changes():
        before = was or _within_row(draft, job_id)
        ended = draft.history.get(job_id)
        after = job if ended is None else ended.job
        if after is None and before is not None and before.indices:
            continue  # its last element has left the row
        yield (
            job_id,
            None if before is None else before.state,
            None if after is None else after.state,
        )


def _within_row(draft: Draft, job_id: str) -> Job | None:
    """The job as an element of its array's row, before the step."""
    row = draft.jobs.before(array_of(job_id) or "")
    return None if row is None else element(row, job_id)


def _differences(
    kind: str, changes: Iterable[tuple[str, object, object]], allowed: Pairs
) -> Iterator[str]:
    for name, before, after in changes:
        if before is not after and (before, after) not in allowed:
            yield f"{kind} {name} went from {before!r} to {after!r}, which the table lacks"
