"""The lease or waiting request that an order to release names, for all orders of this kind.

Knows: the refusal of a name that means nothing. Must not know: the transport of the order.
"""

from __future__ import annotations

from typing import Any

from nodemgr.core.lifecycle import administration
from nodemgr.core.model import events
from nodemgr.core.model.entities import Suspension
from nodemgr.core.state.node_state import State
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.messages.orders import ENV_HAS_NO_TASK, NO_TASK
from nodemgr.messages.suspension import RELEASE_OF_SUSPENDED

SHOWN_CHARS = 40


def to_release(state: State, name: str, env: str | None) -> str:
    """The present id of it. `env`: the environment of the order; None: an administrator's.

    Raises OperationError if there is none, it is another environment's, or it is suspended: its
    processes could not go on. A job that is suspended is withdrawn, which ends its processes.
    """
    found = administration.to_release(state, name, env)
    if found is not None:
        task = state.tasks.get(found)
        if task is not None and task.job_id is None and task.suspension is not Suspension.NONE:
            members = [state.processes[key].pid for key in task.processes]
            pids = " ".join(str(pid) for pid in members if pid is not None)
            raise OperationError(RELEASE_OF_SUSPENDED(task=found, pids=pids))
        return found
    shown = name[:SHOWN_CHARS]
    raise OperationError(
        NO_TASK(task=shown) if env is None else ENV_HAS_NO_TASK(env=env, task=shown)
    )


def release(daemon: Daemon, name: str, by: str, env: str | None) -> dict[str, Any]:
    """End the lease, or withdraw the request. Raises OperationError."""
    task_id = to_release(daemon.state, name, env)
    daemon.submit_or_refuse(events.ReleaseTask(task_id, by, daemon.clock.wall_ns(), env=env))
    return {"task": task_id}
