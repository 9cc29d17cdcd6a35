"""Rows of failures: those of one GPU, and an attempt of a job as further evidence.

Knows: the rows. Must not know: what a failure leads to (gpu_records.py), why an attempt ended.
"""

from __future__ import annotations

from nodemgr.core.model import messages
from nodemgr.core.model.entities import MAX_EVIDENCE, Failure, Uuid
from nodemgr.core.model.values import replace
from nodemgr.core.state.draft import Draft


def of_gpu(draft: Draft, uuid: Uuid) -> list[Failure]:
    """The failures of the GPU that count, the oldest first."""
    found = [row for row in draft.failures.values() if row.uuid == uuid]
    return sorted(found, key=lambda row: int(row.failure_id[1:]))


def beside(draft: Draft, uuid: Uuid, job_id: str, attempt: int) -> None:
    """An attempt on the GPU ended badly after an event of the driver: evidence, no new failure."""
    known = of_gpu(draft, uuid)
    if known and len(known[-1].evidence) < MAX_EVIDENCE:
        line = messages.ATTEMPT_FAILED(job=job_id, attempt=attempt)
        last = replace(known[-1], evidence=(*known[-1].evidence, line))
        draft.failures.put(last.failure_id, last)
