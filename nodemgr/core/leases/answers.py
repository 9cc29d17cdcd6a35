"""Answers to processes: one without a connection gets its answer when it comes back.

Knows: the form of each answer. Must not know: why it is given.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.model import effects
from nodemgr.core.model.causes import Standing
from nodemgr.core.model.entities import ConnectionId, DenyCode, ProcessKey, Task, Uuid
from nodemgr.core.state.draft import Draft


def send_deny(
    draft: Draft, connection: ConnectionId | None, rid: str, code: DenyCode, reason: str
) -> None:
    if connection is not None:
        draft.emit(effects.SendDeny(connection, rid, code, reason))


def send_wait(draft: Draft, process: ProcessKey, rid: str, standing: Standing) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendWait(connection, rid, standing))


def send_fence(
    draft: Draft, process: ProcessKey, task_id: str, reason: str, rid: str | None = None
) -> None:
    connection = draft.connections.get(process)
    if connection is not None:
        draft.emit(effects.SendFence(connection, task_id, reason, rid))


def send_note(draft: Draft, task: Task, text: str) -> None:
    for process in task.processes:
        connection = draft.connections.get(process)
        if connection is not None:
            draft.emit(effects.SendNote(connection, text))


def named_gpus(draft: Draft, uuids: Iterable[Uuid]) -> dict[str, object]:
    """GPUs as events carry them: UUIDs, and beside them the indices that people read."""
    uuids = tuple(uuids)
    return {"gpus": list(uuids), "gpu_indices": [draft.gpus[uuid].index for uuid in uuids]}
