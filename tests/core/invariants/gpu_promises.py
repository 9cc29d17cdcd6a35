"""Invariants of the GPUs' records: failures, drains and estimates, counted again from the rows.

Knows: the tables of the records. Must not know: how they came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodemgr.core.manager import Transition
from nodemgr.core.model.entities import MAX_EVIDENCE, MAX_EVIDENCE_CHARACTERS, MAX_FAILURES
from nodemgr.core.model.schema import SERVICE
from nodemgr.core.state.node_state import State


def check(state: State) -> Iterator[str]:
    """Everything that is wrong with the records, a line each."""
    if not state.gpu_records.keys() >= state.gpus.keys():
        yield f"records of {sorted(state.gpu_records)}, GPUs {sorted(state.gpus)}"
    for uuid, record in state.gpu_records.items():
        if uuid in state.gpus and bool(record.drained_by) is not state.gpus[uuid].drained:
            yield f"{uuid}: drained by {record.drained_by!r}, and its row says otherwise"
    yield from _failures(state)
    yield from _outlook(state)


def _failures(state: State) -> Iterator[str]:
    service_ns = state.counters.get(SERVICE, 0)
    for uuid, count in Counter(row.uuid for row in state.failures.values()).items():
        if uuid not in state.gpu_records or count > MAX_FAILURES:
            yield f"{count} failures of {uuid}"
    for row in state.failures.values():
        if not row.service_ns <= row.last_service_ns <= service_ns:
            yield f"{row.failure_id} is of a time that has not come"
        lines = [one.what for one in row.evidence]
        if not 0 < len(lines) <= MAX_EVIDENCE or max(map(len, lines)) > MAX_EVIDENCE_CHARACTERS:
            yield f"{row.failure_id} has {len(lines)} lines of evidence"


def _outlook(state: State) -> Iterator[str]:
    """A decision finds an estimate for each GPU as soon as there is a failure."""
    fails = any(row.uuid in state.gpus for row in state.failures.values())
    expected = state.gpus.keys() if fails else set()
    if state.outlook.keys() != expected:
        yield f"estimates of {sorted(state.outlook)}, failures of {len(state.failures)}"
    for uuid, known in state.outlook.items():
        last = [row.last_service_ns for row in state.failures.values() if row.uuid == uuid]
        if known.last_service_ns != max(last, default=None):
            yield f"the last failure of {uuid} is not that of its rows"
        if not 0 < known.rate_per_hour < float("inf"):
            yield f"{uuid} fails {known.rate_per_hour} times an hour"


def check_change(transition: Transition) -> Iterator[str]:
    """No GPU begins a task while it is drained; the manager drains no last usable GPU."""
    draft = transition.draft
    for task_id, before_task, task in draft.tasks.changes():
        held = () if before_task is None else before_task.gpus
        for uuid in () if task is None else task.gpus:
            if draft.gpus[uuid].drained and uuid not in held:
                yield f"{task_id} began on {uuid}, which is drained"
    for uuid, before, gpu in draft.gpus.changes():
        if gpu is None or before is None or before.drained or not gpu.drained:
            continue
        if draft.gpu_records[uuid].drained_by == "nodemgr" and not any(
            other.usable for other in draft.gpus.values()
        ):
            yield f"the manager drained {uuid}, the last usable GPU"
