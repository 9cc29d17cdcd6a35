"""Rows of failures: those of one GPU, and an attempt of a job as further evidence.

Knows: the rows. Must not know: what a failure leads to (gpu_records.py), why an attempt ended.
"""

from __future__ import annotations

from nodemgr.core.model.entities import MAX_EVIDENCE, Evidence, Failure, Uuid
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

_HIDDEN = "a job of another environment failed beside it"


def of_gpu(draft: Draft, uuid: Uuid) -> list[Failure]:
    """The failures of the GPU that count, the oldest first."""
    found = [row for row in draft.failures.values() if row.uuid == uuid]
    return sorted(found, key=_number)


def by_gpu(draft: Draft) -> dict[Uuid, list[Failure]]:
    """The same of each GPU that has some, in one look at the failures."""
    found: dict[Uuid, list[Failure]] = {}
    for row in sorted(draft.failures.values(), key=_number):
        found.setdefault(row.uuid, []).append(row)
    return found


def _number(row: Failure) -> int:
    return int(row.failure_id[1:])


def evidence_for(state: State, row: Failure, env: str | None) -> list[str]:
    """The evidence of a failure for a reader of `env`, which learns no job of another; None: all.

    A job that is no longer known counts as another's.
    """
    return [_line(state, one, env) for one in row.evidence]


def _line(state: State, one: Evidence, env: str | None) -> str:
    if not one.job_id:
        return one.what
    job = state.jobs.get(one.job_id)
    if env is not None and (job is None or job.env != env):
        return _HIDDEN
    return f"{one.job_id}, attempt {one.attempt}, failed beside it"


def beside(draft: Draft, uuid: Uuid, job_id: str, attempt: int) -> None:
    """An attempt on the GPU ended badly after an event of the driver: evidence, no new failure."""
    known = of_gpu(draft, uuid)
    if known and len(known[-1].evidence) < MAX_EVIDENCE:
        one = Evidence(job_id=job_id, attempt=attempt)
        last = replace(known[-1], evidence=(*known[-1].evidence, one))
        draft.failures.put(last.failure_id, last)
