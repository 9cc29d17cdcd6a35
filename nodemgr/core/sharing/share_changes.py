"""Changes of the shares that tasks have: best effort shrinks for others, and grows back.

Knows: the order in which best-effort tasks give and get compute. Must not know: which request needs
it (scheduler/passes.py), and how a share is enforced.

The youngest best-effort task gives first, down to 0 %, which closes its gate. Free compute
goes to the oldest first, up to what it asked for, before a new best-effort request starts. A task
does not grow on a GPU that a waiting request of an earlier class keeps.
"""

from __future__ import annotations

from collections.abc import Container

from nodemgr.core.leases import begins
from nodemgr.core.model.entities import Uuid
from nodemgr.core.state import compute
from nodemgr.core.state.draft import Draft


def grow(draft: Draft, reserved: Container[Uuid]) -> bool:
    """Gives free compute back to best-effort tasks; returns whether any task got some.

    `reserved`: GPUs that requests of an earlier class wait for.
    """
    shrunk = [draft.tasks[task_id] for task_id in draft.shrunk]
    has_grown = False
    for task in sorted(shrunk, key=compute.age):
        if not compute.computes(task) or any(uuid in reserved for uuid in task.gpus):
            continue
        granted, asked = task.granted_percent or 0, task.run.compute_percent or 0
        free = min([compute.free_percent(draft, uuid, plain=False) for uuid in task.gpus])
        if free > 0:
            has_grown = True
            begins.set_share(draft, task, min(asked, granted + free))
    return has_grown
