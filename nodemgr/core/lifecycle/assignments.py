"""Jobs that a head of a cluster has assigned to this node: one answer for each key, for ever.

Knows: keys, the answers that are kept for them. Must not know: the head, how its words arrive
(edge/api/assignment_operations.py), what a job does (jobs.py).

The head has stored that it gives one attempt of a job to this node before it says so, and it says
so again until it is answered. So a key may arrive again at any time, also late:
- A key that has an answer keeps it: a job of this node (which runs at most once), or a refusal.
- The answer stays, outside the bounds of the history, until the head acknowledges the end.
- Assignments of a head are numbered. With an acknowledgement the head says below which number each
  assignment has been answered here. From then on a key below it that has no row is an old message,
  and starts nothing; so acknowledged answers below it may go.

An assigned job has no second attempt here: its end, whatever the cause, is the head's to judge.
After a start of the manager those that have not begun wait until the head names them again: the
head may have heard meanwhile that this node is lost.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Assignment, DenyCode, Job, JobState
from nodemgr.core.model.events import AcknowledgeEnds, Assigned
from nodemgr.core.model.schema import assigned_below
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler.admission import Refusal
from nodemgr.core.state.draft import Draft

MAX_ASSIGNMENTS = 2_000
"""The answers that a node keeps; a head that does not acknowledge gets no further ones."""


def late(draft: Draft, assigned: Assigned) -> Refusal | None:
    """Why a key without a row gets no answer that is kept."""
    below = draft.counters.get(assigned_below(assigned.head)) or 0
    if assigned.number < below:
        return DenyCode.BAD_REQUEST, stated(
            f"{assigned.key} was assigned to this node and is over",
            "nothing is to be done",
            "refused",
        )
    if len(draft.assignments) >= MAX_ASSIGNMENTS:
        return DenyCode.STORE_FULL, stated(
            f"this node keeps the ends of {MAX_ASSIGNMENTS} assigned jobs, and their head has not "
            "acknowledged them",
            "acknowledge them first",
            "store",
        )
    return None


def refuse(draft: Draft, assigned: Assigned, env: str, why: str) -> None:
    """The answer to this key from now on: nothing was begun under it."""
    row = Assignment(assigned.key, assigned.number, env, "", JobState.WITHDRAWN, why)
    draft.assignments.put(assigned.key, row)


def take(draft: Draft, assigned: Assigned, env: str, job_id: str) -> None:
    draft.assignments.put(assigned.key, Assignment(assigned.key, assigned.number, env, job_id))


def confirm(draft: Draft, row: Assignment) -> None:
    """The head has named it since the start of the manager: its job may begin."""
    if row.job_id in draft.unconfirmed:
        draft.unconfirmed.drop(row.job_id)
        draft.wake_scheduler()


def ended(draft: Draft, job: Job) -> None:
    """The job leaves the state: its end is the answer."""
    row = draft.assignments[job.assigned]
    last = job.attempts[-1] if job.attempts else None
    over = replace(row, state=job.state, why=job.why, attempt=last)
    draft.assignments.put(job.assigned, over)
    if job.job_id in draft.unconfirmed:
        draft.unconfirmed.drop(job.job_id)


def acknowledge(draft: Draft, event: AcknowledgeEnds) -> None:
    """The head has stored these ends. A job without an end is not acknowledged.

    An answer goes once its number is below: until then its key may arrive again.
    """
    counter = assigned_below(event.head)
    before = draft.counters.get(counter) or 0
    below = max(event.below, before)
    if below > before:
        draft.counters.put(counter, below)
    for key in dict.fromkeys(event.keys):
        row = draft.assignments.get(key)
        if row is not None and row.head == event.head and row.is_over and not row.is_acknowledged:
            draft.assignments.put(key, replace(row, is_acknowledged=True))
    for row in list(draft.assignments.values()):
        if row.is_acknowledged and row.head == event.head and row.number < below:
            draft.assignments.drop(row.key)
