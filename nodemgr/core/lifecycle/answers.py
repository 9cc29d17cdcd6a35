"""The answers to processes, and the names of GPUs in events.

Knows: connections and the shape of each answer. Must not know: the reason for an answer. A process
without a connection gets its answer when it comes back; no answer is kept for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.model import effects
from nodemgr.core.model.entities import ConnectionId, DenyCode, Process, ProcessKey, Task, Uuid
from nodemgr.core.state.draft import Draft


def grant(draft: Draft, process: Process, task: Task, rid: str) -> None:
    connection = draft.connections.get(process.key)
    if connection is None:
        return
    if process.cap_bytes is None:
        limits = tuple([draft.grants[task.env, uuid].limit_bytes for uuid in task.gpus])
    else:
        limits = (process.cap_bytes,) * len(task.gpus)
    rows = tuple([draft.gpus[uuid].index for uuid in task.gpus])
    draft.emit(
        effects.SendGrant(
            connection,
            rid,
            task.env,
            task.token,
            task.task_id,
            task.gpus,
            rows,
            limits,
            process.key,
            process.slot,
            process.generation,
        )
    )


def deny(
    draft: Draft, connection: ConnectionId | None, rid: str, code: DenyCode, reason: str
) -> None:
    if connection is not None:
        draft.emit(effects.SendDeny(connection, rid, code, reason))


def wait(draft: Draft, process: ProcessKey, rid: str, position: int, reason: str) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendWait(connection, rid, position, reason))


def fence(
    draft: Draft, process: ProcessKey, task_id: str, reason: str, rid: str | None = None
) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendFence(connection, task_id, reason, rid))


def note(draft: Draft, task: Task, text: str) -> None:
    for process in task.processes:
        connection = draft.connections.get(process)
        if connection is not None:
            draft.emit(effects.SendNote(connection, text))


def named_gpus(draft: Draft, uuids: Iterable[Uuid]) -> dict[str, object]:
    """GPUs as events carry them: UUIDs, and beside them the indices that people read."""
    uuids = tuple(uuids)
    return {"gpus": list(uuids), "gpu_indices": [draft.gpus[uuid].index for uuid in uuids]}
