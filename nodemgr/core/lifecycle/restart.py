"""The state as the store's rows say, after a restart.

Knows: what each kind of row is in the state, and that every deadline starts anew. Must not know:
where the rows come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nodemgr.core.lifecycle import gpu_records, jobs
from nodemgr.core.model.entities import MS, Config, Job, JobState, Record, Request, Task, TaskState
from nodemgr.core.model.schema import SERVICE
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import STORED


def restore(config: Config, rows: Iterable[tuple[str, str, object]], now_ns: int) -> Draft:
    """The state of the store's rows (kind, key, dataclass).

    All processes count as heard now and as disconnected, and every waiter is away. The edge then
    reports GPUs (GpusChanged) and deaths (ProcessGone), and sends Match. Raises ValueError for a
    row of an unknown kind.
    """
    draft = Draft(config).at(now_ns)
    order = {kind: place for place, (kind, _) in enumerate(STORED.values())}
    for kind, key, value in sorted(_known(rows), key=lambda row: (order[row[0]], _age(row[2]))):
        _PUT[kind](draft, key, value)
        if isinstance(value, Job) and value.state is JobState.PAUSED:
            jobs.still_paused(draft, value)
        if isinstance(value, (Request, Job)):  # a job may go back to where it waited
            last_ns = value.queued_ns + value.size
            draft.queue_ahead_ns = max(draft.queue_ahead_ns, last_ns - now_ns)
    draft.service_ahead_ns = (draft.counters.get(SERVICE) or now_ns) - now_ns
    gpu_records.estimate(draft)
    for process in draft.request_of:
        draft.go_away(process)
    draft.timers.put("silence", now_ns + config.timeout_ms * MS)
    draft.settle()
    return draft


def _age(row: object) -> tuple[int, int]:
    """Requests enter their queues in the order in which they entered them before."""
    return (row.queued_ns, row.sequence) if isinstance(row, Request) else (0, 0)


def _known(rows: Iterable[tuple[str, str, object]]) -> Iterator[tuple[str, str, object]]:
    for kind, key, value in rows:
        if kind not in _PUT:
            raise ValueError(f"the store has a row of an unknown kind: {kind} {key}")
        yield kind, key, value


def _put_task(draft: Draft, _key: str, task: Task) -> None:
    draft.put_task(task)
    if task.state is TaskState.STALLED and draft.config.stalled == "kill":
        draft.schedule(("kill", task.task_id), draft.now_ns + draft.config.stalled_grace_ms * MS)


def _put_request(draft: Draft, _key: str, request: Request) -> None:
    draft.put_request(request)
    if request.wait_ms is not None:
        draft.schedule(("wait", request.request_id), draft.now_ns + request.wait_ms * MS)


def _put_job(draft: Draft, _key: str, job: Job) -> None:
    draft.put_job(job)
    if job.assigned:
        draft.unconfirmed.put(job.job_id, True)


def _put_record(draft: Draft, _key: str, record: Record) -> None:
    if record.ended_wall_ns is None:
        draft.records.put(record.task_id, record)


_PUT: dict[str, Callable[[Draft, str, Any], None]] = {
    "gpu": lambda draft, _key, gpu: draft.put_gpu(gpu),
    "env": lambda draft, _key, env: draft.put_env(env),
    "task": _put_task,
    "process": lambda draft, _key, process: draft.put_process(process),
    "grant": lambda draft, _key, grant: draft.put_grant(grant),
    "request": _put_request,
    "residue": lambda draft, _key, unreclaimed: draft.put_unreclaimed(unreclaimed),
    "record": _put_record,
    "failure": lambda draft, key, row: draft.failures.put(key, row),
    "gpu_record": lambda draft, key, row: draft.gpu_records.put(key, row),
    "queue": lambda draft, _key, row: draft.queues.put(row.name, row),
    "spec": lambda draft, _key, spec: draft.specs.put(spec.spec_id, spec),
    "job": _put_job,
    "assignment": lambda draft, key, row: draft.assignments.put(key, row),
    "elastic": lambda draft, _key, lease: draft.put_elastic(lease),
    "counter": lambda draft, key, count: draft.counters.put(key, count),
}
