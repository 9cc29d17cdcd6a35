"""The record of each allocation (docs/ARCHITECTURE.md, which GPUs).

It is written with the lease, and closed with the lease's end.

Knows: the content of a record. Must not know: how a lease begins or ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodemgr.core.model.entities import Record, Task, Uuid
from nodemgr.core.model.values import maker, replace
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft

_record = maker(Record)


def record_id(task_id: str) -> int:
    """`t17` is 17."""
    return int(task_id[1:])


def open_record(
    draft: Draft,
    task: Task,
    reused: tuple[Uuid, ...],
    given_bytes: Mapping[Uuid, int],
    used: int,
    asked_wall_ns: int,
) -> None:
    """Called after the grants of a new lease are booked (`given_bytes`).

    The env uses `used` GPUs now.
    """
    record = _record(
        record_id=record_id(task.task_id),
        env=task.env,
        task_id=task.task_id,
        command=task.command,
        gpus_new=task.fresh,
        gpus_reused=reused,
        grant_bytes=tuple([given_bytes[uuid] for uuid in (*task.fresh, *reused)]),
        remaining_gpus=max(0, draft.envs[task.env].quota.gpus - used),
        remaining_memory_bytes=accounting.env_remaining(draft, task.env),
        asked_wall_ns=asked_wall_ns,
        granted_wall_ns=task.since_wall_ns,
    )
    draft.records.put(task.task_id, record)


def close_record(draft: Draft, task: Task, why: str, wall_ns: int) -> None:
    record = draft.records.get(task.task_id)
    if record is not None:
        draft.records.put(task.task_id, replace(record, ended_wall_ns=wall_ns, why=why))
