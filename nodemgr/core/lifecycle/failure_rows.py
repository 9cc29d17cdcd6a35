"""Rows of failures: those of one GPU, and an attempt of a job as further evidence.

Knows: the rows. Must not know: what a failure leads to (gpu_records.py), why an attempt ended.
"""

from __future__ import annotations

import re

from nodemgr.core.model import messages
from nodemgr.core.model.entities import MAX_EVIDENCE, Failure, Uuid
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

_ATTEMPT = re.compile(messages.ATTEMPT_FAILED(job=r"(\w+)", attempt=r"\d+"))
"""A line of evidence that `beside` has written."""
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


def evidence_for(state: State, row: Failure, env: str | None) -> tuple[str, ...]:
    """The evidence of a failure for a reader of `env`, which learns no job of another; None: all.

    A job that is no longer known counts as another's.
    """
    if env is None:
        return row.evidence
    return tuple(line if _is_open(state, line, env) else _HIDDEN for line in row.evidence)


def _is_open(state: State, line: str, env: str) -> bool:
    found = _ATTEMPT.fullmatch(line)
    if found is None:
        return True
    job = state.jobs.get(found[1])
    return job is not None and job.env == env


def beside(draft: Draft, uuid: Uuid, job_id: str, attempt: int) -> None:
    """An attempt on the GPU ended badly after an event of the driver: evidence, no new failure."""
    known = of_gpu(draft, uuid)
    if known and len(known[-1].evidence) < MAX_EVIDENCE:
        line = messages.ATTEMPT_FAILED(job=job_id, attempt=attempt)
        last = replace(known[-1], evidence=(*known[-1].evidence, line))
        draft.failures.put(last.failure_id, last)
